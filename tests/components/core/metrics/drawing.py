"""Draws predictions of two models, of known skill, for every task but language models."""

import math

import numpy as np

from tpu_components.core.examples.interface import Classification, MultiLabel, Regression
from tpu_components.core.metrics.model_metrics import GroundTruth, compute_metrics

_NUMBERS = Regression(mean=(0.0, 0.0), std=(1.0, 5.0))


def _similar(generator, shape, skills):
    """Return noise of two models that have four fifths of it in common, more of it for the first one's skill."""
    common = generator.normal(size=shape)
    return [0.8 * common + 0.6 * generator.normal(size=shape) for _ in skills]


def _classes(generator, num_examples, skills, num_classes=4):
    labels = generator.integers(0, num_classes, num_examples)
    outputs = []
    for skill, noise in zip(skills, _similar(generator, (num_examples, num_classes), skills), strict=True):
        noise[np.arange(num_examples), labels] += skill
        powers = np.exp(2 * noise)
        outputs.append(powers / powers.sum(axis=1, keepdims=True))
    return labels, outputs


def _two_classes(generator, num_examples, skills):
    return _classes(generator, num_examples, skills, num_classes=2)


def _labels(generator, num_examples, skills):
    labels = (generator.random((num_examples, 3)) < 0.3).astype(np.float32)
    noises = _similar(generator, labels.shape, skills)
    return labels, [
        1 / (1 + np.exp(-2 * (noise + skill * (2 * labels - 1)))) for skill, noise in zip(skills, noises, strict=True)
    ]


def _numbers(generator, num_examples, skills):
    targets = generator.normal(size=(num_examples, 2)) * _NUMBERS.std
    noises = _similar(generator, targets.shape, skills)
    return targets, [targets + noise / skill * _NUMBERS.std for skill, noise in zip(skills, noises, strict=True)]


CASES = {
    "classification": (Classification(), _classes),
    "two classes": (Classification(), _two_classes),
    "multi_label": (MultiLabel(), _labels),
    "regression": (_NUMBERS, _numbers),
}


def draw_models(case, generator, num_examples, skills):
    task, draw = CASES[case]
    targets, outputs = draw(generator, num_examples, skills)
    return [compute_metrics(GroundTruth(task, targets, "abcd"[: own.shape[1]]), own, 2) for own in outputs]


def draw_patients(generator, correlation, num_patients=40, num_each=25, advantage=0.0):
    """Return labels and two models' answers to pictures of patients, whose answers are correlated, and the patients."""
    patients = np.repeat(np.arange(num_patients), num_each)
    common = generator.normal(size=num_patients), generator.normal(size=len(patients))
    labels = generator.integers(0, 4, len(patients))
    outputs = []
    for more in (advantage, 0.0):
        own, rest = (0.77 * part + 0.64 * generator.normal(size=len(part)) for part in common)
        ability = math.sqrt(correlation) * own[patients] + math.sqrt(1 - correlation) * rest + 1 + more
        answers = np.where(ability > 0, labels, (labels + 1) % 4)
        sure = 1 / (1 + np.exp(-np.abs(ability) - 1.2))[:, None]
        outputs.append(np.where(np.arange(4) == answers[:, None], sure, (1 - sure) / 3))
    return labels, outputs, patients
