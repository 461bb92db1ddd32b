"""Whether a server's predictions look like those to the version's test split, by the log that it keeps."""

import dataclasses
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from tpu_components.core.base import typed_values
from tpu_components.core.base.errors import InputError
from tpu_components.core.drift.answers import FLOAT, sketch_answers
from tpu_components.core.drift.comparison import Shift, find_shifts, judge, say_power
from tpu_components.core.drift.version_sketches import answers_of
from tpu_components.core.examples.artifacts import EXPORT_FILE
from tpu_components.core.files import storage, typed_json
from tpu_components.core.registry.opening import Origin, origin_of
from tpu_components.core.registry.reference import EXPORT_DIR
from tpu_components.core.results.export_info import ExportInfo

LATENCY = "latency"
_SLOW_SHARE = 0.05  # Share of the requests that may take longer than the limit.
_SLOW = "share of the requests above the limit, of which 5 % may be"


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A line of the log, as far as it is compared; see `tpu_components.serving.prediction_log`."""

    model: str
    version: str
    name: str
    confidence: Annotated[float, typed_values.Range(0, 1 + 1e-6)]
    ms: typed_values.Amount
    format: str = FLOAT  # This and what follows is not in older lines.
    instance: int = 0
    share: typed_values.Share = 0.0


@dataclasses.dataclass(frozen=True)
class Watch:
    """A log held against a version.

    Attributes:
        version: Name of the version.
        format: Format of it that answered most; the others' predictions are left out.
        num_predictions: Number of predictions that were compared.
        share: Share of the predictions that the server logs; 0 where the log does not say.
        num_without_version: Number of those that name no version: their export was served from outside a registry.
        left_out: Number of lines that were not, by the reason.
        num_requests: Number of requests whose first prediction is among them: an equal share of the requests of any
            size.
        ms: Milliseconds within which half of these requests were answered, and 95 % of them; None without any.
        shifts: Every figure, the largest difference first.
        power: Shifts that so many predictions can show, in words.
    """

    version: str
    format: str
    num_predictions: int
    share: float
    num_without_version: int
    left_out: Mapping[str, int]
    num_requests: int
    ms: tuple[float, float] | None
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
    """Compare the predictions of a log with those that the same format of a version made of its test split.

    Args:
        log: File that `tpu-pipelines serve --log` wrote.
        against: `REGISTRY/MODEL@VERSION_OR_ALIAS`.
        latency_ms: Milliseconds that 95 % of the requests are to keep to; None looks at no time.
        confidence: Share of the logs like the test split of which nothing is said to have drifted.

    Raises:
        InputError: If the log holds no prediction of that version, or the version keeps no answers.
    """
    origin = origin_of(against)
    if origin is None:
        raise InputError(
            f"Cannot compare with {against!r}: expected a registered version, REGISTRY/MODEL@VERSION_OR_ALIAS, as "
            "runs/registry/digits@champion."
        )
    info = _describe(origin)
    predictions, left_out = _read(log, origin, info)
    (form, _), *_ = Counter(prediction.format for prediction in predictions).most_common(1)
    left_out.update(Counter(f"by format {other.format}" for other in predictions if other.format != form))
    predictions = [prediction for prediction in predictions if prediction.format == form]
    before, names = answers_of(origin, form), info.class_names
    place = {name: i for i, name in enumerate(names)}
    predicted = np.array([place[prediction.name] for prediction in predictions])
    confidences = np.array([prediction.confidence for prediction in predictions])
    # The time is the request's, and large requests are slow: each counts once, and is there with the same chance.
    ms = np.array([prediction.ms for prediction in predictions if prediction.instance == 0])
    answers = sketch_answers(str(log), names, predicted, confidences)
    shifts = find_shifts(answers, before, confidence, num_others=int(latency_ms is not None))
    if latency_ms is not None and len(ms):
        shifts = (*shifts, _judge_time(ms, latency_ms, shifts[0].allowed))
    return Watch(
        version=origin.name,
        format=form,
        num_predictions=len(predictions),
        share=predictions[-1].share,
        num_without_version=sum(not prediction.version for prediction in predictions),
        left_out=left_out,
        num_requests=len(ms),
        ms=_quantiles(ms) if len(ms) else None,
        shifts=shifts,
        power=say_power(answers, before, shifts, "predictions"),
    )


def _describe(origin: Origin) -> ExportInfo:
    """Read what the export of a version is."""
    with tempfile.TemporaryDirectory(prefix="version-") as scratch:
        described = storage.localize(f"{origin.uri}/{EXPORT_DIR}/{EXPORT_FILE}", Path(scratch))
        return ExportInfo.load(described.parent)


def _read(log: Path, origin: Origin, info: ExportInfo) -> tuple[list[Prediction], dict[str, int]]:
    """Return the predictions of a version, one of its classes each, and how many lines are left out by the reason."""
    try:
        lines = log.read_bytes().splitlines()
    except OSError as error:
        raise InputError(
            f"Cannot read {log}: {error.strerror}. Expected a file that `tpu-pipelines serve --log` wrote."
        ) from error
    # A server calls a version by the registry's name, or where it knows of none, by the export's.
    names, classes = {origin.model_name, info.model}, set(info.class_names)
    predictions, left_out = [], Counter[str]()
    for line in lines:
        try:
            raw = typed_json.decode(line)
            read = typed_values.read({**raw, "name": raw["class"]}, Prediction, "line", any_version=True)
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


def _quantiles(ms: np.ndarray) -> tuple[float, float]:
    half, most = np.quantile(ms, (0.5, 1 - _SLOW_SHARE)).round(2).tolist()
    return half, most


def _judge_time(ms: np.ndarray, limit: float, allowed: float) -> Shift:
    """Test whether more than a twentieth of the requests take too long, by the binomial test."""
    from scipy import stats

    num_slow = int((ms > limit).sum())
    luck = float(stats.binomtest(num_slow, len(ms), _SLOW_SHARE, alternative="greater").pvalue)
    now = f"{np.quantile(ms, 1 - _SLOW_SHARE):.4g} ms"
    shift = Shift(LATENCY, num_slow / len(ms), _SLOW, luck, now, f"{limit:g} ms allowed")
    return judge(shift, "the binomial test", _SLOW_SHARE, allowed)
