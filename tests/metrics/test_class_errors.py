"""Errors of every class: their mean, their parts, and by hand."""

import numpy as np
import pytest

from kcal.errors import InvalidInputError
from kcal.metrics import class_errors, classwise_calibration_error, reliability


def problem(seed=0, n=400, k=5):
    generator = np.random.default_rng(seed)
    return generator.dirichlet(np.full(k, 0.4), n), generator.integers(k, size=n)


@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("threshold", ["max", "min", 0.0, 0.3])
def test_their_mean_is_the_class_wise_error_and_each_is_that_of_its_bins(adaptive, threshold):
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


def test_a_case_worked_by_hand():
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


def test_a_class_that_keeps_no_row_has_no_error_and_comes_last():
    probs, labels = problem()
    probs[:, 2] = 0.0
    probs /= probs.sum(axis=1, keepdims=True)
    errors = class_errors(probs, labels, threshold=0.1)
    assert np.isnan(errors.error[2])
    assert errors.counts[2] == 0
    assert errors.worst()[-1] == 2
    assert errors.mean == pytest.approx(np.nanmean(errors.error))
    assert np.isnan(class_errors([[0.4, 0.6]], [0], threshold=0.9).mean)


def test_a_thousand_classes_print_the_worst_twenty():
    generator = np.random.default_rng(3)
    probs = generator.dirichlet(np.full(1000, 0.02), 300)
    text = str(class_errors(probs, generator.integers(1000, size=300)))
    assert "and 980 more" in text
    assert len(text.splitlines()) == 23


def test_classes_must_name_every_column():
    probs, labels = problem()
    with pytest.raises(InvalidInputError, match="name all 5 columns"):
        class_errors(probs, np.array(list("abcdef"))[labels], classes=list("abcdef"))
