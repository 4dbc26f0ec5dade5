"""Temperature scaling minimises the log-loss, and warns if there is no minimiser."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcal import TemperatureScaling, Uncalibrated
from kcal.errors import ConvergenceWarning, InvalidInputError


def loss(logits: Any, labels: Any, temperature: float) -> float:
    scaled = logits / temperature
    scaled = scaled - scaled.max(axis=1, keepdims=True)
    return -(scaled[np.arange(len(labels)), labels] - np.log(np.exp(scaled).sum(axis=1))).mean()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.2, 8.0), st.integers(2, 6))
def test_the_temperature_matches_a_brute_force_grid(seed: int, temperature: float, n_classes: int) -> None:
    generator = np.random.default_rng(seed)
    true_logits = generator.normal(scale=1.5, size=(300, n_classes))
    noise = generator.gumbel(size=true_logits.shape)
    labels, logits = (true_logits + noise).argmax(axis=1), true_logits * temperature
    found = TemperatureScaling().fit(logits, labels).temperature_
    low, high = np.log(0.01), np.log(100)
    for _ in range(2):  # all temperatures, then those between the neighbours of the best: the loss has one valley
        grid = np.linspace(low, high, 201)
        place = int(np.argmin([loss(logits, labels, value) for value in np.exp(grid)]))
        low, high = grid[max(place - 1, 0)], grid[min(place + 1, 200)]
    best = np.exp(grid[place])
    assert abs(np.log(found / best)) < 4.7e-4  # one step of the finer grid
    assert loss(logits, labels, found) <= loss(logits, labels, best) + 1e-12


def test_it_recovers_the_true_temperature_at_the_rate_of_the_root_of_samples() -> None:
    def error(n: int, seed: int) -> float:
        generator = np.random.default_rng([n, seed])
        true_logits = generator.normal(scale=1.5, size=(n, 4))
        labels = (true_logits + generator.gumbel(size=true_logits.shape)).argmax(axis=1)
        return float(np.log(TemperatureScaling().fit(2.5 * true_logits, labels).temperature_ / 2.5))

    sizes = np.array([100, 400, 1_600, 6_400])
    errors = [np.sqrt(np.mean([error(n, seed) ** 2 for seed in range(40)])) for n in sizes]
    exponent = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert exponent == pytest.approx(-0.5, abs=0.1)
    assert errors[-1] < 0.02


def test_weights_equal_repetition(problem: Any) -> None:
    weights = np.random.default_rng(0).integers(0, 4, len(problem.labels))
    weighted = TemperatureScaling().fit(problem.logits, problem.labels, sample_weight=weights)
    repeated = TemperatureScaling().fit(np.repeat(problem.logits, weights, axis=0), np.repeat(problem.labels, weights))
    assert weighted.temperature_ == pytest.approx(repeated.temperature_, rel=1e-9)


def test_separable_logits_stop_at_the_lower_bound_with_a_warning() -> None:
    with pytest.warns(ConvergenceWarning, match=r"bound, 0\.01"):
        calibrator = TemperatureScaling().fit(np.eye(3)[[0, 1, 2, 0]], [0, 1, 2, 0])
    assert calibrator.temperature_ == 0.01


def test_misleading_logits_stop_at_the_upper_bound_with_a_warning() -> None:
    with pytest.warns(ConvergenceWarning, match=r"bound, 100\.0"):
        calibrator = TemperatureScaling().fit(np.eye(3)[[1, 2, 0, 1]], [0, 1, 2, 0])
    assert calibrator.temperature_ == 100.0


def test_saturated_single_precision_logits_give_finite_values() -> None:
    logits = np.where(np.eye(3)[[0, 1, 2, 0, 1]] > 0, 1e4, -1e4).astype(np.float32)
    with pytest.warns(ConvergenceWarning, match="bound, 100"):
        calibrator = TemperatureScaling().fit(logits, [0, 1, 2, 0, 2])
    assert np.isfinite(calibrator.predict_log_proba(logits)).all()


def test_no_calibration_takes_weights_and_ignores_them(problem: Any) -> None:
    weights = np.linspace(0, 3, len(problem.labels))
    weighted = Uncalibrated().fit(problem.logits, problem.labels, sample_weight=weights)
    plain = Uncalibrated().fit(problem.logits, problem.labels)
    np.testing.assert_array_equal(weighted.predict_proba(problem.test_logits), plain.predict_proba(problem.test_logits))
    with pytest.raises(InvalidInputError, match="sample_weight"):
        Uncalibrated().fit(problem.logits, problem.labels, sample_weight=-weights)


def test_probabilities_are_taken_only_when_named(problem: Any) -> None:
    probabilities = Uncalibrated().fit(problem.logits, problem.labels).predict_proba(problem.logits)
    from_logits = TemperatureScaling().fit(problem.logits, problem.labels)
    named = TemperatureScaling(representation="probabilities").fit(probabilities, problem.labels)
    assert named.temperature_ == pytest.approx(from_logits.temperature_, rel=1e-3)
    with pytest.raises(InvalidInputError, match="row 0, which sums to"):
        TemperatureScaling(representation="probabilities").fit(problem.logits, problem.labels)
    with pytest.raises(InvalidInputError, match="representation must be one of"):
        TemperatureScaling(representation="scores").fit(problem.logits, problem.labels)


def test_integer_labels_are_columns_and_others_need_classes(problem: Any) -> None:
    names = np.array(["b", "c", "a"])
    with pytest.raises(InvalidInputError, match=r"Pass fit\(..., classes=...\)"):
        TemperatureScaling().fit(problem.logits, names[problem.labels])
    calibrator = TemperatureScaling().fit(problem.logits, names[problem.labels], classes=names)
    np.testing.assert_array_equal(calibrator.classes_, names)
    plain = TemperatureScaling().fit(problem.logits, problem.labels)
    assert calibrator.temperature_ == plain.temperature_
    with pytest.raises(InvalidInputError, match=r"from 0 to 2; got 3 at row 0\. Subtract 1"):
        TemperatureScaling().fit(problem.logits, np.full(240, 3))
    with pytest.raises(InvalidInputError, match=r"every column of the logits \(3\)"):
        TemperatureScaling().fit(problem.logits, problem.labels, classes=[0, 1])


def test_constant_logits_leave_the_temperature_at_one() -> None:
    assert TemperatureScaling().fit(np.zeros((6, 3)), [0, 1, 2, 0, 1, 2]).temperature_ == 1.0
