"""The refit of the last layer: a minimum of its loss, its limit, and the choice of its penalty."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from kcal import LastLayerRefit
from kcal.samples import cross_folds
from two_input_problems import brute_force_temperature, label_loss, small_problem


def slow_loss(point: Any, base: Any, features: Any, labels: Any, weights: Any, penalty: float) -> float:
    """Return the penalised loss of c, a and W, flat in one array, by a loop over the samples."""
    c, a, matrix = point[0], point[1:4], point[4:].reshape(4, 3)
    losses = [
        -weights[i] * log_softmax((1 + c) * base[i] + features[i] @ matrix + a)[labels[i]] for i in range(len(labels))
    ]
    return float(np.sum(losses) + penalty / 2 * point[1:] @ point[1:] + max(penalty, 1 / 0.3**2) / 2 * c**2)


@pytest.mark.parametrize("penalty", [0.1, 3.0])
def test_no_direction_leads_down_from_the_solution(penalty: float) -> None:
    embeddings, logits, labels = small_problem(50, 0)
    weights = np.random.default_rng(1).uniform(0.5, 2.0, 50)
    weights /= weights.mean()
    fitted = LastLayerRefit(penalty=penalty).fit(embeddings, labels, logits=logits, sample_weight=weights)
    temperature = brute_force_temperature(logits, labels, weights)
    mean = weights @ embeddings / 50
    scale = np.sqrt(weights @ ((embeddings - mean) ** 2).sum(axis=1) / 50)
    base, features = log_softmax(logits, axis=1) / temperature, (embeddings - mean) / scale
    matrix, bias = scale * fitted.weights_, fitted.bias_ + mean @ fitted.weights_
    point = np.concatenate([[fitted.factor_ * temperature - 1], bias, matrix.ravel()])
    arguments = (base, features, labels, weights, penalty)
    for direction in np.eye(len(point)):
        ahead, behind = (slow_loss(point + step * direction, *arguments) for step in (1e-4, -1e-4))
        assert (ahead - behind) / 2e-4 == pytest.approx(0.0, abs=1e-4)  # the loss is convex: this is the minimum
    new, new_logits, _ = small_problem(20, 2)
    scores = fitted.factor_ * log_softmax(new_logits, axis=1) + new @ fitted.weights_ + fitted.bias_
    np.testing.assert_allclose(fitted.predict_proba(new, logits=new_logits), softmax(scores, axis=1), atol=1e-10)


def test_a_large_penalty_leaves_the_scaled_network() -> None:
    embeddings, logits, labels = small_problem(80, 3)
    fitted = LastLayerRefit(penalty=1e12).fit(embeddings, labels, logits=logits)
    expected = softmax(logits / brute_force_temperature(logits, labels), axis=1)
    np.testing.assert_allclose(fitted.predict_proba(embeddings, logits=logits), expected, atol=1e-7)


def test_units_and_origin_of_the_embeddings_play_no_part() -> None:
    embeddings, logits, labels = small_problem(80, 4)
    plain = LastLayerRefit().fit(embeddings, labels, logits=logits)
    moved = LastLayerRefit().fit(1000.0 * embeddings - 50.0, labels, logits=logits)
    assert moved.penalty_ == plain.penalty_
    np.testing.assert_allclose(
        moved.predict_proba(1000.0 * embeddings - 50.0, logits=logits),
        plain.predict_proba(embeddings, logits=logits),
        atol=1e-6,
    )


def test_the_penalty_is_weak_where_embeddings_inform_and_strong_where_they_do_not() -> None:
    embeddings, logits, labels = small_problem(400, 5)
    informed = LastLayerRefit().fit(embeddings, labels, logits=logits)
    noise = np.random.default_rng(6).normal(size=(400, 40))
    exact = log_softmax(1.5 * embeddings[:, :3], axis=1)  # the true posterior
    uninformed = LastLayerRefit().fit(noise, labels, logits=exact)
    assert informed.penalty_ <= 3.2
    assert uninformed.penalty_ >= 30
    new, new_logits, new_labels = small_problem(400, 7)
    scaled = log_softmax(new_logits / brute_force_temperature(logits, labels), axis=1)
    ours = informed.predict_log_proba(new, logits=new_logits)
    assert label_loss(ours, new_labels, np.ones(400)) < 0.9 * label_loss(scaled, new_labels, np.ones(400))


def test_what_is_common_to_a_group_is_not_taken_for_information() -> None:
    """All samples of a group have one label and one embedding, which is noise."""
    generator = np.random.default_rng(8)
    groups = np.repeat(np.arange(40), 10)
    embeddings = generator.normal(size=(40, 20))[groups]
    labels = generator.integers(0, 3, 40)[groups]
    logits = np.zeros((400, 3))
    by_sample = LastLayerRefit().fit(embeddings, labels, logits=logits)
    by_group = LastLayerRefit().fit(embeddings, labels, logits=logits, groups=groups)
    assert by_sample.penalty_ < 0.1
    assert by_group.penalty_ >= 30


def out_of_fold_likelihood(features: Any, base: Any, labels: Any, penalty: float, folds: Any) -> float:
    """Return the log-likelihood of each fold from the refit of the others, by a general optimiser."""

    def scores(point: Any, rows: Any) -> Any:
        return log_softmax((1 + point[0]) * base[rows] + features[rows] @ point[4:].reshape(4, 3) + point[1:4], axis=1)

    def loss(point: Any, rows: Any) -> float:
        prior = penalty * point[1:] @ point[1:] + max(penalty, 1 / 0.3**2) * point[0] ** 2
        return label_loss(scores(point, rows), labels[rows], np.ones(len(rows))) + prior / 2

    total = 0.0
    for fold in np.unique(folds):
        inside, outside = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        point = minimize(loss, np.zeros(16), args=(inside,), method="BFGS").x
        total -= label_loss(scores(point, outside), labels[outside], np.ones(len(outside)))
    return total


def test_the_layer_is_an_average_over_penalties_by_their_out_of_fold_likelihood() -> None:
    """Against fits with each penalty by itself: c and V, and so b, W and a, are linear in them."""
    embeddings, logits, labels = small_problem(120, 11)
    found = LastLayerRefit(seed=3).fit(embeddings, labels, logits=logits)
    folds = cross_folds(labels, None, 5, 3)
    penalties, likelihoods, layers = np.logspace(3, -2, 11), [], []
    base = log_softmax(logits, axis=1) / brute_force_temperature(logits, labels)
    centred = embeddings - embeddings.mean(axis=0)
    features = centred / np.sqrt((centred**2).sum(axis=1).mean())
    for penalty in penalties:
        layers.append(LastLayerRefit(penalty=penalty).fit(embeddings, labels, logits=logits).weights_)
        likelihoods.append(out_of_fold_likelihood(features, base, labels, penalty, folds))
    shares = softmax(likelihoods - 0.5 * np.arange(11))
    kept = np.where(shares > 1e-3, shares, 0)
    expected = np.tensordot(kept / kept.sum(), layers, 1)
    np.testing.assert_allclose(found.weights_, expected, rtol=0.02, atol=0.002)  # the folds are solved roughly


@pytest.mark.filterwarnings("ignore::kcal.errors.LeakageWarning")
def test_thirty_samples_without_an_error_do_not_make_certain() -> None:
    generator = np.random.default_rng(9)
    labels = np.arange(30) % 3
    logits = 3.0 * np.eye(3)[labels] + 0.1 * generator.normal(size=(30, 3))
    embeddings = np.eye(3)[labels] + 0.1 * generator.normal(size=(30, 3))
    fitted = LastLayerRefit().fit(embeddings, labels, logits=logits)
    assert fitted.predict_proba(embeddings, logits=logits).max() < 1 - 1e-4
