"""Full-batch L-BFGS with bounds, by SciPy: over arrays with a given gradient, and over torch parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from kcal.errors import ConvergenceWarning, warn

Bounds = tuple[float, float]
Floats = NDArray[np.float64]

MAX_ITERATIONS = 1000
"""Of the solver for convex losses."""


def minimise_convex(
    loss: Callable[[Floats], tuple[float, Floats]],
    start: Floats,
    *,
    name: str,
    bounds: Sequence[tuple[float | None, None]] | None = None,
    **options: float,
) -> Floats:
    """Return the minimiser of a loss that returns its value and gradient; warn, with ``name``, if it is not reached."""
    options = {"maxiter": MAX_ITERATIONS, **options}
    solution = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    if solution.nit >= MAX_ITERATIONS:
        warn(
            f"The fit of {name} stopped after {MAX_ITERATIONS} iterations: the logits probably separate the classes, "
            "so that no finite solution is optimal. Increase the penalty.",
            ConvergenceWarning,
        )
    return np.asarray(solution.x, dtype=np.float64)


def minimise(
    evaluate: Callable[[], float],
    parameters: Sequence[torch.Tensor],
    *,
    bounds: Sequence[Bounds] | None = None,
    iterations: int,
    tolerance: float = 1e-10,
    gradient_tolerance: float = 1e-7,
) -> bool:
    """Move ``parameters``, in double precision, to a minimum in place; return whether the solver converged.

    ``evaluate`` returns the loss at the current parameters and sets its gradient in their ``grad``; ``bounds`` has a
    pair per parameter, for all its entries. The solver stops when the relative decrease of the loss, or the largest
    entry of its gradient, falls below a tolerance.
    """
    pairs = [(-inf, inf)] * len(parameters) if bounds is None else bounds
    box = [pair for parameter, pair in zip(parameters, pairs, strict=True) for _ in range(parameter.numel())]

    def value_and_slope(point: Floats) -> tuple[float, Floats]:
        vector_to_parameters(torch.from_numpy(point.copy()), parameters)
        for parameter in parameters:
            parameter.grad = None
        value = evaluate()
        slopes = [torch.zeros_like(entry) if entry.grad is None else entry.grad for entry in parameters]
        slope: Floats = torch.cat([part.ravel() for part in slopes]).numpy()
        if not (isfinite(value) and np.isfinite(slope).all()):
            return inf, np.zeros_like(slope)  # too long a step: the line search shortens it
        return value, slope

    start = parameters_to_vector(parameters).detach().numpy()
    options = {"maxiter": iterations, "maxfun": 4 * iterations, "ftol": tolerance, "gtol": gradient_tolerance}
    solution = minimize(value_and_slope, start, method="L-BFGS-B", jac=True, bounds=box, options=options)
    vector_to_parameters(torch.from_numpy(solution.x), parameters)
    return bool(solution.status != 1)  # 1: out of iterations; 2: no further decrease within rounding
