"""Sample weights: a weight counts as repetition, whatever the metric."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcal.errors import InvalidInputError
from kcal.metrics import (
    accuracy,
    class_errors,
    classwise_calibration_error,
    evaluate,
    expected_calibration_error,
    multiclass_brier_loss,
    negative_log_likelihood,
    reliability,
    top_label_brier_loss,
)

steady = settings(deadline=None, derandomize=True, max_examples=50)


def problem(seed, n=120, k=3, digits=1):
    generator = np.random.default_rng(seed)
    probs = generator.dirichlet(np.ones(k), n).round(digits)  # many ties
    probs[:, 0] += 1 - probs.sum(axis=1)
    probs = np.abs(probs) / np.abs(probs).sum(axis=1, keepdims=True)
    return probs, generator.integers(k, size=n), generator.integers(0, 4, size=n)


@pytest.mark.parametrize("metric", [accuracy, top_label_brier_loss, multiclass_brier_loss, negative_log_likelihood])
def test_scores_with_whole_weights_equal_those_of_repeated_rows(metric):
    probs, labels, weights = problem(1)
    repeated = metric(np.repeat(probs, weights, axis=0), np.repeat(labels, weights))
    assert metric(probs, labels, sample_weight=weights) == pytest.approx(repeated, rel=1e-12)
    assert metric(probs, labels, sample_weight=7.5 * weights) == pytest.approx(repeated, rel=1e-12)
    assert metric(probs, labels) != pytest.approx(repeated, rel=1e-3)


@steady
@given(seed=st.integers(0, 10_000), bins=st.sampled_from([1, 2, 5, 10]), adaptive=st.booleans())
def test_bins_of_whole_weights_equal_those_of_repeated_rows(seed, bins, adaptive):
    probs, labels, weights = problem(seed, n=60)
    weights[0] += -weights.sum() % bins  # so that the repeated rows, too, fall into bins of exactly equal weight
    again = np.repeat(probs, weights, axis=0), np.repeat(labels, weights)
    for of in ("confidence", 0):
        weighted = reliability(probs, labels, bins=bins, adaptive=adaptive, of=of, sample_weight=weights)
        repeated = reliability(*again, bins=bins, adaptive=adaptive, of=of)
        np.testing.assert_allclose(weighted.weights, repeated.counts, atol=1e-9)
        np.testing.assert_allclose(weighted.mean_prediction, repeated.mean_prediction, atol=1e-9)
        np.testing.assert_allclose(weighted.observed_frequency, repeated.observed_frequency, atol=1e-9)
        assert weighted.calibration_error == pytest.approx(repeated.calibration_error, abs=1e-9)


def test_equal_width_errors_of_whole_weights_equal_those_of_repeated_rows():
    probs, labels, weights = problem(2)
    again = np.repeat(probs, weights, axis=0), np.repeat(labels, weights)
    for metric in (expected_calibration_error, classwise_calibration_error):
        weighted = metric(probs, labels, adaptive=False, sample_weight=weights)
        assert weighted == pytest.approx(metric(*again, adaptive=False), rel=1e-12)


@steady
@given(seed=st.integers(0, 10_000))
def test_the_order_of_weighted_rows_does_not_matter(seed):
    probs, labels, _ = problem(seed, n=50)
    weights = np.random.default_rng(seed).random(50)
    order = np.random.default_rng(seed + 1).permutation(50)
    one = evaluate(probs, labels, sample_weight=weights, bins=7).as_dict()
    other = evaluate(probs[order], labels[order], sample_weight=weights[order], bins=7).as_dict()
    for name, value in one.items():
        assert other[name] == pytest.approx(value, abs=1e-12)


def test_rows_of_weight_0_might_as_well_not_be_there():
    probs, labels, weights = problem(3)
    kept = weights > 0
    weights = weights * 0.3
    one = evaluate(probs, labels, sample_weight=weights).as_dict()
    other = evaluate(probs[kept], labels[kept], sample_weight=weights[kept]).as_dict()
    assert one == pytest.approx(other, abs=1e-12)
    one = class_errors(probs, labels, sample_weight=weights)
    other = class_errors(probs[kept], labels[kept], sample_weight=weights[kept])
    np.testing.assert_allclose(one.error, other.error, atol=1e-12)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (np.ones(3), "120 of them"),
        (np.full(120, -1.0), "not negative; got -1.0 at row 0"),
        (np.r_[np.ones(5), np.nan, np.ones(114)], "got nan at row 5"),
        (np.zeros(120), "must not be 0 for every row"),
        (np.array(["a"] * 120), "one number a row"),
    ],
)
def test_bad_weights_are_refused(weights, words):
    probs, labels, _ = problem(4)
    with pytest.raises(InvalidInputError, match=words):
        evaluate(probs, labels, sample_weight=weights)
