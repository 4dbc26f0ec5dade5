"""Temperature scaling minimises the log-loss plus its prior, which keeps it from claiming certainty."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from kcal import KCalBlend, KNNInterpolation, TemperatureScaling
from kcal.errors import InvalidInputError, LeakageWarning
from two_input_problems import brute_force_temperature, random_weights, small_problem

pytestmark = pytest.mark.filterwarnings("ignore::kcal.FewSamplesWarning")


def loss(logits: Any, labels: Any, temperature: float) -> float:
    scaled = logits / temperature
    scaled = scaled - scaled.max(axis=1, keepdims=True)
    return -(scaled[np.arange(len(labels)), labels] - np.log(np.exp(scaled).sum(axis=1))).mean()


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(2, 40), st.sampled_from([0.003, 0.1, 1.0, 5.0]))
def test_temperature_of_few_weighted_samples_matches_brute_force(seed: int, n: int, scale: float) -> None:
    _, logits, labels = small_problem(n, seed)
    weights = random_weights(n, seed)
    fitted = TemperatureScaling().fit(scale * logits, labels, sample_weight=weights)
    assert fitted.temperature_ == pytest.approx(brute_force_temperature(scale * logits, labels, weights), rel=1e-6)


@pytest.mark.parametrize("n", [60, 100, 200, 2000])
@pytest.mark.filterwarnings("ignore::kcal.errors.LeakageWarning")
def test_temperature_is_the_lower_of_two_minima(n: int) -> None:
    """A few wide gaps and many narrow ones that are all right: the loss has a minimum for either."""
    logits, labels = np.tile([0.0, 0.01], (n, 1)), np.ones(n, dtype=int)
    logits[:3, 1] = 3.0
    found = TemperatureScaling().fit(logits, labels).temperature_
    assert found == pytest.approx(brute_force_temperature(logits, labels), rel=1e-6)


def test_the_prior_vanishes_as_samples_grow() -> None:
    """The gradient of the mean log-loss at the solution is that of the prior over n."""
    generator = np.random.default_rng(0)
    true_logits = generator.normal(scale=1.5, size=(100_000, 4))
    labels = (true_logits + generator.gumbel(size=true_logits.shape)).argmax(axis=1)
    likeliest = minimize_scalar(lambda u: loss(3.0 * true_logits, labels, np.exp(u)), bounds=(0, 2), method="bounded")
    found = TemperatureScaling().fit(3.0 * true_logits, labels).temperature_
    assert found == pytest.approx(np.exp(likeliest.x), rel=1e-3)


@pytest.mark.parametrize("n", [30, 100, 1000])
@pytest.mark.parametrize("gap", [1.5, 2.0, 3.0, 4.0])
@pytest.mark.filterwarnings("ignore::kcal.errors.LeakageWarning")
def test_samples_without_an_error_leave_room_for_one(n: int, gap: float) -> None:
    """Of n samples with log-odds ℓ and no error, the prior leaves n·(1 − p)·ℓ = (0.2 − log T)/0.3², at most 5."""
    logits, labels = np.tile([gap, 0.0], (n, 1)), np.zeros(n, dtype=int)
    fitted = TemperatureScaling().fit(logits, labels)
    rest = fitted.predict_proba(logits)[0, 1]
    expected = min((0.2 - np.log(fitted.temperature_)) / 0.09, 5.0)
    assert n * rest * gap / fitted.temperature_ == pytest.approx(expected, rel=1e-6)
    assert rest > 0.5 / (n + 2)


def test_separable_misleading_and_constant_logits_stay_near_the_prior() -> None:
    assert 0.4 < TemperatureScaling().fit(np.eye(3)[[0, 1, 2, 0]], [0, 1, 2, 0]).temperature_ < 1.22
    assert 1.22 < TemperatureScaling().fit(np.eye(3)[[1, 2, 0, 1]], [0, 1, 2, 0]).temperature_ < 3
    constant = TemperatureScaling().fit(np.zeros((6, 3)), [0, 1, 2, 0, 1, 2])
    assert constant.temperature_ == pytest.approx(np.exp(0.2))


def test_integer_labels_are_columns_and_others_need_classes(problem: Any) -> None:
    names = np.array(["b", "c", "a"])
    with pytest.raises(InvalidInputError, match=r"^y .*Pass classes="):
        TemperatureScaling().fit(problem.logits, names[problem.labels])
    calibrator = TemperatureScaling().fit(problem.logits, names[problem.labels], classes=names)
    np.testing.assert_array_equal(calibrator.classes_, names)
    plain = TemperatureScaling().fit(problem.logits, problem.labels)
    assert calibrator.temperature_ == plain.temperature_
    with pytest.raises(InvalidInputError, match=r"from 0 to 2; got 3 at row 0\. Subtract 1"):
        TemperatureScaling().fit(problem.logits, np.full(240, 3))
    with pytest.raises(InvalidInputError, match=r"^classes must name all 3 columns"):
        TemperatureScaling().fit(problem.logits, problem.labels, classes=[0, 1])


def test_a_calibration_set_without_errors_is_warned_of() -> None:
    labels = np.arange(30) % 3
    with pytest.warns(LeakageWarning, match="no error on the 30 calibration samples"):
        TemperatureScaling().fit(3 * np.eye(3)[labels], labels)
    for method in (KNNInterpolation, KCalBlend):
        with pytest.warns(LeakageWarning, match="no error"):
            method().fit(np.eye(3)[labels], labels, logits=3 * np.eye(3)[labels])
    with warnings.catch_warnings():
        warnings.simplefilter("error", LeakageWarning)
        TemperatureScaling().fit(3 * np.eye(3)[labels[:29]], labels[:29])
        TemperatureScaling().fit(3 * np.eye(3)[labels], [1, *labels[1:]])
