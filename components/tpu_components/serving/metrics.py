"""Metrics of the server for Prometheus."""

from collections.abc import Callable, Mapping

import numpy as np
import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

from tpu_components.core.examples.interface import CLASSIFICATION
from tpu_components.serving.exported import ExportedModel

_PREFIX = "tpu_pipelines"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_CONFIDENCES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1.0)

prometheus_client.disable_created_metrics()  # No creation time beside every counter.


class Metrics:
    """Counts requests, instances and predicted classes, and measures durations and confidences.

    Args:
        gauges: Functions that return current values, by name. They are called when the metrics are rendered.
    """

    def __init__(self, gauges: Mapping[str, Callable[[], float]]) -> None:
        self._all = CollectorRegistry()
        self._requests = self._counter("requests", "Requests that received a response.", "route", "status")
        self._instances = self._counter("instances", "Instances that were predicted.")
        self._seconds = self._histogram(
            "predict_seconds", "Duration of requests with instances, from their head to the response.", _SECONDS
        )
        for name, value in gauges.items():
            Gauge(name, "Current value.", namespace=_PREFIX, registry=self._all).set_function(value)

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(name, meaning, labels, _PREFIX, registry=self._all)

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, meaning, namespace=_PREFIX, registry=self._all, buckets=buckets)

    def add_model(self, model: ExportedModel) -> None:
        """Add the metrics of a classifier: predictions by class, and their confidences."""
        self._is_classifier = model.task == CLASSIFICATION
        if self._is_classifier:
            predictions = self._counter("predictions", "Predictions by class.", "class")
            # A class that has not been predicted yet has the value 0, so that rates of all classes can be compared.
            self._predictions = [predictions.labels(name) for name in model.class_names]
            self._confidence = self._histogram("confidence", "Probability of the predicted class.", _CONFIDENCES)

    def count_predictions(self, outputs: np.ndarray) -> None:
        """Count predictions by class, from float32[N, classes]. Do nothing if the model is not a classifier."""
        if self._is_classifier:
            for number, confidence in zip(outputs.argmax(1).tolist(), outputs.max(1).tolist(), strict=True):
                self._predictions[number].inc()
                self._confidence.observe(confidence)

    def count(self, route: str, status: int, seconds: float, instances: int) -> None:
        """Count a request that received a response.

        `route` is one of a few fixed names, never a path that a client sent: each name becomes a separate time series.
        """
        self._requests.labels(route, status).inc()
        self._instances.inc(instances)
        if instances:
            self._seconds.observe(seconds)

    def render(self, accepted: str = "") -> tuple[bytes, str]:
        """Return all metrics and their media type.

        Args:
            accepted: Accept header of the request. If it is empty, the metrics are in Prometheus's text format.
        """
        encode, content_type = choose_encoder(accepted)
        return encode(self._all), content_type
