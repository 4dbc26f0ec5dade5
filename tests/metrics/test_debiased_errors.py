"""Debiased calibration errors: within their intervals, near the true error, and beside the value in every form."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcal.metrics import class_errors, evaluate
from kcal.metrics.intervals import estimate_binned_error
from kcal.metrics.predictions import Binning, check_predictions, resolve_threshold
from kcal.metrics.resampling import check_resampling

ERRORS = [
    f"{prefix}{name}_calibration_error" for prefix in ("", "static_") for name in ("expected", "classwise")
]  # fmt: skip


def drawn(n_samples, n_classes, sharpness, generator):
    """Return probabilities whose logits are ``sharpness`` times the true ones, and labels."""
    true = generator.dirichlet(np.ones(n_classes), size=n_samples)
    labels = (true.cumsum(axis=1) > generator.random((n_samples, 1))).argmax(axis=1)
    sharp = true**sharpness
    return sharp / sharp.sum(axis=1, keepdims=True), np.minimum(labels, n_classes - 1)


@settings(max_examples=40, deadline=None)
@given(
    n_samples=st.integers(2, 300),
    n_classes=st.integers(2, 6),
    sharpness=st.sampled_from([0.3, 1.0, 1.5, 4.0]),
    confidence=st.sampled_from([0.01, 0.5, 0.9, 0.95, 0.999]),
    bins=st.integers(1, 25),
    how=st.sampled_from(["plain", "weights", "groups"]),
    seed=st.integers(0, 2**16),
)
def test_the_interval_of_an_error_contains_its_debiased_estimate(
    n_samples, n_classes, sharpness, confidence, bins, how, seed
):
    generator = np.random.default_rng(seed)
    probs, labels = drawn(n_samples, n_classes, sharpness, generator)
    extra = {
        "plain": {},
        "weights": {"sample_weight": generator.exponential(size=n_samples)},
        "groups": {"groups": np.arange(n_samples) % max(n_samples // 2, 2)},
    }[how]
    result = evaluate(probs, labels, confidence=confidence, resamples=20, bins=bins, seed=seed, **extra)
    assert set(result.debiased) <= set(ERRORS)
    for name, debiased in result.debiased.items():
        low, high = result.intervals[name]
        assert 0 <= low <= debiased <= high <= 1
    classes = class_errors(probs, labels, confidence=confidence, resamples=20, bins=bins, seed=seed, **extra)
    defined = np.isfinite(classes.error)
    assert (classes.low[defined] <= classes.debiased[defined]).all()
    assert (classes.debiased[defined] <= classes.high[defined]).all()
    assert np.isnan(classes.debiased[~defined]).all()


@pytest.mark.parametrize("seed", range(5))
def test_the_interval_of_a_score_contains_its_value(seed):
    probs, labels = drawn(100, 3, 1.5, np.random.default_rng(seed))
    result = evaluate(probs, labels, confidence=0.9, resamples=100)
    for name in set(result.metrics) - set(ERRORS):
        assert name not in result.debiased
        low, high = result.intervals[name]
        assert low <= result.metrics[name] <= high


@pytest.mark.parametrize("sharpness", [1.0, 2.0])
def test_debiased_errors_of_few_samples_are_nearer_to_the_error_of_many(sharpness):
    generator = np.random.default_rng(0)
    truth = evaluate(*drawn(200_000, 4, sharpness, generator)).expected_calibration_error
    results = [evaluate(*drawn(200, 4, sharpness, generator), confidence=0.9, resamples=50) for _ in range(20)]
    raw = np.mean([result.expected_calibration_error for result in results])
    debiased = np.mean([result.debiased["expected_calibration_error"] for result in results])
    assert abs(debiased - truth) < abs(raw - truth)


def test_a_debiased_error_is_not_above_the_value_even_of_five_samples():
    result = evaluate(np.full((5, 1000), 1 / 1000), range(5), confidence=0.95, resamples=20)
    assert len(result.debiased) == 2
    for name, debiased in result.debiased.items():
        assert debiased <= result.metrics[name]


def test_debiased_estimates_are_in_every_form_of_the_result():
    result = evaluate(*drawn(300, 3, 1.5, np.random.default_rng(1)), confidence=0.9, resamples=50)
    assert list(result.debiased) == ERRORS
    entries, frame = result.as_dict(), result.to_frame()
    for name, value in result.metrics.items():
        low, high = result.intervals[name]
        expected = result.debiased.get(name, value)
        assert (entries[name], entries[f"{name}_low"], entries[f"{name}_high"]) == (value, low, high)
        assert entries.get(f"{name}_debiased", value) == expected
        assert frame.loc[name, ["value", "debiased", "low", "high"]].tolist() == [value, expected, low, high]
    heading, accuracy, error = str(result).splitlines()[1:4]
    assert heading.split() == ["value", "debiased", "90", "%", "interval"]
    assert f"{result.debiased[ERRORS[0]]:.5f}  [{result.intervals[ERRORS[0]].low:.5f}, " in error
    assert accuracy.index("[") == error.index("[") == heading.index("90 %")


def test_without_intervals_there_is_nothing_debiased():
    result = evaluate(*drawn(50, 3, 1.5, np.random.default_rng(1)))
    assert not result.debiased
    assert result.as_dict() == result.metrics
    assert "debiased" not in result.to_frame()
    assert "debiased" not in str(result)


def test_the_estimates_of_classes_are_those_of_each_class_alone():
    probs, labels = drawn(200, 3, 2.0, np.random.default_rng(2))
    found = class_errors(probs, labels, confidence=0.9, resamples=50, seed=3)
    predictions = check_predictions(probs, labels)
    resampling = check_resampling(predictions, confidence=0.9, resamples=50, seed=3)
    binning = Binning(20, True, resolve_threshold("max", 3))
    for k in range(3):
        alone = estimate_binned_error(predictions, [k], binning, resampling)
        assert found.debiased[k] == pytest.approx(alone.debiased, rel=1e-4)
        assert (found.low[k], found.high[k]) == pytest.approx(tuple(alone.interval), rel=1e-4)
    assert found.to_frame()[["debiased", "low", "high"]].to_numpy() == pytest.approx(
        np.stack([found.debiased, found.low, found.high], axis=1)
    )
    assert "debiased" not in class_errors(probs, labels).to_frame()
