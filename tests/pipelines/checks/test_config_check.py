"""What `tpu-pipelines check` finds before anything is run."""

import dataclasses
import json

import pytest

from tests.support.cli import tpu_pipelines_here
from tests.support.signing_keys import write_keys
from tpu_components.core.base.errors import InputError
from tpu_components.export_model.exporting import Trial
from tpu_pipelines.checks.check_list import UNASKED, ConfigChecks, contradicted_by, contradictions, examine
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.platforms.findings import answer, errors_in
from tpu_pipelines.platforms.machines import place_training
from tpu_pipelines.platforms.platform import PLATFORMS
from tpu_pipelines.runs import prerequisites
from tpu_pipelines.starting.data_overview import DataOverview

_SMALL = ("--set", "model={name: digits_cnn, parameters: {filters: 4, units: 8}}")  # Compiles in half a second.

pytestmark = pytest.mark.usefixtures("quick_models")


def check_config(config, workspace):
    return examine(config, UNASKED, workspace=workspace)


def test_a_sound_configuration_says_what_it_is_and_the_next_command(tmp_path):
    done = tpu_pipelines_here("check", "digits", "--set", "machine=v5e-4", "--workspace", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(line.startswith("ok       data      1,797 images (train 1,") for line in lines)
    assert "ok       machine   v5e-4: 4 devices, $5.52 per hour in us-central1 at Vertex AI's price" in lines
    assert "ok       model     digits_cnn: was built for images (8, 8, 1), and rebuilt from its configuration" in lines
    assert lines[-1] == "next: tpu-pipelines run digits --set machine=v5e-4"
    assert not (tmp_path / "runs").exists()


def test_the_time_of_a_training_on_this_machine_is_estimated_for_a_run_here_alone(tmp_path, monkeypatch):
    """30 epochs of 1,259 images at 10 ms each: 378 s."""

    def check_model(config, interface, is_timed):
        return Trial((), 0.01 if is_timed else 0.0)

    monkeypatch.setattr("tpu_pipelines.checks.check_list.check_model", check_model)
    done = tpu_pipelines_here("check", "digits", "--workspace", str(tmp_path / "runs"))
    (line,) = [line for line in done.stdout.splitlines() if "training on this machine" in line]
    assert line.startswith("ok       training  training on this machine takes about 6.2")
    assert line.endswith("plus start-up and validation: 30 epochs of 1,259 examples")
    told = tpu_pipelines_here("check", "digits", "--set", "machine=v5e-4", "--target", "vertex").stdout
    assert "training on this machine" not in told


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("", "$13.66 per hour in europe-west4 at Vertex AI's price"),
        ("vertex", "$13.66 per hour in europe-west4 at Vertex AI's price"),
        ("kubeflow", "$10.80 per hour in us-central1 at Compute Engine's list price"),
    ],
)
def test_a_price_is_that_of_the_platform_and_of_the_region_that_submit_trains_in(target, expected, tmp_path):
    config = load_config("digits", ["machine=v6e-4", "preflight=null"])
    settings = Settings(region="europe-west4")
    checks = ConfigChecks(config, None if target else tmp_path, PLATFORMS.get(target), settings.region).checks()
    (finding,) = answer(next(check for check in checks if check.about == "machine"))
    assert finding.said == f"v6e-4: 4 devices, {expected}"
    submitted = PLATFORMS[target or "vertex"].in_region(config.machine, settings.region)
    price = place_training(config, submitted, PLATFORMS[target or "vertex"]).paid.price
    assert f"${price.usd_per_hour:.2f} per hour in {price.region}" in finding.said


def test_the_commands_check_and_preflight_take_the_region_from_the_settings(warm, tmp_path):
    """A spot v5e-4 costs 1.37 $ an hour at Vertex AI's price in the cheapest region, and 2.42 $ in us-west4."""
    machine = ("--set", "machine={name: v5e-4, spot: true}", "--workspace", str(tmp_path / "runs"))
    (tmp_path / "settings.yaml").write_text("region: us-west4")
    settings = ("--settings", str(tmp_path / "settings.yaml"))
    told = tpu_pipelines_here("check", "digits", *machine, *settings).stdout
    assert "v5e-4: 4 devices, $2.42 per hour in us-west4 at Vertex AI's price" in told
    with warm.takes_over():
        done = tpu_pipelines_here("preflight", "digits", *machine, *settings, "--json", *_SMALL)
    (report,) = json.loads(done.stdout)["machines"]
    assert (report["region"], report["cost"]["region"], report["cost"]["usd_per_hour"]) == (
        "us-west4",
        "us-west4",
        pytest.approx(2.42, abs=0.005),
    )


def test_a_machine_of_several_hosts_is_for_a_platform(tmp_path):
    findings = check_config(load_config("digits", ["machine=v5e-16", "preflight=null"]), tmp_path)
    assert errors_in(findings) == []
    hints = [(one.about, one.said) for one in findings if one.state == "hint"]
    assert hints == [("machine", "v5e-16 has 4 hosts. Use `submit`, because `run` trains on one host")]


def test_json_is_all_that_is_on_stdout(tmp_path):
    done = tpu_pipelines_here("check", "digits", "--json", "--workspace", str(tmp_path))
    assert {one["state"] for one in json.loads(done.stdout)} == {"ok"}


def test_several_mistakes_are_found_at_once(image_folder, tmp_path):
    root = image_folder(per_class=10)
    (root / "cat" / "0003.png").write_bytes(b"cut")
    source = f"data.source=images:{root}"
    done = tpu_pipelines_here(
        "check",
        "cifar10_cnn",
        *("--set", source, "--set", "training.random_crop_pixels=9", "--set", "training.batch_size_per_replica=4"),
        *("--set", "training.warmup_epochs=99", "--set", "gate.minimum={accuracy: 0.4}", "--workspace", str(tmp_path)),
    )
    assert done.returncode == 2
    assert "error    data      5.0% of the examples that were read are damaged" in done.stdout
    assert "error    model     random_crop_pixels must be smaller than the image" in done.stdout
    assert "hint     settings  training.warmup_epochs=99 lasts all" in done.stdout
    assert "hint     settings  gate.minimum.accuracy=0.4 is reached by always predicting" in done.stdout
    assert "next:" not in done.stdout


def test_a_table_is_read_whole_for_rows_that_would_stop_a_run(tmp_path):
    rows = [f"a text of number {i},{('neg', 'pos')[i % 2]}" for i in range(2000)]
    rows[700], rows[1200] = "!,neg", "a text,"
    (tmp_path / "t.csv").write_text("\n".join(["text,label", *rows]))
    source = [f"data.source=csv:{tmp_path}/t.csv", "data.num_tokens=8"]
    (error,) = (one.said for one in check_config(load_config("imdb_lstm", source), tmp_path) if one.state == "error")
    assert "1 of 2000 inputs cannot be used: 'line/00001202' ('label' is empty). Expected at most 0.00%." in error
    source.append("data.max_bad_fraction=0.0005")
    findings = check_config(load_config("imdb_lstm", source), tmp_path)
    said = [finding.said for finding in findings if finding.about == "data"]
    assert "2 of 2,000 inputs cannot be used: line/00001202: 'label' is empty; line/00000702: no word in it" in said
    (error,) = (finding.said for finding in findings if finding.state == "error")
    assert error.startswith("2 of 2,000 examples cannot be used: expected at most data.max_bad_fraction=0.0005")
    assert errors_in(check_config(load_config("imdb_lstm", [*source, "data.max_bad_fraction=0.001"]), tmp_path)) == []


def test_unknown_words_of_the_held_out_texts_are_a_hint(tmp_path):
    rows = [f"电影{i}很好看，演员{i}{'精彩' if i % 2 else '糟糕'}。,{('neg', 'pos')[i % 2]}" for i in range(200)]
    (tmp_path / "t.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    source = [f"data.source=csv:{tmp_path}/t.csv", "data.num_tokens=16"]

    def hints(*more):
        findings = check_config(load_config("imdb_lstm", [*source, *more]), tmp_path)
        return [one.said for one in findings if "words in" in one.said and one.state == "hint"]

    assert hints() == []
    validation, test = hints("data.tokenization=words")
    assert validation.startswith(
        "100% of the words in validation are unknown, because the rule data.tokenization=words"
    )
    assert test.endswith(
        "Set data.tokenization=words_and_characters, which supports languages without spaces, and non-ASCII spaces"
    )


def test_keys_that_are_no_pair_are_a_mistake_of_deploy_alone(tmp_path):
    (private, public), (_, other) = (write_keys(tmp_path / name) for name in ("one", "other"))
    for key, mistakes in ((public, []), (other, ["deploy"])):
        config = load_config("digits", [f"deploy.signing_key={private}", f"deploy.verify_key={key}"])
        findings = check_config(config, tmp_path)
        assert [finding.about for finding in findings if finding.state == "error"] == mistakes
    (said,) = (finding.said for finding in findings if finding.state == "error")
    assert said.startswith(f"signing_key and verify_key do not match: {other} does not verify signatures of {private}.")


def test_an_initial_model_that_is_not_there_yet_is_a_hint(tmp_path):
    (hint,) = (
        found.said
        for found in check_config(load_config("digits", ["training.initial_model=shoes@champion"]), tmp_path)
        if "initial_model" in found.said
    )
    assert hint.endswith("registry/shoes@champion has no version yet, so training starts with new weights")


def test_photos_of_several_sizes_are_refused_with_what_to_set(image_folder, encode, tmp_path):
    root = image_folder(per_class=10)
    (root / "cat" / "0003.png").write_bytes(encode(1, (9, 12)))
    findings = check_config(
        load_config("cifar10_cnn", [f"data.source=images:{root}", "training.batch_size_per_replica=4"]), tmp_path
    )
    assert errors_in(findings)
    assert "data.image_size" in next(one.said for one in findings if one.state == "error")


def test_data_that_are_not_there_are_an_error_and_downloads_a_hint(tmp_path):
    missing = check_config(load_config("cifar10_cnn", ["data.source=images:/none"]), tmp_path)
    assert [one.about for one in missing if one.state == "error"] == ["data"]
    (hint,) = (one for one in check_config(load_config("mnist_cnn"), tmp_path) if one.state == "hint")
    assert "must be downloaded first" in hint.said


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["training.warmup_epochs=30"], "never reaches its peak"),
        (
            ["training.stages=[{epochs: 29}, {epochs: 1}]", "training.epochs=30", "training.warmup_epochs=1"],
            "lasts all of a stage, epochs=1, so",
        ),
        (["training.accelerator=cpu", "machine=v5e-1"], "leaves the machine"),
        (["training.early_stopping_epochs=3"], "no validation split"),
        (["gate.minimum.accuracy=0.9"], "always predicting 'a'"),
        (
            [],
            "19 examples of 'a' and 1 of 'b'. training.balance_classes=true gives all classes the same weight",
        ),
    ],
)
def test_settings_that_contradict_are_named(overrides, words):
    config = load_config("digits", overrides)
    overview = DataOverview(config.data, "image", {"train": 9, "test": 9}, {"a": 19, "b": 1}, False, (), 0)
    trained = dataclasses.replace(overview, class_splits={"train": {"a": 9, "b": 9}, "test": {"a": 90, "b": 1}})
    assert (overview.is_imbalanced, trained.is_imbalanced) == (True, False)
    assert [said for said in (*contradictions(config), *contradicted_by(overview, config)) if words in said]
    weighed = load_config("digits", ["training.class_weights={a: 0.1}"])
    assert not [said for said in contradicted_by(overview, weighed) if "training has" in said]
    plain = load_config("digits")
    assert list(contradictions(plain)) == []


# As `prerequisites` does in a process that imports JAX for it.
_PREPARE = """
import sys
from tpu_components.core.base.errors import InputError
from tpu_components.core.machines import device

try:
    device.prepare(*sys.argv[1:3], int(sys.argv[3]))
except InputError as error:
    print(error, end="")
"""


@pytest.mark.parametrize(("command", "accelerator"), [("check", "tpu"), ("run", "gpu")])
def test_an_accelerator_that_this_machine_lacks_is_an_error_before_anything_runs(
    command, accelerator, warm, tmp_path, monkeypatch
):
    """No device is visible to the tests, whatever the machine has; the run had failed at its third step."""

    def prepare_in_a_copy(_, *arguments):
        if said := warm.run(_PREPARE, *arguments):
            raise InputError(said)

    monkeypatch.setattr(prerequisites, "in_fresh_process", prepare_in_a_copy)
    missing = ("--set", f"training.accelerator={accelerator}", "--workspace", str(tmp_path / "runs"))
    done = tpu_pipelines_here(command, "digits", *missing)
    assert done.returncode == 2
    said = done.stdout + done.stderr
    assert f"This machine cannot train with training.accelerator={accelerator}. " in said
    assert "Use training.accelerator=auto on this machine" in said
    assert not (tmp_path / "runs" / "digits" / "records").exists()
    assert tpu_pipelines_here("check", "digits", *missing, "--set", "training.accelerator=auto").returncode == 0


def test_the_accelerator_of_a_platforms_machine_is_not_looked_for_here(tmp_path):
    config = load_config("digits", ["machine=l4-1", "training.accelerator=gpu", "preflight=null"])
    for platform, is_here in ((None, True), (PLATFORMS["kubeflow"], False)):
        checks = ConfigChecks(config, None if platform else tmp_path, platform, "").checks()
        assert sum(bool(check.when) for check in checks if check.about == "machine") == 1 + is_here
