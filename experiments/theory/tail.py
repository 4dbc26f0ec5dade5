"""The tail of theorem 2: exact binomial probabilities beside the proved and the printed exponent."""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln, logsumexp

from experiments.lines import Line, Panel
from experiments.output import floats
from experiments.theory.output import Part, PartOutput, Step
from kcal.benchmark.table import Entry, Table

CASES = ((1, 1.0), (2, 0.5), (8, 0.5))
"""Dimensions d and orders α."""
SIZES = tuple(10.0**power for power in range(2, 10))
PROBABILITY = 0.5
"""π of a class; two classes, so that m = N/2."""
CONSTANT = 0.25
"""ε₁ = CONSTANT·(log m/m)^(α/(d+2α))."""
TERMS = 200_000
"""Terms of the binomial tail that are added: the others are smaller by hundreds of powers of ten."""


def log_tail(n: int, probability: float, deviation: float) -> float:
    """Return log P(|π̂ − π| ≥ ε) of a binomial share, exactly."""
    sides = []
    for share in (probability, 1 - probability):
        first = int(np.ceil(n * (share + deviation) - 1e-9))
        counts = np.arange(first, min(n, first + TERMS) + 1, dtype=float)
        logs = gammaln(n + 1) - gammaln(counts + 1) - gammaln(n - counts + 1)
        sides.append(logsumexp(logs + counts * np.log(share) + (n - counts) * np.log1p(-share)))
    return float(logsumexp(sides))


def exponents(dimension: int, order: float, m: float) -> tuple[float, float, float]:
    """Return −log of the exact tail, m^a·(log m)^c of the proof and m^a·c·log m as printed; a = 1 − c."""
    power = 2 * order / (dimension + 2 * order)
    deviation = CONSTANT * (np.log(m) / m) ** (order / (dimension + 2 * order))
    exact = -log_tail(int(2 * m), PROBABILITY, deviation)
    scale = m ** (1 - power)
    return exact, scale * np.log(m) ** power, scale * power * np.log(m)


def run(seed: int, quick: bool, step: Step) -> PartOutput:
    """Compare the exponents for every size; nothing is drawn."""
    rows, panels = [], []
    for dimension, order in CASES:
        values = np.array([exponents(dimension, order, m) for m in SIZES])
        step(f"tail, d = {dimension}, α = {order:g}")
        proved, printed = values[:, 0] / values[:, 1], values[:, 0] / values[:, 2]
        label = f"d = {dimension}, α = {order:g}"
        power = 2 * order / (dimension + 2 * order)
        for name, ratio in (("(log m)^c, proof", proved), ("c·log m, printed", printed)):
            rows.append((Entry(label), Entry(f"{power:.3f}"), Entry(name), *(Entry(f"{r:.3f}") for r in ratio[::2])))
        panels.append(
            Panel(
                label,
                "samples m",
                "largest B of the bound",
                (
                    Line("(log m)^c, as proved", floats(SIZES), floats(proved)),
                    Line("c·log m, as printed", floats(SIZES), floats(printed)),
                    Line("limit of the proved form", (SIZES[0], SIZES[-1]), (4 * CONSTANT**2,) * 2, reference=True),
                ),
                x_log=True,
                x_ticks=SIZES[::2],
            )
        )
    heading = ("", "c", "factor beside m^(1−c)", *(f"m = 10^{np.log10(m):.0f}" for m in SIZES[::2]))
    note = (
        f"−log P(|π̂ − π| ≥ ε₁) over the exponent of the bound without B: the largest B for which the bound holds at "
        f"this m. ε₁ = {CONSTANT:g}·(log m/m)^(α/(d+2α)), π = {PROBABILITY:g}, N = 2m; exact binomial probabilities."
    )
    table = Table("tail", "The constant B that the bound would need", heading, tuple(rows), note)
    return PartOutput((table,), tuple(panels))


PART = Part("tail", "Theorem 2: its tail", run)
