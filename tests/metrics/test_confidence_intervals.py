"""Bootstrap intervals: means, binned errors, groups, weights, and what is refused."""

import numpy as np
import pytest
from known_predictions import two_classes
from scipy.stats import norm, t

from kcal.errors import InvalidInputError
from kcal.metrics import (
    accuracy,
    confidence_interval,
    evaluate,
    expected_calibration_error,
    negative_log_likelihood,
)
from kcal.metrics.intervals import Gaps, shared_gaps
from kcal.metrics.resampling import Resampling


def test_every_metric_has_an_interval_and_a_seed_decides_it():
    probs, labels = two_classes(300, 0.3, np.random.default_rng(13))
    one, same, other = (evaluate(probs, labels, confidence=0.95, resamples=50, seed=seed) for seed in (0, 0, 1))
    assert set(one.intervals) == set(one.metrics)
    assert one.intervals == same.intervals
    assert one.intervals != other.intervals
    for low, high in one.intervals.values():
        assert low < high
    assert not evaluate(probs, labels).intervals
    assert "95 % interval" in str(one)
    assert f"[{one.intervals['accuracy'].low:.5f}, " in str(one)
    frame = one.to_frame()
    assert list(frame.columns) == ["value", "debiased", "low", "high", "better"]
    assert frame.loc["accuracy", "low"] == one.intervals["accuracy"].low


def test_more_confidence_and_fewer_samples_make_wider_intervals():
    generator = np.random.default_rng(14)
    probs, labels = two_classes(2000, 0.3, generator)

    def width(rows, confidence):
        found = evaluate(probs[:rows], labels[:rows], confidence=confidence, resamples=200).intervals
        return {name: high - low for name, (low, high) in found.items()}

    usual, sure, few = width(2000, 0.8), width(2000, 0.99), width(200, 0.8)
    for name in evaluate(*two_classes(20, 0.0, np.random.default_rng(0))).as_dict():
        assert sure[name] > usual[name]
        assert few[name] > usual[name]


def test_groups_are_resampled_whole():
    """20 rows each 50 times: as groups they are 20 samples, as rows they look like 1,000."""
    generator = np.random.default_rng(15)
    probs, labels = two_classes(20, 0.0, generator)
    again = np.repeat(probs, 50, axis=0), np.repeat(labels, 50)
    groups = np.repeat([f"patient {i:02}" for i in range(20)], 50)
    by_row = evaluate(*again, confidence=0.9, resamples=400).intervals["top_label_brier_loss"]
    by_group = evaluate(*again, confidence=0.9, resamples=400, groups=groups).intervals["top_label_brier_loss"]
    small = evaluate(probs, labels, confidence=0.9, resamples=400).intervals["top_label_brier_loss"]
    wider = t.ppf(0.95, 19) / norm.ppf(0.95) * np.sqrt(20 / 19)  # what is not known of the spread of 20 groups
    assert by_group.high - by_group.low == pytest.approx(wider * (small.high - small.low), abs=1e-9)  # the same draws
    assert (by_group.high - by_group.low) > 4 * (by_row.high - by_row.low)


def test_weights_and_repetition_give_intervals_of_the_same_metric():
    probs, labels = two_classes(200, 0.5, np.random.default_rng(16))
    plain = evaluate(probs, labels, confidence=0.95, resamples=100).intervals
    weighted = evaluate(probs, labels, confidence=0.95, resamples=100, sample_weight=np.full(200, 3.0)).intervals
    for name, interval in plain.items():
        assert tuple(weighted[name]) == pytest.approx(tuple(interval), rel=1e-6)


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
    assert tuple(Resampling(0.9, 20, 0, None).percentile_interval(np.arange(101.0))) == pytest.approx((5.0, 95.0))


def test_shared_gaps_are_the_mean_of_all_events_at_like_predictions():
    predictions = np.tile([0.1, 0.5, 0.9], 40)
    sizes = np.where(predictions == 0.5, -0.2, 0.1) + np.random.default_rng(0).normal(scale=0.05, size=120)
    shares = np.full(120, 1 / 120)
    gaps = Gaps(shares * sizes, shares, predictions, np.zeros(120), np.full(120, 30.0), range(40))
    found = shared_gaps(gaps) / shares
    for place in (0.1, 0.5, 0.9):
        here = predictions == place
        assert found[here] == pytest.approx(np.full(40, sizes[here].mean()), abs=0.03)


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


def test_binned_intervals_of_groups_are_wider():
    generator = np.random.default_rng(32)
    probs, labels = two_classes(60, 0.3, generator)
    again, groups = (np.repeat(probs, 20, axis=0), np.repeat(labels, 20)), np.repeat(np.arange(60), 20)
    for name in ("expected_calibration_error", "static_expected_calibration_error"):
        by_row = evaluate(*again, confidence=0.9, resamples=200, bins=5).intervals[name]
        by_group = evaluate(*again, confidence=0.9, resamples=200, bins=5, groups=groups).intervals[name]
        assert by_group.high - by_group.low > 2 * (by_row.high - by_row.low)


def test_perfect_accuracy_is_not_certain():
    probs = np.tile([0.99, 0.01], (50, 1))
    interval = evaluate(probs, np.zeros(50, dtype=int), confidence=0.95).intervals["accuracy"]
    assert tuple(interval) == pytest.approx((0.9287, 1.0), abs=1e-4)  # Wilson's
    groups = np.repeat(np.arange(5), 10)
    by_group = evaluate(probs, np.zeros(50, dtype=int), confidence=0.95, groups=groups).intervals["accuracy"]
    assert by_group.low == pytest.approx(0.5655, abs=1e-4)  # of five samples


def test_no_interval_of_an_error_ends_at_0():
    generator = np.random.default_rng(33)
    for _ in range(15):
        probs, labels = two_classes(200, 0.0, generator)
        for name, (low, high) in evaluate(probs, labels, confidence=0.8, resamples=50).intervals.items():
            assert low < high, name


def test_scores_and_metrics_of_ones_own_have_percentile_intervals():
    probs, labels = two_classes(300, 0.0, np.random.default_rng(17))
    low, high = confidence_interval(negative_log_likelihood, probs, labels, resamples=100)
    assert low < negative_log_likelihood(probs, labels) < high
    expected = evaluate(probs, labels, confidence=0.95, resamples=100).intervals["negative_log_likelihood"]
    assert (low, high) == pytest.approx(tuple(expected))
    own = confidence_interval(lambda p, y: float((p.argmax(axis=1) == y).mean()), probs, labels, resamples=100)
    weighted = confidence_interval(accuracy, probs, labels, resamples=100)
    assert own == pytest.approx(tuple(weighted))


def test_an_interval_of_any_metric_draws_whole_groups():
    probs, labels = two_classes(30, 0.0, np.random.default_rng(18))
    again, groups = (np.repeat(probs, 20, axis=0), np.repeat(labels, 20)), np.repeat(np.arange(30), 20)
    for metric in (accuracy, expected_calibration_error):
        by_row = confidence_interval(metric, *again, resamples=60)
        by_group = confidence_interval(metric, *again, resamples=60, groups=groups)
        assert by_group.high - by_group.low > 1.5 * (by_row.high - by_row.low)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "mean"}, "kind must be one of 'auto'"),
        ({"seed": -1}, "seed must be an integer"),
        ({"seed": "x"}, "seed must be an integer"),
        ({"sample_weight": np.arange(30)}, "metric must take sample_weight if weights are given"),
        ({"groups": [None, "a"] * 15}, "groups must have no missing entries; got None at row 0"),
    ],
)
def test_bad_options_of_an_interval_are_refused(options, words):
    probs, labels = two_classes(30, 0.0, np.random.default_rng(19))
    with pytest.raises(InvalidInputError, match=words):
        confidence_interval(lambda p, y: float(p[y == 0].mean()), probs, labels, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"confidence": 95}, "between 0 and 1"),
        ({"confidence": 0.95, "resamples": 5}, "resamples must be an integer from 20 to 1,000,000; got 5"),
        ({"confidence": 0.95, "groups": ["a"]}, "groups must have one entry per sample; got 1 entries for 300"),
        ({"groups": ["a"]}, "groups must have one entry per sample; got 1 entries for 300"),
        ({"confidence": 0.95, "seed": -1}, "seed must be an integer"),
        ({"confidence": 0.95, "groups": ["a"] * 300}, "at least two groups"),
    ],
)
def test_bad_settings_are_refused(options, words):
    probs, labels = two_classes(300, 0.0, np.random.default_rng(18))
    with pytest.raises(InvalidInputError, match=words):
        evaluate(probs, labels, **options)


def test_one_sample_has_no_interval():
    with pytest.raises(InvalidInputError, match=r"^probs must have at least two rows"):
        evaluate([[0.4, 0.6]], [1], confidence=0.95)


def test_a_metric_must_be_a_function_that_returns_a_number():
    probs, labels = two_classes(30, 0.0, np.random.default_rng(39))
    with pytest.raises(InvalidInputError, match="metric must be a function"):
        confidence_interval("accuracy", probs, labels)
    with pytest.raises(InvalidInputError, match="must return a number; got NoneType"):
        confidence_interval(lambda p, y: None, probs, labels)
