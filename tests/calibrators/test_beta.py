"""Beta calibration is the minimiser under its bounds, and recovers a beta map."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from kcal import BetaCalibration
from kcal.errors import InvalidInputError
from one_class_problems import two_columns

CUBE = [(a, b) for a in np.linspace(0, 3, 31) for b in np.linspace(0, 3, 31)]


def curve(scores: Any, a: float, b: float, c: float) -> Any:
    return -a * np.logaddexp(0, -scores) + b * np.logaddexp(0, scores) + c


def plain_loss(scores: Any, labels: Any, abc: Any) -> float:
    t = curve(scores, *abc)
    return float((np.logaddexp(0, t) - labels * t).sum())


def sample(a: float, b: float, c: float, n: int, seed: int = 0) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    scores = generator.normal(scale=2, size=n)
    labels = generator.uniform(size=n) < 1 / (1 + np.exp(-curve(scores, a, b, c)))
    return scores, labels.astype(np.int64)


@pytest.mark.parametrize("truth", [(1.0, 0.5, 0.3), (2.0, 0.0, 1.0), (0.0, 1.5, -1.0)])
def test_no_point_of_a_grid_within_the_bounds_is_better(truth: Any) -> None:
    scores, labels = sample(*truth, n=400)
    found = BetaCalibration(penalty=0.0, maps="class").fit(two_columns(scores), labels).coefficients_[1]
    assert (found[:2] >= 0).all()
    best = min(
        minimize(lambda c, a=a, b=b: plain_loss(scores, labels, (a, b, c[0])), [0.0], tol=1e-8).fun
        for a, b in CUBE[::14]
    )
    assert plain_loss(scores, labels, found) <= best + 1e-6


def test_it_recovers_the_map_as_samples_grow() -> None:
    truth = (0.4, 1.2, 0.5)
    scores, labels = sample(*truth, n=100_000)
    errors = [
        np.abs(BetaCalibration(maps="class").fit(two_columns(scores[:n]), labels[:n]).coefficients_[1] - truth).max()
        for n in (2_000, 100_000)
    ]
    assert errors[1] < 0.03
    assert errors[1] < errors[0]


@pytest.mark.filterwarnings("ignore::kcal.errors.LeakageWarning")
def test_the_penalty_keeps_separable_scores_finite() -> None:
    scores = np.concatenate([np.linspace(-3, -1, 20), np.linspace(1, 3, 20)])
    fitted = BetaCalibration(maps="class").fit(two_columns(scores), np.repeat([0, 1], 20))
    assert (np.abs(fitted.coefficients_[1]) < 10).all()
    for wrong in (-1.0, np.nan, "one", True):
        with pytest.raises(InvalidInputError, match="penalty must be a number"):
            BetaCalibration(penalty=wrong, maps="class").fit(two_columns(scores), np.repeat([0, 1], 20))
