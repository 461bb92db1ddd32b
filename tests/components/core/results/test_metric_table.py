"""One table of metrics, which everything that names, judges or shows one agrees with."""

import dataclasses
import math
import re
from pathlib import Path

import pytest

from tpu_components import evaluate_model
from tpu_components.core.examples.interface import TASKS
from tpu_components.core.results.metric_table import (
    BY_NAME,
    HIGHER,
    LOWER,
    METRICS,
    NEITHER,
    direction,
    show,
    task_metrics,
)
from tpu_components.evaluate_model.language_model import LanguageMetrics
from tpu_components.evaluate_model.metrics import Metrics
from tpu_components.evaluate_model.multi_label import MultiLabelMetrics
from tpu_components.evaluate_model.regression import RegressionMetrics

_FIGURES = (Metrics, MultiLabelMetrics, RegressionMetrics, LanguageMetrics)


@pytest.mark.parametrize("figures", _FIGURES)
def test_every_metric_of_a_task_is_a_figure_of_its_evaluation_and_the_judged_one_comes_first(figures):
    names = list(task_metrics(figures.task))
    assert names[0] == TASKS[figures.task].judged
    fields = {field.name: field.type for field in dataclasses.fields(figures)}
    assert set(names) <= fields.keys()
    for name, metric in task_metrics(figures.task).items():
        assert ("None" in str(fields[name])) == bool(metric.needs), f"{name} may be undefined, or may not"


def test_every_task_has_a_table():
    assert {figures.task for figures in _FIGURES} == {metric.task for metric in METRICS} == set(TASKS)


def test_tasks_say_the_same_of_a_metric_of_one_name():
    for metric in METRICS:
        same = BY_NAME[metric.name]
        assert (metric.direction, metric.most, metric.is_share) == (same.direction, same.most, same.is_share)


def test_readme_lists_every_metric_under_its_task_and_direction():
    readme = Path(evaluate_model.__file__).with_name("README.md").read_text()
    table = readme.partition("| task | higher is better |")[2].partition("\n\n")[0]
    rows = [
        line.strip("| ").split("|") for line in table.splitlines() if line.startswith(tuple(f"| {t}" for t in TASKS))
    ]
    assert len(rows) == len(TASKS)
    for task, *cells in rows:
        for cell, better in zip(cells, (HIGHER, LOWER), strict=True):
            names = {name for name, metric in task_metrics(task.split()[0]).items() if metric.direction == better}
            assert set(re.findall(r"`(\w+)`", cell)) == names


def test_a_name_that_is_no_metric_has_no_direction():
    assert (direction("accuracy"), direction("loss"), direction("num_examples")) == (HIGHER, LOWER, NEITHER)


@pytest.mark.parametrize(
    ("value", "beside", "expected"),
    [
        (0.9, (), "0.9000"),
        (0.9, (0.9,), "0.9000"),
        (0.9, (0.90001,), "0.90000"),
        (0.90001, (0.9, 0.5), "0.90001"),
        (0.1 + 0.2, (0.3,), "0.30000000000000004"),
        (1.25e-5, (1.25001e-5,), "1.25e-05"),
        (1.25001e-5, (1.25e-5,), "1.25001e-05"),
        (123.0, (), "123.0000"),
        (math.nan, (0.5,), "not a number"),
        (math.inf, (0.5,), "inf"),
    ],
)
def test_a_value_is_shown_in_as_many_digits_as_tell_it_from_others(value, beside, expected):
    assert show(value, *beside) == expected
