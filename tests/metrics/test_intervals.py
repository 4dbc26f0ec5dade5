"""Confidence intervals and debiased errors: exact cases, groups, weights, and the forms of the result."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_predictions import two_classes
from scipy.stats import norm, t

from kcal.errors import InvalidInputError
from kcal.metrics import (
    accuracy,
    class_errors,
    confidence_interval,
    evaluate,
    negative_log_likelihood,
)

ERRORS = ["expected_calibration_error", "classwise_calibration_error"]


def drawn(n_samples, n_classes, sharpness, generator):
    """Return probabilities whose logits are ``sharpness`` times the true ones, and labels."""
    true = generator.dirichlet(np.ones(n_classes), size=n_samples)
    labels = (true.cumsum(axis=1) > generator.random((n_samples, 1))).argmax(axis=1)
    sharp = true**sharpness
    return sharp / sharp.sum(axis=1, keepdims=True), np.minimum(labels, n_classes - 1)


def test_every_metric_has_an_interval_and_a_seed_decides_it():
    probs, labels = two_classes(300, 0.3, np.random.default_rng(13))
    one, same, other = (evaluate(probs, labels, confidence=0.95, resamples=50, seed=seed) for seed in (0, 0, 1))
    assert set(one.metrics) - set(one.intervals) == {"smooth_calibration_error"}
    paper = evaluate(probs, labels, protocol="paper", confidence=0.95, resamples=50)
    assert set(paper.intervals) == set(paper.metrics)
    assert one.intervals == same.intervals
    assert one.intervals != other.intervals
    for low, high in one.intervals.values():
        assert low < high
    assert not evaluate(probs, labels).intervals
    assert f"{one.intervals['accuracy'].low:.5f}" in str(one)
    frame = one.to_frame()
    assert list(frame.columns) == ["value", "debiased", "low", "high", "better"]
    assert frame.loc["accuracy", "low"] == one.intervals["accuracy"].low
    assert frame.loc["smooth_calibration_error", ["debiased", "low", "high"]].isna().all()  # biased, without interval


@pytest.mark.parametrize("compute", [evaluate, class_errors])
def test_one_group_or_row_has_no_interval(compute):
    probs, labels = two_classes(20, 0.0, np.random.default_rng(15))
    with pytest.raises(InvalidInputError, match=r"^groups must have at least two groups"):
        compute(probs, labels, confidence=0.9, resamples=20, groups=np.zeros(20))
    with pytest.raises(InvalidInputError, match=r"^probs must have at least two rows"):
        compute(probs[:1], labels[:1], confidence=0.9, resamples=20)


def test_groups_are_resampled_whole():
    """20 rows each 50 times: as groups they are 20 samples, as rows they look like 1,000."""
    generator = np.random.default_rng(15)
    probs, labels = two_classes(20, 0.0, generator)
    again = np.repeat(probs, 50, axis=0), np.repeat(labels, 50)
    groups = np.repeat([f"patient {i:02}" for i in range(20)], 50)
    by_row = evaluate(*again, confidence=0.9, resamples=400).intervals["brier_score"]
    by_group = evaluate(*again, confidence=0.9, resamples=400, groups=groups).intervals["brier_score"]
    small = evaluate(probs, labels, confidence=0.9, resamples=400).intervals["brier_score"]
    wider = t.ppf(0.95, 19) / norm.ppf(0.95) * np.sqrt(20 / 19)  # what is not known of the spread of 20 groups
    assert by_group.high - by_group.low == pytest.approx(wider * (small.high - small.low), abs=1e-9)  # the same draws
    assert (by_group.high - by_group.low) > 4 * (by_row.high - by_row.low)


def test_interval_of_a_single_bin_in_a_case_worked_by_hand():
    """400 predictions of 0.7, half of them right: the gap is 0.2, with the noise of binomial counts."""
    probs, labels = np.tile([0.7, 0.3], (400, 1)), np.arange(400) % 2
    found = evaluate(probs, labels, bins=1, confidence=0.9, resamples=4000)
    low, high = found.intervals["expected_calibration_error"]
    at_low, at_high = np.sqrt(0.86**2 * 0.25 + (1 - 0.86**2) * 0.21), 0.5
    assert low == pytest.approx(0.2 - 1.645 * at_low / 20, abs=0.003)
    assert high == pytest.approx(0.2 + 1.645 * at_high / 20, abs=0.003)
    assert found.debiased["expected_calibration_error"] == pytest.approx(0.2, abs=0.003)
    few = evaluate(probs[:20], np.arange(20) < 6, bins=1, confidence=0.9).intervals["expected_calibration_error"]
    assert few.low == 0.0  # 14 of 20 is what they predict
    assert 0.05 < few.high < 0.3


def test_rows_of_weight_0_change_no_interval():
    probs, labels = two_classes(300, 0.2, np.random.default_rng(37))
    weights = np.where(np.arange(300) < 40, 1.0, 0.0)
    some = evaluate(probs, labels, sample_weight=weights, confidence=0.9, resamples=100).intervals
    alone = evaluate(probs[:40], labels[:40], sample_weight=weights[:40], confidence=0.9, resamples=100).intervals
    for name, interval in some.items():
        assert tuple(interval) == pytest.approx(tuple(alone[name]), abs=1e-9), name
    one = confidence_interval(accuracy, probs, labels, sample_weight=weights, resamples=50)
    other = confidence_interval(accuracy, probs[:40], labels[:40], sample_weight=weights[:40], resamples=50)
    assert one == other
    heavy = np.where(np.arange(300) == 0, 1e6, 1.0)
    right = np.zeros(300, dtype=int)
    interval = evaluate(np.tile([0.9, 0.1], (300, 1)), right, sample_weight=heavy, confidence=0.95).intervals[
        "accuracy"
    ]
    assert interval.low < 0.25  # one sample says nearly all


def test_perfect_accuracy_is_not_certain():
    probs = np.tile([0.99, 0.01], (50, 1))
    interval = evaluate(probs, np.zeros(50, dtype=int), confidence=0.95).intervals["accuracy"]
    assert tuple(interval) == pytest.approx((0.9287, 1.0), abs=1e-4)  # Wilson's
    groups = np.repeat(np.arange(5), 10)
    by_group = evaluate(probs, np.zeros(50, dtype=int), confidence=0.95, groups=groups).intervals["accuracy"]
    assert by_group.low == pytest.approx(0.5655, abs=1e-4)  # of five samples


def test_scores_and_metrics_of_ones_own_have_percentile_intervals():
    probs, labels = two_classes(300, 0.0, np.random.default_rng(17))
    low, high = confidence_interval(negative_log_likelihood, probs, labels, resamples=100)
    assert low < negative_log_likelihood(probs, labels) < high
    expected = evaluate(probs, labels, confidence=0.95, resamples=100).intervals["negative_log_likelihood"]
    assert (low, high) == pytest.approx(tuple(expected))
    own = confidence_interval(lambda p, y: float((p.argmax(axis=1) == y).mean()), probs, labels, resamples=100)
    weighted = confidence_interval(accuracy, probs, labels, resamples=100)
    assert own == pytest.approx(tuple(weighted))


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
def test_interval_of_an_error_contains_its_debiased_estimate(
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


@pytest.mark.parametrize("sharpness", [1.0, 2.0])
def test_debiased_errors_of_few_samples_are_nearer_to_the_error_of_many(sharpness):
    generator = np.random.default_rng(0)
    truth = evaluate(*drawn(200_000, 4, sharpness, generator)).expected_calibration_error
    results = [evaluate(*drawn(200, 4, sharpness, generator), confidence=0.9, resamples=50) for _ in range(20)]
    raw = np.mean([result.expected_calibration_error for result in results])
    debiased = np.mean([result.debiased["expected_calibration_error"] for result in results])
    assert abs(debiased - truth) < abs(raw - truth)


def test_debiased_estimates_are_in_every_form_of_the_result():
    result = evaluate(*drawn(300, 3, 1.5, np.random.default_rng(1)), confidence=0.9, resamples=50)
    assert list(result.debiased) == ERRORS
    entries, frame = result.as_dict(), result.to_frame()
    for name, (low, high) in result.intervals.items():
        value = result.metrics[name]
        expected = result.debiased.get(name, value)
        assert (entries[name], entries[f"{name}_low"], entries[f"{name}_high"]) == (value, low, high)
        assert entries.get(f"{name}_debiased", value) == expected
        assert frame.loc[name, ["value", "debiased", "low", "high"]].tolist() == [value, expected, low, high]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("confidence", {"confidence": 95}),
        ("resamples", {"resamples": 5}),
        ("groups", {"groups": ["a"]}),
        ("groups", {"groups": ["a"] * 30}),
        ("groups", {"groups": [None, "a"] * 15}),
        ("seed", {"seed": -1}),
    ],
)
def test_invalid_options_are_named(name, options):
    probs, labels = two_classes(30, 0.0, np.random.default_rng(18))
    for call in (evaluate, lambda *arguments, **options: confidence_interval(accuracy, *arguments, **options)):
        with pytest.raises(InvalidInputError, match=f"^{name} must"):
            call(probs, labels, **{"confidence": 0.95, **options})


def test_intervals_need_two_rows_and_a_metric_that_fits():
    with pytest.raises(InvalidInputError, match=r"^probs must have at least two rows"):
        evaluate([[0.4, 0.6]], [1], confidence=0.95)
    probs, labels = two_classes(30, 0.0, np.random.default_rng(19))
    with pytest.raises(InvalidInputError, match=r"^metric must be a function"):
        confidence_interval("accuracy", probs, labels)
    with pytest.raises(InvalidInputError, match=r"^metric must take sample_weight"):
        confidence_interval(lambda p, y: float(p[y == 0].mean()), probs, labels, sample_weight=np.arange(30))
    with pytest.raises(InvalidInputError, match=r"^kind must be"):
        confidence_interval(accuracy, probs, labels, kind="mean")
