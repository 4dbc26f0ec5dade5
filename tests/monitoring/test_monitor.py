"""The monitor against a step-by-step gambler, exact expectations, and simulated streams."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import softmax

from kcal import CalibrationMonitor, FileFormatError, InvalidInputError
from kcal.monitoring.betting import (
    KEPT,
    LIMIT,
    STAKES,
    Wealth,
    class_payoffs,
    kept_after,
    overall_payoffs,
)

Floats = NDArray[np.float64]


def random_probs(n: int, n_classes: int, seed: int, sharpness: float = 2.0) -> Floats:
    return np.asarray(softmax(sharpness * np.random.default_rng(seed).normal(size=(n, n_classes)), axis=1))


def drawn_labels(probs: Floats, seed: int) -> NDArray[np.int64]:
    return np.asarray((probs.cumsum(axis=1) > np.random.default_rng(seed).random((len(probs), 1))).argmax(axis=1))


def overconfident(probs: Floats, exponent: float = 2.0) -> Floats:
    return np.asarray(softmax(exponent * np.log(probs), axis=1))


def every_payoff(probs: Floats) -> list[list[Floats]]:
    """Return (values, lows, highs) of every label of one prediction."""
    parts = []
    for label in range(probs.shape[1]):
        both = overall_payoffs(probs, np.array([label])).beside(class_payoffs(probs, np.array([label])))
        parts.append([both.values[0], both.lows[0], both.highs[0]])
    return parts


@settings(max_examples=40)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=6).filter(lambda p: sum(p) > 0.01))
def test_payoffs_have_mean_zero_and_reach_their_bounds(shares):
    probs = np.array([shares]) / np.sum(shares)
    parts = every_payoff(probs)
    values = np.array([part[0] for part in parts])  # (n_labels, n_games)
    np.testing.assert_allclose(probs[0] @ values, 0, atol=1e-12)
    np.testing.assert_allclose(values.min(axis=0), parts[0][1], atol=1e-12)
    np.testing.assert_allclose(values.max(axis=0), parts[0][2], atol=1e-12)


@settings(max_examples=30)
@given(st.integers(0, 500), st.floats(0, 0.1))
def test_a_bias_up_to_the_tolerance_gives_no_payoff_a_larger_mean_than_its_reach(seed, tolerance):
    generator = np.random.default_rng(seed)
    probs = random_probs(1, 4, seed)
    change = generator.uniform(-1, 1, size=4)
    change -= change.mean()
    true = probs[0] + tolerance * change / np.abs(change).max()
    values = np.array([part[0] for part in every_payoff(probs)])
    both = overall_payoffs(probs, np.array([0])).beside(class_payoffs(probs, np.array([0])))
    assert (np.abs(true @ values) <= tolerance * both.reach + 1e-12).all()


def slow_wealth(payoffs: Floats, lows: Floats, highs: Floats, fee: float) -> list[float]:
    """Return the wealth after each row of one game, gambler by gambler and row by row."""
    staked = [(1 - KEPT) / len(STAKES)] * len(STAKES)
    kept, wealth = KEPT, []
    for row, (payoff, low, high) in enumerate(zip(payoffs, lows, highs, strict=True), 1):
        for place, stake in enumerate(STAKES):
            bound = LIMIT / (abs(low) + fee) if stake > 0 else LIMIT / (abs(high) + fee)
            used = np.sign(stake) * min(abs(stake), bound)
            staked[place] *= 1 + used * payoff - abs(used) * fee
        left = float(kept_after(np.array(row)))
        staked = [each + (kept - left) / len(STAKES) for each in staked]
        kept = left
        wealth.append(kept + sum(staked))
    return wealth


def test_parts_of_the_wealth_add_up_to_it_and_do_not_depend_on_the_blocks():
    probs = random_probs(3000, 3, seed=3)
    labels, groups = drawn_labels(overconfident(probs, 0.8), 3), np.arange(3000) % 7 % 3
    at_once = CalibrationMonitor(range(3))
    report = at_once.update(probs, labels, groups)
    in_parts = CalibrationMonitor(range(3))
    paths = [in_parts.update(probs[a : a + 37], labels[a : a + 37], groups[a : a + 37]).path
             for a in range(0, 3000, 37)]  # fmt: skip
    np.testing.assert_allclose(np.concatenate(paths), report.path, rtol=1e-8, atol=1e-8)
    assert in_parts.report().overall.log_wealth == pytest.approx(report.overall.log_wealth)
    assert in_parts.report().overall.alarm_at == report.overall.alarm_at
    assert report.path[-1] == pytest.approx(report.overall.log_wealth)
    assert report.n_samples == 3000
    assert sum(part.n_samples for part in report.groups) == 3000


def test_calibrated_streams_rarely_alarm_and_drifted_ones_always():
    false, found = 0, []
    for seed in range(40):
        probs = random_probs(1000, 3, seed)
        false += CalibrationMonitor(range(3), alpha=0.2).update(probs, drawn_labels(probs, seed)).alarm
        late = CalibrationMonitor(range(3)).update(np.concatenate([probs[:500], overconfident(probs[500:])]),
                                                   drawn_labels(probs, seed))  # fmt: skip
        found.append(late.alarm_at)
    assert false <= 18  # of 40 streams at α = 0.2: more have a probability below 10⁻⁴
    assert sum(at is not None for at in found) >= 38
    assert sum(at is not None and at <= 500 for at in found) <= 9  # at α = 0.05, likewise


def test_a_small_bias_alarms_without_a_tolerance_only():
    probs = np.tile([0.5, 0.3, 0.2], (20_000, 1))
    labels = drawn_labels(np.tile([0.53, 0.28, 0.19], (20_000, 1)), 0)
    assert CalibrationMonitor(range(3)).update(probs, labels).alarm
    assert not CalibrationMonitor(range(3), tolerance=0.03).update(probs, labels).alarm


def test_the_class_and_the_group_that_drift_are_named():
    generator = np.random.default_rng(0)
    probs = random_probs(4000, 4, seed=5)
    labels, groups = drawn_labels(probs, 5), np.array(["ward", "clinic"])[generator.integers(2, size=4000)]
    moved = (labels == 2) & (groups == "clinic") & (generator.random(4000) < 0.6)
    labels[moved] = 3
    report = CalibrationMonitor(["a", "b", "c", "d"]).update(probs, np.array(list("abcd"))[labels], groups)
    assert report.alarmed_classes == ("c", "d")
    assert report.alarmed_groups == ("clinic",)
    by_name = {part.name: part for part in report.classes}
    assert by_name["c"].observed < by_name["c"].predicted
    assert by_name["d"].observed > by_name["d"].predicted
    assert by_name["a"].observed == pytest.approx(np.mean(labels == 0))
    text = str(report)
    assert "ALARM after" in text.splitlines()[0]
    assert "group clinic" in text


def test_the_state_survives_json():
    probs = random_probs(400, 3, seed=6)
    labels, groups = drawn_labels(probs, 6), np.arange(400) % 3
    monitor = CalibrationMonitor(range(3), alpha=0.1, tolerance=0.01)
    monitor.update(overconfident(probs[:200], 4.0), labels[:200], groups[:200])
    restored = CalibrationMonitor.from_dict(json.loads(json.dumps(monitor.to_dict())))
    ours, theirs = (each.update(probs[200:], labels[200:], groups[200:]) for each in (monitor, restored))
    assert ours.overall == theirs.overall
    assert ours.classes == theirs.classes
    assert ours.groups == theirs.groups
    np.testing.assert_array_equal(ours.path, theirs.path)


@pytest.mark.parametrize("tolerance", [0.0, 0.02])
def test_wealth_equals_row_by_row_betting(tolerance):
    probs = random_probs(150, 3, seed=1)
    payoffs = overall_payoffs(overconfident(probs), drawn_labels(probs, 1))
    whole, path = Wealth.start(2).play(payoffs, tolerance)
    for game in range(2):
        columns = (each[:, game] for each in (payoffs.values, payoffs.lows, payoffs.highs))
        slow = slow_wealth(*columns, tolerance * payoffs.reach[game])
        np.testing.assert_allclose(np.exp(path[:, game]), slow, rtol=1e-10)
    np.testing.assert_allclose(whole.log_totals, path[-1])


@settings(max_examples=40)
@given(st.integers(0, 500), st.floats(0, 0.05))
def test_wealth_is_a_martingale(seed, tolerance):
    before = random_probs(30, 3, seed)
    wealth, _ = Wealth.start(2).play(overall_payoffs(before, drawn_labels(before, seed)), tolerance)
    new = random_probs(1, 3, seed + 1)
    games = [wealth.play(overall_payoffs(new, np.array([label])), tolerance)[0] for label in range(3)]
    expected = new[0] @ np.exp([game.log_totals for game in games])
    if tolerance == 0:
        np.testing.assert_allclose(expected, np.exp(wealth.log_totals), rtol=1e-10)
    assert (expected <= np.exp(wealth.log_totals) * (1 + 1e-10)).all()


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"wealth": {}},
        {"wealth": {"counts": [-7] * 6, "log_stakes": [[0.0] * 18] * 6}},
        {"sums": [[float("nan")] * 3] * 3},
        {"groups": ["a", "a"]},
        {"alarms": [1]},
    ],
)
def test_damaged_state_raises(change):
    monitor = CalibrationMonitor([0, 1])
    monitor.update(np.full((4, 2), 0.5), [0, 1, 0, 1], groups=["a", "b", "a", "b"])
    state = json.loads(json.dumps(monitor.to_dict()))
    assert CalibrationMonitor.from_dict(state).to_dict() == state
    with pytest.raises(FileFormatError, match="state of a monitor"):
        CalibrationMonitor.from_dict(state | change)


@pytest.mark.parametrize(
    ("parameter", "classes", "arguments"),
    [
        ("classes", [0], ()),
        ("probs", range(3), ([[0.5, 0.5]], [0])),
        ("probs", range(3), ([0.2, 0.3, 0.5], [0])),
        ("labels", ["a", "b"], ([[0.5, 0.5]], ["c"])),
    ],
)
def test_wrong_arguments_are_named(parameter, classes, arguments):
    with pytest.raises(InvalidInputError, match=parameter):
        CalibrationMonitor(classes).update(*arguments)
