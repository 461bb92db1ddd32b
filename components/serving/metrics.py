"""Metrics of the server in Prometheus's text format 0.0.4 or OpenMetrics 1.0.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS, OPEN_METRICS_TYPE = "application/openmetrics-text", "; version=1.0.0; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_PREFIX = "tpu_pipelines_"


class Metrics:
    """Counts requests by route and status, instances, and response times. Not thread-safe: use it in the event loop."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._buckets: Counter[float] = Counter()
        self._seconds = 0.0
        self._instances = 0

    def count(self, route: str, status: int, seconds: float, instances: int) -> None:
        """Add a request. `route` must be the name of a route, not a path from the client."""
        self._requests[route, status] += 1
        self._instances += instances
        if instances:
            self._seconds += seconds
            self._buckets[next((bound for bound in _SECONDS if seconds <= bound), float("inf"))] += 1

    def render(self, gauges: Mapping[str, float], is_open_metrics: bool = False) -> str:
        """Return all metrics as text; `gauges` maps names to current values.

        OpenMetrics differs: the family of a counter has no suffix `_total`, and the text ends with `# EOF`.
        """
        lines = list(self._lines(gauges))
        if is_open_metrics:
            lines = [re.sub(r"^(# \w+ \w+)_total ", r"\1 ", line) for line in lines] + ["# EOF"]
        return "".join(f"{line}\n" for line in lines)

    def _lines(self, gauges: Mapping[str, float]) -> Iterator[str]:
        yield from _head("requests_total", "counter", "Requests that were answered.")
        for (route, status), count in sorted(self._requests.items()):
            yield f'{_PREFIX}requests_total{{route="{route}",status="{status}"}} {count}'
        yield from _head("instances_total", "counter", "Instances that were answered.")
        yield f"{_PREFIX}instances_total {self._instances}"
        yield from _head("predict_seconds", "histogram", "Time of requests with instances, from head to answer.")
        total = 0
        for bound in (*_SECONDS, float("inf")):
            total += self._buckets[bound]
            yield f'{_PREFIX}predict_seconds_bucket{{le="{"+Inf" if bound == float("inf") else bound}"}} {total}'
        yield f"{_PREFIX}predict_seconds_sum {self._seconds:.6f}"
        yield f"{_PREFIX}predict_seconds_count {total}"
        for name, value in gauges.items():
            yield from _head(name, "gauge", "At this moment.")
            yield f"{_PREFIX}{name} {value:g}"


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {_PREFIX}{name} {text}"
    yield f"# TYPE {_PREFIX}{name} {kind}"
