"""Inductive Venn–Abers prediction: isotonic regression with the sample itself added, once of each label.

p₀, p₁ = value at s_k of the isotonic fit to the calibration samples and (s_k, 0), or and (s_k, 1)
q_k = p₁ / (1 − p₀ + p₁),   p′_k = q_k / Σ_j q_j
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from kcal.calibrators.binary.one_versus_rest import Hits, OneVersusRest, OneVersusRestModel
from kcal.calibrators.class_scores import Tensors
from kcal.calibrators.logit_base import Floats, fitted
from kcal.calibrators.model_state import ragged
from kcal.calibrators.piecewise import step_values

Point = tuple[float, float]


@dataclass(frozen=True)
class VennAbersModel(OneVersusRestModel):
    """p₀ and p₁ as step functions of the log-odds."""

    thresholds: Tensors = ragged()  # distinct log-odds of the calibration samples, ascending
    lower: Tensors = ragged(like="thresholds", longer_by=1)
    upper: Tensors = ragged(like="thresholds", longer_by=1)

    def log_map(self, scores: torch.Tensor) -> torch.Tensor:
        """Return log q_k, (n, n_classes)."""
        lower = step_values(self.thresholds, self.lower, scores, or_equal=True)
        upper = step_values(self.thresholds, self.upper, scores)
        return torch.log(upper / (1 - lower + upper))


class VennAbers(OneVersusRest):
    """Merge the two isotonic fits that a sample's own possible labels would give, for each class against the rest.

    One of p₀ and p₁ is a calibrated probability of the class, whatever the distribution; their merger, normalised over
    classes, is the single prediction with the lowest worst-case log-loss regret (Vovk, Petej and Fedorova, 2015). Both
    are step functions that are computed once, exactly and in linear time. A sample weighs as much as the mean
    calibration sample.

    Parameters
    ----------
    maps, representation, seed
        As in :class:`PlattScaling`.

    Attributes
    ----------
    thresholds_ : list of arrays
        Log-odds at which the steps of each class begin, ascending.
    lower_, upper_ : list of arrays
        p₀ from each threshold on, after its value below the first; p₁ up to each threshold, then its value above all.
    """

    method: ClassVar[str] = "venn-abers"
    model_class = VennAbersModel
    thresholds_ = fitted("thresholds")
    lower_ = fitted("lower")
    upper_ = fitted("upper")

    def _fit_map(self, scores: Floats, hits: Hits, weights: Floats) -> tuple[Floats, ...]:
        thresholds, places = np.unique(scores, return_inverse=True)
        mass, positive = (np.bincount(places, part).astype(np.float64) for part in (weights, weights * hits))
        upper = with_positive(mass, positive)
        lower = 1 - with_positive(mass[::-1], (mass - positive)[::-1])[::-1]  # the mirror image
        return thresholds, np.concatenate([[0.0], lower]), np.concatenate([upper, [1.0]])


def with_positive(mass: Floats, positive: Floats) -> Floats:
    """Return the isotonic fit at each place with a positive of weight 1 added there, (m,).

    ``mass`` and ``positive`` are the weights of all and of positive samples by ascending score. The fit is the slope of
    the greatest convex minorant of the cumulative sums P₀, …, P_m. A positive at place i shifts P₀, …, P_{i−1} by
    (−1, −1). What lies to the right of the shifted points is the minorant of the step before, so that every point is
    put on the stack once.
    """
    points = list(zip(np.cumsum(mass).tolist(), np.cumsum(positive).tolist(), strict=True))
    stack: list[Point] = []  # corners of the minorant, the leftmost on top
    for point in [*reversed(points), (-1.0, -1.0)]:
        _push(stack, point)
    values = []
    for x, y in points:
        slope = _slope(stack[-1], stack[-2])
        values.append(slope)
        shifted = (x - 1, y - 1)
        if _slope(stack[-1], shifted) < slope:
            stack.pop()
            _push(stack, shifted)
    return np.array(values)


def _push(stack: list[Point], point: Point) -> None:
    """Put a point to the left of all corners on the stack, and remove the corners that lie above the minorant."""
    while len(stack) > 1 and _slope(point, stack[-1]) >= _slope(stack[-1], stack[-2]):
        stack.pop()
    stack.append(point)


def _slope(left: Point, right: Point) -> float:
    return (right[1] - left[1]) / (right[0] - left[0])
