"""Theorem 1: the chance that a probability is off by more than C·m^(−λ/(d+4)) vanishes for λ < 2."""

from __future__ import annotations

from math import pi

import numpy as np

from experiments.lines import Line, Panel
from experiments.output import floats
from experiments.theory.estimates import Array, Labels, draw_blocks, kcal_posteriors, posteriors
from experiments.theory.output import Part, PartOutput, Step
from kcal.benchmark.table import Entry, Table

DIMENSION = 2
PRIORS = np.array([0.5, 0.3, 0.2])
CENTRES = np.array([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.5]])
QUERY = np.array([0.2, 0.4])
SIZES = (50, 200, 800, 3_200, 12_800)
"""Expected numbers of samples of the rarest class, m."""
EXPONENTS = (0.5, 1.0, 1.5, 2.0, 2.5)
"""λ; the theorem is about those below 2."""
DRAWS = 2_000
START = 1.2
"""b = START·m^(−1/(d+4))."""
CHECKED = 10
"""Draws that are computed with KCal as well."""


def true_probs(query: Array) -> Array:
    """Return P(Y = k | z) of three normal classes, (n_classes,)."""
    heights = PRIORS * np.exp(-((query - CENTRES) ** 2).sum(axis=1) / 2) / (2 * pi) ** (DIMENSION / 2)
    return np.asarray(heights / heights.sum())


def draw(n: int, n_draws: int, generator: np.random.Generator) -> tuple[Array, Labels, Labels]:
    """Return points, labels and the draw of each point of samples of size ``n``."""
    labels = generator.choice(len(PRIORS), n * n_draws, p=PRIORS)
    points = CENTRES[labels] + generator.standard_normal((n * n_draws, DIMENSION))
    return points, labels, np.repeat(np.arange(n_draws), n)


def largest_errors(m: int, n_draws: int, generator: np.random.Generator) -> tuple[Array, Array]:
    """Return max_k |p̂_k − p_k| and the count of the rarest class, (n_draws,)."""
    n, errors, counts = round(m / PRIORS.min()), [], []
    for size in draw_blocks(n_draws, n):
        points, labels, draws = draw(n, size, generator)
        probs = posteriors(points, labels, draws, size, QUERY, bandwidth(m), n_classes=len(PRIORS))
        errors.append(abs(probs - true_probs(QUERY)).max(axis=1))
        by_class = np.bincount(draws * len(PRIORS) + labels, minlength=size * len(PRIORS))
        counts.append(by_class.reshape(size, -1).min(axis=1).astype(float))
    return np.concatenate(errors), np.concatenate(counts)


def bandwidth(m: float) -> float:
    return float(START * m ** (-1 / (DIMENSION + 4)))


def difference_from_kcal(generator: np.random.Generator) -> float:
    """Return the largest difference between the class sums of many draws and KCal's own predictions."""
    n = round(SIZES[0] / PRIORS.min())
    points, labels, draws = draw(n, CHECKED, generator)
    probs = posteriors(points, labels, draws, CHECKED, QUERY, bandwidth(SIZES[0]), n_classes=len(PRIORS))
    own = [
        kcal_posteriors(points[draws == r], labels[draws == r], QUERY[None], bandwidth(SIZES[0]))[0]
        for r in range(CHECKED)
    ]
    return float(abs(probs - own).max())


def run(seed: int, quick: bool, step: Step) -> PartOutput:
    """Count exceedances over draws for every size and exponent."""
    n_draws, sizes = (400, SIZES[:4]) if quick else (DRAWS, SIZES)
    generator = np.random.default_rng([seed, 3])
    difference = difference_from_kcal(generator)
    measured = []
    for m in sizes:
        measured.append(largest_errors(m, n_draws, generator))
        step(f"theorem 1, m = {m:,}")
    constants = {}
    for exponent in EXPONENTS:  # half of the draws of the smallest size exceed the bound
        errors, counts = measured[0]
        constants[exponent] = float(np.median(errors * counts ** (exponent / (DIMENSION + 4))))
    exceedances = {
        exponent: [
            float((errors > constant * counts ** (-exponent / (DIMENSION + 4))).mean()) for errors, counts in measured
        ]
        for exponent, constant in constants.items()
    }
    rows = tuple(
        (
            Entry(f"{exponent:g}"),
            Entry("yes" if exponent < 2 else "no"),
            Entry(f"{constants[exponent]:.3f}"),
            *(Entry(f"{share:.4f}" if share else "0") for share in shares),
        )
        for exponent, shares in exceedances.items()
    )
    heading = ("λ", "λ < 2", "C", *(f"m = {m:,}" for m in sizes))
    note = (
        f"Share of {n_draws:,} draws with max_k |p̂_k − p_k| > C·m^(−λ/(d+4)), d = {DIMENSION}, K = 3, m the count of "
        "the rarest class in the draw. C is the median at the smallest m."
    )
    facts = {"kcal_difference": f"{difference:.1e}", "draws": f"{n_draws:,}"}
    table = Table("pointwise", "Theorem 1: exceedances", heading, rows, note)
    return PartOutput((table,), panels(sizes, exceedances, n_draws), facts)


def panels(sizes: tuple[int, ...], exceedances: dict[float, list[float]], n_draws: int) -> tuple[Panel, ...]:
    """Return exceedances by size, and their logarithms by m^((4−2λ)/(d+4)), in which the bound is a line."""
    lines = [
        Line(f"λ = {exponent:g}", floats(sizes), floats(np.maximum(shares, 0.5 / n_draws)))
        for exponent, shares in exceedances.items()
    ]
    least = Line("no exceedance seen", (sizes[0], sizes[-1]), (0.5 / n_draws,) * 2, reference=True)
    first = Panel(
        "exceedance of C·m^(−λ/(d+4))", "samples of the rarest class m", "share of draws", (*lines, least),
        x_log=True, y_log=True, x_ticks=floats(sizes),
    )  # fmt: skip
    linear: list[Line] = []
    limits: list[Line] = []
    for exponent, shares in exceedances.items():
        if exponent < 2:
            x = np.array(sizes) ** ((4 - 2 * exponent) / (DIMENSION + 4))
            seen = np.array(shares) > 0
            y = -np.log(np.array(shares)[seen] / len(PRIORS))
            linear.append(Line(f"λ = {exponent:g}", floats(x[seen]), floats(y)))
            rate = (y / x[seen]).min()
            end = x[seen][-1]
            name = "K·exp(−B·m^((4−2λ)/(d+4)))" if not limits else ""
            limits.append(Line(name, (0.0, float(end)), (0.0, float(rate * end)), reference=True))
    second = Panel("is the exponent at least linear?", "m^((4−2λ)/(d+4))", "−log(share / K)", (*linear, *limits))
    return first, second


PART = Part("pointwise", "Theorem 1: one point", run)
