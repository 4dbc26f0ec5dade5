"""The loss as a function of the bandwidth is that of fitting by hand."""

from __future__ import annotations

import numpy as np
import pytest

from experiments import convexity
from experiments.runner import run_study
from kcal import KCal, train_projection
from kcal.benchmark import Task


def loss_by_hand(task: Task) -> float:
    trained = train_projection(task.train.embeddings, task.train.labels, progress=False)
    rows = task.splits(1, 0)[0].calibration
    calibrator = KCal(projection=trained, progress=False).fit(task.pool.embeddings[rows], task.pool.labels[rows])
    assert calibrator.bandwidth_curve_ is not None
    return calibrator.bandwidth_curve_.loss


def test_the_loss_is_shown_around_its_minimum(task: Task) -> None:
    measured = run_study(convexity.STUDY, lambda: [task], n_splits=3)
    bandwidths, losses = (measured["small"]["kcal"][name] for name in ("bandwidths", "losses"))
    assert bandwidths.shape == losses.shape == (1, 41)  # of the first split alone
    assert losses.min() == pytest.approx(loss_by_hand(task), rel=1e-3)
    assert 0 < int(losses.argmin()) < 40
    shown = convexity.show(measured)
    assert shown.tables[0].rows[0][0].text == "small"
    assert len(shown.panels) == 1


def test_minima_and_the_convex_range_of_known_curves() -> None:
    at = np.linspace(-1, 3, 41)
    assert convexity.n_minima((at - 1) ** 2) == 1
    assert convexity.convex_range((at - 1) ** 2) == (0, 40)
    waves = np.cos(2 * np.pi * at) + 0.01 * at
    assert convexity.n_minima(waves) == 4
    low, high = convexity.convex_range(waves)
    assert at[high] - at[low] == pytest.approx(0.5, abs=0.25)
