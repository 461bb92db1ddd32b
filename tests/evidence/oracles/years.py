"""Simulated years of a gate that judges a new model every week on one test set.

A model answers an example right with a probability of its own, independently of the other models. So equal models have
the same true accuracy, and a test set shows another one of each.
"""

import dataclasses

import numpy as np
from scipy import special

from tpu_components.core.metrics.comparisons import find_chance
from tpu_components.core.registry.held_out import spend

WEEKS, RATE = 52, 0.05
_HARD, _EASY_SHARE, _EASY = 0.1, 0.9, 0.99  # A tenth of the examples is hard; of the others a model has 99% right.
_SCALE = 1 << 16


@dataclasses.dataclass(frozen=True)
class Years:
    """What happens to the champion, as means over simulated years.

    Attributes:
        false: Share of years with one or more promotions of a model that is not better, or worse by more than a margin.
        number: Promotions of a year.
        fell: Accuracy that the champion has lost by the end, in points.
        flattered: Points by which its accuracy on the test set is above the true one at the end.
        better: Share of the weeks in which a better model would be promoted; of equal models only.
        ideal: The same share of a test that knows the distribution of the advantage, at the same `false`.
    """

    false: float
    number: float
    fell: float
    flattered: float
    better: float | None = None
    ideal: float | None = None


def _accuracies(drop: float) -> np.ndarray:
    """Return float64[weeks + 1]: how often a model of each week has a hard example right."""
    return 0.59 - drop / _HARD * np.arange(WEEKS + 1)


def _answers(rng: np.random.Generator, num_examples: int, hard: np.ndarray) -> np.ndarray:
    """Return bool[models, num_examples]: what each model has right."""
    num_hard = int(_HARD * num_examples)
    shares = np.full((len(hard), num_examples), _EASY)
    shares[:, :num_hard] = hard[:, None]
    return rng.integers(0, _SCALE, shares.shape, np.uint16) < (shares * _SCALE).astype(np.uint16)


def simulate_equal(num_examples: int, num_years: int, planned: int, gain: float = 0.02) -> Years:
    """Retrain equal models, which have to be better to be promoted; `planned` decisions share the error rate."""
    rng = np.random.default_rng(num_examples)
    false, number, flattered, better, advantages, gains = 0, 0, 0.0, 0.0, [], []
    for _ in range(num_years):
        right = _answers(rng, num_examples, _accuracies(0.0))
        improved = _answers(rng, num_examples, np.array([0.59 + gain / _HARD]))[0]
        champion, promoted, largest = 0, list[bool](), -1.0
        for week in range(1, WEEKS + 1):
            rate = spend(RATE, planned, promoted)
            wins, losses = _count(right[week], right[champion])
            won, lost = _count(improved, right[champion])
            better += _luck(won, lost) <= rate
            if not any(promoted):
                largest = max(largest, (wins - losses) / num_examples)
                gains.append((won - lost) / num_examples)
            promoted.append(_luck(wins, losses) <= rate)
            champion = week if promoted[-1] else champion
        false, number = false + any(promoted), number + sum(promoted)
        advantages.append(largest)
        flattered += float(right[champion].mean()) - (_HARD * 0.59 + _EASY_SHARE * _EASY)
    share = false / num_years
    needed = np.quantile(advantages, 1 - share)
    return Years(
        false=share,
        number=number / num_years,
        fell=0.0,
        flattered=100 * flattered / num_years,
        better=better / (WEEKS * num_years),
        ideal=float(np.mean(np.array(gains) > needed)),
    )


def simulate_creep(num_examples: int, num_years: int, planned: int, margin: float, anchored: bool) -> Years:
    """Retrain models that are a tenth of a point worse each week, which may be worse by a margin.

    Args:
        num_examples: Examples of the test set.
        num_years: Number of years.
        planned: Decisions that share the error rate.
        margin: Share of right answers by which a model may be worse.
        anchored: Whether it is compared with the best that was ever promoted, too.
    """
    rng, hard = np.random.default_rng(num_examples), _accuracies(0.001)
    true = _HARD * hard + _EASY_SHARE * _EASY
    false, number, fell, flattered = 0, 0, 0.0, 0.0
    for _ in range(num_years):
        right = _answers(rng, num_examples, hard)
        figures = right.sum(axis=1)
        champion, best, promoted = 0, 0, list[bool]()
        for week in range(1, WEEKS + 1):
            rate = spend(RATE, planned, promoted)
            rivals = {champion, best} if anchored else {champion}
            promoted.append(
                all(find_chance(*_count(right[week], right[rival]), num_examples, -margin) <= rate for rival in rivals)
            )
            if promoted[-1]:
                champion = week
                best = max(best, week, key=lambda model: figures[model])
        false += bool(true[0] - true[champion] > margin + 1e-9)
        number, fell = number + sum(promoted), fell + float(true[0] - true[champion])
        flattered += figures[champion] / num_examples - float(true[champion])
    return Years(false / num_years, number / num_years, 100 * fell / num_years, 100 * flattered / num_years)


def _count(ours: np.ndarray, theirs: np.ndarray) -> tuple[int, int]:
    both = int(np.count_nonzero(ours & theirs))
    return int(np.count_nonzero(ours)) - both, int(np.count_nonzero(theirs)) - both


def _luck(better: int, worse: int) -> float:
    return float(special.betainc(better, worse + 1, 0.5)) if better else 1.0
