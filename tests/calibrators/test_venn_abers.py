"""Venn–Abers prediction equals two isotonic regressions for every new sample and class."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn.isotonic import IsotonicRegression

from kcal import IsotonicCalibration, VennAbers
from one_class_problems import two_columns
from pooled_network import pooled
from synthetic import warped


def slow_pair(scores: Any, hits: Any, weights: Any, score: float) -> tuple[float, float]:
    """Return p₀ and p₁: isotonic fits with the sample added once of each label, at the sample."""
    pair = []
    for label in (0.0, 1.0):
        fit = IsotonicRegression().fit(
            np.append(scores, score), np.append(hits, label), sample_weight=np.append(weights, 1.0)
        )
        pair.append(float(fit.predict([score])[0]))
    return pair[0], pair[1]


def slow_probabilities(scores: Any, labels: Any, weights: Any, new: Any) -> Any:
    """Return normalised probabilities of new scores, one column per class, (n_new, n_classes)."""
    merged = np.empty(new.shape)
    for row, k in np.ndindex(new.shape):
        lower, upper = slow_pair(scores[:, k], labels == k, weights, new[row, k])
        merged[row, k] = upper / (1 - lower + upper)
    return merged / merged.sum(axis=1, keepdims=True)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(3, 40), st.booleans(), st.sampled_from([0.0, 0.5, 1.0]))
def test_two_classes_equal_two_isotonic_fits_per_sample(seed: int, n: int, weighted: bool, share: float) -> None:
    """Scores with ties, labels from all alike to separable; new scores at, between and beyond them."""
    generator = np.random.default_rng(seed)
    scores = generator.integers(-6, 7, n) / 2.0
    labels = np.where(generator.random(n) < share, (scores > 0).astype(int), generator.integers(0, 2, n))
    labels[:2] = [0, 1]
    weights = generator.uniform(0.2, 3.0, n) if weighted else np.ones(n)
    weights /= weights.mean()
    fitted = VennAbers(maps="class").fit(two_columns(scores), labels, sample_weight=weights)
    new = np.concatenate([np.unique(scores), np.linspace(-4, 4, 15)])
    expected = slow_probabilities(np.column_stack([-scores, scores]), labels, weights, np.column_stack([-new, new]))
    expected = pooled(expected, two_columns(new), two_columns(scores), labels, weights)
    np.testing.assert_allclose(fitted.predict_proba(two_columns(new)), expected, atol=1e-10)
    for score in new:
        place = np.searchsorted(fitted.thresholds_[1], score, "right")
        above = np.searchsorted(fitted.thresholds_[1], score, "left")
        lower, upper = slow_pair(scores, labels, weights, score)
        assert fitted.lower_[1][place] == pytest.approx(lower, abs=1e-10)
        assert fitted.upper_[1][above] == pytest.approx(upper, abs=1e-10)


def test_several_classes_equal_two_isotonic_fits_per_sample_and_class() -> None:
    logits, labels, _ = warped(70, 0)
    new = warped(10, 1)[0]
    odds, new_odds = (np.log(p) - np.log1p(-p) for p in (softmax(logits, axis=1), softmax(new, axis=1)))
    expected = slow_probabilities(odds, labels, np.ones(70), new_odds)
    found = VennAbers(maps="class").fit(logits, labels).predict_proba(new)
    np.testing.assert_allclose(found, pooled(expected, new, logits, labels), atol=1e-9)


def test_of_two_classes_nothing_is_left_to_normalise() -> None:
    generator = np.random.default_rng(2)
    scores, labels = generator.normal(size=50), generator.integers(0, 2, 50)
    fitted, new = VennAbers(maps="class").fit(two_columns(scores), labels), generator.normal(size=20)
    expected = []
    for score in new:
        lower, upper = slow_pair(scores, labels, np.ones(50), score)
        merged = upper / (1 - lower + upper)
        expected.append([1 - merged, merged])
    expected = pooled(np.array(expected), two_columns(new), two_columns(scores), labels)
    np.testing.assert_allclose(fitted.predict_proba(two_columns(new)), expected, atol=1e-12)


@pytest.mark.filterwarnings("ignore::kcal.errors.LeakageWarning")
def test_separable_scores_stay_away_from_zero_and_one() -> None:
    scores = np.concatenate([np.linspace(-3, -1, 50), np.linspace(1, 3, 50)])
    labels, new = np.repeat([0, 1], 50), two_columns(np.array([-1e4, 1e4]))
    found = VennAbers(maps="class").fit(two_columns(scores), labels).predict_proba(new)
    expected = np.array([[51, 1], [1, 51]]) / 52  # an error is expected once in n + 2
    np.testing.assert_allclose(found, pooled(expected, new, two_columns(scores), labels), atol=1e-12)


def test_lower_and_upper_probabilities_enclose_the_isotonic_fit() -> None:
    logits, labels, _ = warped(400, 3)
    fitted, isotonic = VennAbers(maps="class").fit(logits, labels), IsotonicRegression(out_of_bounds="clip")
    for k in range(4):
        probs = softmax(logits, axis=1)[:, k]
        middle = np.unique(probs)
        fit = isotonic.fit(probs, labels == k).predict(middle)
        assert (fitted.lower_[k][1:] <= fit + 1e-9).all()
        assert (fitted.upper_[k][:-1] >= fit - 1e-9).all()


def test_a_shared_map_pools_the_classes() -> None:
    logits, labels, truth = warped(4000, 4)
    shared = VennAbers(maps="shared").fit(logits[:1000], labels[:1000])
    assert shared.maps_ == "shared"
    usual = IsotonicCalibration(maps="shared").fit(logits[:1000], labels[:1000])
    errors = [np.abs(fitted.predict_proba(logits[1000:]) - truth[1000:]).mean() for fitted in (shared, usual)]
    assert errors[0] < 1.05 * errors[1]
