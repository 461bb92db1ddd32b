"""Claims about predictions that were logged beside those that a version's evaluation saw."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import Manifest, ModelInfo
from tpu_components.core.examples.records import spread_inputs
from tpu_components.serving.exported import ExportedModel, load_model
from tpu_components.serving.prediction_log import PredictionLog
from tpu_pipelines.cli.main import main
from tpu_pipelines.retraining.monitoring import watch


@pytest.fixture(scope="module")
def version(finished_run):
    return f"{finished_run[0]}/registry/digits@champion"


@pytest.fixture(scope="module")
def outputs(finished_run):
    with np.load(finished_run[0] / "digits" / "evaluation" / "predictions.npz") as predictions:
        return predictions["probabilities"]


@pytest.fixture
def write(finished_run, tmp_path):
    """Logs answers as the server does; returns the file."""
    info = ModelInfo.load(finished_run[0] / "digits" / "model")
    model = ExportedModel("digits_cnn", info.class_names, info.input, None, info.input)

    def write(outputs, version="0001", ms=2.0, name="digits", of_one=False, form="float", share=1.0):
        log = PredictionLog(str(tmp_path / "log.jsonl"), share, registered=(name, version))
        for some in np.split(outputs, len(outputs)) if of_one else [outputs]:
            log.add(dataclasses.replace(model, format=form), some, ms / 1e3)
        log.close()
        return tmp_path / "log.jsonl"

    return write


def drifted(watched):
    return {shift.figure for shift in watched.shifts if shift.drifted}


def test_answers_like_those_of_the_evaluation_do_not_drift(version, outputs, write):
    watched = watch(write(outputs[::2]), version, latency_ms=10)
    assert (watched.version, watched.num_predictions, watched.ms) == ("digits 0001", len(outputs[::2]), (2.0, 2.0))
    assert [shift.figure for shift in watched.shifts if shift.drifted] == []
    assert {shift.figure for shift in watched.shifts} == {"confidence", "classes", "latency"}


def test_less_confidence_does(version, outputs, write):
    unsure = 0.5 * outputs + 0.5 / outputs.shape[1]
    assert drifted(watch(write(unsure), version)) == {"confidence"}


def test_other_classes_and_slow_answers_do(version, outputs, write):
    order = np.argsort(outputs.argmax(axis=1), kind="stable")
    assert "classes" in drifted(watch(write(outputs[order[:200]], ms=20.0), version))
    assert "latency" in drifted(watch(write(outputs, ms=20.0, of_one=True), version, latency_ms=10))


def test_few_slow_answers_are_chance(version, outputs, write):
    write(outputs[:96], of_one=True)
    watched = watch(write(outputs[96:102], ms=50.0, of_one=True), version, latency_ms=10)
    (latency,) = (shift for shift in watched.shifts if shift.figure == "latency")
    assert latency.effect == pytest.approx(6 / 102)
    assert not latency.drifted


def test_a_slow_request_counts_once_however_many_instances_it_has(version, outputs, write):
    write(outputs[:96], of_one=True)
    watched = watch(write(outputs[96:300], ms=50.0), version, latency_ms=10)
    (latency,) = (shift for shift in watched.shifts if shift.figure == "latency")
    assert (watched.num_predictions, watched.num_requests) == (300, 97)
    assert latency.effect == pytest.approx(1 / 97)
    assert watched.ms == (2.0, 2.0)


def test_requests_of_many_instances_raise_no_more_false_alarms(version, tmp_path):
    """One in twenty requests is slow, as may be; one in ten predictions is logged."""
    generator, path, tries, alarms = np.random.default_rng(0), tmp_path / "log.jsonl", 25, 0
    line = {"model": "digits", "version": "0001", "class": "0", "confidence": 1.0}
    for _ in range(tries):
        lines = []
        for ms in np.where(generator.random(150) < 0.05, 60.0, 40.0):
            for place in np.flatnonzero(generator.random(64) < 0.1).tolist():
                lines.append(json.dumps({**line, "ms": ms, "instance": place, "share": 0.1}))
        path.write_text("\n".join(lines))
        alarms += "latency" in drifted(watch(path, version, latency_ms=50))
    assert alarms <= 1, "17 to 24% where every instance counts"


def test_the_answers_of_int8_are_compared_with_those_that_int8_gave_to_the_test_split(
    finished_run, version, write, capsys
):
    run, registry = finished_run[0] / "digits", finished_run[0] / "registry"
    manifest = Manifest.load(run / "records")
    _, inputs = spread_inputs(run / "records", manifest, "test", manifest.split("test").num_examples)
    model = load_model(registry / "digits" / "versions" / "0001" / "export", use_int8=True)
    outputs = model.predict(inputs)
    path = write(outputs, form=model.format)
    watched = watch(path, version)
    assert (watched.format, watched.num_predictions) == ("int8", len(inputs))
    assert not watched.drifted
    assert max(shift.effect for shift in watched.shifts) < 0.02
    assert drifted(watch(write(outputs, form="float"), version)) == set(), "as many answer by either: int8 is first"
    assert watch(path, version).left_out == {"by format float": len(inputs)}
    assert main(["monitor", str(path), "--against", version]) == 0
    assert f"left out: {len(inputs)} by format float" in capsys.readouterr().out
    write(outputs, form="float")
    assert drifted(watch(path, version)) == {"confidence"}, "int8 gives no confidence above 255/256"


def test_an_older_version_keeps_the_answers_of_the_float_formats_alone(finished_run, outputs, write, tmp_path):
    shutil.copytree(finished_run[0] / "registry", tmp_path / "registry")
    folder = tmp_path / "registry" / "digits" / "versions" / "0001"
    kept = json.loads((folder / "export" / "answers.json").read_text())
    for path in (folder, folder / "export", folder / "version.json"):
        path.chmod(0o755)
    (folder / "export" / "answers.json").unlink()
    described = json.loads((folder / "version.json").read_text())
    described["lineage"]["answers"] = kept["float"]
    (folder / "version.json").write_text(json.dumps(described))
    version = f"{tmp_path}/registry/digits@0001"
    assert not watch(write(outputs), version).drifted
    with pytest.raises(InputError, match="expected a version with a sketch of its int8 answers"):
        watch(write(np.tile(outputs, (2, 1)), form="int8"), version)


def test_the_share_that_is_logged_and_its_option_are_said(version, outputs, write, capsys):
    path = write(np.tile(outputs, (3, 1)), share=0.1)
    watched = watch(path, version)
    assert 60 < watched.num_predictions < 160
    assert watched.share == 0.1
    assert main(["monitor", str(path), "--against", version]) == 0
    said = capsys.readouterr().out
    assert "0.1 of all predictions are logged, as --log-share of `tpu-pipelines serve` says; --log-share 1" in said
    path.unlink()
    assert main(["monitor", str(write(outputs)), "--against", version]) == 0
    assert "log-share" not in capsys.readouterr().out


def test_lines_of_others_and_damaged_ones_are_left_out_and_said(version, outputs, write, capsys):
    path = write(outputs, of_one=True)
    write(outputs[:7], version="0002")
    with open(path, "a") as file:
        file.write('{"time": "20\n' + "[" * 100_000 + '\n{"class": "\\ud800"}\n')
    assert main(["monitor", str(path), "--against", version, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["left_out"] == {"of version 0002": 7, "no prediction of a class": 3}
    assert main(["monitor", str(path), "--against", version, "--latency-ms", "0.1"]) == 3
    out = capsys.readouterr().out
    assert (
        f"predictions of digits 0001: {len(outputs)}, half in 2 ms, 95% in 2 ms; left out: 7 of version 0002, 3 no"
        in out
    )
    assert "0.1 ms allowed" in out


def test_lines_of_another_model_are_left_out_and_those_without_a_version_counted_and_said(
    version, outputs, write, capsys
):
    write(outputs, version="", name="")  # Of an export outside a registry: the name is the export's own.
    write(outputs[:5], name="flowers")
    path = write(outputs[:3], version="", name="flowers_cnn")
    watched = watch(path, version)
    assert (watched.num_predictions, watched.num_without_version) == (len(outputs), len(outputs))
    assert watched.left_out == {"of model flowers": 5, "of model flowers_cnn": 3}
    assert main(["monitor", str(path), "--against", version]) == 0
    assert f"digits 0001: {len(outputs)} ({len(outputs)} without a version), half" in capsys.readouterr().out


def test_a_line_that_cannot_be_a_prediction_is_none(version, outputs, write):
    path = write(outputs[:50])
    good = json.loads(path.read_text().splitlines()[0])
    wrong = ({"ms": -1.0}, {"ms": "2"}, {"confidence": 1.5}, {"model": 7}, {"version": None}, {"class": "cat"})
    with open(path, "a") as file:
        file.writelines(json.dumps(good | change) + "\n" for change in wrong)
        file.write("[]\n")
    watched = watch(path, version)
    assert watched.num_predictions == 50
    assert watched.left_out == {"no prediction of a class": 6, "of a class that it does not know": 1}


def test_so_few_predictions_that_they_show_nothing_are_said_to(version, outputs, write, capsys):
    path = write(outputs[:2])
    assert main(["monitor", str(path), "--against", version]) == 0
    out = capsys.readouterr().out
    assert "2 predictions, compared with 359, are too few to detect even a large shift of a distribution." in out
    assert "none of 2 figures has drifted" in out
    power = watch(write(outputs[2:40]), version).power
    assert power.endswith(
        "40 predictions, compared with 359, are enough to detect a shift of a distribution by 0.359 or more in at "
        "least 80% of cases."
    )


def test_a_log_without_predictions_of_the_version_is_refused(version, outputs, write, tmp_path):
    with pytest.raises(InputError, match="expected lines of its predictions of a class, received 7 of version 0002"):
        watch(write(outputs[:7], version="0002"), version)
    with pytest.raises(InputError, match=r"Cannot read .*nowhere\.jsonl: No such file"):
        watch(tmp_path / "nowhere.jsonl", version)
    with pytest.raises(InputError, match="expected a registered version"):
        watch(tmp_path / "log.jsonl", "runs/digits")


def test_false_alarms_are_rare(version, outputs, write):
    """Of pairs that are drawn from the same answers; the version's own are one half of them."""
    from tpu_components.core.drift.shifts import find_shifts
    from tpu_components.core.drift.sketches import sketch_answers

    generator, alarms = np.random.default_rng(0), 0
    names, predicted, confidences = [f"{i}" for i in range(outputs.shape[1])], outputs.argmax(1), outputs.max(1)
    for _ in range(500):
        order = generator.permutation(len(outputs))
        new, old = (
            sketch_answers("", names, predicted[part], confidences[part]) for part in (order[:200], order[200:])
        )
        alarms += any(shift.drifted for shift in find_shifts(new, old))
    assert alarms <= 5
