"""Accuracy and proper scores against direct loops and examples worked by hand."""

import math
from inspect import signature

import numpy as np
import pytest
from hypothesis import given, settings
from known_predictions import random_predictions
from sklearn.metrics import brier_score_loss, log_loss

from kcal.metrics import accuracy, brier_score, multiclass_brier_loss, negative_log_likelihood, top_label_brier_loss

steady = settings(deadline=None, max_examples=50)  # a slow run is not a failure

PROBS = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.5, 0.25, 0.25]])
LABELS = np.array([0, 2, 0])


@steady
@given(data=random_predictions())
def test_scores_equal_the_loop(data):
    probs, labels = data
    n, k = probs.shape
    right = top = multi = log = 0.0
    for i in range(n):
        best = int(np.argmax(probs[i]))
        right += best == labels[i]
        top += (probs[i, best] - (best == labels[i])) ** 2
        log -= math.log(max(probs[i, labels[i]], 1e-12))
        for j in range(k):
            multi += (probs[i, j] - (j == labels[i])) ** 2
    assert accuracy(probs, labels) == pytest.approx(right / n)
    assert top_label_brier_loss(probs, labels) == pytest.approx(top / n)
    assert multiclass_brier_loss(probs, labels) == pytest.approx(multi / (n * k))
    assert negative_log_likelihood(probs, labels) == pytest.approx(log / n)


@pytest.mark.parametrize("n_classes", [2, 5])
def test_log_loss_and_brier_score_are_those_of_scikit_learn(n_classes):
    generator = np.random.default_rng(0)
    probs = generator.dirichlet(np.ones(n_classes), size=200)
    labels, weights = generator.integers(0, n_classes, size=200), generator.exponential(size=200)
    options = {"labels": range(n_classes), "sample_weight": weights}
    ours = negative_log_likelihood(probs, labels, sample_weight=weights)
    assert ours == pytest.approx(log_loss(labels, probs, **options))
    total = np.sum((np.eye(n_classes)[labels] - probs) ** 2, axis=1) * (0.5 if n_classes == 2 else 1)
    assert brier_score(probs, labels) == pytest.approx(total.mean())
    if "labels" not in signature(brier_score_loss).parameters:
        pytest.skip("this version of scikit-learn has no Brier score of several classes")
    assert brier_score(probs, labels, sample_weight=weights) == pytest.approx(
        brier_score_loss(labels, probs, **options)
    )


def test_label_with_probability_zero_costs_the_clip():
    assert negative_log_likelihood([[1.0, 0.0]], [1]) == pytest.approx(-math.log(1e-12))
    assert negative_log_likelihood([[1.0, 0.0]], [1], clip=1e-3) == pytest.approx(-math.log(1e-3))
    assert negative_log_likelihood([[1.0, 0.0]], [1], clip=0) == math.inf


def test_published_clip_depends_on_number_of_classes():
    probs = np.array([[1.0, 0.0, 0.0, 0.0]])
    assert negative_log_likelihood(probs, [1], clip="published") == pytest.approx(-math.log(1e-3 / 4))
    assert negative_log_likelihood(probs, [0], clip="published") == pytest.approx(-math.log(1 - 1e-3 / 4))


def test_first_of_equal_probabilities_is_the_top_class():
    assert accuracy([[0.5, 0.5]], [0]) == 1
    assert accuracy([[0.5, 0.5]], [1]) == 0


def test_single_precision_is_summed_in_double():
    probs = np.full((10_000, 4), 0.25, dtype=np.float32)
    assert multiclass_brier_loss(probs, np.zeros(10_000, dtype=int)) == pytest.approx(0.1875, rel=1e-12)
