"""A smooth function of many scores, computed at the nodes of a grid."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kcal import GaussianProcessCalibration
from kcal.calibrators.gaussian_process.estimator import require_latent_process
from kcal.calibrators.gaussian_process.score_grid import SPACING, ScoreGrid, make_grid
from synthetic import warped


def test_a_function_on_a_grid_is_linear_between_nodes_and_its_slopes_are_the_transpose() -> None:
    generator = np.random.default_rng(0)
    scores = torch.from_numpy(-generator.exponential(size=(5_000, 4)))
    grid = make_grid(scores, SPACING)
    assert not grid.exact
    assert len(grid.nodes) < 5_000
    torch.testing.assert_close(grid.interpolate(grid.nodes, slice(None)), scores)
    error = (grid.interpolate(torch.sin(3 * grid.nodes), slice(None)) - torch.sin(3 * scores)).abs().max()
    assert error <= 9 * SPACING**2 / 8
    values, parts = (
        torch.from_numpy(generator.normal(size=len(grid.nodes))),
        torch.from_numpy(generator.normal(size=scores.shape)),
    )
    slopes = torch.zeros_like(values)
    for rows in (slice(0, 100), slice(100, 5_000)):
        grid.add_slopes(slopes, parts[rows], rows)
    assert float(slopes @ values) == pytest.approx(float((parts * grid.interpolate(values, slice(None))).sum()))


def test_scores_that_lie_far_apart_or_are_few_are_their_own_nodes() -> None:
    far = torch.from_numpy(-(10.0 ** np.linspace(0, 150, 20_000))).reshape(-1, 2)
    for scores in (far, torch.arange(60.0).double().reshape(20, 3) / 1000):
        grid = make_grid(scores, SPACING)
        assert grid.exact
        torch.testing.assert_close(grid.interpolate(grid.nodes, slice(None)), scores, rtol=0, atol=0)


def test_the_fit_on_a_grid_is_the_fit_on_the_scores_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels, _ = warped(600, seed=0)
    exact = GaussianProcessCalibration().fit(logits, labels).predict_proba(logits)
    monkeypatch.setattr("kcal.calibrators.gaussian_process.score_grid.FEW", 0)
    monkeypatch.setattr(require_latent_process(), "SPACING", 1 / 32)
    gridded = GaussianProcessCalibration().fit(logits, labels).predict_proba(logits)
    np.testing.assert_allclose(gridded, exact, atol=1e-3)  # the bound is flat at its top
    assert np.abs(gridded - exact).mean() < 1e-4


def test_a_function_that_wanders_faster_than_the_grid_is_learned_on_a_finer_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = require_latent_process()
    monkeypatch.setattr("kcal.calibrators.gaussian_process.score_grid.FEW", 0)
    logits, labels, _ = warped(600, seed=0)
    spacings, spread = [], process.make_grid

    def record(scores: torch.Tensor, spacing: float) -> ScoreGrid:
        spacings.append(spacing)
        return spread(scores, spacing)

    monkeypatch.setattr(process, "make_grid", record)
    monkeypatch.setattr(process, "SPACING", 0.5)
    fitted = GaussianProcessCalibration().fit(logits, labels)
    assert len(spacings) > 1
    assert spacings[-1] <= fitted.lengthscale_ / 50
