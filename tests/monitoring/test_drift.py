"""Alarms without labels: exact ranks, permutation tests against slow ones, and detectors of river."""

from __future__ import annotations

import json
from itertools import combinations

import numpy as np
import pytest
from oracles import slow_wealth
from scipy.stats import kstest

from kcal import FileFormatError, InvalidInputError, KCal
from kcal.monitoring import DriftMonitor, mean_embedding_test, river_alarms


def test_ranks_are_shares_of_what_came_before_and_uniform():
    generator = np.random.default_rng(0)
    reference, scores = generator.normal(size=50), generator.normal(size=2000)
    ranks = DriftMonitor(reference).update(scores).ranks
    for row in (0, 7, 1999):
        earlier = np.concatenate([reference, scores[:row]])
        below = (earlier < scores[row]).sum()
        assert below / (len(earlier) + 1) <= ranks[row] <= (below + 1) / (len(earlier) + 1)
    assert kstest(ranks, "uniform").pvalue > 0.01
    ties = DriftMonitor(np.zeros(10)).update(np.zeros(2000)).ranks
    assert kstest(ties, "uniform").pvalue > 0.01


def test_wealth_is_that_of_slow_bets_on_the_ranks():
    generator = np.random.default_rng(2)
    report = DriftMonitor(generator.normal(size=40)).update(generator.normal(size=200) - 0.5)
    ranks = report.ranks
    games = [
        (0.5 - ranks, -0.5, 0.5),
        ((ranks < 0.05) - 0.05, -0.05, 0.95),
        ((ranks - 0.5) ** 2 - 1 / 12, -1 / 12, 1 / 6),
    ]
    slow = [slow_wealth(payoffs, np.full(200, low), np.full(200, high)) for payoffs, low, high in games]
    np.testing.assert_allclose(np.exp(report.path), np.mean(slow, axis=0), rtol=1e-10)
    assert report.log_wealth == report.path[-1]


def test_exchangeable_scores_rarely_alarm_and_others_do():
    false, delays = 0, []
    for seed in range(60):
        generator = np.random.default_rng(seed)
        reference, scores = generator.normal(size=300), generator.normal(size=600)
        false += DriftMonitor(reference, alpha=0.2).update(scores).alarm
        shifted = DriftMonitor(reference).update(np.concatenate([scores[:300], scores[300:] - 1]))
        delays.append(shifted.alarm_at)
    assert false <= 24  # of 60 at α = 0.2: more have a probability below 10⁻⁴
    assert sum(at is not None and at > 300 for at in delays) >= 55


def test_updates_in_parts_with_a_state_in_between_are_one_update():
    generator = np.random.default_rng(6)
    reference, scores = np.append(generator.normal(size=30).round(1), -np.inf), generator.normal(size=80).round(1) - 1
    expected = DriftMonitor(reference, alpha=0.1, seed=3).update(scores)
    monitor, parts = DriftMonitor(reference, alpha=0.1, seed=3), []
    for part in np.split(scores, 8):
        state = json.loads(json.dumps(monitor.to_dict(), allow_nan=False))
        monitor = DriftMonitor.from_dict(state)
        assert monitor.to_dict() == state
        parts.append(monitor.update(part))
    # equal scores: the generator goes on too
    np.testing.assert_array_equal(np.concatenate([part.ranks for part in parts]), expected.ranks)
    np.testing.assert_allclose(np.concatenate([part.path for part in parts]), expected.path, atol=1e-10)
    assert (parts[-1].n_samples, parts[-1].alpha, parts[-1].alarm_at) == (80, 0.1, expected.alarm_at)
    assert str(parts[-1]).startswith(f"80 samples: ALARM after {expected.alarm_at} samples")


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"scores": ["nan"]},
        {"wealth": {"counts": [1, 2, 3], "log_stakes": np.zeros((3, 18)).tolist()}},
        {"alarm_at": 5},
        {"generator": {"bit_generator": "MT19937"}},
    ],
)
def test_a_damaged_state_of_a_drift_monitor_is_refused(change):
    monitor = DriftMonitor([1.0, 2.0])
    monitor.update([1.0, 2.0, 3.0, 4.0])
    assert DriftMonitor.from_dict(monitor.to_dict()).n_samples == 4
    with pytest.raises(FileFormatError, match="state of a monitor"):
        DriftMonitor.from_dict(monitor.to_dict() | change)


def test_new_rows_of_the_distribution_rank_evenly_by_their_evidence(problem):
    kcal = KCal(projection="identity").fit(problem.embeddings, problem.labels)
    reference = kcal.calibration_log_evidence_
    assert (np.diff(reference) >= 0).all()
    ordinary = DriftMonitor(reference).update(kcal.log_evidence(problem.test_embeddings))
    assert not ordinary.alarm
    assert kstest(ordinary.ranks, "uniform").pvalue > 0.01
    assert DriftMonitor(reference).update(kcal.log_evidence(1.5 * problem.test_embeddings)).alarm


def test_the_p_value_counts_every_division():
    generator = np.random.default_rng(2)
    first, second = generator.normal(size=(5, 2)), generator.normal(size=(4, 2)) + 0.8
    found = mean_embedding_test(first, second, n_permutations=20_000, n_features=300)
    rows = np.concatenate([first, second])
    kernel = np.exp(-((rows[:, None] - rows) ** 2).sum(axis=2) / (2 * found.bandwidth**2))

    def discrepancy(chosen: tuple[int, ...]) -> float:
        own = np.isin(np.arange(9), chosen)
        weights = np.where(own, 1 / own.sum(), -1 / (~own).sum())
        return float(weights @ kernel @ weights)

    actual = discrepancy(tuple(range(5)))
    divisions = np.array([discrepancy(chosen) for chosen in combinations(range(9), 5)])
    assert found.statistic == pytest.approx(actual, rel=0.25)  # random features
    assert found.p_value == pytest.approx((divisions >= actual - 1e-12).mean(), abs=0.03)


def test_p_values_are_uniform_for_equal_distributions_and_small_for_others():
    generator = np.random.default_rng(3)
    options = {"n_permutations": 99, "n_features": 32}
    values = [mean_embedding_test(generator.normal(size=(60, 3)), generator.normal(size=(40, 3)), **options).p_value
              for _ in range(150)]  # fmt: skip
    assert kstest(values, "uniform").pvalue > 0.005
    wider = mean_embedding_test(generator.normal(size=(300, 3)), 1.7 * generator.normal(size=(300, 3)), **options)
    assert wider.p_value == 0.01


def test_rows_of_a_group_are_one_observation():
    generator = np.random.default_rng(4)
    options = {"n_permutations": 199, "n_features": 32}
    alone, together = [], []
    for _ in range(40):
        centres = generator.normal(size=(12, 2))
        rows = np.repeat(centres, 25, axis=0) + 0.1 * generator.normal(size=(300, 2))
        groups = np.repeat(np.arange(12), 25)
        first, second = slice(0, 150), slice(150, 300)
        alone.append(mean_embedding_test(rows[first], rows[second], **options).p_value)
        sides = {"reference_groups": groups[first], "groups": groups[second]}
        together.append(mean_embedding_test(rows[first], rows[second], **sides, **options).p_value)
    assert np.mean(np.array(alone) < 0.05) > 0.8
    assert np.mean(np.array(together) < 0.05) < 0.2


def test_wrong_arguments_say_what_is_expected():
    with pytest.raises(InvalidInputError, match="reference must be one number per row"):
        DriftMonitor([])
    with pytest.raises(InvalidInputError, match="scores must not be NaN"):
        DriftMonitor([1.0]).update([np.nan])
    with pytest.raises(InvalidInputError, match=r"X must have the columns of the reference \(2\); got 3"):
        mean_embedding_test(np.zeros((4, 2)), np.zeros((4, 3)))
    with pytest.raises(InvalidInputError, match="X must be finite"):
        mean_embedding_test(np.zeros((4, 2)), np.full((4, 2), np.nan))
    with pytest.raises(InvalidInputError, match="detector must be a drift detector of river"):
        river_alarms(object(), [[0.5, 0.5]], [0])


class Threshold:
    """A detector that fires when the payoff is large."""

    drift_detected = False
    seen: list[float]

    def __init__(self) -> None:
        self.seen = []

    def update(self, value: float) -> None:
        self.seen.append(value)
        self.drift_detected = value > 0.5


def test_detectors_see_the_payoff_row_by_row():
    probs, labels = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]), np.array([1, 0, 0])
    detector = Threshold()
    payoffs = 2 * ((probs**2).sum(axis=1) - probs[np.arange(3), labels])
    np.testing.assert_array_equal(river_alarms(detector, probs, labels), np.flatnonzero(payoffs > 0.5))
    np.testing.assert_allclose(detector.seen, payoffs)


@pytest.mark.other_libraries
def test_detectors_of_river_find_overconfidence():
    drift = pytest.importorskip("river.drift")
    generator = np.random.default_rng(5)
    second = generator.beta(2, 2, size=4000)
    labels = (generator.random(4000) < second).astype(int)
    labels[2000:] = generator.integers(2, size=2000)
    rows = river_alarms(drift.ADWIN(), second, labels)
    assert len(rows)
    assert 2000 < rows[0] < 3000
