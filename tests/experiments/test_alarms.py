"""The simulations of alarms: their drifts are what they say, and everything is shown and written."""

from __future__ import annotations

import numpy as np

from experiments import alarms
from experiments.alarms import confused, draw_probs, shifted


def test_drifts_are_true_probabilities():
    probs = draw_probs(500, np.random.default_rng(1))
    for change in alarms.DRIFTS.values():
        np.testing.assert_allclose(change(probs).sum(axis=1), 1)
    np.testing.assert_allclose(shifted(probs, 1.0), probs)
    odds = shifted(probs, 3.0) / probs
    np.testing.assert_allclose(odds[:, -1] / odds[:, 0], 3.0)
    moved = confused(probs, 0.2)
    np.testing.assert_allclose(moved[:, -1], 0.8 * probs[:, -1])
    np.testing.assert_allclose(moved[:, 1:-1], probs[:, 1:-1])
