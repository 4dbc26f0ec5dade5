"""Lemma 2: the best bandwidth falls as m^(−1/(d+4)), and the least mean squared error as m^(−4/(d+4))."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt

import numpy as np

from experiments.lines import Line, Panel
from experiments.output import floats
from experiments.theory.bumps import Bump, GaussianBump, QuadraticCap
from experiments.theory.estimates import Array, densities, draw_blocks
from experiments.theory.fits import Slope, fit_slope, line_slopes, minus, resampled
from experiments.theory.output import Part, PartOutput, Step
from kcal.benchmark.table import Entry, Table

SHARE = 0.02
"""Share of the samples that come from the bump."""
LOCAL_SIZES = (2_000, 8_000, 32_000, 128_000)
"""Expected numbers of samples of the bump, SHARE·m."""
DRAWS = (2_000, 1_500, 600, 200)
FACTORS = 1.12 ** np.arange(-3, 4)
"""Bandwidths in units of the exact best one at which the error is measured."""
DEGREE = 6
"""Of the polynomial through the logarithms of the errors, which gives the minimum: it passes through all of them."""
FINE = np.linspace(log(FACTORS[0]), log(FACTORS[-1]), 2_001)
THEORY = "theory"
EXACT_SIZES = tuple(10.0**power for power in range(3, 19))


@dataclass(frozen=True)
class Case:
    """A density, and its name in the table."""

    name: str
    bump: Bump


CASES = (
    *(Case("normal", GaussianBump.with_small_next_term(d, SHARE)) for d in (1, 2, 4, 8)),
    Case("quadratic", QuadraticCap(8, SHARE)),
)

WITHOUT_CURVATURE = Case("normal, where Δg = 0", GaussianBump(2, SHARE, sqrt(2)))
"""There the lemma does not apply: the bias is of order b⁴, and the least error falls as m^(−8/(d+8))."""


def squared_errors(bump: Bump, m: int, lengths: Sequence[float], n_draws: int, generator: np.random.Generator) -> Array:
    """Return (ĝ − g)² averaged over the queries of a bump, (n_draws, n_bandwidths)."""
    parts = []
    for size in draw_blocks(n_draws, m * bump.share):
        points, draws = bump.draw(m, size, generator)
        estimates = densities(points, draws, size, bump.queries, lengths, m)
        parts.append(((estimates - bump.density) ** 2).mean(axis=2).T)
    return np.concatenate(parts)


def minimum(errors: Array) -> Array:
    """Return log b/b* at the minimum and the log least error, (n, 2), of errors at ``FACTORS``, (n, n_bandwidths)."""
    powers = np.vander(np.log(FACTORS), DEGREE + 1)
    coefficients = np.linalg.lstsq(powers, np.log(errors).T, rcond=None)[0]
    curves = np.vander(FINE, DEGREE + 1) @ coefficients  # (n_fine, n)
    place = curves.argmin(axis=0)
    return np.stack([FINE[place], curves.min(axis=0)], axis=1)


@dataclass(frozen=True)
class Rates:
    """Measured and exact best bandwidths and least errors of a case, by size, and their slopes."""

    case: Case
    sizes: tuple[int, ...]
    bandwidths: Array
    errors: Array
    exact: Array  # (n_sizes, 2)
    slopes: tuple[Slope, Slope]
    exact_slopes: tuple[float, float]


def measure(case: Case, sizes: Sequence[int], draws: Sequence[int], seed: Sequence[int], step: Step) -> Rates:
    """Measure the errors of a case at every size around the best bandwidth."""
    generator = np.random.default_rng(seed)
    exact = np.array([case.bump.best_bandwidth(m) for m in sizes])
    values = []
    for m, n_draws, (best, _) in zip(sizes, draws, exact, strict=True):
        values.append(squared_errors(case.bump, m, list(best * FACTORS), n_draws, generator))
        step(f"best bandwidth, {case.name}, d = {case.bump.dimension}, m = {m:,}")
    estimates, samples = resampled(values, minimum, generator)
    logs, x = np.log(exact), np.log(np.array(sizes, dtype=float))
    estimates[0] += logs[:, 0]
    samples[0] += logs[:, 0]
    targets = [-power / (case.bump.dimension + 4) for power in (1, 4)]
    slopes = [fit_slope(x, estimates[j], samples[j], target) for j, target in enumerate(targets)]
    weights = 1.0 / samples.var(axis=1)  # the exact slope is of the same weighted fit
    exact_slopes = [float(line_slopes(x, logs[:, j], weights[j])) for j in range(2)]
    return Rates(
        case, tuple(sizes), np.exp(estimates[0]), np.exp(estimates[1]), exact,
        (slopes[0], slopes[1]), (exact_slopes[0], exact_slopes[1]),
    )  # fmt: skip


def local_slope(bump: Bump, m: float) -> float:
    """Return the exact slope of the log least error in log m at one size."""
    low, high = (log(bump.best_bandwidth(int(m * factor))[1]) for factor in (0.9, 1 / 0.9))
    return (high - low) / (-2 * log(0.9))


def run(seed: int, quick: bool, step: Step) -> PartOutput:
    """Measure best bandwidths and least errors of all cases."""
    count = 3 if quick else len(LOCAL_SIZES)
    sizes = [int(local / SHARE) for local in LOCAL_SIZES[:count]]
    draws = [n // 10 for n in DRAWS[:count]] if quick else DRAWS
    results = [measure(case, sizes, draws, [seed, 2, number], step) for number, case in enumerate(CASES)]
    rows = tuple(
        (
            Entry(f"{rates.case.bump.dimension}"),
            Entry(rates.case.name),
            *rates.slopes[0].entries(),
            Entry(minus(f"{rates.exact_slopes[0]:.4f}")),
            *rates.slopes[1].entries(),
            Entry(minus(f"{rates.exact_slopes[1]:.4f}")),
        )
        for rates in results
    )
    heading = (
        "d", "density", "−1/(d+4)", "slope of log b*", "distance, SE", "exact, same m",
        "−4/(d+4)", "slope of log MSE*", "distance, SE", "exact, same m",
    )  # fmt: skip
    note = (
        f"m from {sizes[0]:,} to {sizes[-1]:,}, {draws[0]:,} to {draws[-1]:,} draws. Standard errors (SE) by "
        "resampling draws; bold: within two of the target. Exact: the slope of the exact finite-sample values."
    )
    table = Table("optimal-rate", "Lemma 2: slopes in log m", heading, rows, note)
    deviations = [abs(r.errors / r.exact[:, 1] - 1).max() for r in results]
    facts = {
        "largest_deviation": f"{max(deviations):.1%}",
        "within": str(sum(slope.distance <= 2 for rates in results for slope in rates.slopes)),
        "slopes": str(2 * len(results)),
        "missed": missed(results),
    }
    return PartOutput((table, exact_table()), panels(results), facts)


def missed(results: Sequence[Rates]) -> str:
    """Return a sentence for each slope that is more than two standard errors from its target."""
    sentences = []
    for rates in results:
        for name, slope, exact in zip(("log b*", "log MSE*"), rates.slopes, rates.exact_slopes, strict=True):
            if slope.distance > 2:
                off = abs(slope.value - exact) / slope.error
                sentences.append(
                    f"That of {name} for the {rates.case.name} density in d = {rates.case.bump.dimension} is "
                    f"{slope.distance:.1f} standard errors from its target, and {off:.1f} from the exact slope "
                    "at the same m."
                )
    return " ".join(sentences)


def exact_table() -> Table:
    """Return how the exact slope approaches its limit."""
    chosen = EXACT_SIZES[2::5]
    limits = [-4 / (case.bump.dimension + 4) for case in CASES]
    limits.append(-8 / (WITHOUT_CURVATURE.bump.dimension + 8))
    rows = tuple(
        (
            Entry(f"{case.bump.dimension}"),
            Entry(case.name),
            *(Entry(minus(f"{local_slope(case.bump, m):.4f}")) for m in chosen),
            Entry(minus(f"{limit:.4f}")),
        )
        for case, limit in zip((*CASES, WITHOUT_CURVATURE), limits, strict=True)
    )
    heading = ("d", "density", *(f"m = 10^{log(m, 10):.0f}" for m in chosen), "limit")
    return Table("exact-slopes", "Exact local slope of log MSE* in log m", heading, rows)


def panels(results: Sequence[Rates]) -> tuple[Panel, ...]:
    """Return best bandwidths, least errors in units of g², and exact slopes, with the theory dashed."""
    columns = []
    for power, label in ((1, "best bandwidth b*"), (4, "least MSE / g²")):
        lines: list[Line] = []
        references: list[Line] = []
        for rates in results:
            bump = rates.case.bump
            y = rates.bandwidths if power == 1 else rates.errors / bump.density**2
            x = np.array(rates.sizes, dtype=float)
            lines.append(Line(_label(rates.case), floats(x), floats(y), points=True))
            middle = np.exp(np.log(y).mean()) * (x / np.exp(np.log(x).mean())) ** (-power / (bump.dimension + 4))
            references.append(Line("" if references else THEORY, floats(x), floats(middle), reference=True))
        title = f"{label}, theory: slope −{power}/(d+4)"
        ticks = floats(results[0].sizes)
        columns.append(Panel(title, "samples m", label, (*lines, *references), x_log=True, y_log=True, x_ticks=ticks))
    slopes: list[Line] = []
    limits: list[Line] = []
    for case in CASES:
        exact, limit = [local_slope(case.bump, m) for m in EXACT_SIZES], -4 / (case.bump.dimension + 4)
        slopes.append(Line(_label(case), EXACT_SIZES, floats(exact), points=True))
        name = "" if limits else THEORY
        limits.append(Line(name, (EXACT_SIZES[0], EXACT_SIZES[-1]), (limit, limit), reference=True))
    title, label = "exact slope, theory: limit −4/(d+4)", "local slope of log MSE*"
    columns.append(Panel(title, "samples m", label, (*slopes, *limits), x_log=True, x_ticks=tuple(EXACT_SIZES[::5])))
    return tuple(columns)


def _label(case: Case) -> str:
    return f"d = {case.bump.dimension}" + ("" if case.name == "normal" else f", {case.name}")


PART = Part("optimal-rate", "Lemma 2: optimal rate", run)
