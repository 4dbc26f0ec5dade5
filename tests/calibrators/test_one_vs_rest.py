"""Methods that map the score of each class: each map equals a slow oracle, and a prediction is its maps, normalised."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit, logit, softmax
from sklearn.isotonic import IsotonicRegression

from kcal import (
    BetaCalibration,
    HistogramBinning,
    IsotonicCalibration,
    PlattScaling,
    ScalingBinning,
    TemperatureScaling,
    VennAbers,
)
from kcal.errors import MissingClassWarning
from one_class_problems import draw, two_columns
from pooled_network import pooled

pytestmark = pytest.mark.filterwarnings("ignore::kcal.FewSamplesWarning")

METHODS: tuple[Any, ...] = (
    PlattScaling,
    BetaCalibration,
    IsotonicCalibration,
    VennAbers,
    HistogramBinning,
    ScalingBinning,
)
SEEDS, SIZES = st.integers(0, 10**6), st.integers(3, 40)


def tied_scores(seed: int, n: int) -> tuple[Any, Any]:
    """Return scores with ties and labels of both classes."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, n)
    labels[:2] = [0, 1]
    return generator.integers(-6, 7, n) / 2.0, labels


def beta_curve(scores: Any, a: float, b: float, c: float) -> Any:
    return -a * np.logaddexp(0, -scores) + b * np.logaddexp(0, scores) + c


def summed_loss(log_odds: Any, targets: Any) -> float:
    return float((np.logaddexp(0, log_odds) - targets * log_odds).sum())


# every method


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("maps", ["class", "shared"])
def test_prediction_is_the_fitted_maps_normalised_and_pooled(kind: Any, maps: str, problem: Any) -> None:
    fitted = kind(maps=maps).fit(problem.logits, problem.labels)
    edge = np.array([[0.0, 1e4, -1e4], [0.0, 0.0, 0.0]])
    rows = np.concatenate([problem.test_logits, problem.logits, edge])
    temperature = getattr(fitted, "temperature_", 1.0)
    top = np.eye(3, dtype=bool)
    others = np.stack([np.logaddexp.reduce(rows[:, ~top[k]] / temperature, axis=1) for k in range(3)], axis=1)
    scores = np.round(rows / temperature - others, 9)
    mapped = np.empty_like(scores)
    for k in range(3):
        place = k if maps == "class" else 0
        s, clipped = scores[:, k], np.clip(scores[:, k], np.log(1e-12), -np.log(1e-12))
        if kind is IsotonicCalibration:
            mapped[:, k] = np.interp(s, fitted.knots_[place], fitted.values_[place])
        elif kind is VennAbers:
            thresholds = fitted.thresholds_[place]
            lower = fitted.lower_[place][np.searchsorted(thresholds, s, "right")]
            upper = fitted.upper_[place][np.searchsorted(thresholds, s, "left")]
            mapped[:, k] = upper / (1 - lower + upper)
        elif kind in (HistogramBinning, ScalingBinning):
            values = fitted.rates_ if kind is HistogramBinning else fitted.means_
            mapped[:, k] = values[place][np.searchsorted(fitted.edges_[place], s)]
        elif kind is PlattScaling:
            mapped[:, k] = expit(fitted.coefficients_[place] @ [clipped, np.ones_like(s)])
        else:
            mapped[:, k] = expit(beta_curve(clipped, *fitted.coefficients_[place]))
    expected = pooled(mapped / mapped.sum(axis=1, keepdims=True), rows, problem.logits, problem.labels)
    np.testing.assert_allclose(fitted.predict_proba(rows), expected, atol=1e-9)


@pytest.mark.parametrize("kind", METHODS)
def test_auto_shares_a_map_if_classes_are_many_and_samples_few(kind: Any) -> None:
    """Class 0 of three is overconfident, the others not; of forty classes with five samples each all are alike."""
    generator = np.random.default_rng(0)
    truth = generator.normal(size=(4000, 3)) * 2
    labels = (truth + generator.gumbel(size=truth.shape)).argmax(axis=1)
    uneven = truth + np.where(np.arange(3) == 0, 1.5, 0.0) * np.sign(truth)
    chosen = kind().fit(uneven, labels)
    assert chosen.maps_ == ("shared" if kind is ScalingBinning else "class")  # its maps cannot shift a class
    same = kind(maps=chosen.maps_).fit(uneven, labels)
    np.testing.assert_array_equal(chosen.predict_proba(uneven[:50]), same.predict_proba(uneven[:50]))
    few = generator.normal(size=(200, 40)) * 2
    labels = (few + generator.gumbel(size=few.shape)).argmax(axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingClassWarning)
        if kind is not HistogramBinning:  # whose fifteen bins are too many either way
            assert kind().fit(1.5 * few, labels, classes=range(40)).maps_ == "shared"
        assert kind().fit(1.5 * few[:4], labels[:4], classes=range(40)).maps_ == "shared"


@pytest.mark.filterwarnings("ignore::kcal.errors.LeakageWarning")
@pytest.mark.parametrize(
    ("calibrator", "highest"),
    [
        (IsotonicCalibration(maps="class"), 50 / 51),
        (VennAbers(maps="class"), 51 / 52),  # an error is expected once in n + 2
        (HistogramBinning(maps="class"), 51 / 52),
        (HistogramBinning(maps="class", binning="equal-mass"), 51 / 52),
    ],
)
def test_separable_scores_stay_away_from_zero_and_one(calibrator: Any, highest: float) -> None:
    labels, logits = np.repeat([0, 1], 50), two_columns(np.repeat([-4.0, 4.0], 50))
    for new in (two_columns(np.array([-4.0, 4.0])), two_columns(np.array([-1e4, 1e4]))):
        expected = pooled(np.array([[highest, 1 - highest], [1 - highest, highest]]), new, logits, labels)
        np.testing.assert_allclose(calibrator.fit(logits, labels).predict_proba(new), expected, atol=1e-12)


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("maps", ["class", "shared"])
def test_a_class_without_samples_warns_and_gets_little(kind: Any, maps: str, problem: Any) -> None:
    logits = np.hstack([problem.logits, problem.logits.mean(axis=1, keepdims=True) - 3])
    with pytest.warns(MissingClassWarning, match="1 of 4 classes"):
        found = kind(maps=maps).fit(logits, problem.labels).predict_proba(logits)
    assert found[:, 3].min() > 0
    assert found[:, 3].mean() < 0.05


# Platt scaling and beta calibration


def test_platt_minimises_the_plain_loss_with_his_targets() -> None:
    scores = np.random.default_rng(0).normal(scale=2, size=200)
    labels = draw(0.5 * scores - 1)
    positives = labels.sum()
    targets = np.where(labels == 1, (positives + 1) / (positives + 2), 1 / (200 - positives + 2))
    options = {"xatol": 1e-9, "fatol": 1e-12, "maxiter": 4000}

    def loss(ac: Any) -> float:
        return summed_loss(ac[0] * scores + ac[1], targets)

    slow = minimize(loss, [0.0, 0.0], method="Nelder-Mead", options=options)
    fitted = PlattScaling(maps="class").fit(two_columns(scores), labels)
    np.testing.assert_allclose(fitted.coefficients_[1], slow.x, atol=1e-5)


@pytest.mark.parametrize("truth", [(1.0, 0.5, 0.3), (2.0, 0.0, 1.0), (0.0, 1.5, -1.0)])
def test_no_beta_curve_of_a_grid_within_the_bounds_is_better(truth: Any) -> None:
    scores = np.random.default_rng(0).normal(scale=2, size=400)
    labels = draw(beta_curve(scores, *truth))
    found = BetaCalibration(penalty=0.0, maps="class").fit(two_columns(scores), labels).coefficients_[1]
    assert (found[:2] >= 0).all()
    grid = [(a, b) for a in np.linspace(0, 3, 31) for b in np.linspace(0, 3, 31)][::14]
    best = min(
        minimize(lambda c, a=a, b=b: summed_loss(beta_curve(scores, a, b, c[0]), labels), [0.0], tol=1e-8).fun
        for a, b in grid
    )
    assert summed_loss(beta_curve(scores, *found), labels) <= best + 1e-6


@pytest.mark.filterwarnings("ignore::kcal.errors.LeakageWarning")
def test_beta_minimises_the_loss_with_its_penalty_also_if_scores_separate() -> None:
    labels, scores = np.repeat([0, 1], 20), np.concatenate([np.linspace(-3, -1, 20), np.linspace(1, 3, 20)])

    def loss(abc: Any) -> float:
        return summed_loss(beta_curve(scores, *abc), labels) + float(((abc - [1, 1, 0]) ** 2).sum())

    fitted = BetaCalibration(penalty=2.0, maps="class").fit(two_columns(scores), labels)
    slow = minimize(loss, [1.0, 1.0, 0.0], tol=1e-10)
    np.testing.assert_allclose(fitted.coefficients_[1], slow.x, atol=1e-4)


# isotonic regression and Venn–Abers prediction


@settings(max_examples=40)
@given(SEEDS, SIZES)
def test_isotonic_equals_the_max_min_formula_with_two_samples_more(seed: int, n: int) -> None:
    scores, labels = tied_scores(seed, n)
    fitted = IsotonicCalibration(maps="class").fit(two_columns(scores), labels)
    scores, labels = np.append(scores, [scores.min(), scores.max()]), np.append(labels, [1, 0])
    values = np.unique(scores)
    sums, mass = (np.array([part[scores == value].sum() for value in values]) for part in (labels, np.ones(n + 2)))

    def mean(a: int, b: int) -> float:
        return float(sums[a : b + 1].sum() / mass[a : b + 1].sum())

    m = len(values)
    expected = [max(min(mean(a, b) for b in range(i, m)) for a in range(i + 1)) for i in range(m)]
    np.testing.assert_allclose(np.interp(values, fitted.knots_[1], fitted.values_[1]), expected, atol=1e-9)


def slow_pair(scores: Any, hits: Any, weights: Any, score: float) -> list[float]:
    """Return p₀ and p₁: isotonic fits with the sample added once of each label, at the sample."""
    x, w = np.append(scores, score), np.append(weights, 1.0)
    fits = [IsotonicRegression().fit(x, np.append(hits, label), sample_weight=w) for label in (0.0, 1.0)]
    return [float(fit.predict([score])[0]) for fit in fits]


def slow_venn_abers(scores: Any, labels: Any, weights: Any, new: Any) -> Any:
    """Return normalised probabilities of new scores, one column per class, (n_new, n_classes)."""
    merged = np.empty(new.shape)
    for row, k in np.ndindex(new.shape):
        lower, upper = slow_pair(scores[:, k], labels == k, weights, new[row, k])
        merged[row, k] = upper / (1 - lower + upper)
    return merged / merged.sum(axis=1, keepdims=True)


@settings(max_examples=40)
@given(SEEDS, SIZES, st.booleans(), st.sampled_from([0.0, 0.5, 1.0]))
def test_venn_abers_equals_two_isotonic_fits_per_sample(seed: int, n: int, weighted: bool, share: float) -> None:
    """Scores with ties, labels from all alike to separable; new scores at, between and beyond them."""
    generator = np.random.default_rng(seed)
    scores, labels = tied_scores(seed, n)
    labels = np.where(generator.random(n) < share, (scores > 0).astype(int), labels)
    labels[:2] = [0, 1]
    weights = generator.uniform(0.2, 3.0, n) if weighted else np.ones(n)
    weights /= weights.mean()
    fitted = VennAbers(maps="class").fit(two_columns(scores), labels, sample_weight=weights)
    new = np.concatenate([np.unique(scores), np.linspace(-4, 4, 15)])
    expected = slow_venn_abers(np.column_stack([-scores, scores]), labels, weights, np.column_stack([-new, new]))
    expected = pooled(expected, two_columns(new), two_columns(scores), labels, weights)
    np.testing.assert_allclose(fitted.predict_proba(two_columns(new)), expected, atol=1e-10)


# histogram binning and scaling-binning


@pytest.mark.parametrize("bins", [1, 4, 15])
def test_equal_width_bins_equal_a_slow_count(problem: Any, bins: int) -> None:
    fitted = HistogramBinning(bins=bins, maps="class").fit(problem.logits, problem.labels)
    p, queries = softmax(problem.logits, axis=1), softmax(problem.test_logits[:80], axis=1)

    def rate(query: float, k: int) -> float:
        place = next(b for b in range(bins) if b / bins < query <= (b + 1) / bins)
        inside = (problem.labels == k)[(place / bins < p[:, k]) & (p[:, k] <= (place + 1) / bins)]
        least = 1 / (len(inside) + 2)
        return min(max(inside.mean(), least), 1 - least) if len(inside) else (place + 0.5) / bins

    expected = np.array([[rate(query, k) for k, query in enumerate(row)] for row in queries])
    expected /= expected.sum(axis=1, keepdims=True)
    expected = pooled(expected, problem.test_logits[:80], problem.logits, problem.labels)
    np.testing.assert_allclose(fitted.predict_proba(problem.test_logits[:80]), expected, atol=1e-12)


def test_equal_mass_bins_worked_by_hand() -> None:
    histogram = HistogramBinning(bins=3, binning="equal-mass", maps="class")
    fitted = histogram.fit(two_columns(np.array([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0])), [0, 0, 0, 1, 1, 1])
    np.testing.assert_allclose(fitted.edges_[1], [-1.5, 1.5])
    np.testing.assert_allclose(fitted.rates_[1], [1 / 4, 1 / 2, 3 / 4])  # 0/2, 1/2 and 2/2, clipped at 1/(2 + 2)
    assert len(histogram.fit(two_columns(np.zeros(9)), np.arange(9) % 2).edges_[1]) == 0
    scores = np.random.default_rng(0).normal(size=1_000)
    edges = histogram.set_params(bins=7).fit(two_columns(scores), draw(scores)).edges_[1]
    assert set(np.bincount(np.searchsorted(edges, scores), minlength=7)) <= {142, 143}


def test_a_bin_gives_the_mean_of_its_scaled_scores(problem: Any) -> None:
    fitted = ScalingBinning(bins=8, maps="class").fit(problem.logits, problem.labels)
    scaling = TemperatureScaling().fit(problem.logits, problem.labels)
    assert fitted.temperature_ == scaling.temperature_
    for k, scaled in enumerate(scaling.predict_proba(problem.logits).T):
        ordered = np.sort(scaled).reshape(8, 30)  # 240 samples: eight bins of thirty
        middles = (logit(ordered[:-1, -1]) + logit(ordered[1:, 0])) / 2
        np.testing.assert_allclose(fitted.edges_[k], middles, atol=1e-8)
        np.testing.assert_allclose(fitted.means_[k], ordered.mean(axis=1), atol=1e-8)


def test_tied_scores_share_a_bin_whatever_the_order() -> None:
    scores = np.array([0.0] * 7 + [1.0] * 2 + [2.0])
    labels = np.array([0, 1, 0, 0, 1, 0, 0, 1, 0, 1])
    for order in (np.arange(10), np.random.default_rng(0).permutation(10)):
        histogram = HistogramBinning(bins=5, binning="equal-mass", maps="class")
        histogram.fit(two_columns(scores[order]), labels[order])
        np.testing.assert_allclose(histogram.edges_[1], [0.5, 1.5])  # no cut inside the run of seven
        np.testing.assert_allclose(histogram.rates_[1], [2 / 7, 1 / 2, 2 / 3])
