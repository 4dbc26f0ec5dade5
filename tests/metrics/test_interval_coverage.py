"""Coverage of intervals in simulations whose true values are known, by sequential tests against a poor coverage."""

import math
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

from kcal.metrics import (
    canonical_calibration_error,
    class_errors,
    confidence_interval,
    debiased_squared_calibration_error,
    evaluate,
    kde_calibration_error,
    kernel_calibration_error,
)

ECE, CECE = "expected_calibration_error", "classwise_calibration_error"
UNEQUAL = 2 * np.array([0.45, 0.25, 0.15, 0.08, 0.05, 0.02])


def interval_of(name, probs, labels, groups=None, protocol="standard"):
    found = evaluate(probs, labels, confidence=0.95, resamples=60, groups=groups, protocol=protocol)
    return found.intervals[name]


def coverage_is_nominal(holds_truth, *, poor, nominal=0.95, false_alarm=0.002, oversight=0.05):
    """Wald's sequential test of a nominal coverage against a poor one; stops once the likelihood ratio decides.

    A nominal coverage is rejected with probability 0.002 (about three standard errors), a poor one accepted with 0.05.
    """
    accepted, rejected = math.log((1 - false_alarm) / oversight), math.log(false_alarm / (1 - oversight))
    score = 0.0
    while rejected < score < accepted:
        score += math.log(nominal / poor) if holds_truth() else math.log((1 - nominal) / (1 - poor))
    return score > 0


@pytest.mark.parametrize("slope", [0.0, 0.05, 0.6])
def test_intervals_of_the_expected_error_contain_the_truth(slope):
    generator = np.random.default_rng(11)

    def holds_truth():
        low, high = interval_of(ECE, *two_classes(1000, slope, generator))
        return low <= slope * MEAN_OVER_ONE_HALF <= high

    assert coverage_is_nominal(holds_truth, poor=0.75)


@pytest.mark.parametrize("protocol", ["standard", "paper"])
@pytest.mark.parametrize(
    "draw",
    [partial(five_classes, 1000, 0.0), partial(five_classes, 1000, 0.4), partial(hundred_classes, 1000, "sharpened")],
    ids=["calibrated", "overconfident", "100 classes"],
)
def test_intervals_of_classwise_errors_contain_the_truth(draw, protocol):
    """With 100 classes, bins have some ten samples, most without any positive."""
    generator = np.random.default_rng(36)

    def holds_truth():
        probs, true, labels = draw(generator)
        low, high = interval_of(CECE, probs, labels, protocol=protocol)
        options = {"adaptive": True, "bins": 20, "threshold": 1 / probs.shape[1]} if protocol == "paper" else {}
        return low <= true_classwise_error(probs, true, **options) <= high

    assert coverage_is_nominal(holds_truth, poor=0.5)


def test_intervals_contain_the_truth_where_outcomes_of_a_bin_nearly_always_agree():
    """Resampling alone sees no variance in bins of equal outcomes, and contains the truth in no data set."""
    generator, held = np.random.default_rng(31), 0
    for _ in range(30):
        probs, true, labels = sharp_classes(1000, 5, 1.4, generator)
        low, high = interval_of(CECE, probs, labels)
        held += low <= true_classwise_error(probs, true) <= high
    assert held >= 25  # coverage is below the nominal 95 % here


@pytest.mark.parametrize("n_groups", [2, 10])
def test_intervals_from_few_groups_contain_the_truth(n_groups):
    """Groups differ in accuracy; resampling alone contains the truth in half of the data sets with two groups."""
    generator = np.random.default_rng(38)
    groups = np.repeat(np.arange(n_groups), 40)
    probs = np.tile([0.75, 0.25], (len(groups), 1))

    def holds_truth():
        rates = np.clip(generator.normal(0.75, 0.1, size=n_groups), 0.05, 0.95)
        wrong = generator.random(len(groups)) >= rates[groups]
        low, high = interval_of("accuracy", probs, wrong.astype(int), groups)
        return low <= 0.75 <= high

    assert coverage_is_nominal(holds_truth, poor=0.75)


@pytest.mark.parametrize("name", [ECE, CECE])
def test_intervals_contain_the_truth_where_groups_err_together(name):
    """Groups have rates 0.2 above or below predictions that are right on average; rows alone miss the truth."""
    generator = np.random.default_rng(44)
    groups = np.repeat(np.arange(8), 300)

    def holds_truth(given):
        p = generator.uniform(0.55, 0.75, len(groups))
        rates = p + generator.choice([-0.2, 0.2], size=8)[groups]
        labels = (generator.random(len(groups)) < rates).astype(int)
        return interval_of(name, np.column_stack([1 - p, p]), labels, given).low == 0

    assert coverage_is_nominal(partial(holds_truth, groups), poor=0.7)
    assert not coverage_is_nominal(partial(holds_truth, None), poor=0.7)


@pytest.mark.parametrize("copies", [False, True])
def test_intervals_of_calibrated_groups_contain_0(copies):
    """Rare classes whose bins have one to five rows, in groups without an effect; or groups of copies of one row."""
    generator = np.random.default_rng(43)
    groups = np.repeat(np.arange(30), 10)

    def holds_truth():
        probs = generator.dirichlet(UNEQUAL, size=30 if copies else 300)
        rows = groups if copies else np.arange(300)
        return interval_of(CECE, probs[rows], draw_labels(probs, generator)[rows], groups).low == 0

    assert coverage_is_nominal(holds_truth, poor=0.7)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize(
    "metric",
    [
        partial(canonical_calibration_error, bins=5),
        partial(debiased_squared_calibration_error, bins=10),
        kde_calibration_error,
        partial(kernel_calibration_error, resamples=0, bandwidth=0.5),
    ],
    ids=lambda metric: getattr(metric, "func", metric).__name__,
)
def test_intervals_of_any_calibration_error_contain_the_truth(metric, temperature):
    generator = np.random.default_rng(34)
    n, labels_per_row = (150, 12) if "kernel" in str(metric) else (400, 60)  # its time grows with the square of both

    def holds_truth():
        probs, true, labels = three_classes(generator, temperature, n)
        truth = 0.0
        if temperature != 1.0:  # the same rows with many labels each: noise averages out
            often = np.repeat(np.arange(n), labels_per_row)
            truth = float(metric(probs[often], draw_labels(true[often], generator)))
        low, high = confidence_interval(metric, probs, labels, resamples=40)
        return low <= truth <= high

    assert coverage_is_nominal(holds_truth, poor=0.6)


def test_few_classes_of_calibrated_predictions_are_beyond_chance():
    generator = np.random.default_rng(48)
    flagged = []
    for _ in range(60):
        probs = generator.dirichlet(UNEQUAL, size=300)
        errors = class_errors(probs, draw_labels(probs, generator), confidence=0.95, resamples=50)
        flagged.append(errors.beyond_chance.mean())
    assert 0.01 < np.mean(flagged) < 0.09
