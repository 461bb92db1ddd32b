"""`tpu-pipelines preflight MODULE:FUNCTION`."""

import json
import sys

import pytest

from tests.components.preflight_training.jax_steps.reports import make_report
from tpu_pipelines.api import steps
from tpu_pipelines.cli.main import main

_REFUSED = {"verdict": "does_not_fit", "reason": "Ran out of memory"}


@pytest.fixture
def preflight(monkeypatch, tmp_path, capsys):
    """Run the command on a module with a step that fits v5e-8 and not v5e-1; returns exit code, stdout and stderr."""
    module = "print('imported')\n\n\ndef step(images, labels):\n    return images\n"
    (tmp_path / "steps_of_a_command.py").write_text(module)
    monkeypatch.delitem(sys.modules, "steps_of_a_command", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        steps,
        "examine",
        lambda case, box, runs: make_report(
            None if case.machine == "v5e-1" else 10.0,
            name=case.label,
            machine=case.machine,
            **(_REFUSED if case.machine == "v5e-1" else {}),
        ),
    )

    def run(*words, step="steps_of_a_command:step"):
        code = main(["preflight", step, *words])
        return code, *capsys.readouterr()

    return run


_INPUTS = ("--inputs", "float32[8,4], int32[8]")


def test_a_step_that_fits_gives_its_report_and_exit_code_0(preflight, tmp_path):
    code, out, _ = preflight(*_INPUTS, "--machine", "v5e-8", "--items", "64", "--markdown", "summary.md")
    assert code == 0
    assert out.startswith("step fits v5e-8")
    assert "for 1,000,000 items" in out
    assert "step fits v5e-8" in (tmp_path / "summary.md").read_text()


def test_a_step_that_does_not_fit_gives_exit_code_3(preflight):
    code, out, _ = preflight(*_INPUTS, "--machine", "v5e-1")
    assert (code, "Ran out of memory" in out) == (3, True)


def test_one_of_several_machines_is_enough(preflight):
    code, out, _ = preflight(*_INPUTS, "--compare", "v5e-1,v5e-8", "--target", "vertex,kubeflow")
    assert code == 0
    assert out.startswith("2 of 4 fit.")


def test_json_is_the_report_or_the_rows(preflight):
    """Without what the module prints."""
    one = json.loads(preflight(*_INPUTS, "--machine", "v5e-8", "--json")[1])
    several = json.loads(preflight(*_INPUTS, "--compare", "v5e-1,v5e-8", "--json")[1])
    assert (one["machine"], one["verdict"]) == ("v5e-8", "fits")
    assert [row["verdict"] for row in several["steps"]] == ["fits", "does_not_fit"]


@pytest.mark.parametrize(
    ("words", "step", "message"),
    [
        ((), "steps_of_a_command:step", "The machine of the step is missing. Add --machine v5e-8"),
        (
            ("--machine", "v5e-8", "--quick"),
            "steps_of_a_command:step",
            "Cannot use --quick with steps_of_a_command:step",
        ),
        (("--machine", "v5e-8", "--set", "a=1"), "steps_of_a_command:step", "Cannot use --set with"),
        (("--inputs", "f32[8]"), "digits", "Cannot use --inputs with digits: only preflight of a step"),
        (("--machine", "v5e-8"), "steps_of_a_command:stap", "has no 'stap'. Did you mean 'step'"),
        (("--machine", "v5e-8", "--items", "0"), "steps_of_a_command:step", "a positive number of items"),
    ],
)
def test_a_mistake_gives_exit_code_2_and_one_paragraph(preflight, words, step, message):
    code, out, err = preflight(*words, step=step)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.replace("imported\n", "").strip().splitlines()) == 1
