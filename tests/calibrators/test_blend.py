"""KCalBlend: its formula by loops, its parts against slow oracles, and what it must do with few, many and odd data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, logsumexp, softmax

from kcal import KCal, KCalBlend, TemperatureScaling
from kcal.calibrators.blend.pool import PSEUDO_COUNTS, SPREAD, fit_mixture, fit_pool
from kcal.datasets import load_example
from kcal.metrics import negative_log_likelihood
from quick_blend import blend_of
from two_input_problems import prior_penalty

pytestmark = pytest.mark.filterwarnings("ignore:No logits were given")


@pytest.fixture(scope="module")
def blend(problem: Any) -> KCalBlend:
    return blend_of(problem)


def kernel_counts(queries: Any, points: Any, labels: Any, bandwidth: float, n_classes: int = 3) -> Any:
    """Return Σ exp(−‖x_i − q‖²/(2·d·b²)) by class, one query after the other."""
    counts = np.zeros((len(queries), n_classes))
    for row, query in enumerate(queries):
        for point, label in zip(points, labels, strict=True):
            counts[row, label] += np.exp(-((point - query) ** 2).sum() / (2 * len(query) * bandwidth**2))
    return counts


def test_predictions_are_the_documented_formula(blend: KCalBlend, problem: Any) -> None:
    queries, logits = problem.test_embeddings[:30].astype(float), problem.test_logits[:30].astype(float)
    formula = blend.model_
    network = formula.network
    temperatures = zip(network.temperatures.tolist(), network.temperature_weights.tolist(), strict=True)
    n = sum(u * softmax(logits / t, axis=1) for t, u in temperatures)
    corrected = [n * factors / (n * factors).sum(axis=1, keepdims=True) for factors in network.factors.numpy()]
    f = sum(v * each for v, each in zip(network.factor_weights.numpy(), corrected, strict=True))
    r = softmax(
        float(formula.refit.factor) * log_softmax(logits, axis=1)
        + queries @ formula.refit.weights.numpy()
        + formula.refit.bias.numpy(),
        axis=1,
    )
    counts = kernel_counts(queries, problem.embeddings.astype(float), problem.labels, blend.bandwidth_)
    d = (blend.background_ * f + counts) / (blend.background_ + counts.sum(axis=1, keepdims=True))
    in_pool = (float(formula.pool_background) * f + counts) / (
        float(formula.pool_background) + counts.sum(axis=1, keepdims=True)
    )
    w = blend.weights_
    pool = f ** w["network"] * r ** w["refit"] * in_pool ** w["samples"]
    shares = blend.shares_
    assert sum(shares.values()) == pytest.approx(1)
    expected = shares["pool"] * pool / pool.sum(axis=1, keepdims=True)
    expected += shares["network"] * f + shares["refit"] * r + shares["samples"] * d
    inside = np.linalg.norm(queries - formula.centre.numpy(), axis=1) < float(formula.radius)
    found = blend.predict_proba(queries, logits=logits)
    np.testing.assert_allclose(found[inside], expected[inside], atol=1e-6)
    assert inside.sum() > 20


def test_temperature_is_the_mean_of_its_posterior(problem: Any) -> None:
    """Against a dense integral, with weights."""
    rows, weights = slice(0, 25), np.linspace(0.5, 1.5, 25)
    logits, labels = problem.logits[rows], problem.labels[rows]
    blend = KCalBlend().fit(problem.embeddings[rows], labels, logits=logits, sample_weight=weights)
    grid = np.linspace(-3, 4, 4001)
    losses = np.array([weights @ log_softmax(logits / np.exp(t), axis=1)[np.arange(25), labels] for t in grid])
    posterior = np.exp(losses - prior_penalty(grid) - losses.max())
    assert blend.temperature_ == pytest.approx((posterior * np.exp(grid)).sum() / posterior.sum(), rel=2e-3)


def test_copies_of_a_sample_in_its_group_are_left_out_with_it(problem: Any) -> None:
    single = blend_of(problem)
    x, y, z = (np.repeat(part, 3, axis=0) for part in (problem.embeddings, problem.labels, problem.logits))
    grouped = KCalBlend().fit(x, y, logits=z, groups=np.repeat(np.arange(240), 3))
    careless = KCalBlend().fit(x, y, logits=z)
    assert float(grouped.model_.loss) == pytest.approx(float(single.model_.loss), abs=0.01)
    assert careless.model_.loss < 0.5 * single.model_.loss


def test_pool_and_mixture_are_at_their_optimum() -> None:
    generator = np.random.default_rng(3)
    experts = np.stack([log_softmax(2 * generator.normal(size=(80, 4)), axis=1) for _ in range(3)])
    codes, weights = generator.integers(4, size=80), generator.random(80)

    def loss(v: Any) -> float:
        scores = np.tensordot(v, experts, 1)
        own = (scores - logsumexp(scores, axis=1, keepdims=True))[np.arange(80), codes]
        deviations = np.array([v.sum() - 1, *v[1:]]) / SPREAD
        return float(-weights @ own + deviations @ deviations / 2)

    found = fit_pool(torch.from_numpy(experts), torch.from_numpy(codes), torch.from_numpy(weights)).numpy()
    np.testing.assert_allclose(found, minimize(loss, np.array([1.0, 0.0, 0.0]), tol=1e-12).x, atol=1e-5)
    own = generator.random((4, 80))
    shares = fit_mixture(torch.from_numpy(own), torch.from_numpy(weights)).numpy()

    def mixture_loss(logits: Any) -> float:
        s = softmax(logits)
        return float(-weights @ np.log(s @ own) - np.array(PSEUDO_COUNTS) @ np.log(s))

    np.testing.assert_allclose(shares, softmax(minimize(mixture_loss, np.zeros(4), tol=1e-14).x), atol=1e-5)


def test_bandwidth_and_background_have_the_lowest_leave_one_out_loss(problem: Any) -> None:
    """Without logits, of classes of one frequency: the network's part is about 1/3."""
    rows = np.concatenate([np.flatnonzero(problem.labels == label)[:20] for label in range(3)])
    x, y = problem.embeddings[rows], problem.labels[rows]
    blend = KCalBlend().fit(x, y)

    def loss(bandwidth: float, background: float) -> float:
        each = [kernel_counts(x[[i]], np.delete(x, i, 0), np.delete(y, i), bandwidth)[0] for i in range(60)]
        shares = [
            (background / 3 + counts[label]) / (background + counts.sum())
            for counts, label in zip(each, y, strict=True)
        ]
        return -float(np.log(shares).mean())

    found = loss(blend.bandwidth_, blend.background_)
    for bandwidth in (blend.bandwidth_ * 2**0.5, blend.bandwidth_ / 2**0.5):
        assert found < loss(bandwidth, blend.background_)
    for background in (1e-3, 0.05, 1.0, 10.0):
        assert found <= loss(blend.bandwidth_, background)


def known_problem(n: int, seed: int, *, n_test: int = 2000) -> Any:
    """Return embeddings in the plane, a network that sees only half of the truth, labels, and the truth."""
    generator = np.random.default_rng(seed)
    points = generator.uniform(-2, 2, size=(n + n_test, 2))
    true = log_softmax(
        np.stack([2 * np.sin(2 * points[:, 0]), 2 * points[:, 1], np.cos(3 * points[:, 1])], axis=1), axis=1
    )
    network = 2.0 * np.stack([0 * points[:, 0], 2 * points[:, 1], np.cos(3 * points[:, 1])], axis=1)
    labels = (true + generator.gumbel(size=true.shape)).argmax(axis=1)
    return points, network, labels, np.exp(true)


def test_the_error_falls_as_samples_grow() -> None:
    errors = []
    for n in (60, 600, 4000):
        points, logits, labels, truth = known_problem(n, seed=1)
        blend = KCalBlend().fit(points[:n], labels[:n], logits=logits[:n])
        found = blend.predict_proba(points[n:], logits=logits[n:])
        errors.append(float(np.abs(found - truth[n:]).sum(axis=1).mean()))
    assert errors[0] > 1.3 * errors[1] > 1.3 * 1.3 * errors[2]
    assert errors[2] < 0.16


def test_embeddings_of_noise_leave_the_network_and_logits_of_noise_the_samples() -> None:
    generator = np.random.default_rng(0)
    points, logits, labels, _ = known_problem(1500, seed=2)
    cal, test = slice(0, 1500), slice(1500, None)
    noise = generator.normal(size=points.shape)
    network = TemperatureScaling().fit(logits[cal], labels[cal]).predict_proba(logits[test])
    blend = KCalBlend().fit(noise[cal], labels[cal], logits=logits[cal])
    with_noise = negative_log_likelihood(blend.predict_proba(noise[test], logits=logits[test]), labels[test])
    assert with_noise < negative_log_likelihood(network, labels[test]) + 0.005
    useless = generator.normal(size=logits.shape)
    blend = KCalBlend().fit(points[cal], labels[cal], logits=useless[cal])
    estimate = KCal(projection="identity").fit(points[cal], labels[cal]).predict_proba(points[test])
    without = negative_log_likelihood(blend.predict_proba(points[test], logits=useless[test]), labels[test])
    assert without < negative_log_likelihood(estimate, labels[test]) + 0.01


def test_a_network_that_is_wrong_and_certain_is_overruled() -> None:
    """In one region of the embeddings the network gives the right class a probability of about e⁻²⁰."""
    generator = np.random.default_rng(5)
    labels = generator.integers(3, size=1200)
    x = np.zeros((1200, 20))
    x[np.arange(1200), labels] = 3
    wrong = generator.random(1200) < 0.2
    x[wrong, 10] = 6
    x += 0.5 * generator.normal(size=x.shape)
    logits = 20.0 * np.eye(3)[np.where(wrong, (labels + 1) % 3, labels)]
    cal, test = slice(0, 600), slice(600, None)
    blend = KCalBlend().fit(x[cal], labels[cal], logits=logits[cal])
    found = blend.predict_proba(x[test], logits=logits[test])
    right = found[np.arange(600), labels[test]]
    assert np.median(right[wrong[test]]) > 0.8
    assert np.median(right[~wrong[test]]) > 0.9


def test_outputs_that_never_occur_become_unlikely() -> None:
    """A network of 30 outputs where ten occur; a quarter of its predictions are of the others."""
    generator = np.random.default_rng(6)
    labels = generator.integers(10, size=3000)
    logits = generator.normal(size=(3000, 30))
    logits[np.arange(3000), labels] += 3
    strays = generator.random(3000) < 0.25
    logits[strays, generator.integers(10, 30, size=strays.sum())] += 4
    x = generator.normal(size=(3000, 20)) + 2 * np.eye(20)[labels]
    cal, test = slice(0, 300), slice(300, None)
    found = KCalBlend().fit(x[cal], labels[cal], logits=logits[cal]).predict_proba(x[test], logits=logits[test])
    among_own = softmax(logits[test][:, :10], axis=1)
    assert found[:, 10:].sum(axis=1).mean() < 0.05
    assert (found[:, 10:] > 0).all()  # 300 samples do not exclude a class
    assert negative_log_likelihood(found, labels[test]) < negative_log_likelihood(among_own, labels[test])


@pytest.mark.parametrize("n", [30, 100])
@pytest.mark.filterwarnings("ignore::kcal.errors.KcalWarning")
def test_few_samples_without_an_error_do_not_make_certain(n: int) -> None:
    example = load_example()
    given, test = example.calibration, example.test
    right = np.flatnonzero(given.logits.argmax(axis=1) == given.labels)[:n]
    blend = KCalBlend().fit(given.embeddings[right], given.labels[right], logits=given.logits[right])
    rows = slice(0, 1500)
    found = blend.predict_proba(test.embeddings[rows], logits=test.logits[rows])
    assert 1 - found.max(axis=1).mean() > 1 / (n + 2)
    if n == 30:
        uncalibrated = negative_log_likelihood(softmax(test.logits[rows], axis=1), test.labels[rows])
        assert negative_log_likelihood(found, test.labels[rows]) < 1.1 * uncalibrated
    assert found.min() > 0


@pytest.mark.parametrize("n", [20, 40, 80])
@pytest.mark.filterwarnings("ignore::kcal.errors.KcalWarning")
def test_a_handful_of_samples_leaves_much_to_the_network(n: int) -> None:
    """Of ten classes of the embedded example, some then have one sample or none."""
    example = load_example()
    given, test, rows = example.calibration, example.test, slice(0, 1500)
    uncalibrated = negative_log_likelihood(softmax(test.logits[rows], axis=1), test.labels[rows])
    for seed in range(4):
        chosen = np.random.default_rng(seed).permutation(len(given.labels))[:n]
        blend = KCalBlend().fit(given.embeddings[chosen], given.labels[chosen], logits=given.logits[chosen])
        found = blend.predict_proba(test.embeddings[rows], logits=test.logits[rows])
        assert negative_log_likelihood(found, test.labels[rows]) < 1.05 * uncalibrated


def test_far_from_all_samples_the_kernel_estimate_is_the_network(blend: KCalBlend) -> None:
    far = 1e3 * np.array([[1.0], [-1.0], [7.0]]) * np.ones((3, 6))
    logits = np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.5]])
    explanation = blend.explain(far, logits=logits)
    assert explanation.shares.sum() + explanation.rest.sum() == pytest.approx(0, abs=1e-9)  # of the samples
    probs = blend.predict_proba(far, logits=logits)
    again = blend.predict_proba(1e6 * far, logits=logits)  # the refit does not extrapolate either
    np.testing.assert_allclose(again, probs, atol=1e-6)
