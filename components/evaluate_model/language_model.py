"""How well a language model foresees a text: bits per character, samples, and the passages that it finds hardest."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tpu_components.core.base import progress
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import KEY_FEATURE, LABEL_FEATURE, Manifest
from tpu_components.core.examples.generation import Alphabet, generate
from tpu_components.core.examples.interface import LANGUAGE_MODEL, PADDING
from tpu_components.core.machines import device as devices
from tpu_components.evaluate_model.params import EvaluateParams

_STEP = "evaluate_model"
_CHUNK_BYTES = 256 << 20  # Answers held in memory at a time.
_SMALLEST_PROBABILITY = 1e-7
_TEMPERATURES = (0.5, 1.0)
_NUM_PROMPTS = 2
_PROMPT_LENGTH, _SAMPLE_LENGTH = 64, 300
_NUM_PASSAGES = 8


@dataclasses.dataclass(frozen=True)
class LanguageMetrics:
    """The figures of a language model; `dataclasses.asdict` of it is valid JSON.

    Attributes:
        num_examples: Passages that were scored.
        num_characters: Characters that were predicted, each of the split once.
        num_unknown: Number of these that the training split lacks: a model can only foresee that one comes.
        bits_per_character: Mean of -log2 of the probability of the character that came, clipped at 1e-7.
        loss: The same in nats.
        accuracy: Share of characters that were the likeliest; the first class wins a tie.
    """

    task: ClassVar[str] = LANGUAGE_MODEL
    num_examples: int
    num_characters: int
    num_unknown: int
    bits_per_character: float
    loss: float
    accuracy: float


@dataclasses.dataclass(frozen=True)
class PassageScores:
    """The scores of one model on a split's passages.

    Attributes:
        nats: float64[passages, num_tokens]: minus the logarithm of the probability of what came; 0 where it does not
            count.
        hits: bool[passages, num_tokens]: whether that was the likeliest and counts.
        last: float32[passages, classes]: the probabilities of the last character of each, which always counts.
        num_not_finite: Passages whose probabilities are not all finite; these count as if all were alike.
    """

    nats: np.ndarray
    hits: np.ndarray
    last: np.ndarray
    num_not_finite: int


def score_outputs(targets: np.ndarray, outputs: np.ndarray) -> PassageScores:
    """Score answers.

    Args:
        targets: int[passages, num_tokens]; 0 does not count.
        outputs: float32[passages, num_tokens, classes].
    """
    bad = ~np.isfinite(outputs).all(axis=(1, 2))
    if bad.any():
        outputs = np.where(bad[:, None, None], np.float32(1 / outputs.shape[-1]), outputs)
    counts = targets != PADDING
    chosen = np.take_along_axis(outputs, targets[..., None].astype(np.int64), -1)[..., 0].astype(np.float64)
    nats = np.where(counts, -np.log(chosen.clip(_SMALLEST_PROBABILITY, 1)), 0.0)
    return PassageScores(nats, counts & (outputs.argmax(-1) == targets), outputs[:, -1], int(bad.sum()))


def compute_language_metrics(targets: np.ndarray, scores: PassageScores, num_unknown: int) -> LanguageMetrics:
    """Return the figures of one model."""
    num_characters = int((targets != PADDING).sum())
    loss = float(scores.nats.sum() / num_characters)
    return LanguageMetrics(
        num_examples=len(targets),
        num_characters=num_characters,
        num_unknown=num_unknown,
        bits_per_character=loss / float(np.log(2)),
        loss=loss,
        accuracy=float(scores.hits.sum() / num_characters),
    )


@dataclasses.dataclass(frozen=True)
class ScoredPassages:
    """A split's passages in the order of the records: keys, int32[passages, num_tokens] each, a score per model."""

    keys: Sequence[str]
    inputs: np.ndarray
    targets: np.ndarray
    models: Sequence[PassageScores]


def score_passages(
    params: EvaluateParams, device: devices.Device, records_dir: Path, manifest: Manifest, model_dirs: Sequence[Path]
) -> ScoredPassages:
    """Let every model predict every character of the split once."""
    from tpu_components.core.models.trained import load_trained_model, predict

    with device.scope():
        models = [load_trained_model(directory) for directory in model_dirs]
    step = params.batch_size_per_replica * device.num_replicas
    answer_bytes = 4 * int(np.prod(manifest.interface.output_shape))
    chunk = max(1, _CHUNK_BYTES // (answer_bytes * step)) * step
    keys: list[str] = []
    inputs, targets = [], []
    scores: list[list[PassageScores]] = [[] for _ in models]
    num_examples = manifest.split(params.split).num_examples
    with progress.track(_STEP, num_examples * len(models), manifest.input.plural) as bar:
        chunks = records.read_batches(records_dir, manifest, params.split, chunk, with_keys=True)
        for fields in chunks.as_numpy_iterator():
            keys.extend(key.decode() for key in fields[KEY_FEATURE])
            inputs.append(fields[manifest.input.feature])
            targets.append(fields[LABEL_FEATURE])
            for model, so_far in zip(models, scores, strict=True):
                outputs = predict(model, inputs[-1], params.batch_size_per_replica, device.num_replicas)
                so_far.append(score_outputs(targets[-1], outputs))
                bar.update(len(inputs[-1]))
    return ScoredPassages(keys, np.concatenate(inputs), np.concatenate(targets), [_join(parts) for parts in scores])


def _join(parts: Sequence[PassageScores]) -> PassageScores:
    return PassageScores(
        np.concatenate([part.nats for part in parts]),
        np.concatenate([part.hits for part in parts]),
        np.concatenate([part.last for part in parts]),
        sum(part.num_not_finite for part in parts),
    )


@dataclasses.dataclass(frozen=True)
class Sample:
    """A text that the model wrote after a prompt from the split."""

    temperature: float
    prompt: str
    text: str


def write_samples(
    device: devices.Device, model_dir: Path, scored: ScoredPassages, class_names: Sequence[str]
) -> list[Sample]:
    """Continue two places of the split at two temperatures; the same every time on the same machine."""
    from tpu_components.core.models.stepping import StepModel
    from tpu_components.core.models.trained import load_trained_model

    with device.scope():
        model = StepModel(load_trained_model(model_dir))
        places = np.linspace(0, len(scored.inputs) - 1, _NUM_PROMPTS + 2).astype(int)[1:-1]
        prompts = np.repeat(scored.inputs[places, -_PROMPT_LENGTH:], len(_TEMPERATURES), axis=0)
        temperatures = _TEMPERATURES * _NUM_PROMPTS
        added = generate(model.compiled(), model.state_size, prompts, _SAMPLE_LENGTH, temperatures, seed=0)
    alphabet = Alphabet(class_names)
    return [
        Sample(temperature, alphabet.decode(prompt.tolist()), alphabet.decode(text.tolist()))
        for temperature, prompt, text in zip(temperatures, prompts, added, strict=True)
    ]


@dataclasses.dataclass(frozen=True)
class Passage:
    """A passage to show.

    Attributes:
        key: Key of the passage.
        bits: Mean of the characters that count.
        characters: Each with its bits; None for one that was only read.
    """

    key: str
    bits: float
    characters: Sequence[tuple[str, float | None]]


def hardest_passages(scored: ScoredPassages, class_names: Sequence[str]) -> list[Passage]:
    """Return the passages with the most bits per character, the hardest first."""
    counts, bits = scored.targets != PADDING, scored.models[0].nats / np.log(2)
    means = bits.sum(1) / counts.sum(1)
    alphabet = Alphabet(class_names)
    passages = []
    for index in np.argsort(-means, kind="stable")[:_NUM_PASSAGES].tolist():
        # A target that does not count is the next input.
        following = np.append(scored.inputs[index, 1:], scored.targets[index, -1]).tolist()
        characters = [
            (alphabet.decode([id_]), float(value) if counted else None)
            for id_, value, counted in zip(following, bits[index], counts[index], strict=True)
        ]
        passages.append(Passage(scored.keys[index], float(means[index]), characters))
    return passages


def predictions(scored: ScoredPassages) -> Mapping[str, Any]:
    """Return what predictions.npz holds: each passage's last character with its probabilities, and the bits of all."""
    return {
        "labels": scored.targets[:, -1],
        "probabilities": scored.models[0].last,
        "bits": (scored.models[0].nats / np.log(2)).astype(np.float32),
    }
