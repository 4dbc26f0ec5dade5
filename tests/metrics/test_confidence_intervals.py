"""Bootstrap intervals: means, binned errors, groups, and how often they hold the truth."""

import numpy as np
import pytest

from kcal.errors import InvalidInputError
from kcal.metrics import confidence_interval, evaluate, expected_calibration_error, negative_log_likelihood
from kcal.metrics.evaluation import METRICS
from kcal.metrics.resampling import absolute_sum_interval, percentile_interval


def confidences(n, generator):
    return 0.5 + 0.5 * generator.beta(3, 1.5, n)


def two_classes(n, slope, generator):
    """Confidences c whose true rate of being right is c − slope·(c − ½)."""
    c = confidences(n, generator)
    right = generator.random(n) < c - slope * (c - 0.5)
    return np.column_stack([c, 1 - c]), np.where(right, 0, 1)


def true_error(slope):
    return slope * float((confidences(2_000_000, np.random.default_rng(0)) - 0.5).mean())


@pytest.mark.parametrize(("slope", "least"), [(0.0, 0.93), (0.05, 0.85), (0.2, 0.85), (0.6, 0.90)])
def test_intervals_of_calibration_errors_hold_the_truth_and_percentiles_do_not(slope, least):
    """120 data sets of 1,000 samples; a share of 0.95 ± 0.04 (two deviations) is nominal."""
    truth, generator = true_error(slope), np.random.default_rng(11)
    held, plain = [], []
    for _ in range(120):
        probs, labels = two_classes(1000, slope, generator)
        result = evaluate(probs, labels, confidence=0.95, resamples=100, seed=0)
        low, high = result.intervals["expected_calibration_error"]
        held.append(low <= truth <= high)
        if slope <= 0.05 and len(plain) < 30:
            drawn = generator.integers(1000, size=(30, 1000))
            values = [expected_calibration_error(probs[rows], labels[rows]) for rows in drawn]
            plain.append(min(values) <= truth <= max(values))
    assert np.mean(held) >= least
    if plain:
        assert np.mean(plain) < 0.1  # even the whole range of 30 resamples lies above the truth


def test_intervals_of_means_hold_the_truth():
    generator = np.random.default_rng(12)
    truth = float(np.mean(confidences(2_000_000, generator)))
    held = 0
    for _ in range(120):
        probs, labels = two_classes(400, 0.0, generator)
        low, high = evaluate(probs, labels, confidence=0.9, resamples=200).intervals["accuracy"]
        held += low <= truth <= high
    assert 0.82 <= held / 120 <= 0.97


def test_every_metric_has_an_interval_and_a_seed_decides_it():
    probs, labels = two_classes(300, 0.3, np.random.default_rng(13))
    one, same, other = (evaluate(probs, labels, confidence=0.95, resamples=50, seed=seed) for seed in (0, 0, 1))
    assert set(one.intervals) == set(METRICS)
    assert one.intervals == same.intervals
    assert one.intervals != other.intervals
    for low, high in one.intervals.values():
        assert low < high
    assert not evaluate(probs, labels).intervals
    assert "0.95 confidence intervals" in str(one)
    assert f"[{one.intervals['accuracy'].low:.5f}, " in str(one)
    frame = one.to_frame()
    assert list(frame.columns) == ["value", "low", "high", "better"]
    assert frame.loc["accuracy", "low"] == one.intervals["accuracy"].low


def test_more_confidence_and_fewer_samples_make_wider_intervals():
    generator = np.random.default_rng(14)
    probs, labels = two_classes(2000, 0.3, generator)

    def width(rows, confidence):
        found = evaluate(probs[:rows], labels[:rows], confidence=confidence, resamples=200).intervals
        return {name: high - low for name, (low, high) in found.items()}

    usual, sure, few = width(2000, 0.8), width(2000, 0.99), width(200, 0.8)
    for name in METRICS:
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
    assert tuple(by_group) == pytest.approx(tuple(small), abs=1e-9)  # the same draws
    assert (by_group.high - by_group.low) > 4 * (by_row.high - by_row.low)


def test_weights_and_repetition_give_intervals_of_the_same_metric():
    probs, labels = two_classes(200, 0.5, np.random.default_rng(16))
    plain = evaluate(probs, labels, confidence=0.95, resamples=100).intervals
    weighted = evaluate(probs, labels, confidence=0.95, resamples=100, sample_weight=np.full(200, 3.0)).intervals
    for name, interval in plain.items():
        assert tuple(weighted[name]) == pytest.approx(tuple(interval), rel=1e-6)


def test_the_inverted_test_in_a_case_worked_by_hand():
    """One gap g with noise ±ε: T(s) = |s·g ± ε|, so that s·g runs from g − ε to g + ε."""
    noise = np.repeat([[-0.1], [0.1]], 50, axis=0)
    low, high = absolute_sum_interval(np.array([0.3]), 0.3 + noise, 0.9)
    assert low == pytest.approx(0.2)
    assert high == pytest.approx(0.4)
    low, high = absolute_sum_interval(np.array([0.05]), 0.05 + noise, 0.9)
    assert low == 0.0  # a gap of 0 would show ±0.1: more than was measured
    assert tuple(absolute_sum_interval(np.zeros(1), noise, 0.9)) == pytest.approx((0.0, 0.1))
    assert tuple(percentile_interval(np.arange(101.0), 0.9)) == pytest.approx((5.0, 95.0))


def test_any_metric_has_an_interval():
    probs, labels = two_classes(300, 0.0, np.random.default_rng(17))
    low, high = confidence_interval(negative_log_likelihood, probs, labels, resamples=100)
    assert low < negative_log_likelihood(probs, labels) < high
    same = confidence_interval(negative_log_likelihood, probs, labels, resamples=100)
    assert same == (low, high)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"confidence": 95}, "between 0 and 1"),
        ({"confidence": 0.95, "resamples": 5}, "at least 20"),
        ({"confidence": 0.95, "groups": ["a"]}, "one label a row"),
        ({"confidence": 0.95, "groups": ["a"] * 300}, "at least two groups"),
    ],
)
def test_bad_settings_are_refused(options, words):
    probs, labels = two_classes(300, 0.0, np.random.default_rng(18))
    with pytest.raises(InvalidInputError, match=words):
        evaluate(probs, labels, **options)


def test_one_sample_has_no_interval():
    with pytest.raises(InvalidInputError, match="at least two samples"):
        evaluate([[0.4, 0.6]], [1], confidence=0.95)


def many_classes(n, flatter, generator):
    """Predictions p whose true distribution is p^(1 − flatter), normalised: overconfident for every class."""
    logits = 2.2 * generator.normal(size=(n, 5))
    logits[np.arange(n), generator.integers(5, size=n)] += 2.0
    probs, truth = (np.exp(logits * (1 - s)) for s in (0.0, flatter))
    probs, truth = probs / probs.sum(axis=1, keepdims=True), truth / truth.sum(axis=1, keepdims=True)
    labels = (generator.random(n)[:, None] > truth.cumsum(axis=1)).sum(axis=1).clip(max=4)
    return probs, truth, labels


@pytest.mark.parametrize("flatter", [0.0, 0.15, 0.4])
def test_intervals_of_class_wise_errors_hold_the_truth(flatter):
    """40 data sets of 1,000 samples, with 16 in a bin: the value itself is two to many times the truth."""
    probs, rates, _ = many_classes(200_000, flatter, np.random.default_rng(0))
    errors = []
    for k in range(5):
        kept = probs[:, k] >= 0.2
        gaps = (rates - probs)[kept, k][np.argsort(probs[kept, k])]
        errors.append(sum(abs(part.sum()) for part in np.array_split(gaps, 20)) / len(gaps))
    truth, generator = float(np.mean(errors)), np.random.default_rng(19)
    held, values = [], []
    for _ in range(40):
        probs, _, labels = many_classes(1000, flatter, generator)
        result = evaluate(probs, labels, confidence=0.95, resamples=100)
        low, high = result.intervals["classwise_calibration_error"]
        held.append(low <= truth <= high)
        values.append(result.classwise_calibration_error)
    assert np.mean(held) >= 0.85
    assert np.mean(values) > 1.3 * truth
