"""Scaling-binning gives the mean of the scaled scores in a bin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kcal import ScalingBinning, TemperatureScaling
from kcal.errors import InvalidInputError
from pooled_network import pooled


def test_a_bin_gives_the_mean_of_its_scaled_scores(problem: Any) -> None:
    fitted = ScalingBinning(bins=8, maps="class").fit(problem.logits, problem.labels)
    scaling = TemperatureScaling().fit(problem.logits, problem.labels)
    assert fitted.temperature_ == scaling.temperature_
    scaled, queries = scaling.predict_proba(problem.logits), scaling.predict_proba(problem.test_logits)
    expected = np.empty_like(queries)
    for k in range(3):
        order = np.sort(scaled[:, k])  # 240 samples: eight bins of thirty
        lowers = [np.log(order[30 * b - 1] / (1 - order[30 * b - 1])) for b in range(1, 8)]
        uppers = [np.log(order[30 * b] / (1 - order[30 * b])) for b in range(1, 8)]
        middles = (np.array(lowers) + np.array(uppers)) / 2
        bin_of = np.searchsorted(middles, np.log(queries[:, k] / (1 - queries[:, k])))
        expected[:, k] = order.reshape(8, 30).mean(axis=1)[bin_of]
    expected /= expected.sum(axis=1, keepdims=True)
    expected = pooled(expected, problem.test_logits, problem.logits, problem.labels)
    np.testing.assert_allclose(fitted.predict_proba(problem.test_logits), expected, atol=1e-7)


def test_maps_keep_the_mean_score_of_every_class(problem: Any) -> None:
    fitted = ScalingBinning(bins=6, maps="class").fit(problem.logits, problem.labels)
    scaled = TemperatureScaling().fit(problem.logits, problem.labels).predict_proba(problem.logits)
    scores = fitted.model_.scores(torch.log_softmax(torch.from_numpy(problem.logits), dim=1)).numpy()
    for k in range(3):
        mapped = fitted.means_[k][np.searchsorted(fitted.edges_[k], scores[:, k])]
        assert mapped.mean() == pytest.approx(scaled[:, k].mean(), abs=1e-9)


def test_it_recovers_scaled_logits_as_samples_and_bins_grow() -> None:
    generator = np.random.default_rng(0)
    truth = generator.normal(scale=1.5, size=(50_000, 3))
    labels = (truth + generator.gumbel(size=truth.shape)).argmax(axis=1)
    p = np.exp(truth) / np.exp(truth).sum(axis=1, keepdims=True)
    errors = []
    for n, bins in ((500, 10), (50_000, 100)):
        fitted = ScalingBinning(bins=bins, maps="class").fit(2.5 * truth[:n], labels[:n])
        errors.append(np.abs(fitted.predict_proba(2.5 * truth[:2000]) - p[:2000]).mean())
    assert errors[1] < 0.01
    assert errors[1] < errors[0] / 3


def test_saturated_ties_and_bad_bins(problem: Any) -> None:
    with pytest.raises(InvalidInputError, match="bins must be an integer"):
        ScalingBinning(bins=0, maps="class").fit(problem.logits, problem.labels)
    logits = np.where(np.eye(3)[[0, 1, 2, 0, 1, 2]] > 0, 1e4, -1e4)
    found = ScalingBinning(maps="class").fit(logits, [0, 1, 2, 0, 2, 1]).predict_proba(logits)
    np.testing.assert_allclose(found.sum(axis=1), 1)
