"""Calibration errors against direct loops and examples worked by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import kcal.metrics.predictions
from kcal.errors import InvalidInputError
from kcal.metrics import classwise_calibration_error, expected_calibration_error, reliability

steady = settings(deadline=None, max_examples=50)  # a slow run is no failure


@st.composite
def predictions(draw):
    """Draw probabilities of few distinct values, so that ties and exact zeros and ones are common."""
    n, k = draw(st.integers(1, 40)), draw(st.integers(2, 5))
    weights = draw(arrays(np.int64, (n, k), elements=st.integers(0, 4))).astype(float)
    weights[weights.sum(axis=1) == 0] = 1
    labels = draw(arrays(np.int64, n, elements=st.integers(0, k - 1)))
    return weights / weights.sum(axis=1, keepdims=True), labels


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
@given(data=predictions(), bins=st.integers(1, 12), adaptive=st.booleans())
def test_expected_calibration_error_equals_the_loop(data, bins, adaptive):
    probs, labels = data
    expected = expected_error_slow(probs, labels, bins, adaptive)
    assert expected_calibration_error(probs, labels, bins=bins, adaptive=adaptive) == pytest.approx(expected, abs=1e-12)


@steady
@given(
    data=predictions(),
    bins=st.integers(1, 12),
    adaptive=st.booleans(),
    threshold=st.sampled_from([0, 0.2, 0.25]),
)
def test_classwise_calibration_error_equals_the_loop(data, bins, adaptive, threshold):
    probs, labels = data
    expected = classwise_error_slow(probs, labels, bins, adaptive, threshold)
    value = classwise_calibration_error(probs, labels, bins=bins, adaptive=adaptive, threshold=threshold)
    assert value == pytest.approx(expected, abs=1e-12, nan_ok=True)


@steady
@given(data=predictions(), seed=st.integers(0, 1000), adaptive=st.booleans())
def test_permuting_rows_changes_not_one_bit(data, seed, adaptive):
    probs, labels = data
    order = np.random.default_rng(seed).permutation(len(labels))
    for error in (expected_calibration_error, classwise_calibration_error):
        before = error(probs, labels, adaptive=adaptive)
        assert error(probs[order], labels[order], adaptive=adaptive) == before


@steady
@given(data=predictions(), seed=st.integers(0, 1000), adaptive=st.booleans())
def test_permuting_classes_does_not_change_the_classwise_error(data, seed, adaptive):
    probs, labels = data
    order = np.random.default_rng(seed).permutation(probs.shape[1])
    before = classwise_calibration_error(probs, labels, adaptive=adaptive)
    after = classwise_calibration_error(probs[:, order], np.argsort(order)[labels], adaptive=adaptive)
    assert after == pytest.approx(before, abs=1e-12)


@steady
@given(data=predictions(), adaptive=st.booleans())
def test_errors_lie_between_zero_and_one(data, adaptive):
    for error in (expected_calibration_error, classwise_calibration_error):
        assert 0 <= error(*data, adaptive=adaptive) <= 1


@steady
@given(data=predictions(), adaptive=st.booleans(), threshold=st.sampled_from(["max", "min", 0.3]))
def test_the_classwise_error_is_the_mean_of_the_errors_of_each_class(data, adaptive, threshold):
    probs, labels = data
    parts = [reliability(probs, labels, of=k, adaptive=adaptive, threshold=threshold) for k in range(probs.shape[1])]
    errors = [part.calibration_error for part in parts if part.total]
    expected = np.mean(errors) if errors else np.nan
    value = classwise_calibration_error(probs, labels, adaptive=adaptive, threshold=threshold)
    assert value == pytest.approx(expected, nan_ok=True)


def test_expected_calibration_error_by_hand():
    # Equal width, two bins, (0, .5] is empty. Confidences .6 .7 .8 .9, right in 2 of 4: |.5 − .75| = .25.
    probs = np.array([[0.6, 0.4], [0.3, 0.7], [0.8, 0.2], [0.1, 0.9]])
    labels = np.array([0, 1, 1, 0])
    assert expected_calibration_error(probs, labels, bins=2, adaptive=False) == pytest.approx(0.25)
    # Equal count: {.6, .7} both right, gap .35; {.8, .9} both wrong, gap .85; mean .6.
    assert expected_calibration_error(probs, labels, bins=2) == pytest.approx(0.6)


def test_classwise_calibration_error_by_hand():
    # K = 4, threshold max(.01, 1/4) = .25, one bin.
    # Class 0 keeps .7 (right) and .4 (wrong): |.5 − .55| = .05. Class 1 keeps .3 (right): .7.
    # Class 2 keeps .3 (wrong): .3. Class 3 keeps nothing. Mean of three: .35.
    probs = np.array([[0.7, 0.1, 0.1, 0.1], [0.4, 0.3, 0.3, 0.0]])
    labels = np.array([0, 1])
    assert classwise_calibration_error(probs, labels, bins=1) == pytest.approx(0.35)
    # "min" is .01: class 0 as before, class 1 |.5 − .2| = .3, class 2 |0 − .2| = .2, class 3 keeps .1: .1.
    assert classwise_calibration_error(probs, labels, bins=1, threshold="min") == pytest.approx(0.65 / 4)


def test_the_threshold_names_follow_the_number_of_classes():
    probs = np.full((1, 200), 1 / 200)
    probs[0, :2] = [0.01, 0.0]
    for name, number in (("max", 0.01), ("min", 1 / 200)):
        assert classwise_calibration_error(probs, [0], threshold=name) == classwise_calibration_error(
            probs, [0], threshold=number
        )


def test_uniform_probabilities_reach_the_threshold_one_over_k_in_either_precision():
    for dtype in (np.float32, np.float64):
        probs = np.full((49, 49), 1 / 49, dtype=dtype)
        assert classwise_calibration_error(probs, np.arange(49)) == pytest.approx(0, abs=1e-7)


def test_nothing_above_the_threshold_is_nan_not_zero():
    probs = np.full((3, 1000), 1 / 1000)
    assert np.isnan(classwise_calibration_error(probs, [0, 1, 2]))


@pytest.mark.parametrize("adaptive", [True, False])
def test_certain_predictions_cost_nothing_when_right_and_everything_when_wrong(adaptive):
    probs = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert expected_calibration_error(probs, [0, 1], adaptive=adaptive) == 0
    assert classwise_calibration_error(probs, [0, 1], adaptive=adaptive) == 0
    assert expected_calibration_error(probs, [1, 0], adaptive=adaptive) == 1
    assert classwise_calibration_error(probs, [1, 0], adaptive=adaptive) == 1


@pytest.mark.parametrize("adaptive", [True, False])
def test_one_sample_costs_its_distance_from_the_truth(adaptive):
    assert expected_calibration_error([[0.7, 0.3]], [0], adaptive=adaptive) == pytest.approx(0.3)
    assert expected_calibration_error([[0.7, 0.3]], [1], adaptive=adaptive) == pytest.approx(0.7)


@pytest.mark.parametrize("adaptive", [True, False])
def test_all_samples_in_one_bin_cost_the_gap_of_the_means(adaptive):
    probs = np.tile([0.75, 0.25], (8, 1))
    labels = np.array([0, 0, 1, 1, 1, 1, 1, 1])
    assert expected_calibration_error(probs, labels, adaptive=adaptive) == pytest.approx(0.5)


def test_blocks_of_columns_give_the_same_value_as_one_block(monkeypatch):
    generator = np.random.default_rng(0)
    probs = generator.dirichlet(np.ones(7), size=50)
    labels = generator.integers(0, 7, size=50)
    whole = classwise_calibration_error(probs, labels)
    monkeypatch.setattr(kcal.metrics.predictions, "BLOCK_ENTRIES", 150)
    assert classwise_calibration_error(probs, labels) == whole


def test_reliability_of_a_class_counts_that_class_alone():
    probs = np.array([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]])
    bins = reliability(probs, [0, 1, 0], bins=2, of=1, adaptive=False)
    assert bins.of == 1
    assert bins.counts.tolist() == [1, 2]
    assert bins.mean_prediction.tolist() == pytest.approx([0.1, 0.7])
    assert bins.observed_frequency.tolist() == [0, 0.5]
    assert bins.edges.tolist() == [0, 0.5, 1]


def test_reliability_of_confidence_gives_the_expected_calibration_error():
    generator = np.random.default_rng(1)
    probs = generator.dirichlet(np.ones(4), size=100)
    labels = generator.integers(0, 4, size=100)
    for adaptive in (True, False):
        bins = reliability(probs, labels, adaptive=adaptive)
        assert bins.of == "confidence"
        assert bins.adaptive is adaptive
        assert bins.calibration_error == expected_calibration_error(probs, labels, adaptive=adaptive)


def test_calibrated_predictions_have_a_small_error():
    generator = np.random.default_rng(2)
    probs = generator.dirichlet(np.ones(3), size=20_000)
    labels = (probs.cumsum(axis=1) > generator.random((20_000, 1))).argmax(axis=1)
    assert expected_calibration_error(probs, labels) < 0.02
    assert classwise_calibration_error(probs, labels) < 0.03


@pytest.mark.parametrize("bins", [0, -1, 2.5, "many", None])
def test_bins_that_are_no_count_are_refused(bins):
    with pytest.raises(InvalidInputError, match="bins must be an integer from 1 to 100,000; got"):
        expected_calibration_error([[0.5, 0.5]], [0], bins=bins)


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan"), "median", None])
def test_thresholds_that_are_no_probability_are_refused(threshold):
    with pytest.raises(InvalidInputError, match='threshold must be "max", "min" or a number from 0 to 1; got'):
        classwise_calibration_error([[0.5, 0.5]], [0], threshold=threshold)


@pytest.mark.parametrize("of", [2, -1, "cat", 0.5])
def test_reliability_of_an_unknown_class_is_refused(of):
    with pytest.raises(InvalidInputError, match='of must be "confidence" or the index of a class, 0 to 1; got'):
        reliability([[0.5, 0.5]], [0], of=of)


@pytest.fixture(scope="module")
def torchmetrics():
    """The functions of torchmetrics, imported here: it loads several large libraries, which other tests do without."""
    from torchmetrics.functional import classification

    return classification


@pytest.mark.parametrize(("n_classes", "bins"), [(2, 10), (3, 20), (10, 15)])
def test_the_static_error_of_the_top_class_is_that_of_torchmetrics(torchmetrics, n_classes, bins):
    generator = np.random.default_rng(n_classes)
    probs = generator.dirichlet(np.full(n_classes, 0.5), 700)
    labels = generator.integers(n_classes, size=700)
    theirs = torchmetrics.multiclass_calibration_error(
        torch.from_numpy(probs), torch.from_numpy(labels), num_classes=n_classes, n_bins=bins, norm="l1"
    )
    ours = expected_calibration_error(probs, labels, bins=bins, adaptive=False)
    assert ours == pytest.approx(float(theirs), rel=1e-5)


def test_the_static_error_of_a_class_is_the_binary_one_of_torchmetrics(torchmetrics):
    generator = np.random.default_rng(4)
    probs = generator.dirichlet(np.full(4, 0.5), 700)
    labels = generator.integers(4, size=700)
    for k in range(4):
        # torchmetrics judges the confidence of max(p, 1 − p) in newer versions, so that only p ≥ ½ can be compared
        kept = probs[:, k] >= 0.5
        theirs = torchmetrics.binary_calibration_error(
            torch.from_numpy(probs[kept, k]), torch.from_numpy((labels == k)[kept].astype(int)), n_bins=20, norm="l1"
        )
        ours = reliability(probs[kept], labels[kept], of=k, bins=20, adaptive=False).calibration_error
        assert ours == pytest.approx(float(theirs), rel=1e-5)
