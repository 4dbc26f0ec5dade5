"""Metrics in the format of Prometheus, in a registry of their own."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from kcal.deployment.service.runtime import Service

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
LABELS = ("model", "version")
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counts of requests as they are answered, and those of the models when they are asked for."""

    def __init__(self, service: Service) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("kcal_requests", "Requests", ("endpoint", "status"), registry=self.registry)
        self.seconds = Histogram(
            "kcal_request_seconds", "Time to answer", ("endpoint",), buckets=SECONDS, registry=self.registry
        )
        self.registry.register(ModelCollector(service))

    def answered(self, endpoint: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests.labels(endpoint, str(status)).inc()
        self.seconds.labels(endpoint).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics."""
        content: bytes = generate_latest(self.registry)
        return content


class ModelCollector(Collector):
    """The metrics of the models: batches, classes, evidence, alarms, estimates and feedback."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def describe(self) -> list[Any]:
        """Return nothing: the names are known when there are models."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the families of metrics."""
        models = self.service.repository.all()
        ready = GaugeMetricFamily("kcal_ready", "1 if every model is served", value=float(self.service.is_ready))
        failed = GaugeMetricFamily("kcal_load_failed", "1 if the latest file of a model was not loaded", labels=LABELS)
        for (name, version), _ in sorted(self.service.repository.errors.items()):
            failed.add_metric([name, str(version)], 1.0)
        yield from (ready, failed)
        yield from self._counted(models)
        yield from self._observed(models)
        yield self._feedback()

    def _counted(self, models: list[Any]) -> Iterator[Any]:
        classes = CounterMetricFamily("kcal_predictions", "Rows by most probable class", labels=(*LABELS, "class"))
        queues = GaugeMetricFamily("kcal_queue_requests", "Requests that wait for their batch", labels=LABELS)
        families = {
            "batch_requests": HistogramMetricFamily("kcal_batch_requests", "Requests of a batch", labels=LABELS),
            "batch_rows": HistogramMetricFamily("kcal_batch_rows", "Rows of a batch", labels=LABELS),
            "evidence": HistogramMetricFamily(
                "kcal_evidence", "Evidence of rows, where it was asked for", labels=LABELS
            ),
        }
        for model in models:
            labels = [model.name, str(model.version)]
            queues.add_metric(labels, model.batcher.n_waiting)
            for label, count in model.tallies.class_counts().items():
                classes.add_metric([*labels, label], count)
            for name, counts in model.tallies.histograms().items():
                families[name].add_metric(labels, *counts)
        yield from (classes, queues, *families.values())

    def _observed(self, models: list[Any]) -> Iterator[Any]:
        alarms = GaugeMetricFamily(
            "kcal_alarms", "Alarms and notices that are on", labels=(*LABELS, "severity", "kind")
        )
        estimated = GaugeMetricFamily("kcal_estimated_accuracy", "Accuracy estimated without labels", labels=LABELS)
        measured = GaugeMetricFamily("kcal_measured_accuracy", "Accuracy on the latest labels", labels=LABELS)
        losses = GaugeMetricFamily("kcal_measured_log_loss", "Log-loss on the latest labels", labels=LABELS)
        labelled = CounterMetricFamily("kcal_labels", "Predictions that got a label", labels=LABELS)
        for model in models:
            labels, snapshot = [model.name, str(model.version)], model.observer.snapshot()
            labelled.add_metric(labels, snapshot.n_labels)
            alarms.add_metric([*labels, "alarm", "any"], sum(alarm.severity == "alarm" for alarm in snapshot.alarms))
            for key, count in Tally((alarm.severity, alarm.kind) for alarm in snapshot.alarms).items():
                alarms.add_metric([*labels, *key], count)
            if snapshot.performance is not None:
                estimated.add_metric(labels, snapshot.performance.accuracy.value)
            if snapshot.labelled is not None:
                measured.add_metric(labels, snapshot.labelled.accuracy)
                losses.add_metric(labels, snapshot.labelled.negative_log_likelihood)
        yield from (alarms, estimated, measured, losses, labelled)

    def _feedback(self) -> Any:
        feedback = CounterMetricFamily("kcal_feedback", "Records of feedback", labels=("model", "status"))
        for name, learner in sorted(self.service.learners.items()):
            for status, count in learner.counts.items():
                feedback.add_metric([name, status], count)
        return feedback
