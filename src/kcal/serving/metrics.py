"""The metrics of a service for Prometheus, in a registry of their own."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from kcal.serving.predictor import Predictor, Scores

if TYPE_CHECKING:
    from kcal.serving.service import ServedModel, Service

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
SHARES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
OF_MODELS: dict[str, tuple[Any, ...]] = {
    "load_failed": (GaugeMetricFamily, "1 if the latest file of a model was not loaded"),
    "queue_requests": (GaugeMetricFamily, "Requests that wait for their batch"),
    "estimated_accuracy": (GaugeMetricFamily, "Accuracy estimated without labels"),
    "measured_accuracy": (GaugeMetricFamily, "Accuracy on the latest labels"),
    "measured_log_loss": (GaugeMetricFamily, "Log-loss on the latest labels"),
    "alarms": (GaugeMetricFamily, "Alarms and notices", "severity", "kind"),
    "labels": (CounterMetricFamily, "Predictions that got a label"),
    "feedback": (CounterMetricFamily, "Records of feedback", "status"),
}
"""Type, text and further labels of the metrics of a model that are computed when they are asked for."""


class Metrics(Collector):
    """Counters of requests and predictions, and the state of the models of a service."""

    def __init__(self, service: Service) -> None:
        self._service, self.registry = service, CollectorRegistry()
        options: dict[str, Any] = {"registry": self.registry}
        of_model: dict[str, Any] = {"labelnames": ["model"], **options}
        self.requests = Counter("kcal_requests", "Requests", ["endpoint", "status"], **options)
        self.seconds = Histogram(
            "kcal_request_seconds", "Duration of requests", ["endpoint"], buckets=SECONDS, **options
        )
        self.predictions = Counter("kcal_predictions", "Rows by most probable class", ["model", "class"], **options)
        self.batch_rows = Histogram("kcal_batch_rows", "Rows of a batch", buckets=SIZES, **of_model)
        self.batch_requests = Histogram("kcal_batch_requests", "Requests of a batch", buckets=SIZES, **of_model)
        self.evidence = Histogram("kcal_evidence", "Evidence of rows, on request", buckets=SHARES, **of_model)
        self.registry.register(self)

    def count_request(self, endpoint: str, status: str, start: float) -> None:
        """Count a request that came at ``start`` of the performance counter."""
        self.requests.labels(endpoint, status).inc()
        self.seconds.labels(endpoint).observe(time.perf_counter() - start)

    def count_batch(self, name: str, predictor: Predictor, scores: Scores, n_requests: int) -> None:
        """Count a batch of a model."""
        self.batch_requests.labels(name).observe(n_requests)
        self.batch_rows.labels(name).observe(len(scores.probs))
        for code, count in Tally(scores.probs.argmax(axis=1).tolist()).items():
            self.predictions.labels(name, str(predictor.classes[code])).inc(count)
        histogram = self.evidence.labels(name)
        for value in [] if scores.evidence is None else scores.evidence.tolist():
            histogram.observe(value)

    def describe(self) -> list[Any]:
        """Return nothing: the metrics of models are known when they are asked for."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the metrics of the models."""
        service, families = self._service, dict[str, Any]()
        for name, (kind, text, *labels) in OF_MODELS.items():
            families[name] = kind(f"kcal_{name}", text, labels=["model", *labels])
        for name in service.errors:
            families["load_failed"].add_metric([name], 1.0)
        for name, model in list(service.models.items()):
            for metric, value, *labels in _state(model):
                families[metric].add_metric([name, *labels], value)
        yield GaugeMetricFamily("kcal_ready", "1 if every model is served", value=float(service.is_ready))
        yield from families.values()


def _state(model: ServedModel) -> Iterator[tuple[Any, ...]]:
    """Yield names, values and labels of the metrics of a model."""
    summary = model.summary()
    yield "queue_requests", len(model.batcher.waiting)
    yield "labels", summary.n_labels
    if summary.performance is not None:
        yield "estimated_accuracy", summary.performance.accuracy.value
    if len(summary.codes):
        yield "measured_accuracy", summary.accuracy[0]
        yield "measured_log_loss", summary.log_loss
    yield "alarms", sum(alarm.severity == "alarm" for alarm in summary.alarms), "alarm", "any"
    for key, count in Tally((alarm.severity, alarm.kind) for alarm in summary.alarms).items():
        yield "alarms", count, *key
    for status, count in (model.learner.counts if model.learner else {}).items():
        yield "feedback", count, status
