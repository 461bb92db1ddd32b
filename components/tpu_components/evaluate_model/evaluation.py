"""Scores a model and the champion, lets the gate decide, and writes the evaluation and its report."""

import dataclasses
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from tpu_components.core.base import progress
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import (
    EVALUATION_FILE,
    KEY_FEATURE,
    LABEL_FEATURE,
    PREDICTIONS_FILE,
    REPORT_FILE,
    SPLITS,
    TEXT_FEATURE,
    TRAIN,
    Manifest,
    ModelInfo,
    load_history,
)
from tpu_components.core.examples.example_ids import are_among, load_copied, load_identities, load_trained_on
from tpu_components.core.examples.interface import (
    LANGUAGE_MODEL,
    MULTI_LABEL,
    PADDING,
    REGRESSION,
    THRESHOLD,
    ImageInput,
    TextInput,
)
from tpu_components.core.examples.slice_values import SIZE, load_groups, load_slices
from tpu_components.core.examples.text import Tokenizer, load_vocabulary
from tpu_components.core.files import storage
from tpu_components.core.machines import device as devices
from tpu_components.core.models.language_model import StepModel
from tpu_components.core.models.measuring import adapt, direction_of, measured_by
from tpu_components.core.models.trained import load_trained_model, predict
from tpu_components.core.pages.blocks import Block
from tpu_components.core.registry.held_out import FOLDER, HeldOutSet
from tpu_components.core.registry.opening import parse_reference
from tpu_components.core.registry.reference import MODEL_DIR, VERSIONS_DIR, as_label
from tpu_components.core.registry.versions import Registry, fetch, fetch_folder, model_digest
from tpu_components.core.results.estimates import score_passages
from tpu_components.core.results.evaluation_info import (
    EvaluatedModel,
    Evaluation,
    Groups,
    RegisteredChampion,
    TestSetUse,
    Unseen,
)
from tpu_components.core.results.metric_table import NO_CONFIDENCE, direction
from tpu_components.evaluate_model.gate import Comparison, decide
from tpu_components.evaluate_model.metrics import (
    GroundTruth,
    ModelMetrics,
    compare_metrics,
    compute_metrics,
    find_baseline,
    find_slices,
)
from tpu_components.evaluate_model.params import CLASS, LENGTH, EvaluateParams, EvaluateResult
from tpu_components.evaluate_model.report import render_report, show_examples, show_passages

_CHUNK_BYTES = 256 << 20  # Bytes of decoded inputs, or of predictions, in memory at a time.


def evaluate_model(
    params: EvaluateParams, records_dir: str | Path, model_dir: str | Path, output: str | Path
) -> EvaluateResult:
    """Score a model and, if there is one, the champion on one split, and decide whether to promote the model.

    Every example counts once. Metrics depend on the batch size and the number of replicas only by rounding. The
    decision leaves out examples that one of the models was trained on, unless no example would be left.

    Args:
        params: The split, the champion and the rules of the gate.
        records_dir: Folder that create_tfrecords wrote.
        model_dir: Folder that train_model wrote.
        output: Folder for the evaluation, the predictions and the report; it appears whole or not at all.

    Raises:
        InputError: If the split is empty, a model is damaged or does not fit the data set, a metric in the rules does
            not exist for the task, or the decision cannot be recorded in the champion's registry.
        PlatformError: If the registry's bucket does not respond.
    """
    records_dir = Path(records_dir)
    model_dir = Path(model_dir)
    output = Path(output)
    storage.require_output(output, EVALUATION_FILE)
    manifest = Manifest.load(records_dir)
    manifest.split(params.split)
    check_slices(params, manifest, records_dir)
    info = load_matching_info(model_dir, manifest, "model")
    digest = model_digest(model_dir)
    with tempfile.TemporaryDirectory(prefix="champion-") as scratch:
        rivals, held_out = list[Rival](), None
        if champion := find_champion(params.champion, digest, Path(scratch)):
            load_matching_info(champion.directory, manifest, "champion").check_files(champion.directory)
            rivals.append(champion)
            held_out = _find_held_out(params, records_dir, digest, champion)
            if held_out and (best := _find_best(params, manifest, digest, champion, held_out, Path(scratch))):
                rivals.append(best)
        models = [model_dir, *(rival.directory for rival in rivals)]
        device = devices.prepare(params.backend, params.accelerator, params.num_replicas, "float32")
        predictions = predict_split(params, device, records_dir, manifest, models)
        seen = find_seen_examples(params.split, records_dir, manifest.fingerprint, models)
    model = EvaluatedModel(info.name, info.parameters, "best", digest)
    evaluation, measured, comparisons = _judge(params, manifest, model, rivals, predictions, seen, held_out)
    # Record the decision before writing the evaluation: whoever reads the evaluation may promote the model.
    while held_out and not _record(held_out, evaluation, rivals, comparisons):
        held_out = _find_held_out(params, records_dir, digest, rivals[0])
        evaluation, measured, comparisons = _judge(params, manifest, model, rivals, predictions, seen, held_out)
    with storage.staged_directory(output) as staged:
        evaluation.save(staged)
        np.savez_compressed(staged / PREDICTIONS_FILE, **predictions.saved)
        examples = _show_examples(params, device, records_dir, manifest, model_dir, predictions)
        report = render_report(
            evaluation, manifest, info, load_history(model_dir), examples, dataclasses.asdict(params)
        )
        (staged / REPORT_FILE).write_text(report, encoding="utf-8")
    decision = evaluation.gate
    verdict = "passed the gate" if decision.promote else "did not pass the gate"
    progress.say("evaluate_model", f"{verdict}: {decision.decisive}")
    return EvaluateResult(
        promote=decision.promote,
        reasons=decision.reasons,
        num_examples=evaluation.challenger["num_examples"],
        metrics=measured[0].metrics,
        champion_metrics=measured[1].metrics if champion else None,
    )


def _judge(
    params: EvaluateParams,
    manifest: Manifest,
    model: EvaluatedModel,
    rivals: Sequence["Rival"],
    predictions: "Predictions",
    seen: np.ndarray | None,
    held_out: HeldOutSet | None,
) -> tuple[Evaluation, list[ModelMetrics], list[Comparison]]:
    """Judge a model by the examples that no compared model was trained on; by all examples if none is left.

    Args:
        params: The rules of the gate.
        manifest: The data set.
        model: Description of the model.
        rivals: The models that it is compared with, the champion first.
        predictions: Predictions of the model and of its rivals.
        seen: See `find_seen_examples`.
        held_out: The gate's earlier decisions on the test set; None if they are not counted.

    Returns:
        The evaluation, the metrics of all models on all examples, and the comparisons with the rivals on the examples
        by which the model was judged.
    """
    test_set = None
    if held_out and params.confidence > NO_CONFIDENCE:
        whole, planned = 1 - params.confidence, params.test_decisions
        rate = held_out.error_rate(whole, planned)
        test_set = TestSetUse(len(held_out.decisions) + 1, planned, whole, rate, held_out.examples_uri)
        params = dataclasses.replace(params, confidence=1 - rate)
    measured = judged = _compute_metrics(params, predictions)
    counted, unseen = predictions, None
    if seen is not None:
        rest = np.flatnonzero(~seen.any(axis=0))
        if len(rest):
            counted = predictions.select(rest)
            judged = _compute_metrics(params, counted)
        unseen = Unseen.find(seen, predictions.keys, [own.metrics for own in judged] if len(rest) else [])
    ours, truth = judged[0], counted.truth
    comparisons = [
        Comparison(rival.whose, theirs.metrics, compare_metrics(ours, theirs, params.confidence))
        for rival, theirs in zip(rivals, judged[1:], strict=True)
    ]
    baseline, groups = find_baseline(truth, counted.outputs[0]), _describe_groups(truth, ours)
    slices = find_slices(params, truth, counted.outputs[:2])
    evaluation = Evaluation(
        split=params.split,
        dataset_fingerprint=manifest.fingerprint,
        model=model,
        class_names=manifest.class_names,
        gate=decide(
            params,
            ours,
            comparisons,
            num_not_finite=predictions.num_not_finite,
            baseline=baseline,
            slices=slices,
            remarks=[rule for known in (unseen, groups, test_set) if known and (rule := known.rule)],
        ),
        challenger=measured[0].as_dict(),
        champion=measured[1].as_dict() if rivals else None,
        registered_champion=_describe_champion(params.champion, rivals),
        baseline=baseline,
        unseen=unseen,
        intervals=ours.intervals,
        differences=comparisons[0].differences if comparisons else {},
        slices=slices,
        groups=groups,
        test_set=test_set,
    )
    return evaluation, measured, comparisons


def _describe_champion(named: str, rivals: Sequence["Rival"]) -> RegisteredChampion | None:
    """Return version and digest of the champion; both are empty if there is none. None if no registry was queried.

    Args:
        named: `EvaluateParams.champion`.
        rivals: See `_judge`.
    """
    if parse_reference(named) is None:
        return None
    return RegisteredChampion(rivals[0].number, rivals[0].digest) if rivals else RegisteredChampion("", "")


def _find_held_out(params: EvaluateParams, records_dir: Path, digest: str, champion: "Rival") -> HeldOutSet | None:
    """Return the record of gate decisions on this test set in the champion's registry; None without a registry."""
    if not champion.place or params.split == TRAIN:
        return None
    identities = load_identities(records_dir, params.split)
    if identities is None and params.test_decisions > 1:
        raise InputError(
            f"Cannot count the decisions on this test set, which test_decisions={params.test_decisions} requires: "
            f"expected the IDs of its examples in {records_dir}, but an older version wrote these records without "
            "IDs. Run create_tfrecords again, or set test_decisions=1."
        )
    return None if identities is None else HeldOutSet.find(champion.place, identities, digest)


def _record(
    held_out: HeldOutSet, evaluation: Evaluation, rivals: Sequence["Rival"], comparisons: Sequence[Comparison]
) -> bool:
    """Record a decision; returns False if it must be made again, see `HeldOutSet.record`."""
    compared = {rival.digest: each.metrics for rival, each in zip(rivals, comparisons, strict=True)}
    return held_out.record(evaluation.model.digest, evaluation.gate.promote, evaluation.judged_metrics[0], compared)


def _find_best(
    params: EvaluateParams, manifest: Manifest, digest: str, champion: "Rival", held_out: HeldOutSet, scratch: Path
) -> "Rival | None":
    """Return the best model that was ever promoted; the first metric in `max_regression` with a margin above 0 decides.

    The result is None if the best model is unknown, or is the champion or the challenger.
    """
    metric = next((name for name, margin in params.max_regression.items() if margin), "")
    best = held_out.find_best(metric, direction(metric)) if metric else ""
    if champion.registry is None or not best or best in map(as_label, (digest, champion.digest)):
        return None
    if not (number := champion.registry.number_of(best)):
        return None  # Deleted.
    (scratch / "best").mkdir()
    version = champion.registry.version(number)
    directory = fetch(version, MODEL_DIR, scratch / "best")
    if not ModelInfo.load(directory).understands(manifest):
        return None
    whose = f"that of version {number}, the best that was promoted:"
    return dataclasses.replace(champion, directory=directory, number=number, digest=version.model_digest, whose=whose)


def _describe_groups(truth: GroundTruth, measured: ModelMetrics) -> Groups | None:
    groups, metric = truth.groups, truth.task.judged
    if groups is None or metric not in measured.estimates:
        return None
    num_independent = measured.estimates[metric].num_independent or len(groups)
    return Groups(len(np.unique(groups)), len(groups), metric, num_independent)


def _compute_metrics(params: EvaluateParams, predictions: "Predictions") -> list[ModelMetrics]:
    """Return the metrics and details of each model."""
    further = [*predictions.further.values()]
    return [compute_metrics(predictions.truth, outputs, params.top_k, further) for outputs in predictions.outputs]


def _show_examples(
    params: EvaluateParams,
    device: devices.Device,
    records_dir: Path,
    manifest: Manifest,
    model_dir: Path,
    predictions: "Predictions",
) -> list[Block]:
    def pick(indices: Sequence[int]) -> Mapping[int, Any]:
        pick_some = records.pick_texts if isinstance(manifest.input, TextInput) else records.pick_inputs
        return pick_some(records_dir, manifest, params.split, indices)

    examples = manifest.class_names, predictions.keys, predictions.truth.targets
    if manifest.task != LANGUAGE_MODEL:
        return show_examples(
            manifest.interface.task, *examples, list(predictions.outputs[:2]), params.num_pictures, pick
        )
    with device.scope():
        return show_passages(*examples, predictions.outputs[0], pick, StepModel(load_trained_model(model_dir)))


@dataclasses.dataclass(frozen=True)
class Rival:
    """A model that a model is compared with: the champion, or the best model that was ever promoted.

    Attributes:
        directory: Folder of the model, written by train_model.
        number: Number of its version in the registry; empty without a registry, like the digest and the place.
        digest: Digest of the model.
        place: Folder for the decisions on test sets, beside the versions of the registry.
        registry: The registry; None for a model that is only a folder.
        whose: Words that name the model in a reason of the gate, for example `the champion's`.
    """

    directory: Path
    number: str = ""
    digest: str = ""
    place: str = dataclasses.field(default="", compare=False)
    registry: Registry | None = dataclasses.field(default=None, compare=False)
    whose: str = "the champion's"


def find_champion(champion: str, digest: str, scratch: Path) -> Rival | None:
    """Return the model that `EvaluateParams.champion` names; None if an alias has no version, as before the first run.

    Args:
        champion: A folder, local or on gs://, or `REGISTRY/MODEL@VERSION_OR_ALIAS`, where REGISTRY may be
            `projects/PROJECT/locations/REGION/models`; empty for none.
        digest: Digest of the challenger. If the challenger is the champion, the model that it replaced is returned.
        scratch: Folder for the files of a model on gs://.

    Raises:
        InputError: If the model cannot be read, or a file of a version was changed after registration.
    """
    if not champion:
        return None
    if (named := parse_reference(champion)) is None:
        return Rival(fetch_folder(champion, scratch))
    registry, alias = named
    version = registry.champion(alias, digest)
    if version is None:
        return None
    place = version.uri.rstrip("/").rpartition("/")[0].removesuffix(f"/{VERSIONS_DIR}")
    directory = fetch(version, MODEL_DIR, scratch)
    return Rival(directory, version.number, version.model_digest, storage.join(place, FOLDER), registry)


def load_matching_info(model_dir: Path, manifest: Manifest, role: str) -> ModelInfo:
    """Return the metadata of a model; `role` is `model` or `champion`.

    Raises:
        InputError: If the model does not fit the data set.
    """
    info = ModelInfo.load(model_dir)
    # A champion for texts may have another vocabulary than the data set.
    if not (info.understands(manifest) if role == "champion" else info.fits(manifest)):
        raise InputError(
            f"The {role} in {model_dir} does not fit the data set: {info.compare_with(manifest)}. Evaluate it on the "
            "data set it was made for, or train a new one"
            + (" with gate.champion left empty and a deploy.model_name of its own." if role == "champion" else ".")
        )
    return info


def check_slices(params: EvaluateParams, manifest: Manifest, records_dir: Path) -> None:
    """Check that the examples have every property in `EvaluateParams.slices`.

    Raises:
        InputError: If a property is missing.
    """
    known = [CLASS, *([LENGTH] if isinstance(manifest.input, TextInput) else [])]
    kept = [*known, *load_slices(records_dir, params.split)]
    if SIZE in params.slices and SIZE not in kept and isinstance(manifest.input, ImageInput):
        raise InputError(
            f"Cannot divide the examples by {SIZE!r}, as slices asks: expected the sizes of all pictures beside the "
            f"records, received none in {records_dir}, which an older version wrote. Run create_tfrecords again."
        )
    params.check_slices(kept)


def find_seen_examples(split: str, records_dir: Path, fingerprint: str, models: Sequence[Path]) -> np.ndarray | None:
    """Return which examples each model was trained on, bool[models, examples]; None if no model was trained on any.

    For a model of these records, near-duplicates of its training examples count too. For the training split, which is
    scored on purpose, the result is None. Models from the oldest versions do not list their training examples, and
    count as trained on none. Models from other earlier versions list them by IDs that depend on the settings of the
    records (see `example_ids`): a warning is logged if none of these IDs is in the records.
    """
    identities = None if split == TRAIN else load_identities(records_dir, split)
    if identities is None:
        return None
    seen = np.zeros((len(models), len(identities)), bool)
    for row, model_dir in zip(seen, models, strict=True):
        trained_on = load_trained_on(model_dir)
        if trained_on is not None:
            row |= are_among(identities, trained_on)
            if not trained_on["scheme2"].any() and not _knows_any(records_dir, trained_on):
                progress.say(
                    "evaluate_model",
                    f"warning: an earlier version trained the model in {model_dir}, and the IDs of its training "
                    "examples match no example of these records, perhaps because image_size or encoding has changed. "
                    "Whether the model was trained on some of the test examples is unknown",
                )
            if ModelInfo.load(model_dir).dataset_fingerprint == fingerprint:
                row |= load_copied(records_dir, split)
    return seen if seen.any() else None


def _knows_any(records_dir: Path, trained_on: np.ndarray) -> bool:
    """Return whether the model was trained on any example of the records, in any split."""
    by_split = (load_identities(records_dir, split) for split in SPLITS)
    return any(ids is not None and bool(are_among(ids, trained_on).any()) for ids in by_split)


@dataclasses.dataclass(frozen=True)
class Predictions:
    """The predictions of every model for a split, in the order of the records.

    Attributes:
        keys: Names of the examples.
        truth: The examples.
        outputs: Predictions of the model, and of other models if there are any: [models, examples, …]. Predictions that
            are not finite are replaced by `_no_answer`. For a language model, results of `score_passages`.
        num_not_finite: Number of examples for which the model predicted NaN or infinity.
        saved: Arrays of predictions.npz, by name.
        further: Further Keras metrics of the model, by name.
    """

    keys: Sequence[str]
    truth: GroundTruth
    outputs: np.ndarray
    num_not_finite: int
    saved: Mapping[str, Any]
    further: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def select(self, rows: np.ndarray) -> Self:
        """Return the predictions for the examples at some indices; `saved` is empty, as no file has only these."""
        return dataclasses.replace(
            self,
            keys=[self.keys[i] for i in rows.tolist()],
            truth=self.truth.select(rows),
            outputs=self.outputs[:, rows],
            saved={},
        )


def predict_split(
    params: EvaluateParams, device: devices.Device, records_dir: Path, manifest: Manifest, model_dirs: Sequence[Path]
) -> Predictions:
    """Predict every example of a split once with every model."""
    with device.scope():
        models = [load_trained_model(directory) for directory in model_dirs]
    further = {metric.name: adapt(metric, manifest.interface, models[0]) for metric in measured_by(models[0])}
    params.check_task(manifest.task, {name: direction_of(metric) for name, metric in further.items()})
    readers = [_input_reader(directory, manifest) for directory in model_dirs]
    step = params.batch_size_per_replica * device.num_replicas
    example_bytes = max(records.input_bytes(manifest.input), 4 * int(np.prod(manifest.interface.output_shape)))
    chunk = max(1, _CHUNK_BYTES // (example_bytes * step)) * step
    columns: dict[str, list[np.ndarray]] = defaultdict(list)
    outputs: list[list[np.ndarray]] = [[] for _ in models]
    no_answer, is_language = _no_answer(manifest), manifest.task == LANGUAGE_MODEL
    num_examples = manifest.split(params.split).num_examples
    with progress.track("evaluate_model", num_examples * len(models), manifest.input.plural) as bar:
        chunks = records.read_batches(records_dir, manifest, params.split, chunk, with_keys=True)
        for fields in chunks.as_numpy_iterator():
            targets = fields[LABEL_FEATURE]
            columns["targets"].append(targets)
            columns["keys"].append(fields[KEY_FEATURE])
            if isinstance(manifest.input, TextInput):
                columns[LENGTH].append((fields[manifest.input.feature] != PADDING).sum(axis=1))
            for model, read, so_far in zip(models, readers, outputs, strict=True):
                answers = predict(model, read(fields), params.batch_size_per_replica, device.num_replicas)
                # Replace predictions that are not finite; the gate refuses the model because of them.
                bad = ~np.isfinite(answers).all(axis=tuple(range(1, answers.ndim)))
                answers[bad] = no_answer
                so_far.append(score_passages(targets, answers) if is_language else answers)
                if so_far is outputs[0]:
                    columns["bad"].append(bad)
                    if is_language:
                        columns["last"].append(answers[:, -1].copy())
                bar.update(len(answers))
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    targets, answers = joined["targets"], np.stack([np.concatenate(parts) for parts in outputs])
    saved = {"labels": targets, manifest.interface.task.answer: answers[0]}
    if is_language:
        bits = (answers[0, ..., 0] / np.log(2)).astype(np.float32)
        saved = {"labels": targets[:, -1], "probabilities": joined["last"], "bits": bits}
    lengths = {name: joined[name] for name in (LENGTH,) if name in joined}
    return Predictions(
        keys=[key.decode() for key in joined["keys"].tolist()],
        truth=GroundTruth(
            task=manifest.interface.task,
            targets=targets,
            names=manifest.class_names,
            groups=load_groups(records_dir, params.split),
            properties=lengths | load_slices(records_dir, params.split),
        ),
        outputs=answers,
        num_not_finite=int(joined["bad"].sum()),
        saved=saved,
        further=further,
    )


def _no_answer(manifest: Manifest) -> np.ndarray:
    """Return a prediction without information, float32[…]: equal probabilities, or the mean of every target."""
    interface = manifest.interface
    if manifest.task == REGRESSION:
        return np.array(interface.mean, np.float32)
    each = THRESHOLD if manifest.task == MULTI_LABEL else 1 / interface.num_classes
    return np.full(interface.output_shape, each, np.float32)


def _input_reader(model_dir: Path, manifest: Manifest) -> Callable[[Mapping[str, Any]], np.ndarray]:
    """Return a function from a batch to a model's inputs; texts are tokenized again if its vocabulary differs."""
    wanted = ModelInfo.load(model_dir).input
    if not isinstance(wanted, TextInput) or wanted == manifest.input:
        return lambda fields: fields[manifest.input.feature]
    tokenizer = Tokenizer(wanted, load_vocabulary(model_dir, wanted))
    return lambda fields: np.stack([tokenizer.encode(text).ids for text in fields[TEXT_FEATURE]])
