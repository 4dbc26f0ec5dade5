"""Bootstrap intervals: means, binned errors, groups, and how often they hold the truth."""

from functools import partial

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import norm, t

from kcal.errors import InvalidInputError
from kcal.metrics import (
    accuracy,
    canonical_calibration_error,
    confidence_interval,
    debiased_squared_calibration_error,
    evaluate,
    expected_calibration_error,
    kde_calibration_error,
    kernel_calibration_error,
    marginal_calibration_error,
    negative_log_likelihood,
    top_label_calibration_error,
)
from kcal.metrics.evaluation import METRICS
from kcal.metrics.gap_intervals import Gaps, gap_interval, shared_gaps
from kcal.metrics.resampling import percentile_interval


def confidences(n, generator):
    return 0.5 + 0.5 * generator.beta(3, 1.5, n)


def two_classes(n, slope, generator):
    """Confidences c whose true rate of being right is c − slope·(c − ½)."""
    c = confidences(n, generator)
    right = generator.random(n) < c - slope * (c - 0.5)
    return np.column_stack([c, 1 - c]), np.where(right, 0, 1)


def true_error(slope):
    return slope * float((confidences(2_000_000, np.random.default_rng(0)) - 0.5).mean())


@pytest.mark.parametrize("slope", [0.0, 0.05, 0.2, 0.6])
def test_intervals_of_calibration_errors_hold_the_truth_and_percentiles_do_not(slope):
    """60 data sets of 1,000 samples."""
    truth, generator = true_error(slope), np.random.default_rng(11)
    held, plain = [], []
    for _ in range(60):
        probs, labels = two_classes(1000, slope, generator)
        result = evaluate(probs, labels, confidence=0.95, resamples=100, seed=0)
        low, high = result.intervals["expected_calibration_error"]
        held.append(low <= truth <= high)
        if slope <= 0.05 and len(plain) < 20:
            drawn = generator.integers(1000, size=(30, 1000))
            values = [expected_calibration_error(probs[rows], labels[rows]) for rows in drawn]
            plain.append(min(values) <= truth <= max(values))
    assert np.mean(held) >= 0.866  # 0.95 less three standard errors
    if plain:
        assert np.mean(plain) < 0.1  # even the whole range of 30 resamples lies above the truth


def test_intervals_of_means_hold_the_truth():
    generator = np.random.default_rng(12)
    truth = float(np.mean(confidences(2_000_000, generator)))
    held = 0
    for _ in range(120):
        probs, labels = two_classes(400, 0.0, generator)
        low, high = evaluate(probs, labels, confidence=0.9, resamples=50, bins=2).intervals["accuracy"]
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
    wider = t.ppf(0.95, 19) / norm.ppf(0.95) * np.sqrt(20 / 19)  # what is not known of the spread of 20 groups
    assert by_group.high - by_group.low == pytest.approx(wider * (small.high - small.low), abs=1e-9)  # the same draws
    assert (by_group.high - by_group.low) > 4 * (by_row.high - by_row.low)


def test_weights_and_repetition_give_intervals_of_the_same_metric():
    probs, labels = two_classes(200, 0.5, np.random.default_rng(16))
    plain = evaluate(probs, labels, confidence=0.95, resamples=100).intervals
    weighted = evaluate(probs, labels, confidence=0.95, resamples=100, sample_weight=np.full(200, 3.0)).intervals
    for name, interval in plain.items():
        assert tuple(weighted[name]) == pytest.approx(tuple(interval), rel=1e-6)


def one_gap(size, noise, count):
    """A single bin of all samples, at a prediction of one half, whose resamples lie `noise` to either side."""
    resampled = size + np.repeat([[-noise], [noise]], 500, axis=0)
    ones = np.ones(1)
    return Gaps(size * ones, resampled.astype(np.float32), ones, 0.5 * ones, count * ones, 1)


def test_the_inverted_test_in_a_case_worked_by_hand():
    """One gap g with noise ±ε√t: t·g + ε√t = g at the lower end, t·g − ε = g at the upper one."""
    low, high = gap_interval(one_gap(0.3, 0.1, 1e9), 0.9, seed=0)  # so many samples that only resamples vary
    assert (low, high) == pytest.approx((0.3 * 0.7176, 0.4), abs=0.01)
    low, high = gap_interval(one_gap(0.05, 0.03, 100), 0.9, seed=0)
    assert low == 0.0  # of 100 samples one half, chance alone shows 0.08
    assert 0.05 < high < 0.15
    assert gap_interval(one_gap(0.0, 0.02, 100), 0.9, seed=0).high > 0.02
    assert tuple(percentile_interval(np.arange(101.0), 0.9)) == pytest.approx((5.0, 95.0))


def test_shared_gaps_are_the_mean_of_all_events_at_like_predictions():
    predictions = np.tile([0.1, 0.5, 0.9], 40)
    sizes = np.where(predictions == 0.5, -0.2, 0.1) + np.random.default_rng(0).normal(scale=0.05, size=120)
    shares = np.full(120, 1 / 120)
    gaps = Gaps(shares * sizes, np.zeros((2, 120), dtype=np.float32), shares, predictions, np.full(120, 30.0), 40)
    found = shared_gaps(gaps) / shares
    for place in (0.1, 0.5, 0.9):
        here = predictions == place
        assert found[here] == pytest.approx(np.full(40, sizes[here].mean()), abs=0.03)


@pytest.mark.parametrize("how", ["sharpened", "half random", "calibrated"])
def test_intervals_hold_the_truth_with_many_classes_and_few_samples_of_each(how):
    """8 data sets of 1,000 samples and 100 classes: bins of some ten samples, most without any positive."""
    generator, held = np.random.default_rng(36), {"adaptive": 0, "static": 0}
    for _ in range(8):
        logits = 2 * generator.normal(size=(1000, 100))
        probs = softmax(1.5 * logits if how == "sharpened" else logits, axis=1)
        true = 0.5 * probs + 0.005 if how == "half random" else softmax(logits, axis=1)
        labels = np.minimum((generator.random(1000)[:, None] > true.cumsum(axis=1)).sum(axis=1), 99)
        found = evaluate(probs, labels, confidence=0.95, resamples=100).intervals
        for kind, name in (
            ("adaptive", "classwise_calibration_error"),
            ("static", "static_classwise_calibration_error"),
        ):
            low, high = found[name]
            held[kind] += low <= mean_true_error(probs, true, adaptive=kind == "adaptive") <= high
    assert min(held.values()) >= 6  # of a nominal 7.6, three standard errors less are 5.8


def mean_true_error(probs, true, *, adaptive, bins=20, threshold=0.01):
    """The class-wise error over the same bins if every frequency were what it is on average."""
    errors = []
    for k in range(probs.shape[1]):
        kept = np.flatnonzero(probs[:, k] >= threshold)
        order = kept[np.argsort(probs[kept, k])]
        sizes = [len(kept) // bins + (b >= bins - len(kept) % bins) for b in range(bins)]
        cuts = (
            np.cumsum(sizes)[:-1] if adaptive else np.searchsorted(probs[order, k], np.arange(1, bins) / bins, "right")
        )
        gaps = [(true[part, k] - probs[part, k]).sum() for part in np.split(order, cuts)]
        errors.append(np.abs(gaps).sum() / len(kept))
    return float(np.mean(errors))


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


@pytest.mark.parametrize("n_groups", [2, 3, 5, 10])
def test_intervals_from_few_groups_hold_the_truth(n_groups):
    """60 data sets whose groups differ in accuracy; resampling alone holds the truth in 32 of them with two groups."""
    generator, held = np.random.default_rng(38), 0
    for _ in range(60):
        rates = np.clip(generator.normal(0.75, 0.1, size=n_groups), 0.05, 0.95)
        groups = np.repeat(np.arange(n_groups), 40)
        right = generator.random(len(groups)) < rates[groups]
        probs = np.tile([0.75, 0.25], (len(groups), 1))
        low, high = evaluate(
            probs, np.where(right, 0, 1), groups=groups, confidence=0.95, resamples=100, bins=1
        ).intervals["accuracy"]
        held += low <= 0.75 <= high
    assert held >= 51  # of a nominal 57, three standard errors less are 51.9


def sharp_classes(n, bias, temperature, generator):
    """Ten classes, the top one far ahead; labels follow the same logits, flattened unless the temperature is 1."""
    logits = generator.normal(size=(n, 10))
    logits[np.arange(n), generator.integers(10, size=n)] += bias
    probs, true = softmax(logits, axis=1), softmax(logits / temperature, axis=1)
    labels = (generator.random(n)[:, None] > true.cumsum(axis=1)).sum(axis=1)
    return probs, true, np.minimum(labels, 9)


def true_classwise_error(probs, true, bins=20, threshold=0.1):
    """The class-wise error if every frequency were what it is on average, over the same bins."""
    errors = []
    for k in range(10):
        kept = np.sort(np.flatnonzero(probs[:, k] >= threshold))
        order = kept[np.argsort(probs[kept, k])]
        sizes = np.diff(np.r_[0, np.cumsum([len(kept) // bins + (b >= bins - len(kept) % bins) for b in range(bins)])])
        parts = np.split(order, np.cumsum(sizes)[:-1])
        errors.append(sum(abs((true[part, k] - probs[part, k]).sum()) for part in parts) / len(kept))
    return float(np.mean(errors))


@pytest.mark.parametrize(("n", "bias", "temperature"), [(500, 9, 1.0), (1000, 5, 1.0), (1000, 5, 1.4), (1500, 9, 1.7)])
def test_intervals_hold_the_truth_where_outcomes_of_a_bin_nearly_always_agree(n, bias, temperature):
    """30 data sets; resampling alone would see no chance in bins of equal outcomes, and hold the truth in none."""
    generator, held = np.random.default_rng(31), []
    for _ in range(30):
        probs, true, labels = sharp_classes(n, bias, temperature, generator)
        low, high = evaluate(probs, labels, confidence=0.95, resamples=100).intervals["classwise_calibration_error"]
        held.append(low <= true_classwise_error(probs, true) <= high)
    assert np.mean(held) >= 0.83  # 0.95 less three standard errors


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
    for _ in range(30):
        probs, labels = two_classes(200, 0.0, generator)
        for name, (low, high) in evaluate(probs, labels, confidence=0.8, resamples=50).intervals.items():
            assert low < high, name


def three_classes(generator, temperature, n=400):
    logits = 2 * generator.normal(size=(n, 3))
    probs, true = softmax(logits, axis=1), softmax(logits / temperature, axis=1)
    return probs, true, (generator.random(n)[:, None] > true.cumsum(axis=1)).sum(axis=1).clip(max=2)


CALIBRATION_ERRORS = [
    partial(expected_calibration_error, bins=10),
    partial(canonical_calibration_error, bins=5),
    partial(top_label_calibration_error, bins=10),
    partial(marginal_calibration_error, bins=10),
    partial(debiased_squared_calibration_error, bins=10),
    kde_calibration_error,
    partial(kernel_calibration_error, resamples=0, bandwidth=0.5),
]


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("metric", CALIBRATION_ERRORS, ids=lambda metric: getattr(metric, "func", metric).__name__)
def test_intervals_of_any_calibration_error_hold_the_truth(metric, temperature):
    """16 data sets: of a nominal 15.2, three standard errors less are 12.6."""
    generator, held = np.random.default_rng(34), 0
    for _ in range(16):
        probs, true, labels = three_classes(generator, temperature)
        truth = 0.0
        if temperature != 1.0:  # the same rows with many labels each: what is left when chance averages out
            often = np.repeat(np.arange(len(probs)), 12 if "kernel" in str(metric) else 60)
            drawn = (generator.random(len(often))[:, None] > true[often].cumsum(axis=1)).sum(axis=1).clip(max=2)
            truth = float(metric(probs[often], drawn))
        low, high = confidence_interval(metric, probs, labels, resamples=40)
        held += low <= truth <= high
    assert held >= 13


def test_the_plain_percentile_interval_of_such_errors_misses_the_truth():
    generator, metric = np.random.default_rng(35), partial(canonical_calibration_error, bins=5)
    plain, inverted = [], []
    for _ in range(10):
        probs, _, labels = three_classes(generator, 1.0)
        plain.append(confidence_interval(metric, probs, labels, kind="score", resamples=40).low)
        inverted.append(confidence_interval(metric, probs, labels, resamples=40).low)
    assert min(plain) > 0  # the truth is 0
    assert np.count_nonzero(inverted) <= 3


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
        ({"seed": -1}, "seed must be a whole number"),
        ({"seed": "x"}, "seed must be a whole number"),
        ({"sample_weight": np.ones(30)}, "takes no sample_weight"),
        ({"groups": [None, "a"] * 15}, "cannot be compared"),
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
        ({"confidence": 0.95, "resamples": 5}, "at least 20"),
        ({"confidence": 0.95, "groups": ["a"]}, "one label a row"),
        ({"groups": ["a"]}, "one label a row"),
        ({"confidence": 0.95, "seed": -1}, "seed must be a whole number"),
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


def test_a_metric_must_be_a_function_that_returns_a_number():
    probs, labels = two_classes(30, 0.0, np.random.default_rng(39))
    with pytest.raises(InvalidInputError, match="metric must be a function"):
        confidence_interval("accuracy", probs, labels)
    with pytest.raises(InvalidInputError, match="must return a number; got NoneType"):
        confidence_interval(lambda p, y: None, probs, labels)
