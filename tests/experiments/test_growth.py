"""The simulation knows the truth, and more samples come closer to it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax

from experiments import growth
from experiments.growth import draw_world
from experiments.runner import run_study
from experiments.study import Measurements
from kcal import KCal


@pytest.fixture(scope="module")
def grown() -> Measurements:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growth, "SIZES", (60, 2000))
        patch.setattr(growth, "MAX_SAMPLES", 2000)
        return run_study(growth.STUDY, list, n_splits=2)


def test_labels_follow_the_truth_and_no_temperature_corrects_the_network() -> None:
    world = draw_world(20_000, np.random.default_rng(0))
    frequencies = np.bincount(world.outputs.labels) / 20_000
    np.testing.assert_allclose(frequencies, world.truth.mean(axis=0), atol=0.015)
    assert -log_softmax(world.outputs.logits, axis=1)[np.arange(20_000), world.outputs.labels].mean() > (
        -np.log(world.truth[np.arange(20_000), world.outputs.labels]).mean() + 0.1
    )
    seeing = world.outputs.embeddings[:, 0] <= 0
    for temperature, rows, limit in ((2.0, seeing, 1e-6), (2.0, ~seeing, None)):
        scaled = np.exp(log_softmax(world.outputs.logits[rows] / temperature, axis=1))
        error = np.abs(scaled - world.truth[rows]).mean()
        assert error < limit if limit is not None else error > 0.1


def test_errors_are_those_of_fitting_by_hand(grown: Measurements) -> None:
    world, test = draw_world(60, np.random.default_rng([0, 1, 60, 1])), draw_world(2000, np.random.default_rng([0, 0]))
    calibrator = KCal(projection="identity").fit(world.outputs.embeddings, world.outputs.labels)
    expected = np.abs(calibrator.predict_proba(test.outputs.embeddings) - test.truth).mean()
    assert grown["60"]["kcal"]["error"][1] == pytest.approx(expected)
