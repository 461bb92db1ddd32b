"""Formatted metrics of an evaluation, with confidence intervals and the champion's metrics."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Self

from tpu_components.core.base.formatting import percent, show, signed
from tpu_components.core.examples.interface import TASKS, judged_figure
from tpu_components.core.metrics.comparisons import Difference
from tpu_components.core.metrics.definitions import BY_NAME, Metric, task_metrics
from tpu_components.core.pages.blocks import Cell, Table
from tpu_components.core.results.evaluation_info import Evaluation, SliceMetric


@dataclasses.dataclass(frozen=True)
class Score:
    """A formatted metric of a model. A metric that is a share, such as accuracy, is shown as a percentage.

    Attributes:
        metric: Definition of the metric.
        label: Name of the metric in reports.
        number: Value of the metric.
        value: Value of the metric, formatted.
        interval: Confidence interval, formatted. Empty if unknown.
        champion: The champion's value, formatted. Empty without a champion.
        difference: Difference from the champion, formatted, with its confidence interval if known.
        look: CSS class: `good` if the model is better than the champion, `bad` if it is worse, `note` if the difference
            is not significant. Empty without a champion.
    """

    metric: Metric
    label: str
    number: float
    value: str
    interval: str = ""
    champion: str = ""
    difference: str = ""
    look: str = ""

    @property
    def with_interval(self) -> str:
        """Value of the metric, with its confidence interval in brackets if known."""
        return f"{self.value} ({self.interval})" if self.interval else self.value

    @classmethod
    def make(
        cls,
        metric: Metric,
        label: str,
        number: float,
        bounds: tuple[float, float] | None = None,
        before: float | None = None,
        known: Difference | None = None,
    ) -> Self:
        """Format a metric.

        Args:
            metric: Definition of the metric.
            label: Name of the metric in reports.
            number: The model's value.
            bounds: Confidence interval of the value. It is clipped to the range of the metric.
            before: The champion's value.
            known: Difference from the champion, with its confidence bounds.
        """
        digits = 2 if metric.is_share else 4
        if not metric.is_share and 0 < abs(number) < 1e-3:  # Errors have any unit.
            digits = 3 - math.floor(math.log10(abs(number)))

        def shown(value: float) -> str:
            return percent(value, digits) if metric.is_share else signed(value, digits, "-")

        low, high = bounds or (number, number)
        low = max(low, metric.least)
        high = min(high, metric.most)
        interval = f"{shown(low)} to {shown(high)}" if 0 < high - low < math.inf else ""
        score = cls(metric, label, number, shown(number), interval)
        if before is None:
            return score
        scale = 100 if metric.is_share else 1
        change = round((number - before) * scale, digits)
        difference = signed(change, digits) + (" points" if metric.is_share else "") if change else "no difference"
        if change and known and known.bounds:
            shifts = sorted(round(bound * metric.direction * scale, digits) for bound in known.bounds)
            difference += f" ({' to '.join(signed(shift, digits) for shift in shifts)})"
        is_luck = not change or (known is not None and not known.is_clear)
        look = "note" if is_luck else "good" if change * metric.direction > 0 else "bad"
        return dataclasses.replace(score, champion=shown(before), difference=difference, look=look)

    @classmethod
    def of_slice(cls, part: SliceMetric) -> Self:
        """Format the metric of a slice."""
        return cls.make(BY_NAME[part.metric], str(part), part.value, part.interval, part.champion, part.difference)


def list_scores(
    task: str,
    ours: Mapping[str, float | None],
    theirs: Mapping[str, float | None],
    intervals: Mapping[str, tuple[float, float]],
    differences: Mapping[str, Difference],
    top_k: int | None = None,
) -> list[Score]:
    """Return a score for each of a task's metrics that has a value. The first is the metric that the gate compares.

    Args:
        task: The task.
        ours: Metrics of the model, by name.
        theirs: Metrics of the champion. Empty without a champion.
        intervals: Confidence intervals of the model's metrics.
        differences: Differences from the champion, by metric.
        top_k: Number of classes of top-k accuracy. With 1, this metric is left out.
    """
    return [
        Score.make(
            metric,
            metric.label.format(top_k=top_k),
            value,
            intervals.get(name),
            theirs.get(name),
            differences.get(name),
        )
        for name, metric in task_metrics(task).items()
        if (value := ours.get(name)) is not None and not (name == "top_k_accuracy" and top_k == 1)
    ]


def scores_of(evaluation: Evaluation) -> list[Score]:
    """Return a score for each metric of an evaluated model, on the examples that the gate judged.

    The gate leaves out examples that the model or the champion was trained on, if other examples remain.
    """
    judged = judged_figure(evaluation.metrics)
    if not judged:
        return []
    task = next(name for name, task in TASKS.items() if task.judged == judged)
    ours, theirs = (*evaluation.judged_metrics, {})[:2]
    return list_scores(
        task, ours, theirs, evaluation.intervals, evaluation.differences, evaluation.challenger.get("top_k")
    )


def score_and_loss(metrics: Mapping[str, float | None]) -> tuple[str, str]:
    """Return two table cells: the name and value of the metric that the gate compares, and the loss.

    A cell is `-` if its value is unknown.
    """
    known = {name: show(value) for name, value in metrics.items() if value is not None}
    judged = judged_figure(known)
    return f"{judged} {known[judged]}" if judged else "-", known.get("loss", "-")


def table_of(first: str, scores: Sequence[Score]) -> Table:
    """Return a table with a row for each score.

    If any score has a value for the champion, the table also has columns for the champion and the difference.

    Args:
        first: Heading of the first column, which has the labels of the metrics.
        scores: The scores.
    """
    columns = {first: "<", "value": ">", "interval": "<"}
    if not any(score.champion for score in scores):
        return Table(columns, [(score.label, score.value, score.interval) for score in scores])
    rows = [
        (
            score.label,
            score.value,
            score.interval,
            score.champion,
            Cell(score.difference, score.look, strong=score.look in ("good", "bad")),
        )
        for score in scores
    ]
    return Table(columns | {"champion": ">", "difference": "<"}, rows)
