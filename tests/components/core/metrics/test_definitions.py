"""One table of metrics, which everything that names, judges or shows one agrees with."""

import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tpu_components import evaluate_model
from tpu_components.core.base.formatting import show
from tpu_components.core.examples.interface import TASKS, Regression
from tpu_components.core.metrics.definitions import (
    BY_NAME,
    HIGHER,
    LOWER,
    METRICS,
    NEITHER,
    direction,
    estimators,
    task_metrics,
)

# Shapes of targets and of outputs, where they are not alike.
_SHAPES = {"classification": ((4,), (4, 2)), "language_model": ((4, 5), (4, 5, 2))}


def test_every_task_has_metrics_the_judged_one_first_and_only_one_that_needs_something_may_be_undefined():
    assert {metric.task for metric in METRICS} == set(TASKS)
    for name, task in TASKS.items():
        targets, outputs = _SHAPES.get(name, ((4, 2), (4, 2)))
        assert next(iter(task_metrics(name))) == task.judged
        scaled = Regression((0.0, 0.0), (1.0, 1.0)) if name == "regression" else task
        estimates = {
            each: make() for each, make in estimators(scaled, np.zeros(targets, int), np.ones(outputs)).items()
        }
        assert set(estimates) == set(task_metrics(name))
        undefined = {each for each, estimate in estimates.items() if estimate is None}
        assert undefined == {each for each, metric in task_metrics(name).items() if metric.needs}


def test_the_table_is_read_without_a_library_that_estimates():
    """The image that serves reads the table, and has no SciPy."""
    loaded = "import sys, tpu_components.core.metrics.definitions; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert not {"scipy", "keras", "tensorflow", "jax"} & set(run.stdout.split())


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
