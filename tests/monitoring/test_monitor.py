"""Anytime-valid alarms: the wealth against slow betting, martingales, alarms by simulation, states."""

from __future__ import annotations

import json
from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import Floats, drawn_labels, random_probs, slow_wealth
from scipy.special import softmax

from kcal import CalibrationMonitor, FileFormatError, InvalidInputError


def overconfident(probs: Floats, exponent: float = 2.0) -> Floats:
    return np.asarray(softmax(exponent * np.log(probs), axis=1))


def payoffs_by_label(p: Floats) -> Floats:
    """Return the payoff of every game for every label of one prediction, (2 + 2·n_classes, n_classes)."""
    own = np.eye(len(p))
    brier = ((p - own) ** 2).sum(axis=1) - (1 - (p**2).sum())
    confidence = p.max() - own[p.argmax()]
    return np.vstack([brier, confidence, (p - own).T, ((own - p) * (1 - 2 * p)).T])


@pytest.mark.parametrize("tolerance", [0.0, 0.02])
def test_wealth_equals_row_by_row_betting(tolerance):
    probs = overconfident(random_probs(150, 3, seed=1))
    labels = drawn_labels(random_probs(150, 3, seed=1), 1)
    every = np.array([payoffs_by_label(row) for row in probs])
    lows, highs = every.min(axis=2), every.max(axis=2)
    shares = [0.5 / 2] * 2 + [0.25 / 6] * 6
    expected = np.full(150, 0.25)  # of groups, of which there are none
    for game, (share, reach) in enumerate(zip(shares, [2.0, *[1.0] * 7], strict=True)):
        payoffs = every[np.arange(150), game, labels]
        expected += share * np.array(slow_wealth(payoffs, lows[:, game], highs[:, game], tolerance * reach))
    report = CalibrationMonitor(range(3), tolerance=tolerance).update(probs, labels)
    np.testing.assert_allclose(np.exp(report.path), expected, rtol=1e-10)
    assert report.wealth == pytest.approx(expected[-1])


@settings(max_examples=40)
@given(st.integers(0, 500), st.sampled_from([0.0, 0.02, 0.1]), st.sampled_from([None, "old", "new"]))
def test_wealth_is_a_martingale_and_a_row_costs_half_at_most(seed, tolerance, group):
    """With a tolerance it cannot grow on average, whatever the bias within it."""
    before = random_probs(30, 4, seed)
    monitor = CalibrationMonitor(range(4), tolerance=tolerance)
    wealth = monitor.update(before, drawn_labels(before, seed), ["old"] * 30).wealth
    probs = random_probs(1, 4, seed + 1)
    change = np.random.default_rng(seed).uniform(-1, 1, size=4)
    change -= change.mean()
    true = probs[0] + tolerance * change / np.abs(change).max()
    groups = None if group is None else [group]
    after = np.array([deepcopy(monitor).update(probs, [label], groups).wealth for label in range(4)])
    if tolerance == 0:
        assert true @ after == pytest.approx(wealth, rel=1e-9)
    assert true @ after <= wealth * (1 + 1e-9)
    assert (after >= wealth / 2 * (1 - 1e-9)).all()


def test_updates_in_parts_are_one_update_and_the_state_survives_json():
    probs = random_probs(3000, 3, seed=3)
    labels, groups = drawn_labels(overconfident(probs, 0.8), 3), np.arange(3000) % 7 % 3
    report = CalibrationMonitor(range(3), alpha=0.1).update(probs, labels, groups)
    in_parts, paths = CalibrationMonitor(range(3), alpha=0.1), []
    for rows in np.array_split(np.arange(3000), 81):
        in_parts = CalibrationMonitor.from_dict(json.loads(json.dumps(in_parts.to_dict())))
        paths.append(in_parts.update(probs[rows], labels[rows], groups[rows]).path)
    np.testing.assert_allclose(np.concatenate(paths), report.path, rtol=1e-8, atol=1e-8)
    assert report.path[-1] == pytest.approx(report.overall.log_wealth)
    found = in_parts.report()
    for ours, theirs in zip((found.overall, *found.classes, *found.groups),
                            (report.overall, *report.classes, *report.groups), strict=True):  # fmt: skip
        assert (ours.name, ours.n_samples, ours.alarm_at) == (theirs.name, theirs.n_samples, theirs.alarm_at)
        assert ours.log_wealth == pytest.approx(theirs.log_wealth)
    assert report.n_samples == sum(part.n_samples for part in report.groups) == 3000


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
