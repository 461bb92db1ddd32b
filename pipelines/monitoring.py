"""Whether a server's predictions look like those that the version's evaluation saw, by the log that it keeps."""

import dataclasses
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from components import schema, storage
from components.answers import ANSWERS, sketch_answers
from components.artifacts import EXPORT_FILE
from components.data_sketch import sketch_of
from components.drift import Shift, find_shifts, judge, say_power
from components.errors import InputError
from components.export_info import ExportInfo
from components.registry.opening import Origin, origin_of
from components.registry.reference import EXPORT_DIR

LATENCY = "latency"
_SLOW_SHARE = 0.05  # Share of the predictions that may take longer than the limit.
_SLOW = "share of the predictions above the limit, of which 5 % may be"


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A line of the log, as far as it is compared; see `components.serving.prediction_log`."""

    model: str
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
        num_without_version: Number of those that name no version: their export was served from outside a registry.
        left_out: Number of lines that were not, by the reason.
        ms: Milliseconds within which half of the predictions were made, and 95 % of them.
        shifts: Every figure, the largest difference first.
        power: Shifts that so many predictions can show, in words.
    """

    version: str
    num_predictions: int
    num_without_version: int
    left_out: Mapping[str, int]
    ms: tuple[float, float]
    shifts: tuple[Shift, ...]
    power: str

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
    predictions, left_out = _read(log, origin, before.class_counts)
    names = list(before.class_counts)
    place = {name: i for i, name in enumerate(names)}
    predicted = np.array([place[prediction.name] for prediction in predictions])
    confidences = np.array([prediction.confidence for prediction in predictions])
    ms = np.array([prediction.ms for prediction in predictions])
    answers = sketch_answers(str(log), names, predicted, confidences)
    shifts = find_shifts(answers, before, confidence, num_others=int(latency_ms is not None))
    if latency_ms is not None:
        shifts = (*shifts, _judge_time(ms, latency_ms, shifts[0].allowed))
    half, most = (round(float(value), 2) for value in np.quantile(ms, (0.5, 1 - _SLOW_SHARE)))
    return Watch(
        version=origin.name,
        num_predictions=len(predictions),
        num_without_version=sum(not prediction.version for prediction in predictions),
        left_out=left_out,
        ms=(half, most),
        shifts=shifts,
        power=say_power(answers, before, shifts, "predictions"),
    )


def _names_in_logs(origin: Origin) -> set[str]:
    """Return the names by which a server calls a version: the registry's, or where it knows of none, the export's."""
    with tempfile.TemporaryDirectory(prefix="version-") as scratch:
        described = storage.localize(f"{origin.uri}/{EXPORT_DIR}/{EXPORT_FILE}", Path(scratch))
        return {origin.model_name, ExportInfo.load(described.parent).model}


def _read(log: Path, origin: Origin, classes: Collection[str]) -> tuple[list[Prediction], dict[str, int]]:
    """Return the predictions of a version, one of its classes each, and how many lines are left out by the reason."""
    try:
        lines = log.read_bytes().splitlines()
    except OSError as error:
        raise InputError(
            f"Cannot read {log}: {error.strerror}. Expected a file that `tpu-pipelines serve --log` wrote."
        ) from error
    names, predictions, left_out = _names_in_logs(origin), [], Counter[str]()
    for line in lines:
        try:
            raw = schema.decode(line)
            read = schema.read({**raw, "name": raw["class"]}, Prediction, "line", any_version=True)
        except (KeyError, TypeError, ValueError):  # As a disk that was full for a while leaves them.
            left_out["no prediction of a class"] += 1
            continue
        if read.model not in names:
            left_out[f"of model {read.model}"] += 1
        elif read.version not in ("", origin.number):
            left_out[f"of version {read.version}"] += 1
        elif read.name not in classes:
            left_out["of a class that it does not know"] += 1
        else:
            predictions.append(read)
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
    shift = Shift(LATENCY, num_slow / len(ms), _SLOW, luck, now, f"{limit:g} ms allowed")
    return judge(shift, "the binomial test", _SLOW_SHARE, allowed)
