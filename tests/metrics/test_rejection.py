"""Accuracy under rejection against loops over thresholds and over all orders of ties."""

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kcal.metrics import accuracy
from kcal.metrics.scores import accuracy_rejection, accuracy_rejection_area

steady = settings(deadline=None, max_examples=50)  # a slow run is not a failure


@st.composite
def predictions(draw, most=30):
    n, k = draw(st.integers(1, most)), draw(st.integers(2, 4))
    weights = draw(arrays(np.int64, (n, k), elements=st.integers(0, 4))).astype(float)
    weights[weights.sum(axis=1) == 0] = 1
    labels = draw(arrays(np.int64, n, elements=st.integers(0, k - 1)))
    return weights / weights.sum(axis=1, keepdims=True), labels


@steady
@given(data=predictions())
def test_every_point_equals_the_loop_over_thresholds(data):
    probs, labels = data
    confidences = probs.max(axis=1)
    curve = accuracy_rejection(probs, labels)
    assert curve.thresholds.tolist() == sorted(set(confidences.tolist()))
    for threshold, rejected, value in zip(curve.thresholds, curve.rejected, curve.accuracies, strict=True):
        kept = confidences >= threshold
        assert rejected == pytest.approx(np.mean(~kept), abs=1e-12)
        assert value == pytest.approx(accuracy(probs[kept], labels[kept]))


@steady
@given(data=predictions(most=5))
def test_area_is_the_mean_over_all_orders_of_equal_confidences(data):
    probs, labels = data
    confidences, correct = probs.max(axis=1), probs.argmax(axis=1) == labels
    areas = [
        np.mean([np.mean(correct[list(order[:m])]) for m in range(1, len(order) + 1)])
        for order in permutations(range(len(labels)))
        if all(confidences[a] >= confidences[b] for a, b in pairwise(order))
    ]
    assert accuracy_rejection_area(probs, labels) == pytest.approx(np.mean(areas))


def test_curve_by_hand():
    # From the most confident: .9 right, .8 wrong, two of .6 of which one is right.
    probs = np.array([[0.6, 0.4], [0.9, 0.1], [0.2, 0.8], [0.4, 0.6]])
    labels = np.array([0, 0, 0, 0])
    curve = accuracy_rejection(probs, labels)
    assert curve.thresholds.tolist() == [0.6, 0.8, 0.9]
    assert curve.rejected.tolist() == [0, 0.5, 0.75]
    assert curve.accuracies.tolist() == [0.5, 0.5, 1]
    assert curve.area == pytest.approx((1 + 1 / 2 + 1.5 / 3 + 2 / 4) / 4)
    assert curve.n_samples == 4


def test_confidence_that_knows_its_errors_has_the_larger_area():
    labels = np.zeros(100, dtype=int)
    wrong = np.arange(100) < 20
    knows = np.where(wrong, 0.45, 0.9)
    does_not = np.where(wrong, 0.05, 0.6)  # the wrong ones are sure of the other class
    assert accuracy_rejection_area(np.column_stack([knows, 1 - knows]), labels) > 0.95
    assert accuracy_rejection_area(np.column_stack([does_not, 1 - does_not]), labels) < 0.6


def test_curve_prints_some_of_its_points():
    values = np.linspace(0.5, 1, 200)
    text = str(accuracy_rejection(np.column_stack([values, 1 - values]), (np.arange(200) % 4 == 1).astype(int)))
    lines = text.splitlines()
    assert lines[0].startswith("Accuracy under rejection: 200 samples, area 0.")
    assert lines[1].split() == ["rejected", "threshold", "accuracy"]
    assert lines[2].split() == ["0.0%", "0.5000", "0.7500"]
    assert [line.split()[0] for line in lines[2:]] == [
        "0.0%", "5.0%", "10.0%", "20.0%", "30.0%", "40.0%", "50.0%", "70.0%", "90.0%",
    ]  # fmt: skip
