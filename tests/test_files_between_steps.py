"""Claims about every file that crosses a step: it comes back as it was saved, from any age, and damage is said."""

import dataclasses
import json

import google_crc32c
import pytest

from tests.components.preflight_training.receipts.runs import predict, receive
from tests.evidence.fuzz.mutations import VALUES, changed, places
from tpu_components.core.base.errors import InputError
from tpu_components.core.component.step_record import StepRecord
from tpu_components.core.examples.artifacts import (
    Manifest,
    ModelInfo,
    Quarantined,
    Shard,
    Split,
    TargetStatistics,
    load_history,
)
from tpu_components.core.examples.interface import CorpusInput, ImageInput, Interface, TextInput
from tpu_components.core.results.evaluation_info import (
    Baseline,
    Decision,
    EvaluatedModel,
    Evaluation,
    RegisteredChampion,
    Rule,
    Unseen,
)
from tpu_components.core.results.export_info import ComparedOn, ExportInfo, FormatFacts, Output
from tpu_components.deploy_model.params import DeployResult, HealthCheckResult
from tpu_components.preflight_training.data import DataFacts, HostRate
from tpu_components.preflight_training.estimate import Accuracy, EpochTime, LayerTime, StepTime
from tpu_components.preflight_training.findings import Cost, MachineReport, PreflightReport
from tpu_components.preflight_training.largest_batch import LargestBatch
from tpu_pipelines.runs import comparison, history, summary
from tpu_pipelines.runs.summary import StepSummary, Summary

CONTENT = b"records"
SHARD = Shard("train-00000-of-00001.tfrecord", 3, len(CONTENT), f"{google_crc32c.value(CONTENT):08x}")
IMAGES = ImageInput((8, 8, 1), "raw")
MANIFEST = Manifest(
    fingerprint="f" * 64,
    source="images:data",
    split_rule="all examples are used for training",
    input=IMAGES,
    task="regression",
    features={"image": "bytes"},
    class_names=("cat", "dög"),
    splits={"train": Split(3, (), (SHARD,), {"num_also_in_train": 1}, (TargetStatistics(0.5, 0.1, 0.0, 1.0),) * 2)},
    quarantined=(Quarantined("cat/x.png", "not an image"),),
)
MODEL = ModelInfo("cnn", {"width": 8}, ("cat", "dög"), IMAGES, "classification", "f" * 64, {"epochs": 2})
FLOAT = FormatFacts(
    file="model.tflite",
    bytes=100,
    score=0.5,
    drop_interval=(0.0, 0.1),
    agreement=1.0,
    max_difference=1e-7,
    latency_ms=0.1,
    examples_per_second=9.5,
)
EXPORT = ExportInfo(
    model="cnn",
    model_digest="d" * 64,
    class_names=("cat", "dög"),
    task="classification",
    input=IMAGES,
    range=(0, 255),
    signatures={"serving_default": "pixels"},
    output=Output("probabilities"),
    quantization=None,
    dataset_fingerprint="f" * 64,
    compared_on=ComparedOn("test", 3),
    judged="accuracy",
    trained_score=0.5,
    formats={"float": FLOAT},
    left_out={"int8": "it was too far"},
)
FIGURES = {
    "num_examples": 3,
    "accuracy": 0.5,
    "roc_auc": None,
    "loss": 2.5,
    "num_absent_classes": 0,
    "confusion_matrix": [[1, 0], [1, 1]],
    "confusions": {"true": [0, 1], "predicted": [0, 0], "count": [1, 1]},
    "roc": [{"threshold": 0.5, "false_positive_rate": 0.0, "true_positive_rate": 1.0}],
    "per_class": [{"name": "cat", "f1": 0.5}],
}
EVALUATION = Evaluation(
    split="test",
    dataset_fingerprint="f" * 64,
    model=EvaluatedModel("cnn", {"width": 8}, "best", "d" * 64),
    class_names=("cat", "dög"),
    gate=Decision(True, (Rule(True, "accuracy", "it is good"),)),
    challenger=FIGURES,
    champion=FIGURES,
    baseline=Baseline("accuracy", "always predicting 'cat'", 0.3, 0.2, 0.1),
    registered_champion=RegisteredChampion("0001", "e" * 64),
    unseen=Unseen(2, 1, (1, 0), ("cat/x.png",), ({"accuracy": 0.5},)),
)
DEPLOYMENT = DeployResult("runs/registry", "cnn", "0002", "runs/0002", "champion", "0001", HealthCheckResult(3, 1e-7))
MACHINE = MachineReport(
    machine="v5e-1",
    region="us-west1",
    spot=True,
    machine_type="ct5lp-hightpu-1t",
    chips=1,
    devices=1,
    hosts=1,
    verdict="fits",
    reason="",
    layer="",
    source="",
    compile_seconds=2.5,
    cached=False,
    batch_size_per_replica=32,
    global_batch=32,
    parameters=9,
    peak_bytes=5,
    capacity_bytes=16,
    largest_batch=LargestBatch(64, True),
    step=StepTime(0.5, None, 0.0, 0.25, 2.0, 0.4, 0.6),
    epoch=EpochTime(4, 0.5, 0.75, 100.0, 0.25, 0.7, 0.8),
    epochs=3,
    accuracy=Accuracy(1.1, 0.9, 1.3, 5, 3),
    cost=Cost(1.2, 0.1, 0.3, 0.2, 0.4, "us-west1", "on demand", "https://example.com", "2026-01-01"),
    layers=(LayerTime("dense", 0.25, 0.5, None, 0.0, ("rows",)),),
    host_calls=("print",),
    unknown_loops=0,
    broken=(),
    advice=("take it",),
)
DATA = DataFacts(Interface(IMAGES, 2), 30, 640, HostRate(10.0, 20.0, True, 2))
PREFLIGHT = PreflightReport("cnn", {}, "jax", "mixed_bfloat16", {"jax": "1"}, DATA, (MACHINE,), ())
RECEIPT = receive(prediction=predict())
RECORD = StepRecord("train_model", "failed", 2.5, "no", True)
SUMMARY = Summary(
    status="succeeded",
    config={"name": "digits", "training": {"epochs": 1}},
    fingerprints={"data": "a"},
    seconds=2.5,
    ended="2026-01-01T00:00:00+00:00",
    host="2 × abacus",
    steps={"train_model": StepSummary(2.5, "succeeded", False)},
    metrics={"accuracy": 0.5, "loss": 2.5, "num_examples": 3},
    gate=EVALUATION.gate,
    preflight=dataclasses.replace(MACHINE, layers=()),
    receipt=RECEIPT,
    export=EXPORT,
    deployment=DEPLOYMENT,
    artifacts={"model": "runs/digits/model"},
)
FILES = {
    "dataset.json": MANIFEST,
    "model.json": MODEL,
    "preflight.json": PREFLIGHT,
    "evaluation.json": EVALUATION,
    "export.json": EXPORT,
    "deployment.json": DEPLOYMENT,
    "receipt.json": RECEIPT,
    "step.json": RECORD,
    "summary.json": SUMMARY,
}


@pytest.fixture
def folder(tmp_path):
    """A folder with every file in it."""
    (tmp_path / SHARD.name).write_bytes(CONTENT)
    for artifact in FILES.values():
        artifact.save(tmp_path)
    return tmp_path


def read(folder, file):
    return json.loads((folder / file).read_text())


def write(folder, file, raw):
    (folder / file).write_text(json.dumps(raw))


@pytest.mark.parametrize("file", FILES)
def test_a_file_comes_back_as_it_was_saved(folder, file):
    before = (folder / file).read_bytes()
    again = type(FILES[file]).load(folder)
    again.save(folder)
    assert (folder / file).read_bytes() == before
    if file != "evaluation.json":  # Whose figures are lists in JSON.
        assert again == FILES[file]


@pytest.mark.parametrize("input", [TextInput(4, 9, "a" * 64, "words", "start"), CorpusInput(4, 9)])
def test_the_export_of_any_input_comes_back_as_it_was_saved(tmp_path, input):
    export = dataclasses.replace(EXPORT, input=input, range=None, output=Output("values", (1.5,), (0.5,)))
    export.save(tmp_path)
    assert ExportInfo.load(tmp_path) == export


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("content", [b"", b"[1,", b"\xff", b"[" * 100_000, b"null", b"[]", b"{}"])
def test_a_file_of_something_else_is_refused_by_name(folder, file, content):
    (folder / file).write_bytes(content)
    with pytest.raises(InputError, match=rf"{file}: it is not .*Run \w+"):
        type(FILES[file]).load(folder)


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_refused_by_name(tmp_path, file):
    with pytest.raises(InputError, match=f"Cannot read '{tmp_path}/{file}': there is no such file"):
        type(FILES[file]).load(tmp_path)


def use(folder, artifact):
    """What is done with a file once it is read."""
    if isinstance(artifact, Summary):
        summary.as_text(artifact)
        history.as_table(history.as_rows(folder.parent, folder.name))
        comparison.as_text(comparison.compare([folder]))
    elif isinstance(artifact, PreflightReport):
        [machine.summary for machine in artifact.machines]
    elif isinstance(artifact, Evaluation):
        artifact.metrics.keys()


@pytest.mark.heavy  # Thousands of files; `make test` reads what mutation has found (tests/evidence/fuzz).
@pytest.mark.parametrize("file", FILES)
def test_a_value_of_another_type_or_range_anywhere_is_read_or_refused_and_never_a_crash(folder, file):
    whole, refused, num_read = read(folder, file), [], 0
    for path in places(whole):
        for value in VALUES:
            write(folder, file, changed(whole, path, value))
            try:
                use(folder, type(FILES[file]).load(folder))
                num_read += 1
            except InputError as error:
                refused.append(str(error))
    assert len(refused) > 30
    assert num_read > 3
    assert all(file in message or "Shard" in message for message in refused)


SINCE_THE_FIRST = {
    "preflight.json": ("machines", 0, ("region", "spot", "has_namesakes", "timeout_seconds", "host_cpus", "accuracy")),
    "evaluation.json": ("baseline", "unseen"),
    "export.json": ("task", "output", "quantization", "left_out"),
    "deployment.json": ("endpoint",),
    "summary.json": ("fingerprints", "ended", "host", "deployment"),
}


@pytest.mark.parametrize("file", SINCE_THE_FIRST)
def test_an_older_file_that_lacks_newer_fields_is_still_read(folder, file):
    raw, names = read(folder, file), SINCE_THE_FIRST[file]
    target = raw["machines"][0] if file == "preflight.json" else raw
    for name in names[-1] if file == "preflight.json" else names:
        del target[name]
    if file == "preflight.json":
        for part, name in (("step", "low_ms"), ("epoch", "high_seconds"), ("cost", "low_usd_per_run")):
            del target[part][name]
    write(folder, file, raw)
    type(FILES[file]).load(folder)


@pytest.mark.parametrize("file", ["evaluation.json", "summary.json"])
def test_the_gates_rules_of_an_older_file_are_read_from_their_text(folder, file):
    gate = {"promote": False, "reasons": ["passed: accuracy is high: 0.9", "failed: 3 predictions\nare no numbers"]}
    write(folder, file, read(folder, file) | {"gate": gate})
    rules = Rule(True, "", "accuracy is high: 0.9"), Rule(False, "", "3 predictions\nare no numbers")
    assert type(FILES[file]).load(folder).gate == Decision(False, rules)
    write(folder, file, read(folder, file) | {"gate": {"promote": True, "reasons": ["perhaps: yes"]}})
    with pytest.raises(InputError, match=r"gate\.reasons\[0\] is 'perhaps: yes', expected a mapping"):
        type(FILES[file]).load(folder)


def test_the_first_exports_told_of_images_alone(folder):
    raw = read(folder, "export.json")
    raw["input"] = {name: raw["input"][name] for name in ("dtype", "shape", "range", "signatures")}
    raw["formats"]["float"]["images_per_second"] = raw["formats"]["float"].pop("examples_per_second")
    write(folder, "export.json", raw)
    export = ExportInfo.load(folder)
    assert export.input == IMAGES
    assert export.formats["float"].examples_per_second is None


@pytest.mark.parametrize(
    "file", ["preflight.json", "evaluation.json", "export.json", "deployment.json", "summary.json"]
)
def test_what_a_newer_version_says_beside_is_passed_over(folder, file):
    write(folder, file, {**read(folder, file), "colour": "blue"})
    type(FILES[file]).load(folder)


@pytest.mark.parametrize(
    ("file", "path", "value", "message"),
    [
        ("evaluation.json", ("gate", "promote"), "yes", "gate.promote is 'yes', expected true or false"),
        ("evaluation.json", ("challenger", "accuracy"), 97.0, "challenger.accuracy is 97.0, expected at most 1"),
        ("export.json", ("formats", "float", "agreement"), 1.5, "formats.float.agreement is 1.5, expected from 0 to 1"),
        ("export.json", ("formats", "float", "bytes"), "9", "formats.float.bytes is '9', expected a whole number"),
        ("export.json", ("input", "shape"), [None, 9, 8, 1], "input.shape is "),
        (
            "deployment.json",
            ("health_check", "num_examples"),
            -3,
            "health_check.num_examples is -3, expected at least 0",
        ),
        ("preflight.json", ("machines", 0, "peak_bytes"), None, r"machines\[0\].peak_bytes is None, expected a whole"),
        ("summary.json", ("status",), "done", "status is 'done', expected one of succeeded, rejected, failed"),
        ("summary.json", ("steps", "train_model", "seconds"), "1", "steps.train_model.seconds is '1', expected a num"),
    ],
)
def test_a_wrong_field_is_refused_by_its_place(folder, file, path, value, message):
    write(folder, file, changed(read(folder, file), path, value))
    with pytest.raises(InputError, match=f"{file}: it is not .*{message}"):
        type(FILES[file]).load(folder)


@pytest.mark.parametrize(
    ("line", "message"),
    [("{", "Expecting"), ("[]", r"line\[1\] is \[\]"), ('{"loss": 1}', "epoch is None"), ('{"epoch": "1"}', "'1'")],
)
def test_a_damaged_history_is_refused_by_name(tmp_path, line, message):
    (tmp_path / "history.jsonl").write_text(f'{{"epoch": 1, "loss": NaN}}\n{line}\n')
    with pytest.raises(InputError, match=rf"history.jsonl: expected the history of a training run, .*{message}"):
        load_history(tmp_path)


def test_a_history_tells_of_a_loss_that_is_no_number(tmp_path):
    assert load_history(tmp_path) == ()
    (tmp_path / "history.jsonl").write_text('{"epoch": 1, "loss": NaN}\n')
    assert load_history(tmp_path) == ({"epoch": 1, "loss": None},)
