"""The penalties that Dirichlet calibration tries, and their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kcal.calibrators.dirichlet.solver import Penalty
from kcal.errors import InvalidInputError
from kcal.validation import check_number, shown

GRIDS = ("tied", "odir", "published")
MAX_POINTS = 20
"""Maximal number of penalties that the default search tries."""
MAX_GRID = 10_000
FIRST = {"off_diagonal": 100.0, "diagonal": 1.0, "intercept": 0.01}
"""Start of the search: close to temperature scaling, where every problem is easy."""
FACTORS = (100.0, 10.0, 10**0.5)
WEAKEST, STRONGEST = 1e-6, 1e4
LARGEST_PENALTY = 1e12
MIN_IMPROVEMENT = 1e-4
"""A penalty is better if its loss is lower by this fraction."""


def is_better(loss: float, best: float) -> bool:
    """Return whether a loss is lower by more than rounding and chance."""
    return loss < best * (1 - MIN_IMPROVEMENT)


def search_penalty(loss_of: Callable[[Penalty], float], *, tied: bool) -> Penalty:
    """Return the best penalty of a coarse and then finer search of at most 20 points.

    One coordinate after the other moves to weaker, or else stronger, penalties as long as the loss falls: first
    by factors of 100, then of 10, then of √10.
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
                while len(tried) < MAX_POINTS:
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


def check_grid(grid: Any, name: str = "grid") -> str | list[Penalty]:
    """Return the name of a grid, or the penalties given as (λ, μ) or (λ, μ, ν)."""
    if isinstance(grid, str) and grid in GRIDS:
        return grid
    if isinstance(grid, str) or not isinstance(grid, Sequence) or not 0 < len(grid) <= MAX_GRID:
        expected = f"must be one of {', '.join(map(repr, GRIDS))} or a list of (λ, μ) or (λ, μ, ν)"
        raise InvalidInputError(name, expected, got=shown(grid))
    return [_check_point(point) for point in grid]


def _check_point(point: Any) -> Penalty:
    if isinstance(point, str) or not isinstance(point, Sequence) or len(point) not in (2, 3):
        raise InvalidInputError(
            "grid", "must hold points of two or three numbers, (λ, μ) or (λ, μ, ν)", got=shown(point)
        )
    penalty = Penalty(*(check_number(value, "grid", minimum=0, maximum=LARGEST_PENALTY) for value in point))
    if penalty.off_diagonal == 0 or penalty.intercept == 0:
        raise InvalidInputError("grid", "must have positive λ and μ, or there may be no minimiser", got=shown(point))
    return penalty
