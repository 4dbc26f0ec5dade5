"""The refit of the last layer: a minimum of its loss, its limit, and the average over its penalties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from kcal import KCalBlend, LastLayerRefit, TemperatureScaling
from two_input_problems import label_loss, random_weights, small_problem


def standardised(embeddings: Any, logits: Any, labels: Any, weights: Any) -> tuple[Any, Any, Any, float]:
    """Return z/T, (e − mean)/r, mean and r."""
    temperature = TemperatureScaling().fit(logits, labels, sample_weight=weights).temperature_
    shares = weights / weights.sum()
    mean = shares @ embeddings
    scale = float(np.sqrt(shares @ ((embeddings - mean) ** 2).sum(axis=1)))
    return log_softmax(logits, axis=1) / temperature, (embeddings - mean) / scale, mean, scale


def slow_log_probs(point: Any, base: Any, features: Any) -> Any:
    """Return the log-probabilities of c, a and W, flat in one array."""
    return log_softmax((1 + point[0]) * base + features @ point[4:].reshape(4, 3) + point[1:4], axis=1)


def slow_loss(point: Any, base: Any, features: Any, labels: Any, weights: Any, penalty: float) -> float:
    prior = penalty * point[1:] @ point[1:] + max(penalty, 1 / 0.3**2) * point[0] ** 2
    return label_loss(slow_log_probs(point, base, features), labels, weights) + prior / 2


@pytest.mark.parametrize("penalty", [0.1, 3.0])
def test_gradient_of_the_loss_is_zero_at_the_solution(penalty: float) -> None:
    embeddings, logits, labels = small_problem(50, 0)
    weights = random_weights(50, 1)
    fitted = LastLayerRefit(penalty=penalty).fit(embeddings, labels, logits=logits, sample_weight=weights)
    base, features, mean, scale = standardised(embeddings, logits, labels, weights)
    temperature = log_softmax(logits, axis=1)[0, 0] / base[0, 0]
    matrix, bias = scale * fitted.weights_, fitted.bias_ + mean @ fitted.weights_
    point = np.concatenate([[fitted.factor_ * temperature - 1], bias, matrix.ravel()])
    for step in 1e-4 * np.eye(len(point)):
        ahead, behind = (
            slow_loss(point + change, base, features, labels, weights, penalty) for change in (step, -step)
        )
        assert (ahead - behind) / 2e-4 == pytest.approx(0.0, abs=1e-4)  # the loss is convex: this is the minimum
    new, new_logits, _ = small_problem(20, 2)
    scores = fitted.factor_ * new_logits + new @ fitted.weights_ + fitted.bias_
    np.testing.assert_allclose(fitted.predict_proba(new, logits=new_logits), softmax(scores, axis=1), atol=1e-10)


def test_large_penalty_leaves_temperature_scaling() -> None:
    embeddings, logits, labels = small_problem(80, 3)
    fitted = LastLayerRefit(penalty=1e12).fit(embeddings, labels, logits=logits)
    expected = TemperatureScaling().fit(logits, labels).predict_proba(logits)
    np.testing.assert_allclose(fitted.predict_proba(embeddings, logits=logits), expected, atol=1e-7)


def test_unit_and_origin_of_embeddings_play_no_part() -> None:
    embeddings, logits, labels = small_problem(80, 4)
    moved = 1000.0 * embeddings - 50.0
    fits = [LastLayerRefit().fit(rows, labels, logits=logits) for rows in (embeddings, moved)]
    assert fits[0].penalty_ == pytest.approx(fits[1].penalty_, rel=1e-9)
    expected = fits[0].predict_proba(embeddings, logits=logits)
    np.testing.assert_allclose(fits[1].predict_proba(moved, logits=logits), expected, atol=1e-6)


def test_groups_are_not_split_between_folds() -> None:
    """All samples of a group have one label and one embedding, which is noise."""
    generator = np.random.default_rng(8)
    groups = np.repeat(np.arange(40), 10)
    embeddings, labels = generator.normal(size=(40, 20))[groups], generator.integers(0, 3, 40)[groups]
    assert LastLayerRefit().fit(embeddings, labels, logits=np.zeros((400, 3))).penalty_ < 0.1
    assert LastLayerRefit().fit(embeddings, labels, logits=np.zeros((400, 3)), groups=groups).penalty_ >= 30


def test_layer_is_an_average_by_out_of_fold_likelihood() -> None:
    """Against fits with each penalty by itself, since W is linear in V; five groups are the five folds."""
    embeddings, logits, labels = small_problem(120, 11)
    folds, weights = np.arange(120) % 5, np.ones(120)
    found = LastLayerRefit().fit(embeddings, labels, logits=logits, groups=folds)
    base, features, _, _ = standardised(embeddings, logits, labels, weights)
    log_posterior, layers = [], []
    for place, penalty in enumerate(np.logspace(3, -2, 11)):
        layers.append(LastLayerRefit(penalty=penalty).fit(embeddings, labels, logits=logits).weights_)
        log_posterior.append(-0.5 * place)
        for inside, outside in ((folds != fold, folds == fold) for fold in range(5)):
            parts = [values[inside] for values in (base, features, labels, weights)]
            point = minimize(slow_loss, np.zeros(16), args=(*parts, penalty), method="BFGS").x
            own = slow_log_probs(point, base[outside], features[outside])
            log_posterior[-1] -= label_loss(own, labels[outside], weights[outside])
    shares = softmax(log_posterior)
    kept = np.where(shares > 1e-3, shares, 0)
    expected = np.tensordot(kept / kept.sum(), layers, 1)
    np.testing.assert_allclose(found.weights_, expected, rtol=0.02, atol=0.002)  # the folds are solved roughly


@pytest.mark.parametrize("n_per_class", [2, 4])
def test_chance_frequencies_of_many_classes_are_not_learned(n_per_class: int) -> None:
    """The network is right on average, and the embeddings are noise: only counts could be learned."""
    generator = np.random.default_rng(5)
    n_classes = 60

    def draw(n: int) -> tuple[Any, Any, Any]:
        logits = 1.5 * generator.normal(size=(n, n_classes))
        labels = (logits + generator.gumbel(size=logits.shape)).argmax(axis=1)
        return generator.normal(size=(n, 4)), labels, logits

    embeddings, labels, logits = draw(n_per_class * n_classes)
    new, truth, new_logits = draw(5_000)
    classes = np.arange(n_classes)
    fitted = LastLayerRefit().fit(embeddings, labels, logits=logits, classes=classes)
    losses = [
        label_loss(log_probs, truth, np.ones(len(truth))) / len(truth)
        for log_probs in (fitted.predict_log_proba(new, logits=new_logits), log_softmax(new_logits, axis=1))
    ]
    assert losses[0] < losses[1] + 0.02


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [0.0, 1 / 3, 5.1, 1e6])
def test_equal_embeddings_say_nothing(value: float, dtype: Any) -> None:
    _, logits, labels = small_problem(200, 0)
    embeddings = np.full((200, 4), value, dtype=dtype)
    fitted = LastLayerRefit().fit(embeddings, labels, logits=logits)
    none = LastLayerRefit().fit(np.zeros((200, 4)), labels, logits=logits)
    probs = fitted.predict_proba(embeddings + dtype(1e-6), logits=logits)
    np.testing.assert_allclose(probs, none.predict_proba(np.zeros((200, 4)), logits=logits), atol=1e-5)


@pytest.mark.parametrize("offset", [1e3, 1e4])
def test_an_offset_of_embeddings_costs_no_precision(offset: float) -> None:
    embeddings, logits, labels = small_problem(200, 0)
    single = (embeddings + offset).astype(np.float32)
    fitted = LastLayerRefit(penalty=0.1).fit(single, labels, logits=logits)
    exact = fitted.predict_proba(single.astype(np.float64), logits=logits)
    np.testing.assert_allclose(fitted.predict_proba(single, logits=logits), exact, atol=2e-6)


@pytest.mark.parametrize("with_groups", [False, True])
@pytest.mark.parametrize("kind", [LastLayerRefit, KCalBlend])
def test_the_order_of_the_classes_plays_no_part_in_the_folds(kind: Any, with_groups: bool) -> None:
    embeddings, logits, labels = small_problem(90, 0)
    groups = {"groups": np.random.default_rng(1).integers(0, 30, 90)} if with_groups else {}
    order = np.array([2, 0, 1])
    places = np.argsort(order)
    new, new_logits, _ = small_problem(20, 2)
    fitted = kind().fit(embeddings, labels, logits=logits, **groups)
    other = kind().fit(embeddings, places[labels], logits=logits[:, order], **groups)
    probs = other.predict_proba(new, logits=new_logits[:, order])
    np.testing.assert_allclose(probs, fitted.predict_proba(new, logits=new_logits)[:, order], atol=1e-7)
