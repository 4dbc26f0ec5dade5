"""k-nearest-neighbour interpolation against double loops, brute force and its limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from kcal import KNNInterpolation, LeakageWarning, TemperatureScaling
from kcal.errors import InvalidInputError
from two_input_problems import brute_force_temperature, label_loss, small_problem, unit


def slow_frequencies(query: Any, points: Any, labels: Any, weights: Any, k: int, tau: float) -> Any:
    """Return the label frequencies among the k nearest points of one query, (3,)."""
    distances = [float(((query - point) ** 2).sum()) for point in points]
    frequencies = np.zeros(3)
    for place in sorted(range(len(points)), key=distances.__getitem__)[:k]:
        frequencies[labels[place]] += weights[place] * np.exp(-distances[place] / tau)
    return frequencies / frequencies.sum()


@pytest.mark.parametrize("weighted", [False, True])
def test_predictions_equal_the_formula_in_loops(weighted: bool) -> None:
    embeddings, logits, labels = small_problem(60, 0)
    weights = np.random.default_rng(1).uniform(0.5, 2.0, 60) if weighted else np.ones(60)
    fitted = KNNInterpolation().fit(embeddings, labels, logits=logits, sample_weight=weights)
    new, new_logits, _ = small_problem(20, 2)
    found = fitted.predict_proba(new, logits=new_logits)
    for row in range(20):
        query = unit(new)[row]
        votes = slow_frequencies(query, unit(embeddings), labels, weights, fitted.k_, fitted.tau_)
        network = softmax(new_logits[row] / fitted.temperature_)
        np.testing.assert_allclose(found[row], (1 - fitted.share_) * network + fitted.share_ * votes, atol=1e-12)


def slow_loss(share: float, network: Any, neighbours: Any, weights: Any) -> float:
    """Return the loss of a mixture, with one more sample of a class that no neighbour has."""
    return -float(weights @ np.log((1 - share) * network + share * neighbours)) - np.log1p(-share)


@pytest.mark.parametrize("grouped", [False, True])
def test_neighbours_width_and_share_have_the_lowest_leave_one_out_loss(grouped: bool) -> None:
    n = 45
    embeddings, logits, labels = small_problem(n, 3)
    groups = np.arange(n) // 3 if grouped else np.arange(n)
    weights = np.random.default_rng(4).uniform(0.5, 2.0, n)
    weights /= weights.mean()
    options = {"groups": groups} if grouped else {}
    fitted = KNNInterpolation().fit(embeddings, labels, logits=logits, sample_weight=weights, **options)
    points = unit(embeddings)
    network = softmax(logits / fitted.temperature_, axis=1)[np.arange(n), labels]
    losses = {}
    for k in (4, 8, 16, 32):
        others = [np.sort(((points[i] - points[groups != groups[i]]) ** 2).sum(axis=1)) for i in range(n)]
        typical = np.sort([distances[k - 1] for distances in others])[(n - 1) // 2]
        for tau in typical * 2.0 ** np.arange(-6, 3):
            votes = np.empty(n)
            for i in range(n):
                rest = groups != groups[i]
                votes[i] = slow_frequencies(points[i], points[rest], labels[rest], weights[rest], k, tau)[labels[i]]
            best = minimize_scalar(slow_loss, (0, 1), (0, 1 - 1e-9), (network, votes, weights), "bounded")
            losses[k, tau] = (best.fun, best.x)
    k, tau = min(losses, key=lambda pair: losses[pair][0])
    assert fitted.k_ == k
    assert fitted.tau_ == pytest.approx(tau, rel=1e-9)
    assert fitted.share_ == pytest.approx(losses[k, tau][1], abs=1e-4)


def test_without_informative_neighbours_it_is_temperature_scaling() -> None:
    """Each class is a group of its own: no neighbour of another group has the label."""
    embeddings, logits, labels = small_problem(80, 5)
    fitted = KNNInterpolation().fit(embeddings, labels, logits=logits, groups=labels)
    assert fitted.share_ == 0
    expected = softmax(logits / fitted.temperature_, axis=1)
    np.testing.assert_allclose(fitted.predict_proba(embeddings + 1.0, logits=logits), expected, atol=1e-12)


def test_a_twin_is_a_neighbour_and_the_sample_itself_is_not() -> None:
    generator = np.random.default_rng(6)
    embeddings, labels = generator.normal(size=(100, 4)), generator.integers(0, 3, 100)
    noise = np.zeros((100, 3))
    alone = KNNInterpolation().fit(embeddings, labels, logits=noise)
    assert alone.share_ < 0.3  # the labels are noise
    twice = np.repeat(embeddings, 2, axis=0)
    twins = KNNInterpolation().fit(twice, np.repeat(labels, 2), logits=np.zeros((200, 3)))
    assert twins.share_ > 0.9


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(2, 40), st.sampled_from([0.003, 0.1, 1.0, 5.0]))
def test_the_temperature_minimises_the_log_loss_with_a_prior(seed: int, n: int, scale: float) -> None:
    embeddings, logits, labels = small_problem(n, seed)
    weights = np.random.default_rng(seed).uniform(0.5, 2.0, n)
    weights /= weights.mean()
    fitted = KNNInterpolation().fit(embeddings, labels, logits=scale * logits, sample_weight=weights)
    assert fitted.temperature_ == pytest.approx(brute_force_temperature(scale * logits, labels, weights), rel=1e-6)


@pytest.mark.filterwarnings("ignore::kcal.errors.LeakageWarning")
def test_of_two_minima_of_the_temperature_the_lower_one_is_taken() -> None:
    """A few wide gaps and many narrow ones that are all right: the loss has a minimum for either."""
    for n in (60, 100, 200, 2000):
        logits = np.zeros((n, 2))
        logits[:, 1] = 0.01
        logits[:3, 1] = 3.0
        fitted = KNNInterpolation().fit(np.eye(2)[np.arange(n) % 2], np.ones(n, dtype=int), logits=logits)
        expected = brute_force_temperature(logits, np.ones(n, dtype=int))
        assert fitted.temperature_ == pytest.approx(expected, rel=1e-6)


@pytest.mark.filterwarnings("ignore::kcal.errors.LeakageWarning")
def test_thirty_samples_without_an_error_do_not_make_certain() -> None:
    generator = np.random.default_rng(7)
    labels = np.arange(30) % 3
    logits = 3.0 * np.eye(3)[labels] + 0.1 * generator.normal(size=(30, 3))
    embeddings = np.eye(3)[labels] + 0.1 * generator.normal(size=(30, 3))
    fitted = KNNInterpolation().fit(embeddings, labels, logits=logits)
    assert 0.25 < fitted.temperature_ < 1
    assert fitted.share_ <= 30 / 31
    assert fitted.predict_proba(embeddings + 0.01, logits=logits).max() < 1 - 1e-4


def test_it_learns_what_the_logits_do_not_know() -> None:
    (embeddings, logits, labels), (new, new_logits, new_labels) = (small_problem(600, seed) for seed in (8, 9))
    fitted = KNNInterpolation().fit(embeddings, labels, logits=logits)
    scaled = TemperatureScaling().fit(logits, labels)
    ours = label_loss(fitted.predict_log_proba(new, logits=new_logits), new_labels, np.ones(600))
    theirs = label_loss(log_softmax(new_logits / scaled.temperature_, axis=1), new_labels, np.ones(600))
    assert ours < 0.95 * theirs


def test_rows_of_the_calibration_set_are_warned_of() -> None:
    embeddings, logits, labels = small_problem(30, 10)
    fitted = KNNInterpolation().fit(embeddings, labels, logits=logits)
    with pytest.warns(LeakageWarning, match="30 of 30 rows are in the calibration set"):
        fitted.predict_proba(embeddings, logits=logits)


def test_logits_are_needed_and_two_groups() -> None:
    embeddings, logits, labels = small_problem(30, 11)
    with pytest.raises(InvalidInputError, match=r"^logits are needed"):
        KNNInterpolation().fit(embeddings, labels)
    with pytest.raises(InvalidInputError, match=r"^groups must hold at least two groups"):
        KNNInterpolation().fit(embeddings, labels, logits=logits, groups=np.zeros(30))
    with pytest.raises(InvalidInputError, match=r"^logits are needed"):
        KNNInterpolation().fit(embeddings, labels, logits=logits).predict_proba(embeddings + 1.0)


def test_tables_of_logits_must_have_the_columns_of_the_fit() -> None:
    pandas = pytest.importorskip("pandas")
    embeddings, logits, labels = small_problem(30, 12)
    names = ["owl", "cat", "dog"]
    table = pandas.DataFrame(logits, columns=names)
    fitted = KNNInterpolation().fit(embeddings, np.array(names)[labels], logits=table)
    assert fitted.classes_.tolist() == names
    with pytest.raises(InvalidInputError, match=r"^logits must have the columns of the fit"):
        fitted.predict_proba(embeddings + 1.0, logits=table[names[::-1]])


def test_groups_may_leave_fewer_samples_than_neighbours() -> None:
    embeddings, logits, labels = small_problem(6, 13)
    fitted = KNNInterpolation().fit(embeddings, labels, logits=logits, groups=[0, 0, 0, 1, 1, 1], classes=range(3))
    np.testing.assert_allclose(fitted.predict_proba(embeddings + 1.0, logits=logits).sum(axis=1), 1.0)
