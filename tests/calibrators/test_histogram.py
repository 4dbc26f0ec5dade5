"""Histogram binning gives the rate of its bin, near 1 for a bin of positives only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kcal import HistogramBinning
from kcal.errors import InvalidInputError, MissingClassWarning
from one_class_problems import draw, two_columns
from pooled_network import pooled


def slow_rates(p: Any, hits: Any, bins: int, query: float) -> float:
    """Return the clipped rate of the equal-width bin of one query, by counting."""
    place = next(b for b in range(bins) if b / bins < query <= (b + 1) / bins)
    inside = [bool(hit) for value, hit in zip(p, hits, strict=True) if place / bins < value <= (place + 1) / bins]
    if not inside:
        return (place + 0.5) / bins
    least = 1 / (len(inside) + 2)
    return min(max(sum(inside) / len(inside), least), 1 - least)


def softmax(logits: Any) -> Any:
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("bins", [1, 4, 15])
def test_equal_width_bins_equal_the_slow_count(problem: Any, bins: int) -> None:
    found = (
        HistogramBinning(bins=bins, maps="class")
        .fit(problem.logits, problem.labels)
        .predict_proba(problem.test_logits[:80])
    )
    p, queries = softmax(problem.logits), softmax(problem.test_logits[:80])
    expected = np.array([[slow_rates(p[:, k], problem.labels == k, bins, row[k]) for k in range(3)] for row in queries])
    expected /= expected.sum(axis=1, keepdims=True)
    expected = pooled(expected, problem.test_logits[:80], problem.logits, problem.labels)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_equal_mass_bins_worked_by_hand() -> None:
    scores = np.array([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0])
    fitted = HistogramBinning(bins=3, binning="equal-mass", maps="class").fit(two_columns(scores), [0, 0, 0, 1, 1, 1])
    np.testing.assert_allclose(fitted.edges_[1], [-1.5, 1.5])
    np.testing.assert_allclose(fitted.rates_[1], [1 / 4, 1 / 2, 3 / 4])  # 0/2, 1/2 and 2/2, clipped at 1/(2 + 2)


@pytest.mark.filterwarnings("ignore::kcal.errors.LeakageWarning")
def test_a_bin_of_only_positives_is_near_one() -> None:
    for binning in ("equal-mass", "equal-width"):
        scores = np.repeat([-4.0, 4.0], 500)
        fitted = HistogramBinning(binning=binning, maps="class").fit(two_columns(scores), np.repeat([0, 1], 500))
        new = two_columns(np.array([-4.0, 4.0]))
        expected = np.array([[501, 1], [1, 501]]) / 502
        expected = pooled(expected, new, two_columns(scores), np.repeat([0, 1], 500))
        np.testing.assert_allclose(fitted.predict_proba(new), expected, atol=1e-12)


def test_tied_scores_share_a_bin_whatever_the_order() -> None:
    scores = np.array([0.0] * 7 + [1.0] * 2 + [2.0])
    labels = np.array([0, 1, 0, 0, 1, 0, 0, 1, 0, 1])
    order = np.random.default_rng(0).permutation(10)
    first = HistogramBinning(bins=5, binning="equal-mass", maps="class").fit(two_columns(scores), labels)
    second = HistogramBinning(bins=5, binning="equal-mass", maps="class").fit(two_columns(scores[order]), labels[order])
    np.testing.assert_array_equal(first.edges_[1], second.edges_[1])
    np.testing.assert_allclose(first.edges_[1], [0.5, 1.5])  # no cut inside the run of seven
    np.testing.assert_array_equal(first.rates_[1], second.rates_[1])


def test_it_approaches_a_truth_that_is_constant_in_bins_as_samples_grow() -> None:
    generator = np.random.default_rng(0)
    scores = generator.normal(scale=2, size=100_000)
    p = 1 / (1 + np.exp(-scores))
    steps = np.array([0.1, 0.3, 0.4, 0.8])[np.minimum((p * 4).astype(int), 3)]
    labels = (generator.uniform(size=len(p)) < steps).astype(np.int64)
    errors = []
    for n in (1_000, 100_000):
        fitted = HistogramBinning(bins=4, maps="class").fit(two_columns(scores[:n]), labels[:n])
        errors.append(np.abs(fitted.predict_proba(two_columns(scores[:1000]))[:, 1] - steps[:1000]).mean())
    assert errors[1] < 0.01
    assert errors[1] < errors[0] / 3  # the rate is the square root of n


def test_one_shared_map_keeps_what_many_classes_would_lose() -> None:
    generator = np.random.default_rng(0)
    truth = generator.normal(scale=2.5, size=(3_000, 40))
    labels = (truth + generator.gumbel(size=truth.shape)).argmax(axis=1)
    losses = {}
    for maps in ("class", "shared"):
        fitted = HistogramBinning(maps=maps).fit(2 * truth[:1000], labels[:1000])
        losses[maps] = -fitted.predict_log_proba(2 * truth[1000:])[np.arange(2000), labels[1000:]].mean()
    assert losses["shared"] < losses["class"]


def test_invalid_parameters_raise_and_a_missing_class_warns() -> None:
    logits = two_columns(np.linspace(-1, 1, 8))
    for bins in (0, 2.5, True, "ten"):
        with pytest.raises(InvalidInputError, match="bins must be an integer"):
            HistogramBinning(bins=bins, maps="class").fit(logits, draw(logits[:, 1]))
    with pytest.raises(InvalidInputError, match="binning must be one of"):
        HistogramBinning(binning="quantile", maps="class").fit(logits, draw(logits[:, 1]))
    with pytest.raises(InvalidInputError, match="maps must be one of"):
        HistogramBinning(maps="all").fit(logits, draw(logits[:, 1]))
    with pytest.warns(MissingClassWarning, match="1 of 2 classes"):
        fitted = HistogramBinning(maps="class").fit(logits, np.zeros(8, dtype=int))
    alone = fitted.model_.log_probs(torch.log_softmax(torch.from_numpy(logits), dim=1))
    assert (alone[:, 0] > alone[:, 1]).all()
