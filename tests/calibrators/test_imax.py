"""I-Max bins keep the most information, and the output of a bin is its rate."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, logit, softmax, xlogy

from kcal import IMaxBinning
from one_class_problems import two_columns
from pooled_network import pooled

pytestmark = pytest.mark.filterwarnings("ignore::kcal.FewSamplesWarning")

FORMS = ["shared", "classwise", "top"]


def boundaries_of(scores: Any, bins: int, seed: int = 0, weights: Any = None) -> Any:
    """Return the boundaries between bins of scores that are those of the second of two classes."""
    labels = np.arange(len(scores)) % 2  # they play no part
    calibrator = IMaxBinning(form="classwise", bins=bins, seed=seed)
    return calibrator.fit(two_columns(scores), labels, sample_weight=weights).boundaries_[1]


def information(scores: Any, boundaries: Any) -> float:
    """Return the mutual information of bin and label, which is 1 with probability σ(score)."""
    ones = np.bincount(np.searchsorted(boundaries, scores, "right"), expit(scores), len(boundaries) + 1) / len(scores)
    zeros = np.bincount(np.searchsorted(boundaries, scores, "right"), expit(-scores), len(boundaries) + 1) / len(scores)
    joint = np.stack([ones, zeros])
    product = joint.sum(axis=0) * joint.sum(axis=1, keepdims=True)
    return float((xlogy(joint, joint) - xlogy(joint, product)).sum())


def log_odds(logits: Any) -> Any:
    """Return the log-odds of each class, as the method rounds them."""
    return np.round(logit(softmax(logits, axis=1)), 9)


def best_information(scores: Any, bins: int) -> float:
    """Return by dynamic programming the most information that so many runs of sorted scores keep."""
    n, sums = len(scores), np.concatenate([[0.0], np.cumsum(expit(np.sort(scores)))])
    starts, ends = np.triu_indices(n + 1, 1)
    mean = (sums[ends] - sums[starts]) / (ends - starts)
    entropy = np.full((n + 1, n + 1), np.inf)
    entropy[starts, ends] = -(ends - starts) * (mean * np.log(mean) + (1 - mean) * np.log(1 - mean))
    best = entropy[0]
    for _ in range(bins - 1):
        best = np.minimum(best, (best[:, None] + entropy).min(axis=0))
    return float((entropy[0, n] - best[n]) / n)


def divergence(a: float, c: float) -> float:
    """Return KL(σ(a)‖σ(c)) by its definition."""
    p, q = expit(a), expit(c)
    return float(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)))


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 12), st.floats(0.1, 2), st.booleans())
def test_a_boundary_is_as_far_from_the_mean_of_its_bin_as_from_that_of_the_next(
    seed: int, bins: int, scale: float, weighted: bool
) -> None:
    """The alternation has ended: another step of each kind changes nothing."""
    generator = np.random.default_rng(seed)
    scores = np.round(generator.normal(loc=-1, scale=scale, size=200), 6)
    weights = generator.uniform(0.2, 3.0, 200) if weighted else np.ones(200)
    boundaries = boundaries_of(scores, bins, seed, weights)
    index = np.searchsorted(boundaries, scores, "right")
    assert (np.diff(boundaries) >= 0).all()
    assert (np.bincount(index, minlength=bins) > 0).all()
    means = logit(np.bincount(index, weights * expit(scores)) / np.bincount(index, weights))
    for low, boundary, high in zip(means[:-1], boundaries, means[1:], strict=True):
        assert divergence(boundary, low) == pytest.approx(divergence(boundary, high), rel=1e-5, abs=1e-13)


def test_the_best_of_a_few_starts_is_the_optimum_of_all_partitions() -> None:
    for seed in range(5):
        scores = np.random.default_rng(seed).normal(scale=2, size=12)
        between = np.sort(scores)[1:]
        best = max(information(scores, between[list(cuts)]) for cuts in combinations(range(11), 3))
        assert best_information(scores, 4) == pytest.approx(best, rel=1e-9)  # one oracle by the other
        found = [information(scores, boundaries_of(scores, 4, start)) for start in range(10)]
        assert max(found) == pytest.approx(best, rel=1e-9)
        assert max(found) <= best + 1e-12
        assert np.mean(found) > 0.95 * best


@pytest.mark.parametrize("scale", [1e-7, 1.0, 300.0, 1e4])
def test_boundaries_of_any_scale_ascend_and_predictions_are_finite(scale: float) -> None:
    logits = np.random.default_rng(0).normal(scale=scale, size=(300, 4))
    for form in FORMS:
        fitted = IMaxBinning(form=form).fit(logits, np.arange(300) % 4)
        assert all((np.diff(boundaries) >= 0).all() for boundaries in fitted.boundaries_)
        assert np.isfinite(fitted.predict_log_proba(logits)).all()


@pytest.mark.parametrize("form", FORMS)
def test_the_output_of_a_bin_is_its_rate_clipped_by_its_size(form: str, problem: Any) -> None:
    """A score at a boundary belongs to the upper bin."""
    p = softmax(problem.logits, axis=1)
    scores, targets = np.round(logit(p), 9), np.eye(3)[problem.labels]
    if form == "top":
        targets = targets[np.arange(240), p.argmax(axis=1)][:, None]
        scores = scores.max(axis=1, keepdims=True)
    if form == "shared":
        scores, targets = scores.reshape(-1, 1), targets.reshape(-1, 1)
    fitted = IMaxBinning(form=form).fit(problem.logits, problem.labels)
    assert len(fitted.rates_) == scores.shape[1]
    for k, (boundaries, rates) in enumerate(zip(fitted.boundaries_, fitted.rates_, strict=True)):
        edges = np.concatenate([[-np.inf], boundaries, [np.inf]])
        for low, high, rate in zip(edges[:-1], edges[1:], rates, strict=True):
            inside = targets[(scores[:, k] >= low) & (scores[:, k] < high), k]
            members = inside if len(inside) else targets[:, k]
            least = 1 / (len(members) + 2)
            assert rate == pytest.approx(min(max(members.mean(), least), 1 - least))


def test_a_weight_counts_as_that_many_samples(problem: Any) -> None:
    weights = np.arange(240) % 3 + 1
    weights = weights / weights.mean()
    fitted = IMaxBinning(form="top").fit(problem.logits, problem.labels, sample_weight=weights)
    p = softmax(problem.logits, axis=1)
    index = np.searchsorted(fitted.boundaries_[0], np.round(logit(p.max(axis=1)), 9), "right")
    sizes = np.bincount(index, weights, 15)
    right = np.bincount(index, weights * (p.argmax(axis=1) == problem.labels), 15)
    expected = np.clip(right / sizes, 1 / (sizes + 2), 1 - 1 / (sizes + 2))
    np.testing.assert_allclose(fitted.rates_[0], expected, rtol=1e-12)


@pytest.mark.parametrize("form", ["shared", "classwise"])
def test_probabilities_are_normalised_odds_of_the_binned_scores(form: str, problem: Any) -> None:
    fitted = IMaxBinning(form=form).fit(problem.logits, problem.labels)
    scores = log_odds(problem.test_logits)
    maps = list(zip(fitted.boundaries_, fitted.rates_, strict=True)) * (3 if form == "shared" else 1)
    rates = np.stack([own[np.searchsorted(b, s, "right")] for s, (b, own) in zip(scores.T, maps, strict=True)], axis=1)
    odds = rates / (1 - rates)
    expected = pooled(odds / odds.sum(axis=1, keepdims=True), problem.test_logits, problem.logits, problem.labels)
    np.testing.assert_allclose(fitted.predict_proba(problem.test_logits), expected, atol=1e-12)


def test_the_top_form_shares_the_rest_in_proportion(problem: Any) -> None:
    fitted = IMaxBinning(form="top").fit(problem.logits, problem.labels)
    before = softmax(problem.test_logits, axis=1)
    places = np.searchsorted(fitted.boundaries_[0], log_odds(problem.test_logits).max(axis=1), "right")
    top, is_top = fitted.rates_[0][places][:, None], np.eye(3, dtype=bool)[before.argmax(axis=1)]
    others = (1 - top) * before / (1 - before.max(axis=1, keepdims=True))
    expected = pooled(np.where(is_top, top, others), problem.test_logits, problem.logits, problem.labels)
    np.testing.assert_allclose(fitted.predict_proba(problem.test_logits), expected, atol=1e-9)
    tied = np.tile([2.0, 2.0, 0.0], (20, 1))
    p = IMaxBinning(form="top").fit(tied, np.arange(20) % 3).predict_proba(tied + 17.3)
    np.testing.assert_allclose(p[:, 0], p[:, 1], atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_tied_scores_fall_into_one_bin_however_they_are_shifted(form: str) -> None:
    generator = np.random.default_rng(0)
    logits = generator.integers(-2, 3, size=(200, 3)).astype(float)
    labels = (logits + generator.gumbel(size=logits.shape)).argmax(axis=1)
    fitted = IMaxBinning(form=form).fit(logits, labels)
    shifted = IMaxBinning(form=form).fit(logits + generator.normal(scale=50, size=(200, 1)), labels)
    np.testing.assert_allclose(shifted.predict_proba(logits - 0.3), fitted.predict_proba(logits), atol=1e-9)
