"""Compares the predictions in a server's log with those that the same model version made for the test split."""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from tpu_components.core.base import typed_values
from tpu_components.core.base.errors import InputError
from tpu_components.core.drift.shifts import Shift, find_shifts, judge, say_power
from tpu_components.core.drift.sketches import FLOAT, sketch_answers
from tpu_components.core.drift.version_sketches import answers_of
from tpu_components.core.files import typed_json
from tpu_components.core.registry.opening import Origin, origin_of
from tpu_components.core.registry.reference import EXPORT_DIR
from tpu_components.core.results.export_info import ExportInfo

LATENCY = "latency"
_SLOW_SHARE = 0.05  # Allowed share of requests that take longer than the limit.
_SLOW = "share of the requests above the limit, of which 5% may be"


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A prediction in the log of `tpu_components.serving.prediction_log`: the fields that monitoring uses."""

    model: str
    version: str
    name: str
    confidence: Annotated[float, typed_values.Range(0, 1 + 1e-6)]
    ms: typed_values.Amount
    format: str = FLOAT  # Old logs lack this and the following fields.
    instance: int = 0
    share: typed_values.Share = 0.0


@dataclasses.dataclass(frozen=True)
class LogComparison:
    """Comparison of a prediction log with a version.

    Attributes:
        version: Name of the version.
        format: Exported format with the most predictions; predictions of other formats are left out.
        num_predictions: Number of compared predictions.
        share: Share of the predictions that the server logs; 0 if unknown.
        num_without_version: Number of compared predictions without a version: the export was not in a registry.
        left_out: Number of lines that were left out, by reason.
        num_requests: Number of requests whose first prediction was compared; so large requests count only once.
        ms: Median and 95% quantile of these requests' times, in milliseconds; None without requests.
        shifts: Differences of all statistics, the largest effect first.
        power: Description of the smallest shift that this number of predictions can show.
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
        """Whether any statistic has drifted."""
        return any(shift.drifted for shift in self.shifts)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as values that JSON can represent."""
        return {"drifted": self.drifted, **dataclasses.asdict(self)}


def watch(log: Path, against: str, latency_ms: float | None = None, confidence: float = 0.99) -> LogComparison:
    """Compare the predictions in a server's log with those that the version made for its test split.

    Args:
        log: File that `tpu-pipelines serve --log` wrote.
        against: `REGISTRY/MODEL@VERSION_OR_ALIAS`.
        latency_ms: Time limit for 95% of the requests, in milliseconds; None skips this test.
        confidence: Probability that no drift is reported if the predictions have not changed.

    Raises:
        InputError: If the log has no prediction of this version, or the version has no sketch of its predictions.
    """
    origin = origin_of(against)
    if origin is None:
        raise InputError(
            f"Cannot compare with {against!r}: expected a registered version, REGISTRY/MODEL@VERSION_OR_ALIAS, "
            "such as runs/registry/digits@champion."
        )
    info = ExportInfo.load(f"{origin.uri}/{EXPORT_DIR}")
    predictions, left_out = read_predictions(log, origin, info)
    (form, _), *_ = Counter(prediction.format for prediction in predictions).most_common(1)
    left_out.update(Counter(f"by format {other.format}" for other in predictions if other.format != form))
    predictions = [prediction for prediction in predictions if prediction.format == form]
    before = answers_of(origin, form)
    names = info.class_names
    place = {name: i for i, name in enumerate(names)}
    predicted = np.array([place[prediction.name] for prediction in predictions])
    confidences = np.array([prediction.confidence for prediction in predictions])
    # Large requests are slow. Only first predictions count, so requests of any size have equal weight.
    ms = np.array([prediction.ms for prediction in predictions if prediction.instance == 0])
    answers = sketch_answers(str(log), names, predicted, confidences)
    shifts = find_shifts(answers, before, confidence, num_others=int(latency_ms is not None))
    if latency_ms is not None and len(ms):
        shifts = (*shifts, _judge_time(ms, latency_ms, shifts[0].allowed))
    return LogComparison(
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


def read_predictions(log: Path, origin: Origin, info: ExportInfo) -> tuple[list[Prediction], dict[str, int]]:
    """Return a version's predictions in a log, and the number of lines that were left out, by reason.

    Args:
        log: File that `tpu-pipelines serve --log` wrote.
        origin: The registered version.
        info: Description of its export.

    Raises:
        InputError: If the log cannot be read, or has no prediction of this version.
    """
    try:
        lines = log.read_bytes().splitlines()
    except OSError as error:
        raise InputError(
            f"Cannot read {log}: {error.strerror}. Expected a file that `tpu-pipelines serve --log` wrote."
        ) from error
    # The server logs the model's name in the registry, or the export's own name outside a registry.
    names = {origin.model_name, info.model}
    classes = set(info.class_names)
    predictions = []
    left_out = Counter[str]()
    for line in lines:
        try:
            raw = typed_json.decode(line)
            read = typed_values.read({**raw, "name": raw["class"]}, Prediction, "line", any_version=True)
        except (KeyError, TypeError, ValueError):  # For example truncated by a full disk.
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
    """Return the result of a binomial test that more than 5% of the requests exceed the time limit."""
    from scipy import stats

    num_slow = int((ms > limit).sum())
    luck = float(stats.binomtest(num_slow, len(ms), _SLOW_SHARE, alternative="greater").pvalue)
    now = f"{np.quantile(ms, 1 - _SLOW_SHARE):.4g} ms"
    shift = Shift(LATENCY, num_slow / len(ms), _SLOW, luck, now, f"{limit:g} ms allowed")
    return judge(shift, _SLOW_SHARE, "the binomial test", allowed)
