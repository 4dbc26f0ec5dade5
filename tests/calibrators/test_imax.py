"""I-Max bins keep the most information, and the output of a bin is its rate."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kcal import IMaxBinning
from kcal.calibrators.class_scores import log_odds
from kcal.calibrators.imax.bins import (
    boundaries_between,
    find_bins,
    mutual_information,
    place,
    seed_distance,
)
from kcal.calibrators.imax.estimator import IMaxModel, bin_rates
from kcal.errors import MissingClassWarning
from pooled_network import pooled


def sigmoid(values: Any) -> Any:
    return 1 / (1 + np.exp(-np.asarray(values, dtype=np.float64)))


def divergence(a: Any, c: Any) -> Any:
    """KL(σ(a)‖σ(c)), as its definition says."""
    p, q = sigmoid(a), sigmoid(c)
    return p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))


def partition_information(scores: np.ndarray, cuts: tuple[int, ...]) -> float:
    parts = np.split(sigmoid(np.sort(scores)), cuts)
    return mutual_information(np.array([p.sum() for p in parts]), np.array([(1 - p).sum() for p in parts]))


def test_a_certain_row_falls_into_the_outer_bins_and_stays_finite(problem: Any) -> None:
    fitted = IMaxBinning().fit(problem.logits, problem.labels)
    rates = fitted.binned_scores(np.array([[1e4, -1e4, -1e4]]))
    np.testing.assert_array_equal(rates[0], [fitted.rates_[0][-1], fitted.rates_[0][0], fitted.rates_[0][0]])
    assert np.isfinite(fitted.predict_log_proba(np.array([[1e4, -1e4, -1e4]]))).all()


@settings(max_examples=100, deadline=None)
@given(st.floats(-15, 15), st.floats(0.01, 10))
def test_a_boundary_is_as_far_from_one_representative_as_from_the_next(low: float, gap: float) -> None:
    high = low + gap
    boundary = boundaries_between(np.array([low, high]))[0]
    plain = np.log((np.logaddexp(0, high) - np.logaddexp(0, low)) / (np.logaddexp(0, -low) - np.logaddexp(0, -high)))
    assert low <= boundary <= high
    assert boundary == pytest.approx(plain, abs=1e-4)  # the plain form loses digits in the tails
    if abs(boundary) < 8:
        assert divergence(boundary, low) == pytest.approx(divergence(boundary, high), rel=1e-5)


def test_equal_and_nearly_equal_representatives_have_the_limit_as_boundary() -> None:
    np.testing.assert_array_equal(boundaries_between(np.array([1.5, 1.5])), [1.5])
    for at in (-600.0, -3.0, 0.0, 30.0, 600.0):
        assert at <= boundaries_between(np.array([at, at + 1e-7]))[0] <= at + 1e-7


def test_the_distance_of_seeds_is_that_of_the_definition() -> None:
    a, b = np.random.default_rng(0).normal(scale=3, size=(2, 40))
    middle = (a + b) / 2
    expected = 0.5 * divergence(a, middle) + 0.5 * divergence(b, middle)
    np.testing.assert_allclose(seed_distance(a, b), expected, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 20), st.floats(0.1, 30))
def test_the_information_never_falls_over_the_alternation(seed: int, bins: int, scale: float) -> None:
    generator = np.random.default_rng(seed)
    scores = generator.normal(loc=-2, scale=scale, size=200)
    found = find_bins(scores, np.ones(200), bins, generator)
    assert (np.diff(found.information) >= -1e-12).all()
    assert (np.diff(found.boundaries) >= 0).all()
    assert found.information[-1] <= partition_information(scores, tuple(range(1, 200))) + 1e-12


def test_the_best_of_a_few_starts_is_the_brute_force_optimum_on_small_data() -> None:
    for seed in range(5):
        scores = np.random.default_rng(seed).normal(scale=2, size=12)
        best = max(partition_information(scores, cuts) for cuts in combinations(range(1, 12), 3))
        found = [find_bins(scores, np.ones(12), 4, np.random.default_rng(start)).information[-1] for start in range(10)]
        assert max(found) == pytest.approx(best, rel=1e-9)
        assert max(found) <= best + 1e-12
        assert np.mean(found) > 0.95 * best


def best_information(scores: np.ndarray, bins: int) -> float:
    """Find by dynamic programming the most information that so many runs of sorted scores keep."""
    shares = sigmoid(np.sort(scores))
    n = len(shares)
    sums = np.concatenate([[0.0], np.cumsum(shares)])
    starts, ends = np.triu_indices(n + 1, 1)
    mean = (sums[ends] - sums[starts]) / (ends - starts)
    entropy = np.full((n + 1, n + 1), np.inf)
    entropy[starts, ends] = -(ends - starts) * (mean * np.log(mean) + (1 - mean) * np.log(1 - mean))
    best = entropy[0]
    for _ in range(bins - 1):
        best = np.minimum(best, (best[:, None] + entropy).min(axis=0))
    return float((entropy[0, n] - best[n]) / n)


def test_the_published_number_of_bins_keeps_nearly_what_the_best_would() -> None:
    for seed in range(6):
        scores = np.random.default_rng(seed).normal(loc=-3, scale=4, size=300)
        best = best_information(scores, 15)
        found = find_bins(scores, np.ones(300), 15, np.random.default_rng(seed))
        assert 0.998 * best < found.information[-1] <= best + 1e-12


def test_a_bin_that_is_empty_while_fitting_takes_the_overall_mean_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starts = np.array([-9.0, -8.5, -8.0, 8.0])  # three at one end where no score lies
    monkeypatch.setattr("kcal.calibrators.imax.bins._seeds", lambda *_: starts)
    scores = np.random.default_rng(0).normal(scale=2, size=400)
    found = find_bins(scores, np.ones(400), 4, np.random.default_rng(0))
    assert (np.diff(found.information) >= -1e-12).all()
    assert found.information[-1] > 0.98 * best_information(scores, 4)
    assert (np.bincount(place(found.boundaries, scores), minlength=4) > 0).all()


def test_one_step_gives_an_empty_bin_the_overall_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcal.calibrators.imax.bins._seeds", lambda *_: np.array([-9.0, -7.0, 0.0, 3.0]))
    monkeypatch.setattr("kcal.calibrators.imax.bins.MAX_STEPS", 1)
    scores, weights = np.array([-2.0, -1.0, 0.5, 2.0, 4.0]), np.array([1.0, 2.0, 0.5, 1.0, 3.0])
    means = sigmoid(scores) * weights
    first, second, third = boundaries_between(np.array([-9.0, -7.0, 0.0, 3.0]))
    assert scores[0] > second > first  # the two lowest bins are empty
    members = [scores > -np.inf, scores > -np.inf, scores < third, scores >= third]
    shares = np.array([means[own].sum() / weights[own].sum() for own in members])
    expected = boundaries_between(np.sort(np.log(shares / (1 - shares))))
    found = find_bins(scores, weights, 4, np.random.default_rng(0))
    np.testing.assert_allclose(found.boundaries, expected, atol=1e-12)


def test_a_score_at_a_boundary_belongs_to_the_upper_bin_in_fitting_too(monkeypatch: pytest.MonkeyPatch) -> None:
    np.testing.assert_array_equal(place(np.array([0.0, 1.0]), np.array([-0.1, 0.0, 0.5, 1.0, 1.1])), [0, 1, 1, 2, 2])
    monkeypatch.setattr("kcal.calibrators.imax.bins._seeds", lambda *_: np.array([-1.0, 1.0]))
    monkeypatch.setattr("kcal.calibrators.imax.bins.MAX_STEPS", 1)
    scores = np.array([-1.0, 0.0, 3.0])
    found = find_bins(scores, np.ones(3), 2, np.random.default_rng(0))  # the first boundary is 0
    assert boundaries_between(np.array([-1.0, 1.0])) == [0.0]
    assert found.information[0] == pytest.approx(partition_information(scores, (1,)), rel=1e-12)
    upper = sigmoid(scores[1:]).mean()
    expected = boundaries_between(np.array([-1.0, np.log(upper / (1 - upper))]))
    np.testing.assert_allclose(found.boundaries, expected, atol=1e-12)


@pytest.mark.parametrize("form", ["shared", "classwise", "top"])
def test_a_row_at_a_boundary_gets_the_upper_bins_rate(form: str) -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(scale=2, size=(300, 2))
    labels = (logits + generator.gumbel(size=logits.shape)).argmax(axis=1)
    fitted = IMaxBinning(form=form, bins=4).fit(logits, labels)
    n_problems = len(fitted.rates_)
    boundaries, rates = torch.tensor([0.5, 1.0, 1.5]).double(), torch.tensor([0.2, 0.55, 0.7, 0.9]).double()
    fitted.model_ = IMaxModel(form, (boundaries,) * n_problems, (rates,) * n_problems)
    assert fitted.binned_scores(np.array([[1.0, 0.0]]))[0, 0] == pytest.approx(0.7)
    assert fitted.binned_scores(np.array([[1.0 - 1e-6, 0.0]]))[0, 0] == pytest.approx(0.55)


def test_the_seed_draws_where_the_alternation_starts(problem: Any) -> None:
    found, again, other = (
        IMaxBinning(seed=seed).fit(problem.logits, problem.labels).boundaries_[0] for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(found, again)
    assert not np.array_equal(found, other)


def test_the_output_of_a_bin_is_its_rate_clipped_by_its_size() -> None:
    places = np.array([0, 0, 0, 0, 1, 1, 1, 3, 3])
    targets = np.array([0.0, 1, 0, 0, 1, 1, 1, 0, 0])
    rates = bin_rates(places, targets, np.ones(9), 4)
    np.testing.assert_allclose(rates, [1 / 4, 1 - 1 / 5, 4 / 9, 1 / 4])  # the third bin is empty


@pytest.mark.parametrize("form", ["shared", "classwise", "top"])
def test_the_output_of_a_bin_of_only_positives_is_near_one(form: str) -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 900)
    sure = np.arange(900) < 450
    logits = np.where(sure[:, None], 12.0 * np.eye(3)[labels], generator.normal(size=(900, 3)))
    fitted = IMaxBinning(form=form).fit(logits, labels)
    assert (fitted.predict_proba(12.0 * np.eye(3)).diagonal() > 0.98).all()
    assert (fitted.binned_scores(12.0 * np.eye(3)).diagonal() > 0.98).all()


def test_probabilities_are_normalised_odds_of_the_binned_scores(problem: Any) -> None:
    for form in ("shared", "classwise"):
        fitted = IMaxBinning(form=form).fit(problem.logits, problem.labels)
        rates = fitted.binned_scores(problem.test_logits)
        odds = rates / (1 - rates)
        expected = odds / odds.sum(axis=1, keepdims=True)
        expected = pooled(expected, problem.test_logits, problem.logits, problem.labels)
        np.testing.assert_allclose(fitted.predict_proba(problem.test_logits), expected, atol=1e-12)
        assert np.abs(rates.sum(axis=1) - 1).max() > 0.01
        assert len(np.unique(rates)) <= 15 * len(fitted.rates_)


def test_the_shared_form_pools_all_classes(problem: Any) -> None:
    fitted = IMaxBinning().fit(problem.logits, problem.labels)
    logs = problem.logits - np.logaddexp.reduce(problem.logits, axis=1, keepdims=True)
    scores = log_odds(torch.from_numpy(logs)).numpy().ravel()
    targets = np.eye(3)[problem.labels].ravel()
    assert len(fitted.boundaries_[0]) == 14
    edges = np.concatenate([[-np.inf], fitted.boundaries_[0], [np.inf]])
    for low, high, rate in zip(edges[:-1], edges[1:], fitted.rates_[0], strict=True):
        members = targets[(scores >= low) & (scores < high)]
        if len(members):
            least = 1 / (len(members) + 2)
            assert rate == pytest.approx(min(max(members.mean(), least), 1 - least))


def test_the_top_form_shares_the_rest_in_proportion(problem: Any) -> None:
    fitted = IMaxBinning(form="top").fit(problem.logits, problem.labels)
    logits = problem.test_logits - problem.test_logits.max(axis=1, keepdims=True)
    before = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    after = fitted.binned_scores(problem.test_logits)
    expected = pooled(after, problem.test_logits, problem.logits, problem.labels)
    np.testing.assert_allclose(fitted.predict_proba(problem.test_logits), expected, atol=1e-12)
    top = before.argmax(axis=1)[:, None]
    assert np.isin(np.take_along_axis(after, top, 1).round(10), fitted.rates_[0].round(10)).all()
    others = np.ones_like(before, dtype=bool)
    np.put_along_axis(others, top, False, 1)
    ratios = after[others].reshape(-1, 2) / before[others].reshape(-1, 2)
    np.testing.assert_allclose(ratios[:, 0], ratios[:, 1], rtol=1e-6)


def test_tied_tops_share_alike() -> None:
    logits = np.tile([2.0, 2.0, 0.0], (20, 1))
    fitted = IMaxBinning(form="top").fit(logits, np.arange(20) % 3)
    p = fitted.predict_proba(logits + 17.3)
    np.testing.assert_allclose(p[:, 0], p[:, 1], atol=1e-12)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-12)


@pytest.mark.parametrize("form", ["shared", "classwise", "top"])
def test_tied_scores_fall_into_one_bin_however_they_are_shifted(form: str) -> None:
    generator = np.random.default_rng(0)
    logits = generator.integers(-2, 3, size=(200, 3)).astype(float)
    labels = (logits + generator.gumbel(size=logits.shape)).argmax(axis=1)
    fitted = IMaxBinning(form=form).fit(logits, labels)
    shifted = IMaxBinning(form=form).fit(logits + generator.normal(scale=50, size=(200, 1)), labels)
    np.testing.assert_allclose(shifted.predict_proba(logits - 0.3), fitted.predict_proba(logits), atol=1e-9)


@pytest.mark.parametrize("form", ["shared", "classwise", "top"])
def test_permuting_classes_permutes_columns_in_every_form(form: str, problem: Any) -> None:
    columns = np.array([1, 2, 0])
    plain = IMaxBinning(form=form).fit(problem.logits, problem.labels).predict_proba(problem.test_logits)
    turned = IMaxBinning(form=form).fit(problem.logits[:, columns], np.argsort(columns)[problem.labels])
    np.testing.assert_allclose(turned.predict_proba(problem.test_logits[:, columns]), plain[:, columns], atol=1e-9)


def test_a_weight_counts_as_that_many_samples() -> None:
    places, targets = np.array([0, 0, 1]), np.array([1.0, 0.0, 1.0])
    weighted = bin_rates(places, targets, np.array([3.0, 1.0, 2.0]), 2)
    repeated = bin_rates(np.array([0, 0, 0, 0, 1, 1]), np.array([1.0, 1, 1, 0, 1, 1]), np.ones(6), 2)
    np.testing.assert_array_equal(weighted, repeated)


def test_a_class_without_samples_gets_little(problem: Any) -> None:
    logits = np.hstack([problem.logits, problem.logits.mean(axis=1, keepdims=True) - 3])
    with pytest.warns(MissingClassWarning, match="1 of 4 classes"):
        fitted = IMaxBinning(form="classwise").fit(logits, problem.labels)
    assert (fitted.binned_scores(logits)[:, 3] <= 1 / 3).all()
    assert (fitted.predict_proba(logits) > 0).all()
