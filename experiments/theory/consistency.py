"""Lemma 1: the density estimate converges if b → 0 and m·b^d → ∞, and not otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.lines import Line, Panel
from experiments.output import floats
from experiments.theory.bumps import GaussianBump
from experiments.theory.estimates import densities, draw_blocks
from experiments.theory.fits import minus
from experiments.theory.output import Part, PartOutput, Step
from kcal.benchmark.table import Entry, Table

DIMENSIONS = (1, 2, 4)
SIZES = tuple(100 * 4**power for power in range(6))
SHRINKAGES = (-0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 1.25)
"""β·d of the bandwidths b = START·(m/100)^(−β)."""
START = 0.35
DRAWS = 200
LARGE_ERROR = 0.25
"""Share of the density; the errors that exceed it are counted."""


def bandwidths(m: int, dimension: int) -> list[float]:
    """Return the bandwidth of every shrinkage at a sample size."""
    return [START * (m / SIZES[0]) ** (-shrinkage / dimension) for shrinkage in SHRINKAGES]


def relative_errors(
    bump: GaussianBump, m: int, lengths: Sequence[float], n_draws: int, generator: np.random.Generator
) -> NDArray[Any]:
    """Return |ĝ − g|/g at the centre, (n_bandwidths, n_draws)."""
    parts = []
    for size in draw_blocks(n_draws, m):
        points, draws = bump.draw(m, size, generator)
        parts.append(densities(points, draws, size, bump.queries, lengths, m)[:, :, 0])
    return np.asarray(abs(np.concatenate(parts, axis=1) / bump.density - 1.0))


def run(seed: int, quick: bool, step: Step) -> PartOutput:
    """Estimate a normal density at its centre for every dimension, size and shrinkage."""
    n_draws, sizes = (60, SIZES[:4]) if quick else (DRAWS, SIZES)
    panels, rows = [], []
    for dimension in DIMENSIONS:
        bump, generator = GaussianBump(dimension), np.random.default_rng([seed, 1, dimension])
        errors = []
        for m in sizes:
            errors.append(relative_errors(bump, m, bandwidths(m, dimension), n_draws, generator))
            step(f"consistency, d = {dimension}, m = {m:,}")
        panels.append(panel(dimension, sizes, np.median(errors, axis=2)))
        rows += rows_of(bump, sizes, errors)
    first, last = f"{sizes[0]:,}", f"{sizes[-1]:,}"
    heading = (
        "d", "β", "admissible", f"median error, m = {first}", f"m = {last}",
        f"P(error > {LARGE_ERROR:.0%}), m = {first}", f"m = {last}",
        f"RMS error, m = {last}", "exact RMS error", "its change per fourfold m",
    )  # fmt: skip
    note = (
        f"Errors |ĝ − g|/g at the centre of a normal density over {n_draws} draws; b = {START:g}·(m/100)^(−β). The "
        "last column is the exact RMS error at the largest m over that at a quarter of it: 1 or more does not converge."
    )
    return PartOutput(
        (Table("consistency", "Lemma 1: errors by shrinkage", heading, tuple(rows), note),), tuple(panels)
    )


def rows_of(bump: GaussianBump, sizes: Sequence[int], errors: Sequence[NDArray[Any]]) -> list[tuple[Entry, ...]]:
    """Return a row for each shrinkage; ``errors`` has one array (n_bandwidths, n_draws) per size."""
    rows = []
    for place, shrinkage in enumerate(SHRINKAGES):
        first, last = errors[0][place], errors[-1][place]
        exact = [
            float(np.sqrt(bump.mean_squared_error(bandwidths(m, bump.dimension)[place], m))) / bump.density
            for m in sizes[-2:]
        ]
        rows.append(
            (
                Entry(f"{bump.dimension}"),
                Entry(minus(f"{shrinkage:g}/d" if shrinkage else "0")),
                Entry("yes" if 0 < shrinkage < 1 else "no"),
                *(Entry(f"{np.median(values):.3f}") for values in (first, last)),
                *(Entry(f"{(values > LARGE_ERROR).mean():.2f}") for values in (first, last)),
                Entry(f"{np.sqrt((last**2).mean()):.3f}"),
                Entry(f"{exact[1]:.3f}"),
                Entry(f"{exact[1] / exact[0]:.2f}", bold=0 < shrinkage < 1),
            )
        )
    return rows


def panel(dimension: int, sizes: Sequence[int], medians: NDArray[Any]) -> Panel:
    """Return median errors, (n_sizes, n_shrinkages), along m; shrinkages that are not admissible have no markers."""
    lines = [
        Line(_label(shrinkage), floats(sizes), floats(medians[:, place]), plain=not 0 < shrinkage < 1)
        for place, shrinkage in enumerate(SHRINKAGES)
    ]
    title, label = f"d = {dimension}", "median of |ĝ − g| / g"
    return Panel(title, "samples m", label, tuple(lines), x_log=True, y_log=True, x_ticks=floats(sizes[::2]))


def _label(shrinkage: float) -> str:
    side = "" if 0 < shrinkage < 1 else " (not admissible)"
    return minus(f"β = {shrinkage:g}/d{side}" if shrinkage else f"β = 0{side}")


PART = Part("consistency", "Lemma 1: consistency", run)
