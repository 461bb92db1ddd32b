"""Metrics as they are defined, written to be read rather than to be fast. Lists of floats in, floats out."""

import math
from collections.abc import Callable, Sequence

Rows = Sequence[Sequence[float]]
_SMALLEST = 1e-7
_BINS = 15


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _quotient(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _likeliest(row: Sequence[float]) -> int:
    """The first of the greatest."""
    return max(range(len(row)), key=lambda i: (row[i], -i))


def _f1(true: Sequence[bool], said: Sequence[bool]) -> tuple[float, float, float]:
    """Precision, recall and their harmonic mean; 0 where there is nothing to divide by."""
    hits = sum(t and s for t, s in zip(true, said, strict=True))
    precision, recall = _quotient(hits, sum(said)), _quotient(hits, sum(true))
    return precision, recall, _quotient(2 * precision * recall, precision + recall)


def _area(positive: Sequence[bool], scores: Sequence[float]) -> float | None:
    """How often a positive example has a higher score than a negative one; half for a tie."""
    ups = [score for score, is_positive in zip(scores, positive, strict=True) if is_positive]
    downs = [score for score, is_positive in zip(scores, positive, strict=True) if not is_positive]
    if not ups or not downs:
        return None
    return sum((up > down) + (up == down) / 2 for up in ups for down in downs) / (len(ups) * len(downs))


def _average_precision(positive: Sequence[bool], scores: Sequence[float]) -> float | None:
    """Over thresholds from the highest down: the precision there, times the recall that it adds."""
    if not any(positive):
        return None
    total, recall_before = 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        chosen = [is_positive for is_positive, score in zip(positive, scores, strict=True) if score >= threshold]
        recall = sum(chosen) / sum(positive)
        total += (recall - recall_before) * sum(chosen) / len(chosen)
        recall_before = recall
    return total


def classification(labels: Sequence[int], rows: Rows, top_k: int) -> dict[str, float | None]:
    """Every figure of one class of several."""
    num_classes = len(rows[0])
    predicted = [_likeliest(row) for row in rows]
    pairs = list(zip(labels, predicted, strict=True))
    parts = [_f1([t == c for t, _ in pairs], [p == c for _, p in pairs]) for c in range(num_classes)]

    def rank(label: int, row: Sequence[float]) -> int:
        return sum(value > row[label] or (value == row[label] and i < label) for i, value in enumerate(row))

    confidence = [min(max(max(row), 0.0), 1.0) for row in rows]
    bins: dict[int, list[tuple[float, bool]]] = {}
    for sure, (label, answer) in zip(confidence, pairs, strict=True):
        # Bins are open below and closed above; a confidence of 0 is in the first.
        place = next(i for i in range(_BINS) if sure <= (i + 1) / _BINS or i == _BINS - 1)
        bins.setdefault(place, []).append((sure, label == answer))
    return {
        "accuracy": _mean([float(label == answer) for label, answer in pairs]),
        "top_k_accuracy": _mean([float(rank(*pair) < top_k) for pair in zip(labels, rows, strict=True)]),
        "loss": _mean([-math.log(min(max(row[t], _SMALLEST), 1.0)) for t, row in zip(labels, rows, strict=True)]),
        "macro_precision": _mean([part[0] for part in parts]),
        "macro_recall": _mean([part[1] for part in parts]),
        "macro_f1": _mean([part[2] for part in parts]),
        "calibration_error": math.fsum(
            len(members) / len(rows) * abs(_mean([s for s, _ in members]) - _mean([float(r) for _, r in members]))
            for members in bins.values()
        ),
        "roc_auc": _area([t == 1 for t in labels], [row[1] for row in rows]) if num_classes == 2 else None,
    }


def multi_label(labels: Rows, rows: Rows) -> dict[str, float | None]:
    """Every figure of any number of labels; one is predicted above a half."""
    true = [[value > 0 for value in row] for row in labels]
    said = [[value > 0.5 for value in row] for row in rows]
    columns = list(zip(zip(*true, strict=True), zip(*said, strict=True), zip(*rows, strict=True), strict=True))
    parts = [_f1(t, s) for t, s, _ in columns]
    precisions = [value for t, _, scores in columns if (value := _average_precision(t, scores)) is not None]
    areas = [value for t, _, scores in columns if (value := _area(t, scores)) is not None]
    cells = [pair for t, s in zip(true, said, strict=True) for pair in zip(t, s, strict=True)]

    def loss(truth: Sequence[bool], row: Sequence[float]) -> float:
        chosen = [value if is_true else 1 - value for is_true, value in zip(truth, row, strict=True)]
        return _mean([-math.log(min(max(value, _SMALLEST), 1 - _SMALLEST)) for value in chosen])

    return {
        "micro_f1": _f1([t for t, _ in cells], [s for _, s in cells])[2],
        "macro_precision": _mean([part[0] for part in parts]),
        "macro_recall": _mean([part[1] for part in parts]),
        "macro_f1": _mean([part[2] for part in parts]),
        "subset_accuracy": _mean([float(t == s) for t, s in zip(true, said, strict=True)]),
        "hamming_loss": _mean([float(t != s) for t, s in cells]),
        "mean_average_precision": _mean(precisions) if precisions else None,
        "macro_roc_auc": _mean(areas) if areas else None,
        "loss": _mean([loss(*pair) for pair in zip(true, rows, strict=True)]),
    }


def regression(targets: Rows, rows: Rows, stds: Sequence[float]) -> dict[str, float | None]:
    """Every figure of numbers; of several targets the mean of each target's."""

    def of_target(figure: Callable[[list[float], list[float]], float]) -> float:
        columns = zip(zip(*targets, strict=True), zip(*rows, strict=True), strict=True)
        return _mean([figure(list(true), list(said)) for true, said in columns])

    def errors(true: list[float], said: list[float]) -> list[float]:
        return [abs(t - s) for t, s in zip(true, said, strict=True)]

    def median(true: list[float], said: list[float]) -> float:
        ordered = sorted(errors(true, said))
        return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2

    def explained(true: list[float], said: list[float]) -> float:
        whole = math.fsum((t - _mean(true)) ** 2 for t in true)
        return 1 - math.fsum(error**2 for error in errors(true, said)) / whole

    changes = all(len(set(column)) > 1 for column in zip(*targets, strict=True))
    return {
        "mean_absolute_error": of_target(lambda t, s: _mean(errors(t, s))),
        "root_mean_squared_error": of_target(lambda t, s: math.sqrt(_mean([error**2 for error in errors(t, s)]))),
        "median_absolute_error": of_target(median),
        "r2": of_target(explained) if changes else None,
        "loss": _mean(
            [
                ((t - s) / std) ** 2
                for true, said in zip(targets, rows, strict=True)
                for t, s, std in zip(true, said, stds, strict=True)
            ]
        ),
    }


def language_model(targets: Sequence[Sequence[int]], rows: Sequence[Rows]) -> dict[str, float | None]:
    """Every figure of next characters; a target of 0 does not count."""
    counted = [
        (target, row)
        for passage, answers in zip(targets, rows, strict=True)
        for target, row in zip(passage, answers, strict=True)
        if target
    ]
    nats = _mean([-math.log(min(max(row[target], _SMALLEST), 1.0)) for target, row in counted])
    return {
        "bits_per_character": nats / math.log(2),
        "loss": nats,
        "accuracy": _mean([float(_likeliest(row) == target) for target, row in counted]),
    }
