"""Theorem 2: the largest error over all points falls as (log m / m)^(α/(d+2α)), and the calibration error is below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.lines import Line, Panel
from experiments.output import floats
from experiments.theory.estimates import Array
from experiments.theory.fits import Slope, fit_slope, line_slopes, resampled
from experiments.theory.output import Part, PartOutput, Step
from experiments.theory.torus import PRIORS, Torus, errors_of
from kcal.benchmark.table import Entry, Table

START = 0.4
"""b = START·(log m / m)^(1/(d+2α))."""


@dataclass(frozen=True)
class Case:
    """A torus, the sizes m of its rarer class, and the number of draws."""

    torus: Torus
    sizes: tuple[int, ...]
    n_draws: int
    least: int
    """Points in a row of the grid, at least."""


TICKS = (0.0005, 0.002, 0.01)
"""Labelled values of log m / m."""
SIZES = tuple(500 * 2**power for power in range(7))
DEPTHS = (0.8, 0.5)
"""Shares of the cusps. With the first, p is far from linear in the density at a cusp; the second was added for that."""
CASES = tuple(
    Case(Torus(dimension, order, depth), SIZES if dimension == 1 else SIZES[:6], 40 if dimension == 1 else 20, least)
    for depth in DEPTHS
    for dimension, order, least in ((1, 1.0, 400), (1, 0.5, 400), (2, 1.0, 40), (2, 0.5, 40))
)


@dataclass(frozen=True)
class Measured:
    """Errors of a case by size: measured sup error and calibration error, and the sup error without noise."""

    case: Case
    sup: Array
    worst_bin: Array
    bias: Array
    slope: Slope
    calibration_slope: Slope
    bias_slope: float
    never_above: bool
    """No draw had a calibration error above its sup error."""


def measure(case: Case, seed: Sequence[int], step: Step) -> Measured:
    """Draw samples of every size and measure their errors on a grid."""
    torus, generator = case.torus, np.random.default_rng(seed)
    values, bias = [], []
    for m in case.sizes:
        bandwidth = torus.bandwidth(m, START)
        queries = torus.grid(bandwidth, case.least)
        true, density = torus.probs(queries)[:, 0], torus.joint(queries).sum(axis=1)
        rows = []
        for _ in range(case.n_draws):
            points, labels = torus.draw(round(m / PRIORS.min()), generator)
            errors = errors_of(torus.estimate(points, labels, queries, bandwidth)[:, 0], true, density)
            rows.append([errors.sup, errors.worst_bin])
        values.append(np.array(rows))
        bias.append(abs(torus.probs(queries, bandwidth)[:, 0] - true).max())
        step(f"theorem 2, d = {torus.dimension}, α = {torus.order:g}, m = {m:,}")
    estimates, samples = resampled(values, np.log, generator)
    x = np.log([torus.rate(m) for m in case.sizes])
    slopes = [fit_slope(x, estimates[j], samples[j], torus.slope) for j in range(2)]
    return Measured(
        case, np.exp(estimates[0]), np.exp(estimates[1]), np.array(bias), slopes[0], slopes[1],
        float(line_slopes(x, np.log(bias))), all(bool((v[:, 1] <= v[:, 0]).all()) for v in values),
    )  # fmt: skip


def difference_from_kcal(seed: int) -> float:
    """Return the largest difference between the class sums and KCal's own predictions on the torus."""
    torus = Torus(2, 1.0)
    points, labels = torus.draw(500, np.random.default_rng([seed, 4]))
    queries = torus.grid(0.1, 12)
    first, second = (torus.estimate(points, labels, queries, 0.1, by_kcal=flag) for flag in (False, True))
    return float(abs(first - second).max())


def run(seed: int, quick: bool, step: Step) -> PartOutput:
    """Measure all cases."""
    cases = [Case(case.torus, case.sizes[:4], 6, case.least) for case in CASES] if quick else list(CASES)
    results = [measure(case, [seed, 4, number], step) for number, case in enumerate(cases)]
    rows = tuple(
        (
            Entry(f"{found.case.torus.dimension}"),
            Entry(f"{found.case.torus.order:g}"),
            Entry(f"{1 - found.case.torus.share:g}"),
            *found.slope.entries(),
            Entry(f"{found.bias_slope:.4f}"),
            Entry(f"{found.calibration_slope.value:.3f} ± {found.calibration_slope.error:.3f}"),
            Entry(f"{found.sup[0]:.3f} → {found.sup[-1]:.3f}"),
            Entry(f"{found.worst_bin[0]:.3f} → {found.worst_bin[-1]:.3f}"),
            Entry("yes" if found.never_above else "no"),
        )
        for found in results
    )
    heading = (
        "d", "α", "least density", "α/(d+2α)", "slope of log sup error", "distance, SE", "slope without noise",
        "slope of log calibration error", "sup error", "calibration error", "below in every draw",
    )  # fmt: skip
    ranges = "; ".join(
        dict.fromkeys(
            f"d = {case.torus.dimension}: m from {case.sizes[0]:,} to {case.sizes[-1]:,}, {case.n_draws} draws"
            for case in cases
        )
    )
    note = f"Slopes in log(log m/m). {ranges}. Arrows: from the smallest to the largest m."
    panels = tuple(panel(found) for found in results)
    facts = {
        "torus_difference": f"{difference_from_kcal(seed):.1e}",
        **{
            f"within_{number}": str(sum(r.slope.distance <= 2 for r in results if r.case.torus.share == depth))
            for number, depth in enumerate(DEPTHS)
        },
    }
    table = Table("uniform", "Theorem 2: slopes in log(log m / m)", heading, rows, note)
    return PartOutput((table,), panels, facts, columns=4)


def panel(found: Measured) -> Panel:
    """Return errors along log m / m with the target's slope dashed."""
    torus = found.case.torus
    x = np.array([torus.rate(m) for m in found.case.sizes])
    middle = np.exp(np.log(found.sup).mean() + torus.slope * (np.log(x) - np.log(x).mean()))
    lines = (
        Line("sup |p̂ − p|", floats(x), floats(found.sup)),
        Line("calibration error, worst bin", floats(x), floats(found.worst_bin)),
        Line("sup error without noise", floats(x), floats(found.bias)),
        Line("slope α/(d+2α)", floats(x), floats(middle), reference=True),
    )
    title = f"d = {torus.dimension}, α = {torus.order:g}, density ≥ {1 - torus.share:g}"
    return Panel(title, "log m / m", "error", lines, x_log=True, y_log=True, x_ticks=TICKS)


PART = Part("uniform", "Theorem 2: all points at once", run)
