"""More calibration data: metrics, and how the bandwidth follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.lines import Line, Panel
from experiments.output import METRIC_LABELS, floats, metric_entries, metric_panel
from experiments.study import Measured, Measurements, Study, StudyOutput, TaskSetting, Values, Variant
from kcal.benchmark.results import MAIN_METRICS
from kcal.benchmark.table import Entry, Table
from kcal.benchmark.tasks import Split

SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""Of the calibration set."""
UNCALIBRATED = "uncalibrated"


def variants(setting: TaskSetting) -> Mapping[str, Variant]:
    """Return KCal on parts of the calibration set, and the uncalibrated network."""
    first: list[Any] = []  # KCal on the first split, whose checkpoint all bandwidths are for

    def of_share(share: float) -> Variant:
        def measure(split: Split) -> Values:
            if not first:
                first.append(setting.fit(setting.calibrator("kcal"), setting.splits(1)[0]).calibrator)
            order = np.random.default_rng([setting.seed, split.index, 1]).permutation(split.calibration)
            rows = np.sort(order[: max(round(share * len(order)), 2)])
            fixed = setting.fit(setting.calibrator("kcal", projection=first[0].projection_), split, rows=rows)
            counts = np.bincount(setting.task.pool.labels[rows])
            return {
                **setting.fit(setting.calibrator("kcal"), split, rows=rows).metrics(),
                "size": float(len(rows)),
                "rarest": float(counts[counts > 0].min()),
                "bandwidth": float(fixed.calibrator.bandwidth_),
                "dimension": float(first[0].model_.dimension),
            }

        return measure

    return {f"{share:g}": of_share(share) for share in SHARES} | {UNCALIBRATED: setting.variant("uncal")}


class Bandwidths:
    """Bandwidths against the samples m of the rarest class, (n_sizes · n_splits,), and the powers of m they follow.

    In theory b = ``factor`` · m^``exponent`` with exponent −1/(d + 4); the factor is the median over the data. The
    least-squares fit of log b is b = ``level`` · m^``slope``; nan if all m are equal.
    """

    def __init__(self, kcal: list[Measured]) -> None:
        self.rarest: NDArray[np.float64] = np.concatenate([values["rarest"] for values in kcal])
        self.chosen: NDArray[np.float64] = np.concatenate([values["bandwidth"] for values in kcal])
        self.exponent = float(-1 / (kcal[0]["dimension"][0] + 4))
        self.factor = float(np.median(self.chosen / self.rarest**self.exponent))
        self.slope = self.level = float("nan")
        if np.ptp(self.rarest) > 0:
            slope, level = np.polyfit(np.log(self.rarest), np.log(self.chosen), 1)
            self.slope, self.level = float(slope), float(np.exp(level))
        self.theory = f"{self.factor:.3f}·m^(−1/{-1 / self.exponent:.0f})"


def show(measured: Measurements) -> StudyOutput:
    """Return tables of metrics and bandwidths, and their panels, per task."""
    tables, panels = [], []
    for label, by_variant in measured.items():
        kcal, uncalibrated = list(by_variant.values())[:-1], by_variant[UNCALIBRATED]
        sizes = [float(values["size"][0]) for values in kcal]
        rows = [(Entry(f"{size:,.0f}"), *metric_entries(values)) for size, values in zip(sizes, kcal, strict=True)]
        rows.append((Entry(UNCALIBRATED), *metric_entries(uncalibrated)))
        title = f"{label}: KCal by calibration samples"
        tables += [
            Table("sizes", title, ("samples", *METRIC_LABELS), tuple(rows)),
            bandwidth_table(label, sizes, kcal, Bandwidths(kcal)),
        ]
        axis = "calibration samples"
        panels += [metric_panel(label, axis, sizes, kcal, name, uncalibrated) for name in MAIN_METRICS]
        panels.append(bandwidth_panel(label, Bandwidths(kcal)))
    return StudyOutput(tuple(tables), tuple(panels), len(MAIN_METRICS) + 1)


def bandwidth_table(label: str, sizes: list[float], kcal: list[Measured], bandwidths: Bandwidths) -> Table:
    rows = []
    for size, values in zip(sizes, kcal, strict=True):
        rarest, bandwidth = (float(np.median(values[name])) for name in ("rarest", "bandwidth"))
        texts = (
            f"{size:,.0f}",
            f"{rarest:.0f}",
            f"{bandwidth:.3f}",
            f"{bandwidths.factor * rarest**bandwidths.exponent:.3f}",
        )
        rows.append(tuple(Entry(text) for text in texts))
    note = f"Fitted: b in proportion to m^({bandwidths.slope:.3f}); theory: m^({bandwidths.exponent:.3f}).".replace(
        "-", "−"
    )
    heading = ("samples", "rarest class", "b chosen", bandwidths.theory)
    return Table("bandwidths", f"{label}: bandwidth of one projection", heading, tuple(rows), note)


def bandwidth_panel(label: str, bandwidths: Bandwidths) -> Panel:
    order = np.argsort(bandwidths.rarest, kind="stable")
    m = bandwidths.rarest[order]
    lines = [
        Line("chosen", floats(m), floats(bandwidths.chosen[order]), points=True),
        Line(bandwidths.theory, floats(m), floats(bandwidths.factor * m**bandwidths.exponent), reference=True),
    ]
    if np.isfinite(bandwidths.slope):
        name = f"fitted: m^({bandwidths.slope:.3f})".replace("-", "−")
        lines.append(Line(name, floats(m), floats(bandwidths.level * m**bandwidths.slope), plain=True))
    return Panel(label, "m, samples of the rarest class", "bandwidth b", tuple(lines), x_log=True, y_log=True)


STUDY = Study("bandwidth_law", "More calibration data", variants, show)
