"""KCalBlend: its formula by loops, its parts against slow oracles, and what it must do with few, many and odd data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from kcal.calibrators.kcal.model import sorted_support
from scipy.optimize import minimize
from scipy.special import log_softmax, logsumexp, softmax

from kcal import KCal, KCalBlend, TemperatureScaling
from kcal.calibrators.blend.kernel import choose_bandwidth
from kcal.calibrators.blend.network import LeaveOut, fit_network, group_efficiency
from kcal.calibrators.blend.pool import PSEUDO_COUNTS, SPREAD, fit_mixture, fit_pool
from kcal.datasets import load_example
from kcal.metrics import negative_log_likelihood
from kcal.samples import check_samples
from quick_blend import blend_of
from two_input_problems import prior_penalty


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
    formula = blend.model_.formula
    network = formula.network
    temperatures = zip(network.temperatures.tolist(), network.temperature_weights.tolist(), strict=True)
    n = sum(u * softmax(logits / t, axis=1) for t, u in temperatures)
    corrected = [n * factors / (n * factors).sum(axis=1, keepdims=True) for factors in network.factors.numpy()]
    f = sum(v * each for v, each in zip(network.factor_weights.numpy(), corrected, strict=True))
    r = softmax(
        formula.refit.factor * log_softmax(logits, axis=1)
        + queries @ formula.refit.weights.numpy()
        + formula.refit.bias.numpy(),
        axis=1,
    )
    counts = kernel_counts(queries, problem.embeddings.astype(float), problem.labels, blend.bandwidth_)
    d = (blend.background_ * f + counts) / (blend.background_ + counts.sum(axis=1, keepdims=True))
    in_pool = (formula.pool_background * f + counts) / (formula.pool_background + counts.sum(axis=1, keepdims=True))
    w = blend.weights_
    pool = f ** w["network"] * r ** w["refit"] * in_pool ** w["samples"]
    shares = blend.shares_
    assert sum(shares.values()) == pytest.approx(1)
    expected = shares["pool"] * pool / pool.sum(axis=1, keepdims=True)
    expected += shares["network"] * f + shares["refit"] * r + shares["samples"] * d
    inside = np.linalg.norm(queries - formula.centre.numpy(), axis=1) < formula.radius
    found = blend.predict_proba(queries, logits=logits)
    np.testing.assert_allclose(found[inside], expected[inside], atol=1e-6)
    assert inside.sum() > 20


def test_the_network_is_averaged_over_the_posterior_of_its_temperature(problem: Any) -> None:
    """Against a dense integral, with weights; one class factor of a large strength would change nothing."""
    log_probs = torch.log_softmax(torch.from_numpy(problem.logits).double(), dim=1)[:25]
    codes, weights = torch.from_numpy(problem.labels[:25]), torch.linspace(0.5, 1.5, 25, dtype=torch.float64)
    model, _ = fit_network(log_probs, codes, LeaveOut(weights, None), torch.arange(25))
    grid = np.linspace(-3, 4, 4001)
    losses = np.array([
        weights.numpy() @ log_softmax(log_probs.numpy() / np.exp(t), axis=1)[np.arange(25), codes] for t in grid
    ])  # fmt: skip
    posterior = np.exp(losses - prior_penalty(grid) - losses.max())
    expected = (posterior * np.exp(grid)).sum() / posterior.sum()
    assert model.temperature == pytest.approx(expected, rel=2e-3)


def test_class_factors_are_those_of_a_gamma_posterior() -> None:
    """A network that predicts three classes equally often, of which the third never occurs."""
    generator = np.random.default_rng(0)
    labels = torch.from_numpy(generator.integers(2, size=400))
    log_probs = torch.log_softmax(torch.from_numpy(0.1 * generator.normal(size=(400, 3))), dim=1)
    leave_out = LeaveOut(torch.ones(400, dtype=torch.float64), None)
    model, out_of_fold = fit_network(log_probs, labels, leave_out, torch.arange(400))
    predicted = model.probs(log_probs)
    assert float(predicted[:, 2].mean()) < 0.005
    np.testing.assert_allclose(out_of_fold[:, 2], predicted[:, 2], atol=0.005)
    few, _ = fit_network(log_probs[:3], labels[:3], LeaveOut(leave_out.weights[:3], None), torch.arange(3))
    assert float(few.probs(log_probs)[:, 2].mean()) > 0.05  # three samples do not exclude a class


@pytest.mark.parametrize("grouped", [False, True])
def test_leave_out_sums_are_sums_over_the_others(grouped: bool) -> None:
    generator = np.random.default_rng(1)
    values, weights = generator.normal(size=(20, 4)), generator.random(20)
    groups = generator.integers(5, size=20) if grouped else np.arange(20)
    leave_out = LeaveOut(torch.from_numpy(weights), torch.from_numpy(groups) if grouped else None)
    found = leave_out.sums(torch.from_numpy(values), torch.tensor([3, 7, 11]))
    for row, i in zip(found.numpy(), (3, 7, 11), strict=True):
        others = groups != groups[i]
        np.testing.assert_allclose(row, weights[others] @ values[others], atol=1e-12)


def test_rows_of_a_group_that_err_together_count_less() -> None:
    generator = np.random.default_rng(2)
    log_probs = torch.log_softmax(torch.from_numpy(generator.normal(size=(600, 3))), dim=1)
    independent = torch.from_numpy((log_probs.numpy() + generator.gumbel(size=(600, 3))).argmax(axis=1))
    groups = torch.arange(600) // 20
    assert group_efficiency(log_probs, independent, None) == 1.0
    assert group_efficiency(log_probs, independent, groups) > 0.7
    together = groups % 3
    assert group_efficiency(log_probs, together, groups) < 0.1


def test_pool_and_mixture_are_at_their_optimum() -> None:
    generator = np.random.default_rng(3)
    experts = np.stack([log_softmax(2 * generator.normal(size=(80, 4)), axis=1) for _ in range(3)])
    codes, weights = generator.integers(4, size=80), generator.random(80)
    rows = np.arange(80)

    def loss(v: Any) -> float:
        scores = np.tensordot(v, experts, 1)
        own = (scores - logsumexp(scores, axis=1, keepdims=True))[rows, codes]
        deviations = np.array([v.sum() - 1, *v[1:]]) / SPREAD
        return float(-weights @ own + deviations @ deviations / 2)

    found = fit_pool(torch.from_numpy(experts), torch.from_numpy(codes), torch.from_numpy(weights)).numpy()
    best = minimize(loss, np.array([1.0, 0.0, 0.0]), tol=1e-12)
    np.testing.assert_allclose(found, best.x, atol=1e-5)

    own = generator.random((4, 80))
    shares = fit_mixture(torch.from_numpy(own), torch.from_numpy(weights)).numpy()

    def mixture_loss(logits: Any) -> float:
        s = softmax(logits)
        return float(-weights @ np.log(s @ own) - np.array(PSEUDO_COUNTS) @ np.log(s))

    np.testing.assert_allclose(shares, softmax(minimize(mixture_loss, np.zeros(4), tol=1e-14).x), atol=1e-5)


def test_bandwidth_and_background_have_the_lowest_leave_one_out_loss(problem: Any) -> None:
    rows = slice(0, 60)
    x, y = problem.embeddings[rows].astype(np.float64), problem.labels[rows]
    samples = check_samples(torch.from_numpy(x), y, classes=range(3))
    network = torch.full((60, 3), 1 / 3, dtype=torch.float64)
    found, _ = choose_bandwidth(sorted_support(samples, torch.from_numpy(x)), samples, network, torch.arange(60), "rbf")

    def loss(bandwidth: float) -> float:
        own, mass = np.empty(60), np.empty(60)
        for i in range(60):
            counts = kernel_counts(x[[i]], np.delete(x, i, 0), np.delete(y, i), bandwidth)[0]
            own[i], mass[i] = counts[y[i]], counts.sum()
        return min(-np.log((b / 3 + own) / (b + mass)).mean() for b in (1e-3, 1e-2, 0.05, 0.2, 0.5, 1, 2, 5, 10, 30))

    assert loss(found) < min(loss(found * 2**0.5), loss(found / 2**0.5))


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


def test_far_from_all_samples_the_kernel_estimate_is_the_network(blend: KCalBlend, problem: Any) -> None:
    far = 1e3 * np.array([[1.0], [-1.0], [7.0]]) * np.ones((3, 6))
    logits = np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.5]])
    experts = blend.model_.experts(torch.from_numpy(far), torch.from_numpy(logits))
    torch.testing.assert_close(experts.estimate, experts.pooled[0])
    probs = blend.predict_proba(far, logits=logits)
    again = blend.predict_proba(1e6 * far, logits=logits)  # the refit does not extrapolate either
    np.testing.assert_allclose(again, probs, atol=1e-6)


def test_without_logits_classes_follow_samples_and_frequencies(problem: Any) -> None:
    alone = KCalBlend().fit(problem.embeddings, problem.labels)
    assert not alone.needs_logits_
    estimate = KCal(projection="identity").fit(problem.embeddings, problem.labels)
    losses = [
        negative_log_likelihood(each.predict_proba(problem.test_embeddings), problem.test_labels)
        for each in (alone, estimate)
    ]
    assert losses[0] < losses[1] + 0.02


def test_long_embeddings_are_compared_by_direction() -> None:
    generator = np.random.default_rng(0)
    rows, labels = generator.normal(size=(200, 20)), np.arange(200) % 2
    rows[labels == 1, 0] += 2
    blend = KCalBlend().fit(rows, labels)
    assert blend.model_.metric == "unit"
    queries = generator.normal(size=(10, 20))
    np.testing.assert_allclose(blend.predict_proba(9.0 * queries), blend.predict_proba(queries), atol=1e-9)


def test_prior_shifts_the_probabilities_as_bayes_says(blend: KCalBlend, problem: Any) -> None:
    plain = blend.predict_proba(problem.test_embeddings, logits=problem.test_logits)
    prior = np.array([0.7, 0.2, 0.1])
    expected = plain * prior / blend.frequencies_
    moved = blend_of(problem, prior=prior).predict_proba(problem.test_embeddings, logits=problem.test_logits)
    np.testing.assert_allclose(moved, expected / expected.sum(axis=1, keepdims=True), atol=1e-6)
    np.testing.assert_allclose(blend.frequencies_, np.bincount(problem.labels) / 240, atol=0.01)


def test_weights_are_relative_and_zero_leaves_a_sample_out(problem: Any) -> None:
    rows = {"X": problem.test_embeddings, "logits": problem.test_logits}
    weights = np.random.default_rng(0).integers(0, 4, 240).astype(float)

    def answer(keep: Any, given: Any) -> Any:
        blend = KCalBlend().fit(
            problem.embeddings[keep], problem.labels[keep], logits=problem.logits[keep], sample_weight=given
        )
        return blend.predict_proba(**rows)

    everyone = np.ones(240, dtype=bool)
    found = answer(everyone, weights)
    np.testing.assert_allclose(answer(everyone, weights / 240), found, atol=1e-6)
    np.testing.assert_allclose(answer(weights > 0, weights[weights > 0]), found, atol=1e-6)
    assert np.abs(answer(everyone, None) - found).max() > 1e-3


@pytest.mark.filterwarnings("ignore")
def test_classes_in_a_group_of_their_own_do_not_mislead() -> None:
    generator = np.random.default_rng(1)
    labels = generator.permutation(np.arange(2300) % 3)
    logits = 4 * np.eye(3)[labels] + 1.5 * generator.normal(size=(2300, 3))
    x = generator.normal(size=(2300, 8)) + 1.5 * np.eye(8)[labels]
    cal, test = slice(0, 300), slice(300, None)
    uncalibrated = negative_log_likelihood(softmax(logits[test], axis=1), labels[test])
    for groups in (labels[cal], np.where(labels[cal] == 2, 0, np.arange(300) % 4)):
        blend = KCalBlend(seed=2**40).fit(x[cal], labels[cal], logits=logits[cal], groups=groups)
        found = negative_log_likelihood(blend.predict_proba(x[test], logits=logits[test]), labels[test])
        assert found < 1.1 * uncalibrated
        assert 0 < blend.group_efficiency_ <= 1


def test_parameters_changed_after_the_fit_change_no_prediction(problem: Any) -> None:
    blend = blend_of(problem)
    rows = {"X": problem.test_embeddings, "logits": problem.test_logits}
    before = blend.predict_proba(**rows)
    blend.set_params(prior=[0.9, 0.05, 0.05], representation="probabilities", folds=2)
    np.testing.assert_array_equal(blend.predict_proba(**rows), before)


def test_log_evidence_is_the_density_of_the_samples(blend: KCalBlend, problem: Any) -> None:
    kcal = KCal(projection="identity", bandwidth=blend.bandwidth_).fit(problem.embeddings, problem.labels)
    np.testing.assert_allclose(
        blend.log_evidence(problem.test_embeddings), kcal.log_evidence(problem.test_embeddings), atol=1e-12
    )


@pytest.mark.parametrize("unit", [0.02, 30.0])
def test_logits_of_another_unit_give_about_the_same(problem: Any, unit: float) -> None:
    losses = []
    for factor in (1.0, unit):
        blend = KCalBlend().fit(problem.embeddings, problem.labels, logits=factor * problem.logits)
        probs = blend.predict_proba(problem.test_embeddings, logits=factor * problem.test_logits)
        losses.append(negative_log_likelihood(probs, problem.test_labels))
    assert losses[1] < losses[0] + 0.01


def test_the_order_of_the_samples_matters_little() -> None:
    example = load_example()
    cal, test, rows = example.calibration, example.test, np.random.default_rng(0).permutation(300)
    probs = []
    for index in (np.arange(300), rows):
        blend = KCalBlend().fit(cal.embeddings[index], cal.labels[index], logits=cal.logits[index])
        probs.append(blend.predict_proba(test.embeddings[:2000], logits=test.logits[:2000]))
    assert np.abs(probs[0] - probs[1]).mean() < 0.004
    losses = [negative_log_likelihood(part, test.labels[:2000]) for part in probs]
    assert losses[0] == pytest.approx(losses[1], abs=0.004)
