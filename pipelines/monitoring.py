"""Whether a server's predictions look like those that the version's evaluation saw, by the log that it keeps."""

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from components import schema
from components.answers import ANSWERS, sketch_answers
from components.data_sketch import sketch_of
from components.drift import Shift, find_shifts
from components.errors import InputError
from components.registry.opening import Origin, origin_of

LATENCY = "latency"
_SLOW_SHARE = 0.05  # Share of the predictions that may take longer than the limit.
_SLOW = "share of the predictions above the limit, of which 5 % may be"


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A line of the log, as far as it is compared; see `components.serving.prediction_log`."""

    version: str
    name: str
    confidence: Annotated[float, schema.Range(0, 1 + 1e-6)]
    ms: schema.Amount


@dataclasses.dataclass(frozen=True)
class Watch:
    """A log held against a version.

    Attributes:
        version: Name of the version.
        num_predictions: Number of predictions that were compared.
        left_out: Number of lines that were not, by the reason.
        ms: Milliseconds within which half of the predictions were made, and 95 % of them.
        shifts: Every figure, the largest difference first.
    """

    version: str
    num_predictions: int
    left_out: Mapping[str, int]
    ms: tuple[float, float]
    shifts: tuple[Shift, ...]

    @property
    def drifted(self) -> bool:
        """Whether any figure counts as drifted."""
        return any(shift.drifted for shift in self.shifts)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"drifted": self.drifted, **dataclasses.asdict(self)}


def watch(log: Path, against: str, latency_ms: float | None = None, confidence: float = 0.99) -> Watch:
    """Compare the predictions of a log with those that a version's evaluation saw.

    Args:
        log: File that `tpu-pipelines serve --log` wrote.
        against: `REGISTRY/MODEL@VERSION_OR_ALIAS`.
        latency_ms: Milliseconds that 95 % of the predictions are to keep to; None looks at no time.
        confidence: Share of the logs like the evaluation of which nothing is said to have drifted.

    Raises:
        InputError: If the log holds no prediction of that version, or the version keeps no answers.
    """
    origin = origin_of(against)
    if origin is None:
        raise InputError(
            f"Cannot compare with {against!r}: expected a registered version, REGISTRY/MODEL@VERSION_OR_ALIAS, as "
            "runs/registry/digits@champion."
        )
    before = sketch_of(origin, ANSWERS)
    predictions, left_out = _read(log, origin)
    names = sorted({*before.class_counts, *(prediction.name for prediction in predictions)})
    place = {name: i for i, name in enumerate(names)}
    predicted = np.array([place[prediction.name] for prediction in predictions])
    confidences = np.array([prediction.confidence for prediction in predictions])
    ms = np.array([prediction.ms for prediction in predictions])
    # Time is a figure more, among which the luck that is allowed is divided.
    allowed = confidence if latency_ms is None else 1 - (1 - confidence) / 2
    shifts = find_shifts(sketch_answers(str(log), names, predicted, confidences), before, allowed)
    if latency_ms is not None:
        shifts = (*shifts, _judge_time(ms, latency_ms, 1 - allowed))
    half, most = (round(float(value), 2) for value in np.quantile(ms, (0.5, 1 - _SLOW_SHARE)))
    return Watch(origin.name, len(predictions), left_out, (half, most), shifts)


def _read(log: Path, origin: Origin) -> tuple[list[Prediction], dict[str, int]]:
    """Return the predictions of a version, and how many lines are left out by the reason."""
    try:
        lines = log.read_bytes().splitlines()
    except OSError as error:
        raise InputError(
            f"Cannot read {log}: {error.strerror}. Expected a file that `tpu-pipelines serve --log` wrote."
        ) from error
    predictions, left_out = [], Counter[str]()
    for line in lines:
        try:
            raw = json.loads(line)
            read = schema.read({**raw, "name": raw["class"]}, Prediction, "line", any_version=True)
        except (KeyError, TypeError, ValueError):  # As a disk that was full for a while leaves them.
            left_out["no prediction of a class"] += 1
            continue
        if read.version in ("", origin.number):
            predictions.append(read)
        else:
            left_out[f"of version {read.version}"] += 1
    if not predictions:
        held = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items()) or "none"
        raise InputError(
            f"Cannot compare {log} with {origin.name}: expected lines of its predictions of a class, received {held}. "
            "Name the log that `tpu-pipelines serve --log` of that version wrote."
        )
    return predictions, dict(left_out)


def _judge_time(ms: np.ndarray, limit: float, allowed: float) -> Shift:
    """Test whether more than a twentieth of the predictions take too long, by the binomial test."""
    from scipy import stats

    num_slow = int((ms > limit).sum())
    luck = float(stats.binomtest(num_slow, len(ms), _SLOW_SHARE, alternative="greater").pvalue)
    now = f"{np.quantile(ms, 1 - _SLOW_SHARE):.4g} ms"
    return Shift(LATENCY, num_slow / len(ms), _SLOW, luck, now, f"{limit:g} ms allowed", drifted=luck < allowed)
