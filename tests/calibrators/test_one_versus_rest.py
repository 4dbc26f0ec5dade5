"""What the methods that map the score of each class share: log-odds, bins of equal mass, the choice of maps."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from kcal import (
    BetaCalibration,
    HistogramBinning,
    IsotonicCalibration,
    PlattScaling,
    ScalingBinning,
)
from kcal.calibrators.binary.binning import equal_mass_edges
from kcal.calibrators.class_scores import log_odds
from kcal.errors import MissingClassWarning

METHODS = (HistogramBinning, IsotonicCalibration, PlattScaling, BetaCalibration, ScalingBinning)


def test_log_odds_equal_the_slow_sum_and_survive_saturation() -> None:
    logits = np.random.default_rng(0).normal(scale=3, size=(50, 5))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(log_odds(torch.from_numpy(np.log(p))), np.log(p / (1 - p)), atol=1e-10)
    saturated = np.array([[0.0, -2e4, -3e4]])
    np.testing.assert_allclose(log_odds(torch.from_numpy(saturated)), [[2e4, -2e4, -3e4]])


def test_bins_of_equal_mass_hold_equal_weight() -> None:
    scores = np.random.default_rng(0).normal(size=1_000)
    counts = np.bincount(np.searchsorted(equal_mass_edges(scores, np.ones(1_000), 7), scores))
    assert len(counts) == 7
    assert set(counts) <= {142, 143}
    assert len(equal_mass_edges(np.zeros(9), np.ones(9), 5)) == 0
    assert len(equal_mass_edges(np.array([1.0]), np.ones(1), 5)) == 0


@pytest.mark.parametrize("kind", METHODS)
def test_equal_rows_that_differ_by_a_constant_stay_tied(kind: Any) -> None:
    generator = np.random.default_rng(0)
    logits = generator.integers(-2, 3, size=(200, 3)).astype(float)
    labels = (logits + generator.gumbel(size=logits.shape)).argmax(axis=1)
    shift = generator.normal(scale=30, size=(200, 1))
    plain, shifted = kind().fit(logits, labels), kind().fit(logits + shift, labels)
    np.testing.assert_allclose(shifted.predict_proba(logits + shift[::-1]), plain.predict_proba(logits), atol=1e-6)


@pytest.mark.parametrize("kind", METHODS)
def test_auto_shares_a_map_where_classes_are_many_and_samples_few_and_else_gives_each_its_own(kind: Any) -> None:
    """Class 0 of three is overconfident, the others not; of forty classes with five samples each all are alike."""
    generator = np.random.default_rng(0)
    truth = generator.normal(size=(4000, 3)) * 2
    labels = (truth + generator.gumbel(size=truth.shape)).argmax(axis=1)
    uneven = truth + np.where(np.arange(3) == 0, 1.5, 0.0) * np.sign(truth)
    chosen = kind().fit(uneven, labels)
    assert chosen.maps_ == ("shared" if kind is ScalingBinning else "class")  # its maps cannot shift a class
    np.testing.assert_array_equal(
        chosen.predict_proba(uneven[:50]), kind(maps=chosen.maps_).fit(uneven, labels).predict_proba(uneven[:50])
    )
    few = generator.normal(size=(200, 40)) * 2
    labels = (few + generator.gumbel(size=few.shape)).argmax(axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingClassWarning)
        if kind is not HistogramBinning:  # whose fifteen bins are too many either way
            assert kind().fit(1.5 * few, labels, classes=range(40)).maps_ == "shared"
        assert kind().fit(1.5 * few[:4], labels[:4], classes=range(40)).maps_ == "shared"
