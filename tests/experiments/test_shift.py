"""New groups and new class frequencies: thinning, Bayes' rule, estimated priors, and what the study measures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import softmax
from scipy.stats import norm

from benchmark.conftest import make_task
from kcal import KCal, metrics
from kcal.benchmark import Task
from kcal.benchmark.entrants import Entrant, train_for
from kcal.benchmark.reshuffles import reshuffles_by_group, reshuffles_by_row
from kcal.benchmark.studies import STUDIES, Study
from kcal.benchmark.studies.frequencies import (
    KNOWN,
    RATIOS,
    Shifted,
    estimated_prior,
    measure_frequencies,
    overview,
    presumed_frequencies,
    thinned,
    with_prior,
)
from kcal.benchmark.studies.measuring import fit_quietly
from kcal.benchmark.studies.shift import as_many_rows, measure_groups, study_shift
from kcal.calibrators import ClassifierOutputs

pytestmark = pytest.mark.usefixtures("short_trainings")
MEANS = np.array([-1.0, 0.3, 1.5])
BEFORE, AFTER = np.array([0.3, 0.3, 0.4]), np.array([0.7, 0.1, 0.2])


def posterior(points: NDArray[np.float64], prior: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return p(y | x) of three normal classes."""
    joint = norm.pdf(points[:, None], MEANS) * prior
    return np.asarray(joint / joint.sum(axis=1, keepdims=True))


def draw(n: int, prior: NDArray[np.float64], seed: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    generator = np.random.default_rng(seed)
    labels = generator.choice(3, size=n, p=prior)
    return MEANS[labels] + generator.normal(size=n), labels


def known_task(n_pool: int = 4000) -> Task:
    """Return a task whose network knows p(y | x)."""

    def outputs(n: int, seed: int) -> ClassifierOutputs:
        points, labels = draw(n, BEFORE, seed)
        logits = np.log(posterior(points, BEFORE)).astype(np.float32)
        return ClassifierOutputs(points[:, None].astype(np.float32), logits, labels)

    return Task("known", outputs(500, 0), outputs(n_pool, 1), 0.5, ("a", "b", "c"))


@pytest.fixture(scope="module")
def shifted(short_trainings: None) -> Shifted:
    return measure_frequencies(known_task(), n_reshuffles=2, seed=0)


def test_thinning_gives_the_wanted_frequencies() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(3), [1000, 500, 200]))
    kept = np.bincount(labels[thinned(labels, 100.0, 3, 0)])
    assert kept.tolist() == [10, 50, 200]  # shares 1/100, 1/10 and 1
    assert np.bincount(labels[thinned(labels, 1 / 100, 3, 0)]).tolist() == [1000, 50, 2]
    assert np.bincount(labels[thinned(labels, None, 3, 0)]).tolist() == [200, 200, 200]
    assert thinned(labels, 1.0, 3, 0).tolist() == list(range(1700))


def test_a_class_without_samples_keeps_its_place_in_the_order() -> None:
    labels = np.repeat([0, 2], 100)  # of classes 0 to 3
    assert np.bincount(labels[thinned(labels, 8.0, 4, 0)], minlength=4).tolist() == [12, 0, 50, 0]
    assert np.bincount(labels[thinned(labels, None, 4, 0)], minlength=4).tolist() == [100, 0, 100, 0]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.sampled_from([*RATIOS, None]), st.integers(0, 99))
def test_thinning_never_invents_samples_and_goes_by_the_seed(
    classes: list[int], ratio: float | None, seed: int
) -> None:
    labels = np.array(classes)
    kept = thinned(labels, ratio, 5, seed)
    assert len(set(kept.tolist())) == len(kept)
    assert set(kept.tolist()) <= set(range(len(labels)))
    assert kept.tolist() == thinned(labels, ratio, 5, seed).tolist()


def test_another_seed_keeps_other_samples() -> None:
    labels = np.repeat([0, 1], 200)
    assert thinned(labels, 10.0, 2, 0).tolist() != thinned(labels, 10.0, 2, 1).tolist()


def test_bayes_rule_equals_a_computation_by_hand() -> None:
    found = with_prior(np.array([[0.5, 0.3, 0.2]]), np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.3, 0.5]))
    # 0.5·3, 0.3·1 and 0.2·0.2: 1.5, 0.3 and 0.04, together 1.84
    np.testing.assert_allclose(found, [[1.5 / 1.84, 0.3 / 1.84, 0.04 / 1.84]])


def test_bayes_rule_recovers_the_posterior_after_a_shift() -> None:
    points = np.linspace(-4, 4, 101)
    found = with_prior(posterior(points, BEFORE), AFTER, BEFORE)
    np.testing.assert_allclose(found, posterior(points, AFTER), atol=1e-12)
    assert np.abs(posterior(points, BEFORE) - posterior(points, AFTER)).max() > 0.3


def test_the_prior_of_the_study_is_the_prior_of_kcal(task: Task) -> None:
    rows = np.arange(60)
    calibrator = KCal(projection="identity", progress=False).fit(task.pool.embeddings[rows], task.pool.labels[rows])
    plain = calibrator.predict_proba(task.pool.embeddings[60:]).astype(np.float64)
    prior, counts = np.array([0.7, 0.2, 0.1]), np.bincount(task.pool.labels[rows])
    expected = calibrator.set_params(prior=prior.tolist()).predict_proba(task.pool.embeddings[60:])
    np.testing.assert_allclose(with_prior(plain, prior, counts / counts.sum()), expected, rtol=1e-4, atol=1e-6)
    assert np.abs(plain - expected).max() > 0.01


def test_the_estimated_prior_is_the_true_one_within_sampling_error() -> None:
    points, labels = draw(40_000, AFTER, 3)
    found = estimated_prior(posterior(points, BEFORE), BEFORE, tolerance=1e-8)
    np.testing.assert_allclose(found, AFTER, atol=0.02)
    assert found.sum() == pytest.approx(1)
    corrected = with_prior(posterior(points, BEFORE), found, BEFORE)
    np.testing.assert_allclose(corrected.mean(axis=0), found, atol=1e-5)  # where it comes to rest
    assert np.abs(np.bincount(labels) / len(labels) - BEFORE).max() > 0.3


def test_certain_predictions_are_counted() -> None:
    found = estimated_prior(np.eye(3)[[0, 0, 0, 1, 2]], np.array([0.2, 0.3, 0.5]))
    np.testing.assert_allclose(found, [0.6, 0.2, 0.2])


def test_classes_that_calibration_never_saw_are_not_expected() -> None:
    probabilities = softmax(np.random.default_rng(0).normal(size=(50, 3)), axis=1)
    found = estimated_prior(probabilities, np.array([0.5, 0.5, 0.0]))
    assert found[2] == 0
    assert found.sum() == pytest.approx(1)


def test_what_is_measured_is_what_fitting_by_hand_gives(shifted: Shifted) -> None:
    task, place = known_task(), shifted.ratios.index(10.0)
    for column, deal in enumerate(reshuffles_by_row(4000, 0.5, 2, 0)):
        labels = task.pool.labels[deal.test]
        kept = thinned(labels, 10.0, 3, [0, column])
        entrant = Entrant("ts", 0)
        plain = entrant.predict(entrant.fit(task, deal.calibration, by_group=False), task, deal.test)[kept]
        before = np.bincount(task.pool.labels[deal.calibration]) / 2000
        after = np.bincount(labels[kept]) / len(kept)
        weighed = plain.astype(np.float64) * after / before
        expected = metrics.evaluate(weighed / weighed.sum(axis=1, keepdims=True), labels[kept]).as_dict()
        for name, values in shifted.values.items():
            assert values[f"ts{KNOWN}"][place, column] == pytest.approx(expected[name], rel=1e-5)
        assert shifted.samples[place, column] == len(kept)
        assert shifted.rarest[place, column] == np.bincount(labels[kept]).min()


def test_the_prior_helps_after_a_shift_and_does_nothing_without_one(shifted: Shifted) -> None:
    losses = shifted.values["negative_log_likelihood"]
    same, other = shifted.ratios.index(1.0), shifted.ratios.index(10.0)
    for method in ("uncal", "ts", "dircal", "kcal"):
        plain, known, estimated = (losses[f"{method}{prior}"] for prior in ("", KNOWN, ", prior estimated"))
        assert np.abs(known[same] - plain[same]).max() < 0.01
        assert np.abs(estimated[same] - plain[same]).max() < 0.01
        assert (known[other] < plain[other] - 0.05).all()
        assert (estimated[other] < plain[other] - 0.05).all()


def test_uneven_tasks_are_also_tested_evenly_and_small_tests_say_so(task: Task, shifted: Shifted) -> None:
    assert None not in shifted.ratios
    assert "too few" not in shifted.tables()[0].note
    rows = np.concatenate([np.flatnonzero(task.pool.labels == 0)[:20], np.flatnonzero(task.pool.labels == 1)])
    pool = ClassifierOutputs(task.pool.embeddings[rows], task.pool.logits[rows], task.pool.labels[rows])
    uneven = measure_frequencies(Task("few", task.train, pool, 0.4, task.classes), n_reshuffles=1, seed=0)
    assert uneven.ratios[-1] is None
    last = uneven.tables()[-1]
    assert last.title == "few: tested with all classes equally frequent"
    assert "too few" in last.note
    assert uneven.samples[-1, 0] == 2 * uneven.rarest[-1, 0]


def test_the_overview_averages_both_orders(shifted: Shifted) -> None:
    losses = shifted.values["negative_log_likelihood"]["kcal"].mean(axis=1)
    expected = (losses[shifted.ratios.index(10.0)] + losses[shifted.ratios.index(1 / 10)]) / 2
    table = overview([shifted])
    texts = [row[table.heading.index("kcal")].text for row in table.rows]
    assert texts[0].startswith(f"{losses[shifted.ratios.index(1.0)]:.4f}±")
    assert texts[1].startswith(f"{expected:.4f}±")
    drawn = {line.label: line.y for line in shifted.panel().lines}
    assert drawn["kcal"][3] == pytest.approx(expected)
    assert len(drawn) == 6


def test_rows_are_as_many_as_those_of_the_groups(task: Task) -> None:
    dealt = reshuffles_by_group(np.asarray(task.pool.groups), 0.4, 3, 0)
    for deal in dealt:
        alike = as_many_rows(deal, 0)
        assert len(alike.calibration) == len(deal.calibration)
        assert sorted([*alike.calibration, *alike.test]) == list(range(150))
        assert alike.calibration.tolist() != deal.calibration.tolist()
    assert as_many_rows(dealt[0], 0).calibration.tolist() != as_many_rows(dealt[1], 0).calibration.tolist()


def test_a_prior_leads_away_from_what_a_method_presumes(task: Task) -> None:
    """The study's correction of the blend is the blend's own ``prior``."""
    deal = reshuffles_by_row(len(task.pool.labels), 0.4, 1, 0)[0]
    labels, n_classes = task.pool.labels[deal.calibration], len(task.classes)
    prior = np.linspace(1, 3, n_classes) / np.linspace(1, 3, n_classes).sum()
    for name in ("kcal-untrained", "kcal-blend"):
        entrant = Entrant(name, 0)
        fitted = fit_quietly(entrant, task, deal.calibration)
        plain = entrant.predict(fitted, task, deal.test)
        presumed = presumed_frequencies(fitted, labels, n_classes)
        own = entrant.predict(fitted.set_params(prior=prior), task, deal.test)
        np.testing.assert_allclose(with_prior(plain.astype(np.float64), prior, presumed), own, atol=1e-6)
    counted = np.bincount(labels, minlength=n_classes) / len(labels)
    assert np.abs(presumed - counted).max() > 1e-3  # the blend makes less of small differences


def test_what_groups_lose_is_what_fitting_by_hand_gives(task: Task) -> None:
    found = measure_groups(task, n_reshuffles=2, seed=0)
    trained = train_for("kcal", task, seed=0, by_group=True)
    for place, deal in enumerate(reshuffles_by_group(np.asarray(task.pool.groups), 0.4, 2, 0)):
        entrant = Entrant("kcal", 0, trained)
        fitted = fit_quietly(entrant, task, deal.calibration, by_group=True)
        expected = metrics.evaluate(entrant.predict(fitted, task, deal.test), task.pool.labels[deal.test]).as_dict()
        for name, values in found.by_groups.items():
            assert values["kcal"][place] == pytest.approx(expected[name])
    for name, sign in (("accuracy", -1), ("negative_log_likelihood", 1)):
        change = found.by_groups[name]["ts"] - found.by_rows[name]["ts"]
        np.testing.assert_allclose(found.lost(name, "ts"), sign * change)
        assert change.any()


def test_the_study_has_groups_only_where_a_task_has() -> None:
    seen: list[tuple[str, int, int]] = []
    made = study_shift(
        [make_task(), make_task("pairs", n_groups=2)], reshuffles=1, watch=lambda *step: seen.append(step)
    )
    names = [table.name for table in made.tables]
    assert names == ["overview", "groups", "groups", "lost", *6 * ["shift"]]
    assert {text[0] for text in (row[1].text for row in made.tables[3].rows)} <= {"+", "-"}
    assert Study.from_json(made.as_json()) == made
    assert [name for name, done, total in seen if done == total] == ["small, groups", "small", "pairs"]
    assert STUDIES["shift"] is study_shift
