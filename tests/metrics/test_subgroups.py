"""Calibration by subgroup: what each row holds, exact cases of the tests, and false alarms in simulations."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import false_discovery_control, norm

from kcal.errors import InvalidInputError, KcalWarning
from kcal.metrics import SubgroupEvaluation, evaluate
from kcal.metrics.subgroups import holm


def drawn(n, generator, sharpness=1.0):
    """Return probabilities of three classes whose logits are ``sharpness`` times the true ones, and labels."""
    logits = 2 * generator.normal(size=(n, 3))
    labels = (logits + generator.gumbel(size=logits.shape)).argmax(axis=1)
    odds = np.exp(np.reshape(sharpness, (-1, 1)) * logits)
    return odds / odds.sum(axis=1, keepdims=True), labels


@pytest.fixture(scope="module")
def sites():
    generator = np.random.default_rng(0)
    site = pd.Series(generator.choice(["north", "east", "south"], 1500), name="site")
    return *drawn(1500, generator, np.where(site == "south", 2.5, 1.0)), site


@pytest.mark.parametrize("protocol", ["standard", "paper"])
def test_rows_are_what_the_rows_of_each_subgroup_give_alone(sites, protocol):
    probs, labels, site = sites
    weights = np.random.default_rng(1).integers(0, 3, len(labels))
    found = evaluate(probs, labels, by=site, sample_weight=weights, protocol=protocol, confidence=0.9, resamples=50)
    assert isinstance(found, SubgroupEvaluation)
    assert found.names.tolist() == ["east", "north", "south"]
    for k, name in enumerate(found.names):
        rows = np.flatnonzero((site == name) & (weights > 0))
        options = {"sample_weight": weights[rows], "protocol": protocol, "confidence": 0.9, "resamples": 50}
        alone = evaluate(probs[rows], labels[rows], **options)
        low, high = alone.intervals["expected_calibration_error"]
        expected = [len(rows), alone.accuracy, np.average(probs[rows].max(axis=1), weights=weights[rows])]
        expected += [alone.expected_calibration_error, alone.debiased["expected_calibration_error"], low, high]
        names = ["counts", "accuracy", "mean_confidence", "error", "debiased", "low", "high"]
        assert [getattr(found, name)[k] for name in names] == pytest.approx(expected)
        columns = ["samples", "accuracy", "mean_confidence", "ECE", "debiased", "low", "high"]
        assert found.to_frame().loc[name, columns].tolist() == pytest.approx(expected)


def test_the_subgroup_that_is_overconfident_is_found(sites):
    found = evaluate(*sites[:2], by=sites[2])
    assert found.direction == ["", "", "too high"]
    assert found.differs.tolist() == [False, False, True]  # though one bad site is in the others of each good one
    assert found.difference_p_values[0] < 0.05
    frame = found.to_frame()
    assert frame.index.name == "site"
    assert frame["direction"].tolist() == found.direction
    assert "too high" in str(found)


def test_table_is_in_percent_and_says_what_its_columns_are(sites):
    found = evaluate(*sites[:2], by=sites[2], resamples=20)
    heading, *lines = str(found).splitlines()
    columns = ["samples", "accuracy, %", "mean confidence, %", "ECE, %", "debiased, %", "low, %", "high, %"]
    assert " ".join(heading.split()) == " ".join([*columns, "direction", "differs"])
    assert f"{100 * found.accuracy[0]:.2f}" in lines[1]
    assert max(map(len, lines)) <= len(heading)
    assert "3 subgroups" in " ".join(lines[-3:])
    alone = str(evaluate(*sites[:2], by=np.zeros(1500), resamples=20))
    assert "corrected" not in alone
    assert "1 subgroups" not in alone


def test_column_of_single_samples_warns():
    probs, labels = drawn(139, np.random.default_rng(5))
    with pytest.warns(KcalWarning, match=r"139 of the 139 subgroups.*pandas\.cut"):
        evaluate(probs, labels, by=np.random.default_rng(5).normal(size=139), resamples=20)


def test_p_values_of_a_case_worked_by_hand():
    """40 of 100 right at 0.5 in "a", 90 of 200 in "b": gaps −0.1 and −0.05, with the correction of continuity."""
    probs, labels = np.full((300, 2), 0.5), np.ones(300, dtype=int)
    labels[:40], labels[100:190] = 0, 0
    found = evaluate(probs, labels, by=["a"] * 100 + ["b"] * 200)
    np.testing.assert_allclose(found.gap, [-0.1, -0.05])
    alone = 2 * norm.sf([(0.1 - 0.005) / 0.05, (0.05 - 0.0025) / np.sqrt(0.25 / 200)])
    np.testing.assert_allclose(found.p_values, [max(alone[0], 2 * alone[0]), max(2 * alone[0], alone[1])])
    rate = 0.5 - 20 / 300
    equal = 2 * norm.sf((0.05 - 0.0075) / np.sqrt(rate * (1 - rate) * (1 / 100 + 1 / 200)))
    np.testing.assert_allclose(found.difference_p_values, [min(2 * equal, 1.0)] * 2)


def test_holm_by_hand_and_between_no_correction_and_bonferroni():
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, np.nan]), [0.03, 0.06, 0.06, np.nan])
    p = np.random.default_rng(0).uniform(size=50) ** 3
    corrected = holm(p)
    assert (corrected >= false_discovery_control(p) - 1e-12).all()
    assert (corrected <= np.minimum(50 * p, 1)).all()
    assert (np.diff(corrected[np.argsort(p)]) >= 0).all()


@pytest.mark.parametrize("grouped", [False, True])
def test_calibrated_subgroups_are_rarely_marked(grouped):
    """Small subgroups too; with groups, whose rows err together, rows alone would mark many more."""
    generator, marked = np.random.default_rng(3), []
    for _ in range(60):
        probs, labels = drawn(500, generator)
        groups = generator.integers(0, 50, 500)
        by = generator.choice(6, 500, p=[0.02, 0.03, 0.05, 0.2, 0.3, 0.4])
        if grouped:
            wrong = (generator.random(500) < 0.5) & (generator.random(50) < 0.5)[groups]
            probs, by = np.tile([0.75, 0.125, 0.125], (500, 1)), groups % 4
            labels = np.where(wrong, 1, 0)
        found = evaluate(probs, labels, by=by, groups=groups if grouped else None, resamples=20)
        marked.append([any(found.direction), found.differs.any()])
    assert (np.mean(marked, axis=0) < 0.12).all()


def test_subgroups_of_one_sample_or_group_have_no_interval():
    probs, labels = drawn(60, np.random.default_rng(4))
    by = np.repeat(["a", "b", "c"], 20)
    with pytest.warns(KcalWarning, match=r"1 of the 3 subgroups \(a\) have a single group"):
        found = evaluate(probs, labels, by=by, groups=np.r_[np.zeros(20), np.arange(1, 41)], resamples=20)
    assert np.isnan([found.low[0], found.high[0], found.p_values[0], found.difference_p_values[0]]).all()
    assert np.isfinite(found.low[1:]).all()
    whole = evaluate(probs, labels, by=np.zeros(60), resamples=20)
    assert np.isnan(whole.difference_p_values).all()
    assert np.isfinite(whole.p_values).all()


def test_one_group_has_no_interval_of_any_subgroup():
    probs, labels = drawn(60, np.random.default_rng(4))
    with pytest.raises(InvalidInputError, match=r"^groups must have at least two groups"):
        evaluate(probs, labels, by=np.repeat(["a", "b", "c"], 20), groups=["same patient"] * 60, resamples=20)


@pytest.mark.parametrize("by", [["a"], [None, "b"], np.eye(2), {"a": 1}])
def test_invalid_subgroups_are_named(by):
    with pytest.raises(InvalidInputError, match=r"^by "):
        evaluate([[0.5, 0.5], [0.3, 0.7]], [0, 1], by=by)
    with pytest.raises(InvalidInputError, match=r"^by must have at most 1,000"):
        evaluate(np.full((1001, 2), 0.5), np.zeros(1001, dtype=int), by=np.arange(1001.0))


def test_ranges_of_numbers_are_in_their_order():
    probs, labels = drawn(60, np.random.default_rng(4))
    ages = pd.Series(np.tile([7, 35, 90], 20), name="age")
    found = evaluate(probs, labels, by=pd.cut(ages, [0, 9, 80, 100]), resamples=20)
    assert [str(name) for name in found.names] == ["(0, 9]", "(9, 80]", "(80, 100]"]
    assert found.by == "age"
