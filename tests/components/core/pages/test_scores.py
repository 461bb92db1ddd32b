import dataclasses

import pytest

from tpu_components.core.metrics.definitions import BY_NAME, METRICS
from tpu_components.core.pages.scores import Score


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: f"{metric.task}-{metric.name}")
def test_intervals_end_where_the_range_of_the_metric_ends(metric):
    interval = Score.make(metric, metric.label, 0.5, (-2.0, 3.0)).interval
    low, high = (float(end.rstrip("%").replace("−", "-")) for end in interval.split(" to "))
    scale = 100 if metric.is_share else 1
    assert (low, high) == (max(-2.0, metric.least) * scale, min(3.0, metric.most) * scale)


def test_metrics_that_can_be_negative_say_so():
    assert [name for name, metric in BY_NAME.items() if metric.least < 0] == ["r2"]
    kappa = dataclasses.replace(BY_NAME["accuracy"], name="cohen_kappa", least=-1.0, is_share=False)
    assert Score.make(kappa, "Cohen's kappa", 0.0, (-0.2, 0.2)).interval == "−0.2000 to 0.2000"
