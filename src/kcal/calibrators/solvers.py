"""The one solver of all fits: SciPy's L-BFGS with bounds, and the losses that several methods share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from kcal.errors import ConvergenceWarning, warn
from kcal.samples import Floats

Bounds = Sequence[tuple[float | None, float | None]]
Loss = Callable[[Floats], tuple[float, Floats]]

MAX_ITERATIONS = 1000
SEPARABLE = "the logits probably separate the classes, so that no finite solution is optimal. Increase the penalty."


def minimise(
    loss: Loss,
    start: Floats,
    *,
    name: str,
    bounds: Bounds | None = None,
    max_iterations: int = MAX_ITERATIONS,
    advice: str | None = SEPARABLE,
    **options: Any,
) -> Floats:
    """Return the minimiser of a loss that returns its value and gradient.

    Parameters
    ----------
    loss : callable
        Value and gradient at a point; where one of them is not finite, the line search takes a shorter step.
    start : array
        First point.
    name : str
        What is fitted, for the warning.
    bounds : sequence of pairs, optional
        Bounds of every entry, None for none.
    max_iterations : int
        Iterations after which it stops, with a warning.
    advice : str, optional
        End of the warning; None for no warning.
    options
        Of the solver: ``ftol`` and ``gtol`` are the relative decrease of the loss and the largest entry of its gradient
        below which it stops, ``maxcor`` the number of steps it remembers.
    """

    def finite_loss(point: Floats) -> tuple[float, Floats]:
        value, slopes = loss(point)
        return (value, slopes) if isfinite(value) and np.isfinite(slopes).all() else (np.inf, np.zeros_like(slopes))

    options = {"maxiter": max_iterations, "maxfun": max(4 * max_iterations, 15_000), **options}
    solution = minimize(finite_loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    if advice is not None and solution.nit >= max_iterations:
        warn(f"The fit of {name} stopped after {max_iterations} iterations: {advice}", ConvergenceWarning)
    return np.asarray(solution.x, dtype=np.float64)


def loss_of_parameters(evaluate: Callable[[], float], parameters: Sequence[torch.Tensor]) -> tuple[Loss, Floats]:
    """Return the loss of torch parameters, in double precision, as a function of one array, and their present values.

    ``evaluate`` returns the loss at the current parameters and adds its gradient to their ``grad``. The parameters keep
    the point of the last evaluation.
    """

    def loss(point: Floats) -> tuple[float, Floats]:
        vector_to_parameters(torch.from_numpy(point.copy()), parameters)
        for parameter in parameters:
            parameter.grad = None
        value = evaluate()
        slopes = [torch.zeros_like(entry) if entry.grad is None else entry.grad for entry in parameters]
        return value, torch.cat([part.ravel() for part in slopes]).numpy()

    return loss, parameters_to_vector(parameters).detach().numpy()


def softmax_loss(scores: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Return Σ_i w_i·(log-loss of softmax(s_i)), and its gradient in the scores, (n, n_classes): w_i·(p_i − 1{y_i})."""
    rows = torch.arange(len(labels))
    log_p = torch.log_softmax(scores, dim=1)
    value = -float(weights @ log_p[rows, labels])
    slopes = log_p.exp_()
    slopes[rows, labels] -= 1
    return value, slopes.mul_(weights[:, None])
