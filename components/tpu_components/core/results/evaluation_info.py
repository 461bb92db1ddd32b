"""`evaluation.json`: metrics of a model, its comparison with the champion, and the gate's decision."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

import numpy as np

from tpu_components.core.base import typed_values
from tpu_components.core.base.formatting import level, percent, show
from tpu_components.core.examples.artifacts import EVALUATION_FILE
from tpu_components.core.files.typed_json import JsonFile
from tpu_components.core.metrics.comparisons import Difference
from tpu_components.core.metrics.definitions import BY_NAME

_LISTED = 100
_ROUNDING = 1e-6  # A mean of shares may exceed 1 by rounding.
# Types of values that are checked on reading, although they are not metrics of `METRICS`.
_DETAILS: Mapping[str, Any] = {
    "num_examples": int,
    "num_absent_classes": int,
    "top_k": int,
    "confusion_matrix": tuple[tuple[int, ...], ...],
    "confusions": Mapping[str, tuple[int, ...]],
    "roc": tuple[Mapping[str, float], ...],
}


@dataclasses.dataclass(frozen=True)
class Rule:
    """One rule of the gate, applied to a model.

    Attributes:
        passed: Whether the model satisfies the rule.
        metric: Metric that the rule bounds or compares. Empty for a rule without a metric.
        text: The rule and the compared values, in words.
    """

    passed: bool
    metric: str
    text: str

    def __str__(self) -> str:
        return f"{'passed' if self.passed else 'failed'}: {self.text}"


@dataclasses.dataclass(frozen=True)
class Decision:
    """Decision whether to promote the model, with the outcome of every rule."""

    promote: bool
    reasons: tuple[Rule, ...]

    @property
    def decisive(self) -> str:
        """The rules that decided, in words.

        If the model is promoted, these are the rules that passed, otherwise those that failed.
        """
        return "; ".join(rule.text for rule in self.reasons if rule.passed == self.promote)

    @staticmethod
    def upgrade(raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a decision from a file of any version.

        In older files, the texts `passed: …` and `failed: …` are converted to rules.
        """

        def rule(reason: Any) -> Any:
            match = re.fullmatch("(passed|failed): (.+)", reason, re.DOTALL) if isinstance(reason, str) else None
            return {"passed": match[1] == "passed", "metric": "", "text": match[2]} if match else reason

        return {**raw, "reasons": [rule(reason) for reason in raw["reasons"]]}


@dataclasses.dataclass(frozen=True)
class EvaluatedModel:
    """The model that was scored: name, hyper-parameters, selected weights (such as `best`), and digest."""

    name: str
    parameters: Mapping[str, Any]
    weights: str
    digest: str


@dataclasses.dataclass(frozen=True)
class RegisteredChampion:
    """The version that is the champion in a registry, and the digest of its model.

    Both fields are empty without a champion.
    """

    version: str
    digest: str


@dataclasses.dataclass(frozen=True)
class Baseline:
    """Comparison of a model with the best constant prediction on the same examples.

    Attributes:
        metric: Metric that the gate compares by default, for example `accuracy`.
        answer: The constant prediction, in words.
        value: Value of the metric for the constant prediction, or None if it is undefined on the split.
        advantage: Difference by which the model is better. It is negative if the model is worse.
        margin: Largest advantage that chance can explain. The model is significantly better only if `advantage` is
            larger. By chance, a model that is only as good as the baseline has a positive advantage half of the time.
        collapsed_to: The prediction, in words, if the model predicts the same for every example; otherwise empty.
    """

    metric: str
    answer: str
    value: float | None
    advantage: float
    margin: float
    collapsed_to: str = ""

    @property
    def is_beaten(self) -> bool:
        """Whether the model is significantly better than the baseline."""
        return self.value is not None and self.advantage > max(self.margin, 0.0)

    @property
    def rule(self) -> Rule:
        """Outcome of the gate's rule that the model must be significantly better than the constant prediction."""
        alike = f"; the model predicts the same for every example: {self.collapsed_to}" if self.collapsed_to else ""
        if self.value is None:
            needs = BY_NAME[self.metric].needs
            text = (
                f"{self.metric} cannot distinguish the model from {self.answer}, because this requires {needs}{alike}"
            )
            return Rule(False, self.metric, text)
        reached = self.value + BY_NAME[self.metric].direction * self.advantage
        verb = "beats" if self.is_beaten else "does not beat"
        text = f"{self.metric} {show(reached)} {verb} the {show(self.value)} of {self.answer}"
        if not self.is_beaten and self.advantage > 0:
            text += f" by more than {show(self.margin)}, which chance can explain"
        return Rule(self.is_beaten, self.metric, text + alike)


@dataclasses.dataclass(frozen=True)
class SliceMetric:
    """The metric of a slice.

    A slice contains all examples for which a property has the same value or, if the property is a number, a value in
    the same range. The slice of a label of multi-label data contains all examples, but only their predictions of this
    label. The gate judges each slice.

    Attributes:
        by: Property that defines the slices, for example `class`.
        name: Value or range of the property in this slice.
        num_examples: Number of examples in the slice. For a label of multi-label data, only the examples that have the
            label are counted.
        metric: Metric that the gate compares.
        value: The model's metric on the slice.
        interval: Confidence interval of the metric, or None if there are too few examples. Each end is a one-sided
            bound at the gate's confidence level, corrected for the number of slices.
        champion: The champion's metric on the slice, or None without a champion.
        difference: Difference from the champion, or None without a champion. Its bounds have the same confidence level.
    """

    by: str
    name: str
    num_examples: int
    metric: str
    value: float
    interval: tuple[float, float] | None
    champion: float | None = None
    difference: Difference | None = None

    def __str__(self) -> str:
        return f"{self.by} {self.name!r} ({self.num_examples:,} examples)"


@dataclasses.dataclass(frozen=True)
class Unseen:
    """A split without the examples that the model or the champion was trained on.

    Attributes:
        num_examples: Number of examples that neither model was trained on.
        num_seen: Number of examples that are left out.
        num_seen_by: Number of left-out examples that each model was trained on: the model and, if there is one, the
            champion.
        keys: Keys of the first left-out examples.
        scalars: Metrics of the model and of the champion on the remaining examples. Empty except in files of earlier
            versions. In those files, the fields `challenger` and `champion` contain the metrics on all examples.
    """

    num_examples: int
    num_seen: int
    num_seen_by: tuple[int, ...]
    keys: tuple[str, ...]
    scalars: tuple[Mapping[str, float], ...] = ()

    @classmethod
    def find(cls, seen: np.ndarray, keys: Sequence[str]) -> Self:
        """Count the examples that one of the models was trained on, and the remaining examples.

        Args:
            seen: Whether each model was trained on each example: bool[models, examples]. The first row is the
                challenger's.
            keys: Key of each example.
        """
        some = seen.any(axis=0)
        left_out = np.flatnonzero(some)
        return cls(
            num_examples=int(np.count_nonzero(~some)),
            num_seen=len(left_out),
            num_seen_by=tuple(seen.sum(axis=1).tolist()),
            keys=tuple(keys[i] for i in left_out[:_LISTED].tolist()),
        )

    @property
    def rule(self) -> Rule:
        """Remark about the left-out examples in the gate's decision: a `Rule` that always passes."""
        who = ", ".join(
            f"{count:,} by the {who}" for who, count in zip(("model", "champion"), self.num_seen_by, strict=False)
        )
        if not self.num_examples:
            return Rule(
                True, "", f"judged on all {self.num_seen:,} examples, although all were used in training ({who})"
            )
        left_out = f"{self.num_seen:,} that were used in training ({who})"
        return Rule(True, "", f"judged on {self.num_examples:,} examples, without {left_out}")


@dataclasses.dataclass(frozen=True)
class Groups:
    """Groups of examples that depend on each other, from the column `data.group_column`.

    Attributes:
        num_groups: Number of groups.
        num_examples: Number of examples in these groups.
        metric: Metric that the gate compares by default, for example `accuracy`.
        num_independent: Effective sample size: number of independent examples that would give `metric` the same
            standard error.
    """

    num_groups: int
    num_examples: int
    metric: str
    num_independent: float

    @property
    def rule(self) -> Rule:
        """Remark about the effective number of examples in the gate's decision: a `Rule` that always passes."""
        said = f"{self.num_examples:,} examples of {self.num_groups:,} groups measure {self.metric} as precisely as "
        return Rule(True, self.metric, f"{said}{self.num_independent:,.0f} independent examples")


@dataclasses.dataclass(frozen=True)
class TestSetUse:
    """Number of the gate's decisions on a test set so far, and the error rate of the current decision.

    Attributes:
        number: Number of this decision, 1 for the first.
        planned: Number of decisions that share the error rate `whole`.
        whole: Probability that any of the planned decisions promotes a worse model (family-wise error rate).
        rate: Part of `whole` that this decision uses. The confidence of the decision is 1 - `rate`.
        examples: Path of the file with the IDs of the test set's examples. To draw a new test set without these
            examples, add the path to the setting `data.retired_tests`.
    """

    __test__ = False  # Otherwise pytest would collect the class as a test.

    number: int
    planned: int
    whole: float
    rate: float
    examples: str

    @property
    def rule(self) -> Rule | None:
        """Rule that reports the number of this decision on the test set. It always passes.

        It is None if this is the first decision and no other decision is planned.
        """
        if self.planned == 1 and self.number == 1:
            return None
        whole = level(self.whole, 3)
        fresh = f"Draw a new test set: data.retired_tests=[{self.examples}]"
        text = f"decision {self.number:,} on this test set"
        if self.planned > 1:
            text += f"; {self.planned:,} decisions share an error rate of {whole}; this one uses {level(self.rate, 2)}"
            if self.number > self.planned:
                text += f". The test set is used up: more decisions exceed that rate. {fresh}"
        else:
            together = 1 - (1 - self.whole) ** self.number
            text += (
                f". Each decision has an error rate of {whole}, so the probability of a false promotion so far is up "
                f"to {percent(together)}. Set gate.test_decisions to share the rate among all decisions. {fresh}"
            )
        return Rule(True, "", text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation(JsonFile, name=EVALUATION_FILE, what="an evaluation", step="evaluate_model"):
    """Content of `evaluation.json`.

    Attributes:
        split: The split that was scored.
        dataset_fingerprint: Fingerprint of the data set.
        model: The model.
        class_names: Class names, in the order of the model's outputs; for a regression, the names of the targets.
        gate: Whether to promote the model, and why.
        challenger: The model's metrics on the judged examples, that is, those that the gate uses: the metrics of
            `METRICS`, and metrics that only the report shows.
        champion: The champion's metrics on the judged examples, or None without a champion.
        registered_champion: The champion of the registry, or None if no registry was queried.
        baseline: Comparison of the model with the best constant prediction; None in older files.
        unseen: The split without the examples that one of the models was trained on, or None if neither model was
            trained on examples of the split.
        intervals: 95% confidence intervals of the model's metrics, by name, on the judged examples. Empty in older
            files. Metrics without a formula for the interval are left out.
        differences: Differences from the champion, by metric, on the judged examples. Empty without a champion.
        slices: Slices of the judged examples.
        groups: Groups of the judged examples, or None if the data set has no groups.
        test_set: How many decisions the gate has made on this test set, including this decision, and the error rate of
            this decision. None without a registry.
    """

    split: str
    dataset_fingerprint: str
    model: EvaluatedModel
    class_names: tuple[str, ...]
    gate: Decision
    challenger: Mapping[str, Any]
    champion: Mapping[str, Any] | None
    baseline: Baseline | None = None
    registered_champion: RegisteredChampion | None
    unseen: Unseen | None = None
    intervals: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    differences: Mapping[str, Difference] = dataclasses.field(default_factory=dict)
    slices: tuple[SliceMetric, ...] = ()
    groups: Groups | None = None
    test_set: TestSetUse | None = None

    @property
    def metrics(self) -> dict[str, int | float]:
        """The model's metrics that are defined and are single numbers."""
        return _numbers(self.challenger)

    @property
    def rest(self) -> Unseen | None:
        """`unseen` if only its `scalars` are metrics on the judged examples; otherwise None.

        This occurs only in older files, in which `challenger` has metrics on all examples, including examples that the
        gate did not judge.
        """
        return self.unseen if self.unseen and self.unseen.scalars else None

    @property
    def judged_metrics(self) -> tuple[dict[str, int | float], ...]:
        """The single-number metrics of the model and of the champion, on the examples that the gate judged.

        Without a champion, the tuple contains only the model's metrics. The gate leaves out examples that the model or
        the champion was trained on, if other examples remain.
        """
        figures = self.rest.scalars if self.rest else (self.challenger, self.champion)
        return tuple(_numbers(each) for each in figures[:2] if each)

    @property
    def num_judged(self) -> int:
        """Number of examples that the gate judged, or 0 if unknown."""
        return self.rest.num_examples if self.rest else int(self.challenger.get("num_examples", 0))

    @classmethod
    def parse(cls, raw: Any) -> Self:
        """Convert parsed JSON as `JsonFile.parse` does, and also check the values of all known metrics."""
        evaluation = super().parse(raw)
        for role, figures in (("challenger", evaluation.challenger), ("champion", evaluation.champion or {})):
            for name, value in figures.items():
                if name in BY_NAME and value is not None:
                    most = BY_NAME[name].most + _ROUNDING
                    typed_values.read(value, Annotated[float, typed_values.Range(-math.inf, most)], f"{role}.{name}")
                elif name in _DETAILS:
                    typed_values.read(value, _DETAILS[name], f"{role}.{name}", any_version=True)
        return evaluation


def _numbers(metrics: Mapping[str, Any]) -> dict[str, int | float]:
    return {name: value for name, value in metrics.items() if isinstance(value, int | float)}
