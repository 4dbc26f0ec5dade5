"""k-nearest-neighbour interpolation and density-aware calibration against loops, grids and their limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from kcal import DensityAwareCalibration, KNNInterpolation, LeakageWarning, TemperatureScaling
from kcal.errors import InvalidInputError
from two_input_problems import label_loss, prior_penalty, random_weights, small_problem, unit

pytestmark = pytest.mark.filterwarnings("ignore::kcal.FewSamplesWarning")

N = 45


def slow_frequencies(query: Any, points: Any, labels: Any, weights: Any, k: int, tau: float) -> Any:
    """Return the label frequencies among the k nearest points of one query, (3,)."""
    distances = [float(((query - point) ** 2).sum()) for point in points]
    frequencies = np.zeros(3)
    for place in sorted(range(len(points)), key=distances.__getitem__)[:k]:
        frequencies[labels[place]] += weights[place] * np.exp(-distances[place] / tau)
    return frequencies / frequencies.sum()


def test_knn_predictions_equal_loops() -> None:
    embeddings, logits, labels = small_problem(60, 0)
    weights = random_weights(60, 1)
    fitted = KNNInterpolation().fit(embeddings, labels, logits=logits, sample_weight=weights)
    scaled = TemperatureScaling().fit(logits, labels, sample_weight=weights)
    assert fitted.temperature_ == scaled.temperature_
    new, new_logits, _ = small_problem(20, 2)
    neighbors = [slow_frequencies(row, unit(embeddings), labels, weights, fitted.k_, fitted.tau_) for row in unit(new)]
    expected = (1 - fitted.share_) * scaled.predict_proba(new_logits) + fitted.share_ * np.array(neighbors)
    np.testing.assert_allclose(fitted.predict_proba(new, logits=new_logits), expected, atol=1e-12)


def slow_mixture_loss(share: float, network: Any, neighbors: Any, weights: Any) -> float:
    """Return the loss of a mixture, with one more sample of a class that no neighbour has."""
    return -float(weights @ np.log((1 - share) * network + share * neighbors)) - np.log1p(-share)


@pytest.mark.parametrize("size", [1, 3])
def test_knn_parameters_minimise_leave_one_out_loss(size: int) -> None:
    """Of samples, or of groups of three."""
    embeddings, logits, labels = small_problem(N, 3)
    groups, weights, points = np.arange(N) // size, random_weights(N, 4), unit(embeddings)
    options = {"groups": groups} if size > 1 else {}
    fitted = KNNInterpolation().fit(embeddings, labels, logits=logits, sample_weight=weights, **options)
    network = softmax(logits / fitted.temperature_, axis=1)[np.arange(N), labels]
    others = [groups != group for group in groups]
    distances = [np.sort(((points[i] - points[others[i]]) ** 2).sum(axis=1)) for i in range(N)]
    losses = {}
    for k in (4, 8, 16, 32):
        for tau in np.sort([row[k - 1] for row in distances])[(N - 1) // 2] * 2.0 ** np.arange(-6, 3):
            parts = [(points[i], points[rest], labels[rest], weights[rest]) for i, rest in enumerate(others)]
            own = np.array([slow_frequencies(*part, k, tau)[labels[i]] for i, part in enumerate(parts)])
            best = minimize_scalar(slow_mixture_loss, (0, 1), (0, 1 - 1e-9), (network, own, weights), "bounded")
            losses[k, tau] = (best.fun, best.x)
    k, tau = min(losses, key=lambda pair: losses[pair][0])
    assert fitted.k_ == k
    assert fitted.tau_ == pytest.approx(tau, rel=1e-9)
    assert fitted.share_ == pytest.approx(losses[k, tau][1], abs=1e-4)


def test_knn_without_informative_neighbors_is_temperature_scaling() -> None:
    """Each class is a group of its own: no neighbour of another group has the label."""
    embeddings, logits, labels = small_problem(80, 5)
    fitted = KNNInterpolation().fit(embeddings, labels, logits=logits, groups=labels)
    assert fitted.share_ == 0
    expected = TemperatureScaling().fit(logits, labels).predict_proba(logits)
    np.testing.assert_allclose(fitted.predict_proba(embeddings + 1.0, logits=logits), expected, atol=1e-12)


def test_knn_duplicate_is_a_neighbor_and_the_sample_itself_is_not() -> None:
    generator = np.random.default_rng(6)
    embeddings, labels = generator.normal(size=(100, 4)), generator.integers(0, 3, 100)
    assert KNNInterpolation().fit(embeddings, labels, logits=np.zeros((100, 3))).share_ < 0.3  # the labels are noise
    twice = np.repeat(embeddings, 2, axis=0), np.repeat(labels, 2)
    assert KNNInterpolation().fit(*twice, logits=np.zeros((200, 3))).share_ > 0.9


def kth_distance(query: Any, points: Any, k: int) -> float:
    """Return the squared distance to the k-th nearest point: not to the nearest, as a published version has it."""
    return sorted(float(((query - point) ** 2).sum()) for point in points)[k - 1]


def slow_density_loss(distances: Any, logits: Any, labels: Any, weights: Any, slope: float, intercept: float) -> float:
    """Return the summed log-loss plus the mean penalty of the log temperatures and that of the slope."""
    temperatures = slope * distances + intercept
    loss = label_loss(log_softmax(logits / temperatures[:, None], axis=1), labels, weights)
    penalties = prior_penalty(np.log(temperatures)) + slope * distances / 0.1
    return loss + float(weights @ penalties) / weights.sum()


def two_regions(n: int, errors: str, seed: int) -> tuple[Any, Any, Any]:
    """Return a problem whose network errs in one of two regions: around (5, 0, 0, 0) is "near", around 0 is "far"."""
    generator = np.random.default_rng(seed)
    far, labels = np.arange(n) % 4 == 3, generator.integers(0, 3, n)
    wrong = (far == (errors == "far")) & (generator.random(n) < 0.5)
    shown = np.where(wrong, (labels + 1) % 3, labels)
    embeddings = np.where(far[:, None], 0.0, [5.0, 0, 0, 0]) + generator.normal(size=(n, 4))
    return embeddings, 3.0 * np.eye(3)[shown] + generator.normal(size=(n, 3)), labels


@pytest.mark.parametrize("reference", ["training", "calibration", "groups"])
def test_dac_temperature_minimises_loss(reference: str) -> None:
    embeddings, logits, labels = two_regions(60, "far", 0)
    training, weights = two_regions(90, "far", 1)[0], random_weights(60, 2)
    keys = np.arange(60) // (4 if reference == "groups" else 1)
    options = {"training": {"train_embeddings": training}, "groups": {"groups": keys}}.get(reference, {})
    fitted = DensityAwareCalibration(k=5).fit(embeddings, labels, logits=logits, sample_weight=weights, **options)
    points = unit(embeddings)
    candidates = [unit(training) if reference == "training" else points[keys != key] for key in keys]
    distances = np.array([kth_distance(point, others, 5) for point, others in zip(points, candidates, strict=True)])
    arguments = (distances, logits, labels, weights)
    grid = [(slope, intercept) for slope in np.linspace(0, 8, 41) for intercept in np.linspace(0.01, 5, 60)]
    for step in (1e-3, -1e-3):
        grid.append((max(fitted.slope_ + step, 0.0), fitted.intercept_))
        grid.append((fitted.slope_, max(fitted.intercept_ + step, 0.01)))
    found = slow_density_loss(*arguments, fitted.slope_, fitted.intercept_)
    assert found <= min(slow_density_loss(*arguments, *pair) for pair in grid) + 1e-9
    assert fitted.slope_ > 0


@pytest.mark.parametrize("with_training_set", [True, False])
def test_dac_predictions_equal_loops(with_training_set: bool) -> None:
    embeddings, logits, labels = two_regions(60, "far", 3)
    training = two_regions(90, "far", 4)[0] if with_training_set else None
    fitted = DensityAwareCalibration(k=7).fit(embeddings, labels, logits=logits, train_embeddings=training)
    assert fitted.slope_ > 0
    new, new_logits, _ = two_regions(20, "far", 5)
    points = unit(embeddings if training is None else training)
    temperatures = [[fitted.slope_ * kth_distance(row, points, 7) + fitted.intercept_] for row in unit(new)]
    expected = softmax(new_logits / temperatures, axis=1)
    np.testing.assert_allclose(fitted.predict_proba(new, logits=new_logits), expected, atol=1e-12)


def test_dac_is_temperature_scaling_if_far_samples_are_no_harder() -> None:
    embeddings, logits, labels = two_regions(200, "near", 6)
    fitted = DensityAwareCalibration(k=10).fit(embeddings, labels, logits=logits)
    assert fitted.slope_ == 0
    assert fitted.intercept_ == pytest.approx(TemperatureScaling().fit(logits, labels).temperature_, rel=1e-5)


def test_dac_uses_no_more_neighbors_than_there_are() -> None:
    embeddings, logits, labels = small_problem(12, 9)
    groups, training = [0] * 5 + [1] * 3 + [2] * 4, embeddings[:4] + 1.0
    for options, k in (({}, 11), ({"groups": groups}, 7), ({"train_embeddings": training}, 4)):
        fitted = DensityAwareCalibration().fit(embeddings, labels, logits=logits, **options)
        assert fitted.model_.k == k


def test_dac_checks_training_rows() -> None:
    embeddings, logits, labels = small_problem(30, 10)
    with pytest.warns(LeakageWarning, match="30 of 30 calibration rows"):
        fitted = DensityAwareCalibration().fit(embeddings, labels, logits=logits, train_embeddings=embeddings)
    fitted.predict_proba(embeddings, logits=logits)  # no row is its own neighbour among the calibration samples
    with pytest.raises(InvalidInputError, match=r"^train_embeddings"):
        DensityAwareCalibration().fit(embeddings, labels, logits=logits, train_embeddings=embeddings[:, :3])
    frame = pytest.importorskip("pandas").DataFrame(embeddings, columns=list("abcd"))
    with pytest.raises(InvalidInputError, match=r"^train_embeddings"):
        DensityAwareCalibration().fit(frame, labels, logits=logits, train_embeddings=frame[list("dcba")])
