"""Accuracy under rejection against loops over thresholds and over all orders of ties."""

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from known_predictions import coarse_predictions

from kcal.metrics import accuracy
from kcal.metrics.scores import accuracy_rejection, accuracy_rejection_area

steady = settings(deadline=None, max_examples=50)  # a slow run is not a failure


@steady
@given(data=coarse_predictions())
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
@given(data=coarse_predictions(most=5))
def test_area_is_the_mean_over_all_orders_of_equal_confidences(data):
    probs, labels = data
    confidences, correct = probs.max(axis=1), probs.argmax(axis=1) == labels
    areas = [
        np.mean([np.mean(correct[list(order[:m])]) for m in range(1, len(order) + 1)])
        for order in permutations(range(len(labels)))
        if all(confidences[a] >= confidences[b] for a, b in pairwise(order))
    ]
    assert accuracy_rejection_area(probs, labels) == pytest.approx(np.mean(areas))
