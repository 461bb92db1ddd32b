"""`evaluation.json`: how good a model is, how it stands to the champion, and what the gate says of it."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

import numpy as np

from tpu_components.core.base import typed_values
from tpu_components.core.examples.artifacts import EVALUATION_FILE
from tpu_components.core.files.typed_json import JsonFile
from tpu_components.core.results.metric_table import BY_NAME, show

_LISTED = 100
_ROUNDING = 1e-6  # A mean of shares may be above 1 by the last digits.
# What is read again of the figures that are not one number.
_DETAILS: Mapping[str, Any] = {
    "num_examples": int,
    "num_absent_classes": int,
    "top_k": int,
    "confusion_matrix": tuple[tuple[int, ...], ...],
    "roc": tuple[Mapping[str, float], ...],
}


@dataclasses.dataclass(frozen=True)
class Rule:
    """One rule of the gate, applied to a model.

    Attributes:
        passed: Whether the model satisfies the rule.
        metric: The metric that the rule bounds or compares; empty where it is about none.
        text: The rule and the figures, in words.
    """

    passed: bool
    metric: str
    text: str

    def __str__(self) -> str:
        return f"{'passed' if self.passed else 'failed'}: {self.text}"


@dataclasses.dataclass(frozen=True)
class Decision:
    """The decision whether to promote, and every rule that it follows from."""

    promote: bool
    reasons: tuple[Rule, ...]

    @staticmethod
    def upgrade(raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a file of any age: older ones hold a text `passed: …` or `failed: …` for each rule."""

        def rule(reason: Any) -> Any:
            match = re.fullmatch("(passed|failed): (.+)", reason, re.DOTALL) if isinstance(reason, str) else None
            return {"passed": match[1] == "passed", "metric": "", "text": match[2]} if match else reason

        return {**raw, "reasons": [rule(reason) for reason in raw["reasons"]]}


@dataclasses.dataclass(frozen=True)
class EvaluatedModel:
    """The model that was scored: its name, its hyper-parameters, which of its weights, and its digest."""

    name: str
    parameters: Mapping[str, Any]
    weights: str
    digest: str


@dataclasses.dataclass(frozen=True)
class RegisteredChampion:
    """The version that a registry named as the champion, and its model's digest; both empty where it named none."""

    version: str
    digest: str


@dataclasses.dataclass(frozen=True)
class Baseline:
    """The figure of the best constant answer, and by how much a model does better on the same examples.

    Attributes:
        metric: The judged figure of the task.
        answer: The constant answer, in words.
        value: Figure that it reaches; None where that is not defined on the split.
        advantage: Difference by which the model is better; below 0 if it is worse.
        margin: The advantage up to which chance explains it: examples are few, and a model that knows nothing more than
            the baseline is above it half of the time.
        collapsed_to: The answer that the model gives every example, in words; empty if it gives several.
    """

    metric: str
    answer: str
    value: float | None
    advantage: float
    margin: float
    collapsed_to: str = ""

    @property
    def is_beaten(self) -> bool:
        """Whether the model is better, by more than chance explains."""
        return self.value is not None and self.advantage > max(self.margin, 0.0)

    @property
    def rule(self) -> Rule:
        """The comparison as a rule: the model has to be better, by more than chance explains."""
        alike = f"; the model gives every example the same answer, {self.collapsed_to}" if self.collapsed_to else ""
        if self.value is None:
            needs = BY_NAME[self.metric].needs
            text = f"{self.metric} cannot tell the model from {self.answer}: it needs {needs}{alike}"
            return Rule(False, self.metric, text)
        reached = self.value + BY_NAME[self.metric].direction * self.advantage
        verb = "beats" if self.is_beaten else "does not beat"
        text = f"{self.metric} {show(reached)} {verb} the {show(self.value)} of {self.answer}"
        if not self.is_beaten and self.advantage > 0:
            text += f" by more than the {show(self.margin)} that chance explains"
        return Rule(self.is_beaten, self.metric, text + alike)


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference of a model from the champion in one figure on the same examples, and what chance leaves of it.

    Attributes:
        advantage: Difference by which the model is better; below 0 if it is worse.
        least: Difference that the true one exceeds with the gate's confidence; None where so few examples cannot say.
        most: Difference that the true one is below with the same confidence.
        luck: Probability with which a model that is no better comes out so far above, or further.
        detectable: True difference that examples as these show in 80 cases of 100; None where they cannot say.
        num_better: Examples that the model has right and the champion wrong; None of what is no share of right answers.
        num_worse: Examples that the champion has right and the model wrong.
    """

    advantage: float
    least: float | None
    most: float | None
    luck: typed_values.Share
    detectable: float | None = None
    num_better: int | None = None
    num_worse: int | None = None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """`least` and `most`; None where so few examples cannot say."""
        return None if self.least is None or self.most is None else (self.least, self.most)

    @property
    def is_clear(self) -> bool:
        """Whether chance does not explain it."""
        return self.bounds is not None and not self.bounds[0] <= 0 <= self.bounds[1]


@dataclasses.dataclass(frozen=True)
class Slice:
    """A part of the examples, judged by itself.

    Attributes:
        by: Property by which they are divided, such as `class`.
        name: Value of that property which these have.
        num_examples: Number of them; of a label, of those that have it.
        metric: The figure that it is judged by.
        value: The model's figure on them.
        interval: Bounds of the figure with the gate's confidence on either side, in all slices together; None where one
            example cannot say.
        champion: The champion's figure; None without one.
        difference: The model beside the champion, with the same confidence; None without one.
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
    """The rest of a split without the examples that a model has trained on.

    Attributes:
        num_examples: Examples that no model has trained on.
        num_seen: Those left out, which at least one has trained on.
        num_seen_by: Numbers of these that the model and, if there is one, the champion has seen.
        keys: The first of those left out.
        scalars: The figures of the model and of the champion on what is left; none where nothing is.
    """

    num_examples: int
    num_seen: int
    num_seen_by: tuple[int, ...]
    keys: tuple[str, ...]
    scalars: tuple[Mapping[str, float], ...]

    @classmethod
    def find(cls, seen: np.ndarray, keys: Sequence[str], scalars: Sequence[Mapping[str, float]]) -> Self:
        """Make a leak from bool[models, examples] and the examples' names."""
        some = seen.any(axis=0)
        left_out = np.flatnonzero(some)
        return cls(
            num_examples=int(np.count_nonzero(~some)),
            num_seen=len(left_out),
            num_seen_by=tuple(seen.sum(axis=1).tolist()),
            keys=tuple(keys[i] for i in left_out[:_LISTED].tolist()),
            scalars=tuple(scalars),
        )

    @property
    def rule(self) -> Rule:
        """The sentence that says what was left out, as a rule that is always passed."""
        who = ", ".join(
            f"by the {who} {count:,}" for who, count in zip(("model", "champion"), self.num_seen_by, strict=False)
        )
        if not self.num_examples:
            return Rule(True, "", f"judged on all {self.num_seen:,} examples, though all have been trained on ({who})")
        left_out = f"{self.num_seen:,} which have been trained on ({who})"
        return Rule(True, "", f"judged on {self.num_examples:,} examples, without {left_out}")


@dataclasses.dataclass(frozen=True)
class Groups:
    """Groups of examples that depend on each other, as `data.group_column` names them.

    Attributes:
        num_groups: Number of groups.
        num_examples: Examples in them.
        metric: The judged figure of the task.
        num_independent: Number of independent examples that would measure this figure as surely.
    """

    num_groups: int
    num_examples: int
    metric: str
    num_independent: float

    @property
    def rule(self) -> Rule:
        """The effective number of examples, as a rule that is always passed."""
        said = f"{self.num_examples:,} examples of {self.num_groups:,} groups measure {self.metric} as surely as "
        return Rule(True, self.metric, f"{said}{self.num_independent:,.0f} independent examples")


@dataclasses.dataclass(frozen=True)
class TestSetUse:
    """Decisions that a test set has taken, and the error rate of this one.

    Attributes:
        number: Number of this decision, 1 for the first.
        planned: Number of decisions that share the error rate.
        whole: Their error rate together.
        rate: Error rate of this decision.
        examples: File of the examples, for `data.retired_tests`.
    """

    __test__ = False  # pytest takes the name for a test's.

    number: int
    planned: int
    whole: float
    rate: float
    examples: str

    @property
    def rule(self) -> Rule:
        """The number of decisions, as a rule that is always passed."""
        whole, fresh = f"{100 * self.whole:.3g} %", f"Draw a fresh one: data.retired_tests=[{self.examples}]"
        text = f"decision {self.number:,} on this test set"
        if self.planned > 1:
            text += f", of {self.planned:,} that share an error rate of {whole}: this one has {100 * self.rate:.2g} %"
            if self.number > self.planned:
                text += f". The test set is worn out: more decisions exceed that rate. {fresh}"
        elif self.number > 1:
            together = 1 - (1 - self.whole) ** self.number
            text += (
                f", each with an error rate of {whole}: one or more false promotions in up to {together:.0%} of cases. "
                f"gate.test_decisions shares the rate among them. {fresh}"
            )
        return Rule(True, "", text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation(JsonFile, name=EVALUATION_FILE, what="an evaluation", step="evaluate_model"):
    """`evaluation.json`.

    Attributes:
        split: The split that was scored.
        dataset_fingerprint: The data set.
        model: The model.
        class_names: Class names, in the order of its outputs; of a regression, the names of the targets.
        gate: Whether to promote the model, and why.
        challenger: The model's figures: those of `metric_table` and what the report shows of its task.
        champion: The champion's, on the same examples; None without one.
        registered_champion: The champion as a registry names it; None where no registry was asked.
        baseline: Comparison of the model with the best constant answer; None in older files.
        unseen: Examples left out of the judgement, as trained on; None where none were.
        intervals: Bounds of the model's figures with 95 % confidence, by name, on the examples that it is judged by;
            none in older files, and of figures without a formula.
        differences: The model beside the champion, by figure, on the same examples; none without one.
        slices: Parts of the same examples.
        groups: Groups of the same examples; None where the data set names none.
        test_set: Decisions that the test set has taken; None without a registry.
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
    slices: tuple[Slice, ...] = ()
    groups: Groups | None = None
    test_set: TestSetUse | None = None

    @property
    def metrics(self) -> dict[str, int | float]:
        """The model's figures that are one number, and defined."""
        return {name: value for name, value in self.challenger.items() if isinstance(value, int | float)}

    @classmethod
    def parse(cls, raw: Any) -> Self:
        """See `JsonFile`; the figures too are checked, as far as they are known."""
        evaluation = super().parse(raw)
        for role, figures in (("challenger", evaluation.challenger), ("champion", evaluation.champion or {})):
            for name, value in figures.items():
                if name in BY_NAME and value is not None:
                    most = BY_NAME[name].most + _ROUNDING
                    typed_values.read(value, Annotated[float, typed_values.Range(-math.inf, most)], f"{role}.{name}")
                elif name in _DETAILS:
                    typed_values.read(value, _DETAILS[name], f"{role}.{name}", any_version=True)
        return evaluation
