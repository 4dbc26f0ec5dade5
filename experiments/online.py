"""Samples that arrive one after the other: the bandwidth of a stream beside that of a fresh search at every size."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.lines import Line, Panel
from experiments.output import floats, level_line
from experiments.study import Measured, Measurements, Study, StudyOutput, TaskSetting, Values, Variant
from kcal import KCal, KCalBlend
from kcal.benchmark.table import Entry, Table
from kcal.benchmark.tasks import Split
from kcal.metrics import negative_log_likelihood
from kcal.projection import project

N_SIZES = 30
MIN_SIZE = 100
MAX_TEST = 2_000
SMOOTHING = 1e-3
"""Share of the probability that is spread over all classes: in small sets many have no sample."""
STREAM, FRESH, EARLIER = "stream", "fresh search", "search one size earlier"
METRICS = {"directions": "unit", "learned": "identity"}
"""Metrics of KCal, and the projection of the points that are passed to it."""
BLEND = "blend"
LIMIT = 0.01
"""Relative difference of the log-loss above which sizes are counted."""


def sizes_of(n_calibration: int) -> list[int]:
    """Return the sizes at which both are compared, in equal steps of their logarithm."""
    steps = np.geomspace(min(MIN_SIZE, n_calibration), n_calibration, N_SIZES)
    return [int(size) for size in np.unique(steps.round())]


class Arrivals:
    """The calibration samples of a split in the order of their arrival, and test samples, for KCal or the blend."""

    def __init__(self, setting: TaskSetting, split: Split, calibrated: str) -> None:
        pool, generator = setting.task.pool, np.random.default_rng([setting.seed, split.index, 2])
        order = generator.permutation(split.calibration)
        test = generator.permutation(split.test)[:MAX_TEST]
        points = pool.embeddings
        if calibrated == "learned":
            import torch

            rows = torch.from_numpy(np.asarray(points, dtype=np.float32))
            points = project(setting.projection().checkpoints[-1], rows).numpy()
        self.calibrated, self.classes = calibrated, range(len(setting.task.classes))
        self.rows, self.labels, self.logits = points[order], pool.labels[order], pool.logits[order]
        self.test, self.truth, self.test_logits = points[test], pool.labels[test], pool.logits[test]
        self.sizes = sizes_of(len(order))

    def calibrator(self, **parameters: Any) -> Any:
        if self.calibrated == BLEND:
            return KCalBlend(progress=False, **parameters)
        return KCal(projection=METRICS[self.calibrated], smoothing=SMOOTHING, progress=False, **parameters)

    def samples(self, first: int, last: int) -> dict[str, Any]:
        """Return the samples from ``first`` to ``last`` as the arguments of a fit."""
        rows = slice(first, last)
        logits = {"logits": self.logits[rows]} if self.calibrated == BLEND else {}
        return {"X": self.rows[rows], "y": self.labels[rows], "classes": self.classes, **logits}

    def measure(self, calibrator_at: Callable[[int, int], Any]) -> Values:
        """Return log-loss, bandwidth and processor time by size; arguments are the previous and the present size."""
        logits = {"logits": self.test_logits} if self.calibrated == BLEND else {}
        losses, bandwidths, seconds, last = [], [], [], 0
        for size in self.sizes:
            start = time.process_time()
            calibrator = calibrator_at(last, size)
            seconds.append(time.process_time() - start)
            probs: NDArray[Any] = calibrator.predict_proba(self.test, **logits)
            losses.append(float(negative_log_likelihood(probs, self.truth)))
            bandwidths.append(float(calibrator.bandwidth_history_[-1].bandwidth))
            last = size
        searches = len({r.n_updates for r in calibrator.bandwidth_history_ if r.source == "search"})
        values: dict[str, float | list[float]] = {"loss": losses, "bandwidth": bandwidths, "seconds": seconds}
        return values | {"sizes": [float(size) for size in self.sizes], "searches": float(searches)}

    def stream(self) -> Values:
        """Measure one calibrator that all samples are added to; building its model at each size is part of its time."""
        calibrator = self.calibrator()
        return self.measure(lambda last, size: calibrator.partial_fit(**self.samples(last, size)).refresh())

    def fresh(self) -> Values:
        """Measure a calibrator that is fitted anew at every size."""
        return self.measure(lambda _, size: self.calibrator().fit(**self.samples(0, size)))

    def earlier(self) -> Values:
        """Measure a KCal with the bandwidth that a whole search finds one size earlier."""

        def at(last: int, size: int) -> Any:
            searched = self.calibrator().fit(**self.samples(0, last or size))
            return self.calibrator(bandwidth=searched.bandwidth_).fit(**self.samples(0, size))

        return self.measure(at)


def variants(setting: TaskSetting) -> Mapping[str, Variant]:
    """Return the stream and the fresh search, of KCal in each metric and of the blend."""
    measures = {STREAM: Arrivals.stream, FRESH: Arrivals.fresh, EARLIER: Arrivals.earlier}

    def variant(calibrated: str, name: str) -> Variant:
        return lambda split: measures[name](Arrivals(setting, split, calibrated))

    pairs = [(metric, name) for metric in METRICS for name in measures] + [(BLEND, STREAM), (BLEND, FRESH)]
    return {f"{calibrated}, {name}": variant(calibrated, name) for calibrated, name in pairs}


def show(measured: Measurements) -> StudyOutput:
    rows, panels = [], []
    for label, by_variant in measured.items():
        for calibrated in (*METRICS, BLEND):
            stream, fresh = (by_variant[f"{calibrated}, {name}"] for name in (STREAM, FRESH))
            earlier = by_variant.get(f"{calibrated}, {EARLIER}")
            excess = stream["loss"] / fresh["loss"] - 1.0  # (n_splits, n_sizes)
            changes = [f"{value:+.2%}".replace("-", "−") for value in (excess.max(), excess.min(), excess.mean())]
            above = [count_above(stream, fresh), "–" if earlier is None else count_above(earlier, fresh)]
            share = float(stream["seconds"].sum() / fresh["seconds"].sum())
            times = (f"{fresh['seconds'].sum(axis=1).mean():.2f} s", f"{share:.1%}")
            texts = (f"{label}, {calibrated}", f"{stream['searches'].mean():.1f}", *changes, *above, *times)
            rows.append(tuple(Entry(text) for text in texts))
            panels.append(loss_panel(f"{label}, {calibrated}", stream, fresh))
    heading = (
        "task, calibrated", "searches", "worst", "best", "mean", "above 1%", "above 1%, one size earlier",
        "time of fresh fits", "time of the stream",
    )  # fmt: skip
    note = (
        f"Difference of the log-loss on test samples from that of a fresh search, over {N_SIZES} sizes and all splits; "
        "sizes at which it is above 1%, and at which that of a whole search one size earlier is; processor time of all "
        "sizes, of updates and snapshots with their searches beside that of fits."
    )
    return StudyOutput(
        (Table("online", "A stream beside fresh searches", heading, tuple(rows), note),), tuple(panels), 3
    )


def count_above(variant: Measured, fresh: Measured) -> str:
    """Return at how many sizes of all splits the log-loss is above that of a fresh search by more than the limit."""
    above = variant["loss"] / fresh["loss"] - 1.0 > LIMIT
    return f"{int(above.sum())} of {above.size}"


def loss_panel(title: str, stream: Measured, fresh: Measured) -> Panel:
    """Return the difference of the log-loss along the sizes, in percent, with a line per split."""
    sizes = floats(stream["sizes"][0])
    excess = 100.0 * (stream["loss"] / fresh["loss"] - 1.0)
    lines = [Line(f"split {place + 1}", sizes, floats(values)) for place, values in enumerate(excess)]
    return Panel(title, "samples", "log-loss, difference in %", (*lines, level_line("fresh search", sizes, 0.0)), True)


STUDY = Study("online", "Samples that arrive one after the other", variants, show, max_splits=3)
