"""Density-aware calibration against loops, a grid of its two numbers, and temperature scaling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from kcal import DensityAwareCalibration, LeakageWarning
from kcal.errors import InvalidInputError
from two_input_problems import brute_force_temperature, label_loss, prior_penalty, small_problem, unit


def kth_distance(query: Any, points: Any, k: int) -> float:
    """Return the squared distance to the k-th nearest point: not to the nearest, as a published version has it."""
    return sorted(float(((query - point) ** 2).sum()) for point in points)[k - 1]


def slow_loss(distances: Any, logits: Any, labels: Any, weights: Any, slope: float, intercept: float) -> float:
    """Return the summed log-loss plus the mean penalty of the log temperatures and that of the slope."""
    temperatures = slope * distances + intercept
    loss = label_loss(log_softmax(logits / temperatures[:, None], axis=1), labels, weights)
    added = slope * float(weights @ distances) / weights.sum()
    return loss + float(weights @ prior_penalty(np.log(temperatures))) / weights.sum() + added / 0.1


@pytest.mark.parametrize("reference", ["training", "calibration", "groups"])
def test_the_temperature_is_that_of_the_lowest_loss_of_a_grid(reference: str) -> None:
    n, k = 60, 5
    embeddings, logits, labels = small_problem(n, 0)
    training = small_problem(90, 1)[0]
    weights = np.random.default_rng(2).uniform(0.5, 2.0, n)
    weights /= weights.mean()
    keys = np.arange(n) // 4 if reference == "groups" else np.arange(n)
    options: dict[str, Any] = {"training": {"train_embeddings": training}, "groups": {"groups": keys}}.get(
        reference, {}
    )
    fitted = DensityAwareCalibration(k=k).fit(embeddings, labels, logits=logits, sample_weight=weights, **options)
    points, others = unit(embeddings), unit(training)
    distances = np.array(
        [kth_distance(points[i], others if reference == "training" else points[keys != keys[i]], k) for i in range(n)]
    )
    arguments = (distances, logits, labels, weights)
    found = slow_loss(*arguments, fitted.slope_, fitted.intercept_)
    grid = [(slope, intercept) for slope in np.linspace(0, 8, 41) for intercept in np.linspace(0.01, 5, 60)]
    assert found <= min(slow_loss(*arguments, *pair) for pair in grid) + 1e-9
    assert fitted.slope_ >= 0
    for step in (1e-3, -1e-3):
        assert found <= slow_loss(*arguments, max(fitted.slope_ + step, 0.0), fitted.intercept_) + 1e-9
        assert found <= slow_loss(*arguments, fitted.slope_, max(fitted.intercept_ + step, 0.01)) + 1e-9


@pytest.mark.parametrize("given", ["training", "calibration"])
def test_predictions_equal_the_formula_in_loops(given: str) -> None:
    embeddings, logits, labels = small_problem(60, 3)
    training = small_problem(90, 4)[0]
    options = {"train_embeddings": training} if given == "training" else {}
    fitted = DensityAwareCalibration(k=7).fit(embeddings, labels, logits=logits, **options)
    new, new_logits, _ = small_problem(20, 5)
    found = fitted.predict_proba(new, logits=new_logits)
    reference = unit(training if given == "training" else embeddings)
    for row in range(20):
        temperature = fitted.slope_ * kth_distance(unit(new)[row], reference, 7) + fitted.intercept_
        np.testing.assert_allclose(found[row], softmax(new_logits[row] / temperature), atol=1e-12)


def test_where_far_samples_are_no_harder_it_is_temperature_scaling() -> None:
    """Errors are common near the others, and absent far from them: w₁ would be negative."""
    generator = np.random.default_rng(6)
    n = 200
    near = np.arange(n) < 150
    embeddings = np.where(near[:, None], [5.0, 0, 0, 0], 0.0) + generator.normal(size=(n, 4))
    labels = generator.integers(0, 3, n)
    shown = np.where(near & (generator.random(n) < 0.4), (labels + 1) % 3, labels)
    logits = 3.0 * np.eye(3)[shown] + generator.normal(size=(n, 3))
    fitted = DensityAwareCalibration(k=10).fit(embeddings, labels, logits=logits)
    assert fitted.slope_ == 0
    assert fitted.intercept_ == pytest.approx(brute_force_temperature(logits, labels), rel=1e-5)


def test_the_temperature_rises_far_from_the_training_set() -> None:
    generator = np.random.default_rng(7)
    n = 400
    far = np.arange(n) < 150
    embeddings = np.where(far[:, None], 0.0, [5.0, 0, 0, 0]) + generator.normal(size=(n, 4))
    labels = generator.integers(0, 3, n)
    shown = np.where(far & (generator.random(n) < 0.5), (labels + 1) % 3, labels)
    logits = 3.0 * np.eye(3)[shown] + generator.normal(size=(n, 3))
    training = np.array([5.0, 0, 0, 0]) + generator.normal(size=(500, 4))
    fitted = DensityAwareCalibration().fit(embeddings, labels, logits=logits, train_embeddings=training)
    assert fitted.slope_ > 1
    confidences = [
        fitted.predict_proba(rows, logits=[[3.0, 0, 0]]).max() for rows in ([[5.0, 0, 0, 0]], [[-5.0, 0, 0, 0]])
    ]
    assert confidences[0] > confidences[1] + 0.2


@pytest.mark.filterwarnings("ignore::kcal.errors.LeakageWarning")
def test_thirty_samples_without_an_error_do_not_make_certain() -> None:
    generator = np.random.default_rng(8)
    labels = np.arange(30) % 3
    logits = 3.0 * np.eye(3)[labels] + 0.1 * generator.normal(size=(30, 3))
    embeddings = np.eye(3)[labels] + 0.1 * generator.normal(size=(30, 3))
    fitted = DensityAwareCalibration(k=5).fit(embeddings, labels, logits=logits)
    assert fitted.predict_proba(embeddings + 0.01, logits=logits).max() < 1 - 1e-5


def test_neighbours_are_at_most_those_that_there_are() -> None:
    embeddings, logits, labels = small_problem(12, 9)
    assert DensityAwareCalibration().fit(embeddings, labels, logits=logits).model_.k == 11
    grouped = DensityAwareCalibration().fit(embeddings, labels, logits=logits, groups=[0] * 5 + [1] * 3 + [2] * 4)
    assert grouped.model_.k == 7
    trained = DensityAwareCalibration().fit(embeddings, labels, logits=logits, train_embeddings=embeddings[:4] + 1.0)
    assert trained.model_.k == 4


def test_calibration_rows_in_the_training_set_are_warned_of() -> None:
    embeddings, logits, labels = small_problem(30, 10)
    with pytest.warns(LeakageWarning, match="30 of 30 calibration rows also occur in the training set"):
        fitted = DensityAwareCalibration().fit(embeddings, labels, logits=logits, train_embeddings=embeddings)
    fitted.predict_proba(embeddings, logits=logits)  # no row is its own neighbour among the calibration samples
    own = DensityAwareCalibration().fit(embeddings, labels, logits=logits)
    with pytest.warns(LeakageWarning, match="30 of 30 rows are in the calibration set"):
        own.predict_proba(embeddings, logits=logits)


def test_training_rows_of_another_width_are_refused_by_name() -> None:
    embeddings, logits, labels = small_problem(30, 11)
    with pytest.raises(InvalidInputError, match=r"^train_embeddings has 3 features"):
        DensityAwareCalibration().fit(embeddings, labels, logits=logits, train_embeddings=embeddings[:, :3])
