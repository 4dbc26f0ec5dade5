"""How often intervals hold the truth, in simulations that know it.

A nominal 95 % of n intervals are to hold it; what is asked is three standard errors less, 0.95·n − 3·√(n·0.95·0.05).
"""

from functools import partial

import numpy as np
import pytest
from known_predictions import (
    MEAN_OVER_ONE_HALF,
    draw_labels,
    five_classes,
    hundred_classes,
    sharp_classes,
    three_classes,
    true_classwise_error,
    two_classes,
)
from single_intervals import BINNED, held_often_enough, interval_of

from kcal.metrics import (
    canonical_calibration_error,
    classwise_calibration_error,
    confidence_interval,
    debiased_squared_calibration_error,
    evaluate,
    expected_calibration_error,
    kde_calibration_error,
    kernel_calibration_error,
    marginal_calibration_error,
    top_label_calibration_error,
)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_the_interval_of_one_metric_is_the_one_of_the_evaluation(confidence, grouped):
    """So that the simulations below, which compute the one that they look at, tell of the evaluation."""
    probs, _, labels = five_classes(300, 0.3, np.random.default_rng(41))
    groups = np.arange(300) // 10 if grouped else None
    found = evaluate(probs, labels, confidence=confidence, resamples=100, groups=groups).intervals
    for name in ("accuracy", *BINNED):
        single = interval_of(name, probs, labels, confidence=confidence, groups=groups)
        assert tuple(single) == pytest.approx(tuple(found[name]), rel=1e-12), name


def test_no_more_intervals_are_looked_at_than_it_takes_to_know():
    endless = iter([True, True, False, True])
    assert held_often_enough(endless, least=3, of=4)
    assert not held_often_enough([False, True, False], least=3, of=4)
    with pytest.raises(ValueError, match="fewer than 4"):
        held_often_enough([True, True, False], least=3, of=4)
    held = [True, False, True, True, False, True]
    for least in range(1, 7):
        assert held_often_enough(held, least=least, of=6) == (sum(held) >= least)


@pytest.mark.parametrize("slope", [0.0, 0.05, 0.2, 0.6])
def test_intervals_of_calibration_errors_hold_the_truth(slope):
    """60 data sets of 1,000 samples."""
    generator = np.random.default_rng(11)

    def holds():
        for _ in range(60):
            low, high = interval_of("expected_calibration_error", *two_classes(1000, slope, generator))
            yield low <= slope * MEAN_OVER_ONE_HALF <= high

    assert held_often_enough(holds(), least=52, of=60)


@pytest.mark.parametrize("slope", [0.0, 0.05])
def test_the_whole_range_of_resampled_errors_lies_above_the_truth(slope):
    generator, held = np.random.default_rng(11), 0
    for _ in range(20):
        probs, labels = two_classes(1000, slope, generator)
        drawn = generator.integers(1000, size=(30, 1000))
        values = [expected_calibration_error(probs[rows], labels[rows]) for rows in drawn]
        held += min(values) <= slope * MEAN_OVER_ONE_HALF <= max(values)
    assert held < 2


def test_intervals_of_means_hold_the_truth():
    generator, held = np.random.default_rng(12), 0
    for _ in range(120):
        low, high = interval_of("accuracy", *two_classes(400, 0.0, generator), confidence=0.9, resamples=50)
        held += low <= 0.5 + MEAN_OVER_ONE_HALF <= high
    assert 0.82 <= held / 120 <= 0.97


@pytest.mark.parametrize("how", ["sharpened", "half random", "calibrated"])
def test_intervals_hold_the_truth_with_many_classes_and_few_samples_of_each(how):
    """8 data sets of 1,000 samples and 100 classes: bins of some ten samples, most without any positive."""
    generator = np.random.default_rng(36)
    drawn = [hundred_classes(1000, how, generator) for _ in range(8)]
    for name in ("classwise_calibration_error", "static_classwise_calibration_error"):

        def holds(name=name):
            for probs, true, labels in drawn:
                low, high = interval_of(name, probs, labels)
                yield low <= true_classwise_error(probs, true, adaptive=not name.startswith("static")) <= high

        assert held_often_enough(holds(), least=6, of=8), name


@pytest.mark.parametrize("n_groups", [2, 3, 5, 10])
def test_intervals_from_few_groups_hold_the_truth(n_groups):
    """60 data sets whose groups differ in accuracy; resampling alone holds the truth in 32 of them with two groups."""
    generator = np.random.default_rng(38)
    groups = np.repeat(np.arange(n_groups), 40)
    probs = np.tile([0.75, 0.25], (len(groups), 1))

    def holds():
        for _ in range(60):
            rates = np.clip(generator.normal(0.75, 0.1, size=n_groups), 0.05, 0.95)
            right = generator.random(len(groups)) < rates[groups]
            low, high = interval_of("accuracy", probs, np.where(right, 0, 1), groups=groups)
            yield low <= 0.75 <= high

    assert held_often_enough(holds(), least=52, of=60)


@pytest.mark.parametrize(("n", "bias", "temperature"), [(500, 9, 1.0), (1000, 5, 1.0), (1000, 5, 1.4), (1500, 9, 1.7)])
def test_intervals_hold_the_truth_where_outcomes_of_a_bin_nearly_always_agree(n, bias, temperature):
    """30 data sets; resampling alone would see no chance in bins of equal outcomes, and hold the truth in none."""
    generator = np.random.default_rng(31)

    def holds():
        for _ in range(30):
            probs, true, labels = sharp_classes(n, bias, temperature, generator)
            low, high = interval_of("classwise_calibration_error", probs, labels)
            yield low <= true_classwise_error(probs, true) <= high

    assert held_often_enough(holds(), least=25, of=30)


CALIBRATION_ERRORS = [
    partial(expected_calibration_error, bins=10),
    partial(canonical_calibration_error, bins=5),
    partial(top_label_calibration_error, bins=5),
    partial(marginal_calibration_error, bins=5),
    partial(debiased_squared_calibration_error, bins=10),
    kde_calibration_error,
    partial(kernel_calibration_error, resamples=0, bandwidth=0.5),
]


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("metric", CALIBRATION_ERRORS, ids=lambda metric: getattr(metric, "func", metric).__name__)
def test_intervals_of_any_calibration_error_hold_the_truth(metric, temperature):
    """16 data sets: of a nominal 15.2, three standard errors less are 12.6."""
    generator = np.random.default_rng(34)
    n, labels_per_row = (200, 12) if "kernel" in str(metric) else (400, 60)  # its time grows with the square of both

    def holds():
        for _ in range(16):
            probs, true, labels = three_classes(generator, temperature, n)
            truth = 0.0
            if temperature != 1.0:  # the same rows with many labels each: what is left when chance averages out
                often = np.repeat(np.arange(n), labels_per_row)
                truth = float(metric(probs[often], draw_labels(true[often], generator)))
            low, high = confidence_interval(metric, probs, labels, resamples=40)
            yield low <= truth <= high

    assert held_often_enough(holds(), least=13, of=16)


def test_the_plain_percentile_interval_of_such_errors_misses_the_truth():
    generator, metric = np.random.default_rng(35), partial(canonical_calibration_error, bins=5)
    plain, inverted = [], []
    for _ in range(10):
        probs, _, labels = three_classes(generator, 1.0)
        plain.append(confidence_interval(metric, probs, labels, kind="score", resamples=40).low)
        inverted.append(confidence_interval(metric, probs, labels, resamples=40).low)
    assert min(plain) > 0  # the truth is 0
    assert np.count_nonzero(inverted) <= 3


@pytest.mark.parametrize("flatter", [0.0, 0.15, 0.4])
def test_intervals_of_class_wise_errors_hold_the_truth(flatter):
    """40 data sets of 1,000 samples, with 16 in a bin: the value itself is two to many times the truth."""
    probs, rates, _ = five_classes(200_000, flatter, np.random.default_rng(0))
    truth, generator = true_classwise_error(probs, rates), np.random.default_rng(19)
    drawn = [five_classes(1000, flatter, generator) for _ in range(40)]
    assert np.mean([classwise_calibration_error(probs, labels) for probs, _, labels in drawn]) > 1.3 * truth

    def holds():
        for probs, _, labels in drawn:
            low, high = interval_of("classwise_calibration_error", probs, labels)
            yield low <= truth <= high

    assert held_often_enough(holds(), least=34, of=40)
