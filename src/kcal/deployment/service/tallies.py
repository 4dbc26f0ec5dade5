"""Counts of one served model for the metrics: batches, classes and evidence, bounded in memory and quick to add to."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

BATCH_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
EVIDENCE_BOUNDS = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
HistogramCounts = tuple[list[tuple[str, int]], float]
LATEST_REQUESTS = 1000
"""Requests whose times are kept."""


@dataclass(frozen=True)
class Traffic:
    """Requests that a model has answered since it was loaded; the latency is None before the first."""

    requests: int
    errors: int
    per_second: float
    p50_ms: float | None
    p99_ms: float | None


class Histogram:
    """Counts of values up to each bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = np.array(bounds, dtype=np.float64)
        self.counts = np.zeros(len(bounds) + 1, dtype=np.int64)
        self.total = 0.0

    def add(self, values: NDArray[Any]) -> None:
        """Count values."""
        places = np.searchsorted(self.bounds, values)
        self.counts += np.bincount(places, minlength=len(self.counts))
        self.total += float(np.sum(values, dtype=np.float64))

    def to_counts(self) -> HistogramCounts:
        """Return the histogram in the form of Prometheus: cumulative counts up to each bound, and the sum."""
        names = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        return list(zip(names, accumulate(self.counts.tolist()), strict=True)), self.total


class Tallies:
    """Counts since a model was loaded; safe to use from several threads."""

    def __init__(self, classes: NDArray[Any]) -> None:
        self._lock = threading.Lock()
        self._class_counts = Counter({str(label): 0 for label in classes.tolist()})  # and of those that it has learnt
        self._rows, self._requests = Histogram(BATCH_BOUNDS), Histogram(BATCH_BOUNDS)
        self._evidence = Histogram(EVIDENCE_BOUNDS)
        self._seconds: deque[float] = deque(maxlen=LATEST_REQUESTS)
        self.n_requests = self.n_errors = 0
        self._start = time.monotonic()

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count a request, the time that its block takes, and whether it fails."""
        start, is_error = time.perf_counter(), True
        try:
            yield
            is_error = False
        finally:
            with self._lock:
                self.n_requests += 1
                self.n_errors += is_error
                self._seconds.append(time.perf_counter() - start)

    def traffic(self) -> Traffic:
        """Return the counts of requests, and the latency of the latest."""
        with self._lock:
            milliseconds = 1e3 * np.array(self._seconds)
            rate = self.n_requests / max(time.monotonic() - self._start, 1e-3)
        p50, p99 = np.quantile(milliseconds, (0.5, 0.99)).tolist() if len(milliseconds) else (None, None)
        return Traffic(self.n_requests, self.n_errors, rate, p50, p99)

    def batch(self, n_requests: int, n_rows: int) -> None:
        """Count a batch."""
        with self._lock:
            self._requests.add(np.array([n_requests]))
            self._rows.add(np.array([n_rows]))

    def predicted(self, labels: Sequence[Any], evidence: NDArray[Any] | None) -> None:
        """Count the most probable classes of predictions and, if it was computed, their evidence."""
        with self._lock:
            self._class_counts.update(map(str, labels))
            if evidence is not None:
                self._evidence.add(evidence)

    def class_counts(self) -> dict[str, int]:
        """Return the number of predictions of each class, by its name."""
        with self._lock:
            return dict(self._class_counts)

    def histograms(self) -> dict[str, HistogramCounts]:
        """Return the histograms of batch sizes and evidence."""
        with self._lock:
            return {
                "batch_requests": self._requests.to_counts(),
                "batch_rows": self._rows.to_counts(),
                "evidence": self._evidence.to_counts(),
            }
