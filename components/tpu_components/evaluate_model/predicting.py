"""Predicts a split with every model that is compared, and finds the examples on which a model was trained."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from tpu_components.core.base import progress
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import (
    KEY_FEATURE,
    LABEL_FEATURE,
    SPLITS,
    TEXT_FEATURE,
    TRAIN,
    Manifest,
    ModelInfo,
)
from tpu_components.core.examples.example_ids import are_among, load_copied, load_identities, load_trained_on
from tpu_components.core.examples.interface import (
    LANGUAGE_MODEL,
    MULTI_LABEL,
    PADDING,
    REGRESSION,
    THRESHOLD,
    TextInput,
)
from tpu_components.core.examples.slice_values import load_groups, load_slices
from tpu_components.core.examples.text import Tokenizer, load_vocabulary
from tpu_components.core.machines import device as devices
from tpu_components.core.metrics.definitions import task_metrics
from tpu_components.core.metrics.estimates import score_passages
from tpu_components.core.metrics.keras_metrics import adapt, direction_of, measured_by
from tpu_components.core.metrics.model_metrics import GroundTruth
from tpu_components.core.models.lookup import has_added_class
from tpu_components.core.models.trained import load_trained_model, predict
from tpu_components.evaluate_model.params import LENGTH, EvaluateParams

_CHUNK_BYTES = 256 << 20  # Bytes of decoded inputs, or of predictions, in memory at a time.


@dataclasses.dataclass(frozen=True)
class Predictions:
    """The predictions of every model for a split, in the order of the records.

    Attributes:
        keys: Names of the examples.
        truth: Targets of the examples, and the properties by which they are divided into slices.
        outputs: Predictions of the model, followed by those of the other models, if any: [models, examples, …].
            Predictions that are not finite are replaced by equal probabilities or, for a regression, by the mean of
            each target. For a language model, the outputs are results of `score_passages`.
        num_not_finite: Number of examples for which the model predicted NaN or infinity.
        saved: Arrays of predictions.npz, by name.
        further: Additional Keras metrics of the model, by name.
    """

    keys: Sequence[str]
    truth: GroundTruth
    outputs: np.ndarray
    num_not_finite: int
    saved: Mapping[str, Any]
    further: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def select(self, rows: np.ndarray) -> Self:
        """Return the predictions for the examples at the indices `rows`.

        The field `saved` is empty in the result, because predictions.npz always has the predictions for all examples.
        """
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
    # A metric of the model does not replace the one that is documented for the task.
    further = {
        metric.name: adapt(metric, manifest.interface, has_added_class(models[0]))
        for metric in measured_by(models[0])
        if metric.name not in task_metrics(manifest.task)
    }
    params.check_task(manifest.task, {name: direction_of(metric) for name, metric in further.items()})
    readers = [_input_reader(directory, manifest) for directory in model_dirs]
    step = params.batch_size_per_replica * device.num_replicas
    example_bytes = max(records.input_bytes(manifest.input), 4 * int(np.prod(manifest.interface.output_shape)))
    chunk = max(1, _CHUNK_BYTES // (example_bytes * step)) * step
    columns: dict[str, list[np.ndarray]] = defaultdict(list)
    outputs: list[list[np.ndarray]] = [[] for _ in models]
    no_answer = _no_answer(manifest)
    is_language = manifest.task == LANGUAGE_MODEL
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
    targets = joined["targets"]
    answers = np.stack([np.concatenate(parts) for parts in outputs])
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
    """Return a function that converts a batch of records to a model's inputs.

    Texts are tokenized again if the model's vocabulary differs.
    """
    wanted = ModelInfo.load(model_dir).input
    if not isinstance(wanted, TextInput) or wanted == manifest.input:
        return lambda fields: fields[manifest.input.feature]
    tokenizer = Tokenizer(wanted, load_vocabulary(model_dir, wanted))
    return lambda fields: np.stack([tokenizer.encode(text).ids for text in fields[TEXT_FEATURE]])


def find_seen_examples(split: str, records_dir: Path, fingerprint: str, models: Sequence[Path]) -> np.ndarray | None:
    """Return which examples of a split each model was trained on, bool[models, examples].

    Return None if no model was trained on any of these examples, or if the records have no example IDs. Also return
    None for the training split: if you score that split, all its examples count.

    If a model was trained on these records, an example also counts as seen if it is a near-duplicate of a training
    example.

    Two kinds of old models are special. The oldest versions of train_model did not save a list of the training
    examples, so no example counts as seen by their models. Later versions saved a list of IDs that depend on the
    settings of the records (see `example_ids`). If none of the IDs in a list is in the records, a warning is logged.
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
                    f"Warning: an earlier version trained the model in {model_dir}, and the IDs of its training "
                    "examples match no example of these records, perhaps because image_size or encoding has changed. "
                    "So it is unknown whether the model was trained on some of the test examples",
                )
            if ModelInfo.load(model_dir).dataset_fingerprint == fingerprint:
                row |= load_copied(records_dir, split)
    return seen if seen.any() else None


def _knows_any(records_dir: Path, trained_on: np.ndarray) -> bool:
    """Return whether any of the example IDs `trained_on` is in the records, in any split."""
    by_split = (load_identities(records_dir, split) for split in SPLITS)
    return any(ids is not None and bool(are_among(ids, trained_on).any()) for ids in by_split)
