"""What a server has done, as Prometheus reads it: in its text format, or in OpenMetrics 1.0."""

from collections.abc import Callable, Mapping

import prometheus_client
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.openmetrics import exposition as openmetrics

OPEN_METRICS = "application/openmetrics-text"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_PREFIX = "tpu_pipelines"

prometheus_client.disable_created_metrics()  # A time beside every counter, which nobody asked for.


class Metrics:
    """Counts requests by route and status, their instances, and their time.

    Args:
        gauges: Values of the moment, by name; each is asked when the metrics are rendered.
    """

    def __init__(self, gauges: Mapping[str, Callable[[], float]]) -> None:
        self._all = CollectorRegistry()
        self._requests = Counter(
            "requests", "Requests that were answered.", ("route", "status"), _PREFIX, registry=self._all
        )
        self._instances = Counter("instances", "Instances that were answered.", namespace=_PREFIX, registry=self._all)
        self._seconds = Histogram(
            "predict_seconds",
            "Time of requests with instances, from head to answer.",
            namespace=_PREFIX,
            registry=self._all,
            buckets=_SECONDS,
        )
        for name, value in gauges.items():
            Gauge(name, "Now.", namespace=_PREFIX, registry=self._all).set_function(value)

    def count(self, route: str, status: int, seconds: float, instances: int) -> None:
        """Count an answered request; `route` is one of a few names, never an address that a client has chosen."""
        self._requests.labels(route, status).inc()
        self._instances.inc(instances)
        if instances:
            self._seconds.observe(seconds)

    def render(self, accepted: str = "") -> tuple[str, str]:
        """Return all metrics as text, and the type of this content: OpenMetrics if the header Accept names it."""
        if OPEN_METRICS in accepted:
            return openmetrics.generate_latest(self._all).decode(), openmetrics.CONTENT_TYPE_LATEST
        return prometheus_client.generate_latest(self._all).decode(), CONTENT_TYPE
