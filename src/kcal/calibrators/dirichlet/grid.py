"""Which penalties Dirichlet calibration tries, and in which order; the losses come from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from numbers import Real
from typing import Any

from kcal.calibrators.dirichlet.solver import Penalty
from kcal.errors import InvalidInputError

GRIDS = ("tied", "odir", "published")
MOST_POINTS = 20
"""How many penalties the default search tries at most."""
FIRST = {"off_diagonal": 100.0, "diagonal": 1.0, "intercept": 0.01}
"""Where the search starts: close to temperature scaling, where every problem is easy."""
FACTORS = (100.0, 10.0, 10**0.5)
WEAKEST, STRONGEST = 1e-6, 1e4
WORTH = 1e-4
"""A penalty is better if its loss is lower by this share."""


def is_better(loss: float, best: float) -> bool:
    """Say whether a loss is lower by more than rounding and chance would make it."""
    return loss < best * (1 - WORTH)


def search_penalty(loss_of: Callable[[Penalty], float], *, tied: bool) -> Penalty:
    """Return the best penalty that a coarse and then finer search finds, within 20 points.

    One coordinate after the other moves towards weaker, or else stronger, penalties as long as the loss falls:
    first by factors of 100, then of 10, then of √10.
    """
    numbers = dict(FIRST) if tied else {**FIRST, "diagonal": 0.0}
    best = loss_of(Penalty(**numbers))
    tried = {tuple(numbers.values())}
    for factor in FACTORS:
        for name in numbers:
            if numbers[name] == 0:
                continue
            for ratio in (1 / factor, factor):
                moved = False
                while len(tried) < MOST_POINTS:
                    candidate = {**numbers, name: float(f"{numbers[name] * ratio:.6g}")}
                    known = tuple(candidate.values()) in tried
                    if known or not WEAKEST <= candidate[name] <= STRONGEST:
                        break
                    tried.add(tuple(candidate.values()))
                    loss = loss_of(Penalty(**candidate))
                    if not is_better(loss, best):
                        break
                    best, numbers, moved = loss, candidate, True
                if moved:
                    break
    return Penalty(**numbers)


def published_grid(n_classes: int) -> list[Penalty]:
    """Return the published grid for the sums, strongest first, neighbours next to each other."""
    exponents = range(6, -3 if n_classes >= 100 else -6, -1)
    off_diagonal = [share * 10.0**exponent for exponent in exponents for share in (1.0, 0.5, 0.25)]
    intercepts = [10.0**exponent for exponent in exponents]
    return [
        Penalty(value, intercept)
        for turn, intercept in enumerate(intercepts)
        for value in (off_diagonal if turn % 2 == 0 else reversed(off_diagonal))
    ]


def check_grid(grid: Any) -> str | list[Penalty]:
    """Return a grid's name, or the penalties that were given as (λ, μ) or (λ, μ, ν)."""
    if isinstance(grid, str):
        if grid not in GRIDS:
            raise InvalidInputError(f"grid must be one of {GRIDS} or a list of (λ, μ) or (λ, μ, ν); got {grid!r}.")
        return grid
    if not isinstance(grid, Sequence) or len(grid) == 0:
        raise InvalidInputError(f"grid must be one of {GRIDS} or a list of (λ, μ) or (λ, μ, ν); got {grid!r}.")
    return [_penalty_of(point) for point in grid]


def _penalty_of(point: Any) -> Penalty:
    fits = isinstance(point, Sequence) and len(point) in (2, 3)
    if not fits or not all(isinstance(number, Real) and 0 <= float(number) < inf for number in point):
        raise InvalidInputError(f"a point of grid must be two or three numbers, (λ, μ) or (λ, μ, ν); got {point!r}.")
    penalty = Penalty(*(float(number) for number in point))
    if penalty.off_diagonal <= 0 or penalty.intercept <= 0:
        raise InvalidInputError(f"λ and μ must be positive, or there may be no minimiser; got {point!r}.")
    return penalty
