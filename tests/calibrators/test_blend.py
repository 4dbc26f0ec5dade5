"""KCal blended with the network: its formula, its fallback, out-of-fold inputs, and more data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logsumexp, softmax

from kcal import FastRecipe, KCal, KCalBlend, TemperatureScaling, train_projection
from kcal.calibrators.blend.class_frequencies import likely_frequencies
from kcal.calibrators.blend.fitting import split_by_class_left, with_leave_out_sums
from kcal.calibrators.blend.network import NetworkFit, cross_fit_network
from kcal.calibrators.holdout import fold_codes, stratified_folds
from kcal.calibrators.kcal.samples import Samples, check_samples
from kcal.kernels import sort_support
from kcal.metrics import negative_log_likelihood
from quick_blend import QUICK, blend_of


@pytest.fixture(scope="module")
def plain_blend(problem: Any) -> KCalBlend:
    """Return a blend without a learned metric."""
    return KCalBlend(projection=None).fit(problem.embeddings, problem.labels, logits=problem.logits)


def kernel_sums(queries: Any, points: Any, labels: Any, bandwidth: float) -> Any:
    """Return log Σ exp(−‖x_i − q‖²/(2·d·b²)) by class, one query after the other."""
    result = np.full((len(queries), labels.max() + 1), -np.inf)
    for row, query in enumerate(queries):
        exponents = -((points - query) ** 2).sum(axis=1) / (2 * points.shape[1] * bandwidth**2)
        for k in range(result.shape[1]):
            if (labels == k).any():
                result[row, k] = logsumexp(exponents[labels == k])
    return result


def test_predictions_are_the_documented_formula(plain_blend: KCalBlend, problem: Any) -> None:
    blend = plain_blend
    x, y, queries = problem.embeddings, problem.labels, problem.test_embeddings[:40]
    b = blend.bandwidths_["identity"]
    assert b == pytest.approx(KCal(projection="identity").fit(x, y).bandwidth_)
    frequencies = likely_frequencies(np.bincount(y))
    assert np.ptp(frequencies) < np.ptp(np.bincount(y) / len(y))
    likely = np.log(frequencies * len(y) / np.bincount(y))
    pooled = np.tile(blend.bias_, (40, 1))
    evidence = {}
    for scale in (0.5, 1.0, 2.0):
        own = np.stack([kernel_sums(x[[i]], np.delete(x, i, 0), np.delete(y, i), b * scale)[0] for i in range(len(x))])
        counts = np.bincount(y)
        own[np.arange(len(x)), y] += np.log(counts / (counts - 1))[y]  # as if the whole class had been there
        total = logsumexp(own + likely, axis=1)
        median = np.sort(total)[(len(total) - 1) // 2]  # the lower of two medians
        sums = kernel_sums(queries, x, y, b * scale) + likely
        mass = np.logaddexp(sums, np.log(frequencies) + median + np.log(blend.background_))
        pooled += blend.weights_[f"identity × {scale:.3g}"] * log_softmax(mass, axis=1)
        evidence[scale] = (logsumexp(sums, axis=1), np.quantile(total, 0.01))
    scaled = TemperatureScaling().fit(problem.logits, y).predict_log_proba(problem.test_logits[:40])
    pooled += blend.weights_["ts"] * scaled
    assert set(blend.weights_) == {"identity × 0.5", "identity × 1", "identity × 2", "ts"}
    near = 1 / (1 + np.exp(4 * (evidence[1.0][1] - evidence[1.0][0])))[:, None]
    answer = log_softmax(near * pooled + (1 - near) * scaled, axis=1)
    unsure = -(np.exp(answer) * answer).sum(axis=1, keepdims=True) / np.log(3)
    made = blend.sharpness_
    assert made.slope != 0
    expected = softmax(np.exp(near * (made.level + made.slope * (unsure - made.middle))) * answer, axis=1)
    np.testing.assert_allclose(blend.predict_proba(queries, logits=problem.test_logits[:40]), expected, atol=1e-6)
    np.testing.assert_allclose(blend.gate(queries), near[:, 0], atol=1e-6)


def samples_of(problem: Any, groups: Any = None) -> Samples:
    return check_samples(torch.from_numpy(problem.embeddings), problem.labels, classes=None, groups=groups)


def network_fit(problem: Any, groups: Any = None, *, seed: int = 0) -> NetworkFit:
    log_probs = torch.log_softmax(torch.from_numpy(problem.logits).double(), dim=1)
    return cross_fit_network(log_probs, samples_of(problem, groups), choice="ts", folds=5, seed=seed)


def test_out_of_fold_predictions_of_the_network_are_fitted_on_the_other_folds(problem: Any) -> None:
    out_of_fold = network_fit(problem, seed=3).out_of_fold[0].numpy()
    folds = stratified_folds(problem.labels, 5, 3)
    for fold in range(5):
        inside, outside = folds == fold, folds != fold
        scaling = TemperatureScaling().fit(problem.logits[outside], problem.labels[outside])
        np.testing.assert_allclose(out_of_fold[inside], scaling.predict_log_proba(problem.logits[inside]), atol=1e-12)


def test_the_label_of_a_sample_does_not_enter_its_leave_out_sums(plain_blend: KCalBlend, problem: Any) -> None:
    expert = plain_blend.model_.experts[0]
    before = expert.leave_out_sums(None, np.arange(len(expert.support))).log()[:, 5].exp()
    labels = problem.labels.copy()
    labels[5] = (labels[5] + 1) % 3
    points = torch.from_numpy(problem.embeddings)
    other = replace(expert, support=sort_support(points, torch.from_numpy(labels), 3))
    torch.testing.assert_close(
        other.leave_out_sums(None, np.arange(len(other.support))).log()[:, 5].exp(), before, rtol=1e-9, atol=1e-12
    )


def test_the_fit_of_the_pool_uses_the_formula_of_the_prediction(problem: Any) -> None:
    """At the fitted weights, the mean out-of-fold loss of the model's own formula is the loss of the pool."""
    blend = KCalBlend(projection=None, sharpness=0.0).fit(problem.embeddings, problem.labels, logits=problem.logits)
    samples, network = samples_of(problem), network_fit(problem)
    model, sums = with_leave_out_sums(blend.model_, samples, np.arange(len(samples.codes)))
    seen, unseen = split_by_class_left(model, samples, np.arange(len(samples.codes)), sums, network)
    assert len(unseen.samples.codes) == 0
    assert seen.loss(blend.model_) / 240 == pytest.approx(blend.model_.pool.loss, rel=1e-9)


def test_the_fitted_blend_holds_nothing_of_the_size_of_the_out_of_fold_predictions(plain_blend: KCalBlend) -> None:
    model = plain_blend.model_
    assert {type(part).__name__ for part in model.network} == {"TemperatureModel"}
    stored = plain_blend.state().tensors
    assert all(
        len(tensor) != 240
        for name, tensor in stored.items()
        if not any(part in name for part in ("support", "reference", "fingerprints")) and tensor.ndim > 1
    )


def test_groups_are_left_out_whole_by_estimates_and_network(problem: Any) -> None:
    groups = np.arange(240) % 6
    blend = KCalBlend(projection=None).fit(problem.embeddings, problem.labels, logits=problem.logits, groups=groups)
    sums = blend.model_.experts[0].leave_out_sums(torch.from_numpy(groups), np.arange(len(groups))).log()[1, 7].numpy()
    others = groups != groups[7]
    expected = kernel_sums(
        problem.embeddings[[7]], problem.embeddings[others], problem.labels[others], blend.bandwidths_["identity"]
    )
    np.testing.assert_allclose(sums, expected[0], atol=1e-9)
    folds = fold_codes(problem.labels, 5, groups, 0)
    assert all(len(np.unique(folds[groups == group])) == 1 for group in range(6))
    inside, outside = folds == folds[7], folds != folds[7]
    scaling = TemperatureScaling().fit(problem.logits[outside], problem.labels[outside])
    np.testing.assert_allclose(
        network_fit(problem, groups).out_of_fold[0].numpy()[inside],
        scaling.predict_log_proba(problem.logits[inside]),
        atol=1e-12,
    )


def test_far_from_all_samples_the_prediction_is_that_of_the_network_and_without_logits_the_frequencies(
    problem: Any,
) -> None:
    far = np.full((3, 6), 1e3) * np.array([[1.0], [-1.0], [7.0]])
    logits = np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.5]])
    blend = blend_of(problem)
    np.testing.assert_allclose(blend.gate(far), 0.0, atol=1e-12)
    network = TemperatureScaling().fit(problem.logits, problem.labels).predict_proba(logits)
    np.testing.assert_allclose(blend.predict_proba(far, logits=logits), network, atol=1e-9)
    frequencies = likely_frequencies(np.bincount(problem.labels))
    alone = KCalBlend(projection=None).fit(problem.embeddings, problem.labels)
    np.testing.assert_allclose(alone.predict_proba(far), np.tile(frequencies, (3, 1)), atol=1e-9)
    plain = KCal(projection="identity").fit(problem.embeddings, problem.labels)
    assert plain.predict_proba(far).max(axis=1).min() > 0.999  # what KCal says there: the nearest sample's class
    assert blend.gate(problem.test_embeddings).mean() > 0.95


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


def test_as_samples_grow_the_estimates_gain_weight_and_the_error_goes_to_zero() -> None:
    errors, shares = [], []
    for n in (60, 600, 4000):
        points, logits, labels, truth = known_problem(n, seed=1)
        blend = KCalBlend(projection=None).fit(points[:n], labels[:n], logits=logits[:n])
        found = blend.predict_proba(points[n:], logits=logits[n:])
        errors.append(float(np.abs(found - truth[n:]).sum(axis=1).mean()))
        weights = blend.weights_
        shares.append(sum(value for name, value in weights.items() if name not in ("ts", "sms")))
    assert errors[0] > 1.5 * errors[1] > 1.5 * 1.5 * errors[2]
    assert errors[2] < 0.1
    assert shares[0] < shares[2]
    assert shares[2] > 0.6


@pytest.mark.filterwarnings("ignore::kcal.errors.ConvergenceWarning")
def test_embeddings_that_tell_nothing_leave_the_network_and_logits_that_tell_nothing_the_estimates() -> None:
    generator = np.random.default_rng(0)
    points, logits, labels, _ = known_problem(1500, seed=2)
    cal, test = slice(0, 1500), slice(1500, None)
    noise = generator.normal(size=points.shape)
    network = TemperatureScaling().fit(logits[cal], labels[cal]).predict_proba(logits[test])
    blend = KCalBlend(projection=None).fit(noise[cal], labels[cal], logits=logits[cal])
    with_noise = negative_log_likelihood(blend.predict_proba(noise[test], logits=logits[test]), labels[test])
    assert with_noise < negative_log_likelihood(network, labels[test]) + 0.005
    useless = generator.normal(size=logits.shape)
    blend = KCalBlend(projection=None).fit(points[cal], labels[cal], logits=useless[cal])
    estimate = KCal(projection="identity").fit(points[cal], labels[cal]).predict_proba(points[test])
    without = negative_log_likelihood(blend.predict_proba(points[test], logits=useless[test]), labels[test])
    assert without < negative_log_likelihood(estimate, labels[test]) + 0.005


def test_the_blend_beats_both_of_its_halves(problem: Any) -> None:
    points, logits, labels, _ = known_problem(1500, seed=3)
    cal, test = slice(0, 1500), slice(1500, None)
    blend = KCalBlend(projection=None).fit(points[cal], labels[cal], logits=logits[cal])
    found = negative_log_likelihood(blend.predict_proba(points[test], logits=logits[test]), labels[test])
    network = TemperatureScaling().fit(logits[cal], labels[cal]).predict_proba(logits[test])
    estimate = KCal(projection="identity").fit(points[cal], labels[cal]).predict_proba(points[test])
    assert found < negative_log_likelihood(network, labels[test])
    assert found < negative_log_likelihood(estimate, labels[test]) + 0.002


@pytest.mark.filterwarnings("ignore::kcal.errors.BandwidthWarning")
def test_matrix_scaling_joins_where_it_is_better_and_only_there() -> None:
    generator = np.random.default_rng(0)
    true = log_softmax(2 * generator.normal(size=(2000, 3)), axis=1)
    labels = (true + generator.gumbel(size=true.shape)).argmax(axis=1)
    noise = generator.normal(size=(2000, 3))
    skewed = true @ np.array([[1.0, 0.8, 0.0], [0.0, 1.0, 0.0], [-0.8, 0.0, 1.0]]).T
    assert "sms" in KCalBlend(projection=None).fit(noise, labels, logits=skewed).weights_
    assert "sms" not in KCalBlend(projection=None).fit(noise, labels, logits=true).weights_


def test_each_ingredient_can_be_left_out(problem: Any) -> None:
    far = np.full((1, 6), 1e3)
    logits = np.array([[1.0, 0.0, 0.0]])

    def fitted(**parameters: Any) -> KCalBlend:
        blend = KCalBlend(projection=None, **parameters)
        return blend.fit(problem.embeddings, problem.labels, logits=problem.logits)

    assert (fitted(bias=0).bias_ == 0).all()
    assert np.ptp(fitted(bias=0.1).bias_) > 0
    assert list(fitted(bandwidth_factors=(1,)).weights_) == ["identity × 1", "ts"]
    assert "sms" in fitted(network_calibrator="sms").weights_
    assert "sms" not in fitted(network_calibrator="ts").weights_
    assert fitted(background=0.01).background_ == 0.01
    never = fitted(fallback_quantile=0, background=1e-9)
    assert never.gate(far)[0] == 1.0
    network = TemperatureScaling().fit(problem.logits, problem.labels).predict_proba(logits)
    assert np.abs(never.predict_proba(far, logits=logits) - network).max() > 0.01
    loaded = KCalBlend.from_state(never.state())
    np.testing.assert_array_equal(loaded.predict_proba(far, logits=logits), never.predict_proba(far, logits=logits))


def test_a_learned_metric_takes_part_and_a_trained_projection_does_as_well(problem: Any) -> None:
    blend = blend_of(problem)
    trained = train_projection(problem.train_embeddings, problem.train_labels, recipe=QUICK)
    again = KCalBlend(projection=trained).fit(problem.embeddings, problem.labels, logits=problem.logits)
    rows = {"X": problem.test_embeddings, "logits": problem.test_logits}
    assert set(blend.bandwidths_) <= {"identity", "learned"}
    np.testing.assert_allclose(again.predict_proba(**rows), blend.predict_proba(**rows), atol=1e-6)


def test_long_embeddings_are_compared_by_direction() -> None:
    generator = np.random.default_rng(0)
    rows, labels = generator.normal(size=(200, 20)), np.arange(200) % 2
    rows[labels == 1, 0] += 2
    blend = KCalBlend().fit(rows, labels)
    assert list(blend.bandwidths_) == ["unit"]
    queries = generator.normal(size=(10, 20))
    np.testing.assert_allclose(blend.predict_proba(9.0 * queries), blend.predict_proba(queries), atol=1e-9)


def test_a_prior_is_what_the_field_has_and_the_answers_presume_what_is_likely_of_the_calibration_set() -> None:
    """Where p(y | x) is known, the prior of another field leads to the p(y | x) of that field."""
    before, after = np.array([0.6, 0.25, 0.15]), np.array([0.1, 0.3, 0.6])
    generator = np.random.default_rng(3)
    labels = generator.choice(3, size=4000, p=before)
    points = np.array([[-1.0], [0.3], [1.6]])[labels] + generator.normal(size=(4000, 1))
    likelihood = np.exp(-0.5 * (points - np.array([-1.0, 0.3, 1.6])) ** 2)
    true = [likelihood * prior / (likelihood * prior).sum(axis=1, keepdims=True) for prior in (before, after)]
    fit = {"X": points[:2000], "y": labels[:2000], "logits": np.log(true[0][:2000])}
    blend = KCalBlend(projection=None).fit(**fit)
    np.testing.assert_allclose(blend.frequencies_, before, atol=0.02)
    queries, logits = points[2000:], np.log(true[0][2000:])
    assert np.abs(blend.predict_proba(queries, logits=logits) - true[0][2000:]).mean() < 0.015
    moved = KCalBlend(projection=None, prior=after).fit(**fit)
    assert np.abs(moved.predict_proba(queries, logits=logits) - true[1][2000:]).mean() < 0.02
    single = moved.predict_log_proba(queries.astype(np.float32), logits=(300 * logits).astype(np.float32))
    assert np.isfinite(single).all()  # however sure the network is
    moved.model_ = replace(moved.model_, prior=torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64))
    ruled_out = moved.predict_proba(queries, logits=logits)
    assert (ruled_out[:, 2] == 0).all()
    np.testing.assert_allclose(ruled_out.sum(axis=1), 1.0)


def test_a_prior_shifts_the_answer_as_bayes_says(problem: Any) -> None:
    blend = blend_of(problem)
    plain = blend.predict_proba(problem.test_embeddings, logits=problem.test_logits)
    prior = np.array([0.7, 0.2, 0.1])
    frequencies = likely_frequencies(np.bincount(problem.labels))
    expected = plain * prior / frequencies
    moved = blend_of(problem, prior=prior).predict_proba(problem.test_embeddings, logits=problem.test_logits)
    np.testing.assert_allclose(moved, expected / expected.sum(axis=1, keepdims=True), atol=1e-9)


def test_weights_are_compared_with_each_other_and_zero_leaves_a_sample_out(problem: Any) -> None:
    rows = {"X": problem.test_embeddings, "logits": problem.test_logits}
    weights = np.random.default_rng(0).integers(0, 4, 240).astype(float)

    def answer(keep: Any, given: Any) -> Any:
        blend = KCalBlend(projection=None).fit(
            problem.embeddings[keep], problem.labels[keep], logits=problem.logits[keep], sample_weight=given
        )
        return blend.predict_proba(**rows)

    everyone = np.ones(240, dtype=bool)
    found = answer(everyone, weights)
    np.testing.assert_allclose(answer(everyone, weights / 240), found, atol=1e-6)
    np.testing.assert_allclose(answer(weights > 0, weights[weights > 0]), found, atol=1e-6)
    assert np.abs(answer(everyone, None) - found).max() > 1e-3
    np.testing.assert_allclose(answer(everyone, np.full(240, 3.0)), answer(everyone, None), atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_a_start_that_is_another_metric_is_kept_and_one_that_is_the_same_is_not(problem: Any) -> None:
    trained = train_projection(problem.train_embeddings, problem.train_labels, recipe=FastRecipe(steps=1))
    start = replace(trained, checkpoints=trained.checkpoints[:1], steps=(0,))
    blend = KCalBlend(projection=start).fit(problem.embeddings * [1, 1, 1, 9, 9, 9], problem.labels)
    assert any(name.startswith("learned") for name in blend.weights_)
    generator = np.random.default_rng(0)
    long = generator.normal(size=(200, 20)).astype(np.float32)
    labels = generator.integers(3, size=200)
    turned = train_projection(long, labels, recipe=FastRecipe(steps=1))
    same = replace(turned, checkpoints=turned.checkpoints[:1], steps=(0,))
    assert not any(name.startswith("learned") for name in KCalBlend(projection=same).fit(long, labels).weights_)


def test_a_query_very_far_away_gets_probabilities_without_a_fallback(problem: Any) -> None:
    blend = KCalBlend(projection=None, fallback_quantile=0).fit(problem.embeddings, problem.labels)
    answer = blend.predict_proba(np.full((1, 6), 1e17, dtype=np.float32))
    assert np.isfinite(answer).all()


def test_parameters_changed_after_the_fit_change_no_prediction(problem: Any) -> None:
    blend = KCalBlend(projection=None).fit(problem.embeddings, problem.labels, logits=problem.logits)
    rows = {"X": problem.test_embeddings, "logits": problem.test_logits}
    before = blend.predict_proba(**rows)
    blend.set_params(prior=[0.9, 0.05, 0.05], representation="probabilities", bandwidth_factors=(1,), sharpness=-1)
    np.testing.assert_array_equal(blend.predict_proba(**rows), before)


def test_log_evidence_is_the_density_of_the_first_metric(plain_blend: KCalBlend, problem: Any) -> None:
    kcal = KCal(projection="identity", bandwidth=plain_blend.bandwidths_["identity"])
    kcal.fit(problem.embeddings, problem.labels)
    np.testing.assert_allclose(
        plain_blend.log_evidence(problem.test_embeddings), kcal.log_evidence(problem.test_embeddings), atol=1e-12
    )
