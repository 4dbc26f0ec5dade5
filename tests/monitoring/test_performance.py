"""Expected performance against all labels enumerated, simulated labels and closed forms."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from oracles import drawn_labels, random_probs

from kcal import InvalidInputError, estimate_performance, evaluate

OVERALL = ("accuracy", "negative_log_likelihood", "multiclass_brier_loss")


def test_every_labelling_weighed_by_its_probability_gives_the_expectation_and_the_variance():
    probs = random_probs(5, 3, seed=0)
    means, squares = dict.fromkeys(OVERALL, 0.0), dict.fromkeys(OVERALL, 0.0)
    for labels in product(range(3), repeat=5):
        weight = np.prod(probs[np.arange(5), labels])
        values = evaluate(probs, labels, protocol="paper").as_dict()
        for name in OVERALL:
            means[name] += weight * values[name]
            squares[name] += weight * values[name] ** 2
    found = estimate_performance(probs, confidence=0.1)  # short, so that nothing is cut off
    for name in OVERALL:
        value, low, high = getattr(found, name)
        assert value == pytest.approx(means[name], abs=1e-12)
        deviation = np.sqrt(squares[name] - means[name] ** 2)
        assert (high - low) / 2 == pytest.approx(0.1256613 * deviation, rel=1e-6)


def test_intervals_contain_what_the_labels_of_the_rows_give():
    probs = random_probs(500, 3, seed=1)
    found = estimate_performance(probs)
    predicted = probs.argmax(axis=1)
    hits = np.zeros((300, 3 + 3 + 3))
    for seed in range(300):
        labels = drawn_labels(probs, seed)
        values = evaluate(probs, labels, protocol="paper")
        correct = predicted == labels
        truth = [getattr(values, name) for name in OVERALL]
        truth += [correct[labels == k].mean() for k in range(3)] + [correct[predicted == k].mean() for k in range(3)]
        intervals = [getattr(found, name)[1:] for name in OVERALL] + [*found.recall[:, 1:], *found.precision[:, 1:]]
        hits[seed] = [low <= value <= high for value, (low, high) in zip(truth, intervals, strict=True)]
    assert (hits.mean(axis=0) > 0.91).all()
    assert (hits.mean(axis=0) < 0.985).all()


def test_intervals_for_the_population_contain_its_performance():
    population = random_probs(100_000, 3, seed=2)
    truth = estimate_performance(population)
    generator, hits = np.random.default_rng(0), []
    for _ in range(300):
        found = estimate_performance(population[generator.integers(len(population), size=400)], target="population")
        hits.append([getattr(found, name).low <= getattr(truth, name).value <= getattr(found, name).high
                     for name in OVERALL])  # fmt: skip
        inside = (found.recall[:, 1] <= truth.recall[:, 0]) & (truth.recall[:, 0] <= found.recall[:, 2])
        precise = (found.precision[:, 1] <= truth.precision[:, 0]) & (truth.precision[:, 0] <= found.precision[:, 2])
        hits[-1] += [*inside, *precise]
    assert (np.mean(hits, axis=0) > 0.91).all()
    assert (np.mean(hits, axis=0) < 0.985).all()


def test_whole_groups_are_drawn_from_the_population():
    probs, groups = random_probs(60, 3, seed=5), np.repeat(np.arange(20), 3)
    for grouped, single in (
        (estimate_performance(probs, groups=np.arange(60), target="population"), probs),
        (estimate_performance(np.repeat(probs[:20], 3, axis=0), groups=groups, target="population"), probs[:20]),
    ):  # groups of one row are rows; three equal rows are one row
        alone = estimate_performance(single, target="population")
        for name in OVERALL:
            np.testing.assert_allclose(getattr(grouped, name), getattr(alone, name), rtol=1e-12)
        for name in ("recall", "precision"):
            np.testing.assert_allclose(getattr(grouped, name), getattr(alone, name), rtol=1e-12)
    with pytest.raises(InvalidInputError, match='groups apply to target="population" only'):
        estimate_performance(probs, groups=groups)


def test_one_group_or_row_says_nothing_of_the_population():
    probs = random_probs(60, 3, seed=5)
    with pytest.raises(InvalidInputError, match=r"^groups must have at least 2 groups"):
        estimate_performance(probs, groups=np.zeros(60), target="population")
    with pytest.raises(InvalidInputError, match=r"^probs must have at least two rows"):
        estimate_performance(probs[:1], target="population")


def test_certain_predictions_have_no_doubt_and_the_frame_holds_every_number():
    found = estimate_performance(np.eye(3)[[0, 1, 1, 0]], classes=["no", "yes", "perhaps"])
    assert found.accuracy == (1, 1, 1)
    assert found.multiclass_brier_loss == (0, 0, 0)
    np.testing.assert_array_equal(found.recall[:2], 1)
    assert np.isnan(found.recall[2]).all()
    assert np.isnan(found.precision[2]).all()
    frame = found.to_frame()
    assert len(frame) == 3 + 2 * 3
    assert frame.loc[("recall", "yes"), "high"] == 1
    assert str(found).startswith("4 samples without labels, 3 classes")


def test_one_column_is_the_second_of_two_classes():
    both = estimate_performance([0.2, 0.7], classes=["a", "b"])
    assert both.accuracy == estimate_performance([[0.8, 0.2], [0.3, 0.7]]).accuracy
    for options in ({"target": "all"}, {"classes": ["a"]}):
        with pytest.raises(InvalidInputError, match=next(iter(options))):
            estimate_performance([[0.5, 0.5]], **options)
