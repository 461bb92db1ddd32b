"""Answers of a model and of the champion to the very same examples, each scored once."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from tpu_components.core.base import progress
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import (
    KEY_FEATURE,
    LABEL_FEATURE,
    TEXT_FEATURE,
    TRAIN,
    Manifest,
    ModelInfo,
)
from tpu_components.core.examples.example_ids import find_seen, load_copied, load_identities
from tpu_components.core.examples.interface import (
    LANGUAGE_MODEL,
    MULTI_LABEL,
    PADDING,
    REGRESSION,
    THRESHOLD,
    TextInput,
)
from tpu_components.core.examples.slice_values import load_slices
from tpu_components.core.examples.text import Tokenizer, load_vocabulary
from tpu_components.core.machines import device as devices
from tpu_components.core.registry.opening import parse_reference
from tpu_components.core.registry.reference import MODEL_DIR
from tpu_components.core.registry.versions import fetch, fetch_folder
from tpu_components.core.results.evaluation_info import RegisteredChampion
from tpu_components.evaluate_model.figures import score_passages
from tpu_components.evaluate_model.params import LENGTH, EvaluateParams

_CHUNK_BYTES = 256 << 20  # Decoded inputs, or answers, held in memory at a time.


@dataclasses.dataclass(frozen=True)
class Champion:
    """A model to beat.

    Attributes:
        directory: Folder of the champion, as train_model wrote it; None if there is none.
        registered: Answer of the registry; None where none was asked.
    """

    directory: Path | None
    registered: RegisteredChampion | None = None


def find_champion(champion: str, digest: str, scratch: Path) -> Champion:
    """Return the model that `EvaluateParams.champion` names.

    Args:
        champion: A folder, here or on gs://, or `REGISTRY/MODEL@VERSION_OR_ALIAS`, where REGISTRY may be
            `projects/PROJECT/locations/REGION/models`; empty for none.
        digest: Digest of the challenger. Where the challenger is the champion itself, it meets the one that it beat.
        scratch: Folder for the files of a model on gs://.

    Raises:
        InputError: If the model cannot be read, or a file of a version is not as it was registered. An alias without a
            version, as before the first run, is no champion.
    """
    if not champion:
        return Champion(None)
    if (named := parse_reference(champion)) is None:
        return Champion(fetch_folder(champion, scratch))
    registry, version = named
    registered = registry.champion(version, digest)
    if registered is None:
        return Champion(None, RegisteredChampion("", ""))
    directory = fetch(registered, MODEL_DIR, scratch)
    return Champion(directory, RegisteredChampion(registered.number, registered.model_digest))


def load_matching_info(model_dir: Path, manifest: Manifest, role: str) -> ModelInfo:
    """Return the description of a model, of the role `model` or `champion`.

    Raises:
        InputError: If it does not fit the data set.
    """
    info = ModelInfo.load(model_dir)
    # A champion of texts has the words of the data that it was trained on.
    if not (info.understands(manifest) if role == "champion" else info.fits(manifest)):
        raise InputError(
            f"The {role} in {model_dir} does not fit the data set: expected {manifest.task} with "
            f"{list(manifest.class_names)} and {manifest.input}, received {info.task} with "
            f"{list(info.class_names)} and {info.input}. Evaluate it on the data set it was made for, or train a new "
            "one"
            + (" with gate.champion left empty and a deploy.model_name of its own." if role == "champion" else ".")
        )
    return info


def find_seen_examples(split: str, records_dir: Path, fingerprint: str, models: Sequence[Path]) -> np.ndarray | None:
    """Return bool[models, examples]: which examples each model was trained on; None where none was trained on any.

    Near copies of what it was trained on count for a model of these very records. Nothing of the training split counts,
    since it is scored on purpose. A model of an older version, which does not say what it was trained on, has seen
    nothing.
    """
    identities = None if split == TRAIN else load_identities(records_dir, split)
    if identities is None:
        return None
    seen = np.zeros((len(models), len(identities)), bool)
    for row, model_dir in zip(seen, models, strict=True):
        trained_on = find_seen(model_dir, identities)
        if trained_on is not None:
            row |= trained_on
            if ModelInfo.load(model_dir).dataset_fingerprint == fingerprint:
                row |= load_copied(records_dir, split)
    return seen if seen.any() else None


@dataclasses.dataclass(frozen=True)
class Scores:
    """The answers of every model to a split, in the order of the records.

    Attributes:
        keys: A name for each example.
        targets: [examples] or [examples, …].
        outputs: [models, examples, …]: answers of the model and, if there is one, of the champion. An answer that was
            not finite is replaced by the one that says nothing; of a language model see `score_passages`.
        properties: Arrays of all examples by name: `length`, int[examples], the tokens of a text that a model reads;
            and what the records keep, see `load_slices`.
        num_not_finite: Examples for which the model gave NaN or infinity.
        predictions: Content of predictions.npz.
    """

    keys: Sequence[str]
    targets: np.ndarray
    outputs: np.ndarray
    properties: Mapping[str, np.ndarray]
    num_not_finite: int
    predictions: Mapping[str, Any]

    def select(self, rows: np.ndarray) -> Self:
        """Return the examples at these places, without the predictions."""
        return dataclasses.replace(
            self,
            keys=[self.keys[i] for i in rows.tolist()],
            targets=self.targets[rows],
            outputs=self.outputs[:, rows],
            properties={name: values[rows] for name, values in self.properties.items()},
            predictions={},
        )


def score(
    params: EvaluateParams, device: devices.Device, records_dir: Path, manifest: Manifest, model_dirs: Sequence[Path]
) -> Scores:
    """Let every model answer every example of a split once."""
    from tpu_components.core.models.trained import load_trained_model, predict

    with device.scope():
        models = [load_trained_model(directory) for directory in model_dirs]
    readers = [_input_reader(directory, manifest) for directory in model_dirs]
    step = params.batch_size_per_replica * device.num_replicas
    example_bytes = max(records.input_bytes(manifest.input), 4 * int(np.prod(manifest.interface.output_shape)))
    chunk = max(1, _CHUNK_BYTES // (example_bytes * step)) * step
    keys: list[str] = []
    targets, lengths, last = [], [], []
    outputs: list[list[np.ndarray]] = [[] for _ in models]
    num_not_finite = 0
    no_answer, is_language = _no_answer(manifest), manifest.task == LANGUAGE_MODEL
    num_examples = manifest.split(params.split).num_examples
    with progress.track("evaluate_model", num_examples * len(models), manifest.input.plural) as bar:
        chunks = records.read_batches(records_dir, manifest, params.split, chunk, with_keys=True)
        for fields in chunks.as_numpy_iterator():
            targets.append(fields[LABEL_FEATURE])
            keys.extend(key.decode() for key in fields[KEY_FEATURE])
            if isinstance(manifest.input, TextInput):
                lengths.append((fields[manifest.input.feature] != PADDING).sum(axis=1))
            for number, (model, read) in enumerate(zip(models, readers, strict=True)):
                answers = predict(model, read(fields), params.batch_size_per_replica, device.num_replicas)
                # A row that is not finite is no answer. The gate refuses the model all the same.
                bad = ~np.isfinite(answers).all(axis=tuple(range(1, answers.ndim)))
                answers[bad] = no_answer
                num_not_finite += 0 if number else int(bad.sum())
                if is_language and number == 0:
                    last.append(answers[:, -1].copy())
                outputs[number].append(score_passages(targets[-1], answers) if is_language else answers)
                bar.update(len(answers))
    labels, answers = np.concatenate(targets), np.stack([np.concatenate(of_one) for of_one in outputs])
    predictions = {"labels": labels, manifest.interface.task.answer: answers[0]}
    if is_language:
        bits = (answers[0, ..., 0] / np.log(2)).astype(np.float32)
        predictions = {"labels": labels[:, -1], "probabilities": np.concatenate(last), "bits": bits}
    properties = {LENGTH: np.concatenate(lengths)} if lengths else {}
    properties |= load_slices(records_dir, params.split)
    return Scores(keys, labels, answers, properties, num_not_finite, predictions)


def _no_answer(manifest: Manifest) -> np.ndarray:
    """Return float32[…] of the shape of a model's answer: every class alike, or every target's mean."""
    interface = manifest.interface
    if manifest.task == REGRESSION:
        return np.array(interface.mean, np.float32)
    each = THRESHOLD if manifest.task == MULTI_LABEL else 1 / interface.num_classes
    return np.full(interface.output_shape, each, np.float32)


def _input_reader(model_dir: Path, manifest: Manifest) -> Callable[[Mapping[str, Any]], np.ndarray]:
    """Return a function from a batch to a model's inputs: the records', or tokens of its own where its words differ."""
    wanted = ModelInfo.load(model_dir).input
    if not isinstance(wanted, TextInput) or wanted == manifest.input:
        return lambda fields: fields[manifest.input.feature]
    tokenizer = Tokenizer(wanted, load_vocabulary(model_dir, wanted))
    return lambda fields: np.stack([tokenizer.encode(text).ids for text in fields[TEXT_FEATURE]])
