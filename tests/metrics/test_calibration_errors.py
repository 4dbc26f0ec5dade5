"""Calibration errors against direct loops and examples worked by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from known_predictions import coarse_predictions

from kcal.metrics import class_errors, classwise_calibration_error, evaluate, expected_calibration_error, reliability

steady = settings(deadline=None, max_examples=50)  # a slow run is not a failure


def binned_error_slow(values, outcomes, bins, adaptive):
    n, error = len(values), 0.0
    shared = [np.mean([o for v, o in zip(values, outcomes, strict=True) if v == value]) for value in values]
    if adaptive:
        order = np.argsort(values, kind="stable")
        sizes = [n // bins + (b >= bins - n % bins) for b in range(bins)]
        groups = np.split(order, np.cumsum(sizes)[:-1])
    else:
        groups = [
            [i for i in range(n) if b / bins < values[i] <= (b + 1) / bins or (b == 0 and values[i] == 0)]
            for b in range(bins)
        ]
    for group in groups:
        if len(group):
            gap = np.mean([shared[i] for i in group]) - np.mean([values[i] for i in group])
            error += len(group) / n * abs(gap)
    return error


def expected_error_slow(probs, labels, bins, adaptive):
    tops = [max(range(len(row)), key=lambda k, row=row: row[k]) for row in probs]
    values = [row[top] for row, top in zip(probs, tops, strict=True)]
    return binned_error_slow(values, [t == y for t, y in zip(tops, labels, strict=True)], bins, adaptive)


def classwise_error_slow(probs, labels, bins, adaptive, threshold):
    errors = []
    for k in range(probs.shape[1]):
        kept = [i for i in range(len(probs)) if probs[i, k] >= threshold]
        if kept:
            outcomes = [labels[i] == k for i in kept]
            errors.append(binned_error_slow([probs[i, k] for i in kept], outcomes, bins, adaptive))
    return np.mean(errors) if errors else np.nan


@steady
@given(data=coarse_predictions(), bins=st.integers(1, 12), adaptive=st.booleans())
def test_expected_calibration_error_equals_a_loop(data, bins, adaptive):
    probs, labels = data
    expected = expected_error_slow(probs, labels, bins, adaptive)
    assert expected_calibration_error(probs, labels, bins=bins, adaptive=adaptive) == pytest.approx(expected, abs=1e-12)


@steady
@given(
    data=coarse_predictions(),
    bins=st.integers(1, 12),
    adaptive=st.booleans(),
    threshold=st.sampled_from([0, 0.2, 0.25]),
)
def test_classwise_calibration_error_equals_the_loop(data, bins, adaptive, threshold):
    probs, labels = data
    expected = classwise_error_slow(probs, labels, bins, adaptive, threshold)
    value = classwise_calibration_error(probs, labels, bins=bins, adaptive=adaptive, threshold=threshold)
    assert value == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_classwise_calibration_error_by_hand():
    # K = 4, threshold max(.01, 1/4) = .25, one bin.
    # Class 0 keeps .7 (right) and .4 (wrong): |.5 − .55| = .05. Class 1 keeps .3 (right): .7.
    # Class 2 keeps .3 (wrong): .3. Class 3 keeps nothing. Mean of three: .35.
    probs = np.array([[0.7, 0.1, 0.1, 0.1], [0.4, 0.3, 0.3, 0.0]])
    labels = np.array([0, 1])
    assert classwise_calibration_error(probs, labels, bins=1, threshold="max") == pytest.approx(0.35)
    # "min" is .01: class 0 as before, class 1 |.5 − .2| = .3, class 2 |0 − .2| = .2, class 3 keeps .1: .1.
    assert classwise_calibration_error(probs, labels, bins=1, threshold="min") == pytest.approx(0.65 / 4)


@pytest.fixture(scope="module")
def torchmetrics():
    """The functions of torchmetrics, imported here: it loads several large libraries, which other tests do without."""
    from torchmetrics.functional import classification

    return classification


@pytest.mark.parametrize("n_classes", [2, 3, 10])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_default_ece_is_that_of_torchmetrics(torchmetrics, n_classes, dtype):
    generator = np.random.default_rng(n_classes)
    probs = generator.dirichlet(np.full(n_classes, 0.5), 700).astype(dtype)
    labels = generator.integers(n_classes, size=700)
    theirs = torchmetrics.multiclass_calibration_error(
        torch.from_numpy(probs), torch.from_numpy(labels), num_classes=n_classes, n_bins=15, norm="l1"
    )
    assert expected_calibration_error(probs, labels) == pytest.approx(float(theirs), rel=1e-6)
    assert evaluate(probs, labels).expected_calibration_error == pytest.approx(float(theirs), rel=1e-6)


def test_binary_error_of_torchmetrics_is_that_of_the_second_class(torchmetrics):
    generator = np.random.default_rng(0)
    probs, labels = generator.dirichlet([0.5, 0.5], 700), generator.integers(2, size=700)
    theirs = torchmetrics.binary_calibration_error(
        torch.from_numpy(probs[:, 1].copy()), torch.from_numpy(labels), n_bins=15
    )
    assert reliability(probs, labels, of=1).calibration_error == pytest.approx(float(theirs), rel=1e-5)
    assert abs(expected_calibration_error(probs, labels) - float(theirs)) > 1e-3


def problem(seed=0, n=400, k=5):
    generator = np.random.default_rng(seed)
    return generator.dirichlet(np.full(k, 0.4), n), generator.integers(k, size=n)


@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("threshold", ["max", 0.0])
def test_class_errors_equal_reliability_and_average_to_classwise_error(adaptive, threshold):
    probs, labels = problem()
    errors = class_errors(probs, labels, adaptive=adaptive, threshold=threshold)
    expected = classwise_calibration_error(probs, labels, adaptive=adaptive, threshold=threshold)
    assert errors.mean == pytest.approx(expected, rel=1e-12)
    for k in range(5):
        bins = reliability(probs, labels, of=k, adaptive=adaptive, threshold=threshold)
        assert errors.error[k] == bins.calibration_error
        kept = probs[:, k] >= errors.threshold
        assert errors.counts[k] == kept.sum()
        assert errors.positives[k] == (labels == k).sum()
        assert errors.mean_prediction[k] == pytest.approx(probs[kept, k].mean())
        assert errors.frequency[k] == pytest.approx((labels[kept] == k).mean())
    np.testing.assert_allclose(errors.overconfidence + errors.underconfidence, errors.error)
    np.testing.assert_allclose(errors.underconfidence - errors.overconfidence, errors.signed_error, atol=1e-12)


def test_class_errors_by_hand():
    """Class 1 at 0.8 twice, once right: too high by 0.3. Class 0 at 0.6 twice, both right: too low by 0.4."""
    probs = [[0.2, 0.8], [0.2, 0.8], [0.6, 0.4], [0.6, 0.4]]
    errors = class_errors(probs, ["cat", "dog", "cat", "cat"], classes=["cat", "dog"], bins=1, threshold=0.5)
    assert errors.classes.tolist() == ["cat", "dog"]
    np.testing.assert_allclose(errors.error, [0.4, 0.3])
    np.testing.assert_allclose(errors.signed_error, [0.4, -0.3])
    np.testing.assert_allclose(errors.overconfidence, [0.0, 0.3], atol=1e-12)
    np.testing.assert_allclose(errors.underconfidence, [0.4, 0.0], atol=1e-12)
    assert errors.worst().tolist() == [0, 1]
    assert errors.worst(1).tolist() == [0]
    frame = errors.to_frame()
    assert frame.loc["dog", "signed_error"] == pytest.approx(-0.3)
    assert "mean error 0.3500" in str(errors)


def test_class_without_rows_has_no_error_and_comes_last():
    probs, labels = problem()
    probs[:, 2] = 0.0
    probs /= probs.sum(axis=1, keepdims=True)
    errors = class_errors(probs, labels, threshold=0.1)
    assert np.isnan(errors.error[2])
    assert errors.counts[2] == 0
    assert errors.worst()[-1] == 2
    assert errors.mean == pytest.approx(np.nanmean(errors.error))
    assert np.isnan(class_errors([[0.4, 0.6]], [0], threshold=0.9).mean)
