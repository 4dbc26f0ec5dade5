"""Level sets: class frequencies are calibrated and useless, and a level-set average is not a value at a point."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from experiments.lines import Line, Panel
from experiments.output import floats
from experiments.theory.estimates import Array, posteriors_on
from experiments.theory.output import Part, PartOutput, Step
from experiments.theory.torus import ONE_LEVEL, PRIORS, Torus, errors_of, level_set_errors
from kcal.benchmark.table import Entry, Table

TORUS = Torus(1, 1.0)
SIZE = 4_000
"""Samples of the rarer class, m."""
BANDWIDTHS = 0.005 * 2.0 ** np.arange(0, 8)
WIDE = 1e3
"""A bandwidth beside which all points are equally near: p̂ is the class frequencies."""
DRAWS = 20
GRID = 1_000
LEVELS = np.linspace(0.005, 0.995, 200)
"""Quantiles of p̂ whose level sets are computed."""


class Quality(NamedTuple):
    """Errors of predicted probabilities, and how useful they are."""

    worst_bin: float
    """15 bins of equal probability."""
    worst_wide_bin: float
    """15 bins of equal width."""
    sup: float
    accuracy: float
    excess_loss: float
    """Log-loss above that of the true probabilities."""
    level_error: float
    """Mean over level sets of |E[p | p̂ = q] − q|."""
    point_error: float
    """Mean over level sets of the largest |p − q| of a point."""


def quality(estimated: Array, true: Array, density: Array) -> Quality:
    """Return the quality of the first class's probabilities on a grid, (n_query,)."""
    weights, errors = density / density.sum(), errors_of(estimated, true, density)
    clipped = np.clip(estimated, 1e-12, 1 - 1e-12)
    right = np.where(estimated >= 0.5, true, 1 - true)
    excess = true * np.log(true / clipped) + (1 - true) * np.log((1 - true) / (1 - clipped))
    level, point = abs((weights * (true - estimated)).sum()), errors.sup  # one level set
    if np.ptp(estimated) >= ONE_LEVEL:
        levels = np.quantile(estimated, LEVELS)
        level, point = (values.mean() for values in level_set_errors(estimated, true, density, levels))
    return Quality(
        errors.worst_bin, errors.worst_wide_bin, errors.sup,
        float((weights * right).sum()), float((weights * excess).sum()), float(level), float(point),
    )  # fmt: skip


def measure(n_draws: int, seed: int, step: Step) -> tuple[Array, Quality]:
    """Return mean qualities at all bandwidths and of the class frequencies, (n, 7), and that of the truth."""
    generator = np.random.default_rng([seed, 5])
    queries = TORUS.grid(1.0, GRID)
    true, density = TORUS.probs(queries)[:, 0], TORUS.joint(queries).sum(axis=1)
    values = []
    for number in range(n_draws):
        points, labels = TORUS.draw(round(SIZE / PRIORS.min()), generator)
        estimates = [TORUS.estimate(points, labels, queries, float(bandwidth)) for bandwidth in BANDWIDTHS]
        estimates.append(posteriors_on(points, labels, queries, WIDE, n_classes=2))
        values.append([quality(estimate[:, 0], true, density) for estimate in estimates])
        step(f"level sets, draw {number + 1}")
    return np.mean(values, axis=0), quality(true, true, density)


def two_points() -> Table:
    """Return the smallest example in which a level-set average and a value at a point differ."""
    rows = (
        tuple(map(Entry, ("true p(z)", "0.1", "0.7", "0.4"))),
        tuple(map(Entry, ("predicted p̂(z)", "0.4", "0.4", "0.4"))),
        (*map(Entry, ("error", "0.3", "0.3")), Entry("0.0", bold=True)),
    )
    heading = ("", "point z₁", "point z₂", "level set {z₁, z₂}, equally frequent")
    return Table("two-points", "Two points with one prediction", heading, rows)


def run(seed: int, quick: bool, step: Step) -> PartOutput:
    """Measure calibration, errors and usefulness of KCal from narrow to infinitely wide kernels."""
    n_draws = 4 if quick else DRAWS
    values, truth = measure(n_draws, seed, step)
    qualities = [Quality(*row) for row in values]
    shown = {"true probabilities": truth}
    shown |= {f"KCal, b = {b:.2g}": row for b, row in zip(BANDWIDTHS, qualities, strict=False)}
    shown |= {f"class frequencies (KCal, b = {WIDE:,.0f})": qualities[-1]}
    rows = tuple(
        (
            Entry(name),
            *(Entry(f"{value:.4f}") for value in (row.worst_wide_bin, row.worst_bin, row.sup)),
            *(Entry(f"{value:.4f}") for value in (row.level_error, row.point_error)),
            Entry(f"{100 * row.accuracy:.2f}"),
            Entry(f"{row.excess_loss:.4f}"),
        )
        for name, row in shown.items()
    )
    heading = (
        "prediction", "calibration error, worst of 15 bins of equal width", "of equal probability", "sup |p̂ − p|",
        "level-set error, mean over levels", "largest error in the level set", "accuracy, %", "log-loss above the best",
    )  # fmt: skip
    note = f"Torus, d = 1, α = 1, m = {SIZE:,}, means over {n_draws} draws."
    table = Table("frequencies", "Calibrated is not useful", heading, rows, note)
    last = qualities[-1]
    facts = {
        "frequency_calibration": f"{last.worst_bin:.4f}",
        "frequency_sup": f"{last.sup:.2f}",
        "frequency_accuracy": f"{100 * last.accuracy:.1f}%",
        "best_accuracy": f"{100 * truth.accuracy:.1f}%",
        "narrow_level": f"{qualities[0].level_error:.3f}",
        "narrow_point": f"{qualities[0].point_error:.3f}",
        "narrow_bandwidth": f"{BANDWIDTHS[0]:g}",
    }
    return PartOutput((table, two_points()), panels(qualities, truth), facts)


def panels(qualities: list[Quality], truth: Quality) -> tuple[Panel, ...]:
    """Return errors and accuracies by bandwidth, with the class frequencies dashed."""
    x, *_, last = floats(BANDWIDTHS), *qualities
    ends = (x[0], x[-1])
    narrow = qualities[:-1]
    errors = (
        Line("sup |p̂ − p|", x, floats([row.sup for row in narrow])),
        Line("calibration, equal mass", x, floats([row.worst_bin for row in narrow])),
        Line("calibration, equal width", x, floats([row.worst_wide_bin for row in narrow])),
    )
    useful = (
        Line("KCal", x, floats([100 * row.accuracy for row in narrow])),
        Line(
            "true probabilities (above), class frequencies (below)", ends, (100 * truth.accuracy,) * 2, reference=True
        ),
        Line("", ends, (100 * last.accuracy,) * 2, reference=True),
    )
    sets = (
        Line("largest error of a point", x, floats([row.point_error for row in narrow])),
        Line("error of the level set", x, floats([row.level_error for row in narrow])),
    )
    return (
        Panel("errors by bandwidth", "bandwidth b", "error", errors, x_log=True, y_log=True),
        Panel("level sets {z: p̂(z) = q}", "bandwidth b", "error, mean over q", sets, x_log=True, y_log=True),
        Panel("accuracy by bandwidth", "bandwidth b", "accuracy, %", useful, x_log=True),
    )


PART = Part("levels", "Class frequencies, and level sets", run)
