"""Defects that users of calibration libraries report, each with the property that excludes it here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

import kcal
from kcal import METHODS, TemperatureScaling
from kcal.metrics import reliability

LOGIT_METHODS = [
    name for name, method in METHODS.items() if method.inputs == "logits" and name not in ("gp", "iop", "kcal-logits")
]


@pytest.fixture(scope="module")
def example() -> Any:
    return kcal.load_example()


@pytest.mark.parametrize("factor", [0.03, 1.0, 30.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_temperature_does_not_diverge_and_follows_the_scale(example: Any, factor: float, dtype: type) -> None:
    logits, labels = example.calibration.logits, example.calibration.labels
    temperature = TemperatureScaling().fit(logits.astype(dtype) * dtype(factor), labels).temperature_ / factor

    def loss(value: float) -> float:
        log_probs = log_softmax(logits.astype(float) / value, axis=1)
        return float(-log_probs[np.arange(len(labels)), labels].mean())

    assert loss(temperature) < 0.8 * loss(1)  # nor does it stay where it began
    assert loss(temperature) <= min(map(loss, np.geomspace(0.1, 100, 200))) + 1e-4


@pytest.mark.parametrize("method", LOGIT_METHODS)
@pytest.mark.filterwarnings("ignore::kcal.KcalWarning")
def test_noise_and_certainty_give_finite_probabilities(method: str) -> None:
    random = np.random.default_rng(0)
    labels = random.integers(3, size=90)
    for logits in (random.normal(size=(90, 3)), 40.0 * np.eye(3)[labels], np.zeros((90, 3)), 1e5 * np.eye(3)[labels]):
        probs = METHODS[method].factory().fit(logits, labels).predict_proba(logits)
        assert np.isfinite(probs).all()
        np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-9)


def test_confidences_of_exactly_0_and_1_are_in_the_outer_bins() -> None:
    probs, labels = np.array([[0.05, 0.95], [0.0, 1.0], [1.0, 0.0], [0.97, 0.03]]), np.array([1, 0, 0, 1])
    of_class = reliability(probs, labels, of=1, bins=10, adaptive=False)
    assert of_class.counts.sum() == 4
    np.testing.assert_array_equal(of_class.counts[[0, -1]], [2, 2])
    np.testing.assert_allclose(of_class.mean_prediction[[0, -1]], [0.015, 0.975])
    np.testing.assert_allclose(of_class.observed_frequency[[0, -1]], 0.5)


@pytest.mark.parametrize("method", LOGIT_METHODS)
@pytest.mark.filterwarnings("ignore::kcal.KcalWarning")
def test_single_precision_and_tensors_give_the_same(example: Any, method: str) -> None:
    logits, labels, new = example.calibration.logits[:500], example.calibration.labels[:500], example.test.logits[:50]
    expected = METHODS[method].factory().fit(logits.astype(float), labels).predict_proba(new.astype(float))
    single = METHODS[method].factory().fit(logits, labels).predict_proba(new)
    tensor = METHODS[method].factory().fit(torch.from_numpy(logits), torch.from_numpy(labels))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, expected, atol=1e-5)
    np.testing.assert_allclose(tensor.predict_proba(torch.from_numpy(new)).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("method", ["ts", "sms", "platt", "isotonic", "kcal-blend"])
def test_names_of_classes_follow_the_columns_not_the_alphabet(example: Any, method: str) -> None:
    cal, new = example.calibration, example.test
    names = np.array([f"{9 - k} {name}" for k, name in enumerate(example.classes)])  # the reverse of the alphabet
    rows = slice(800)
    numbered = kcal.ClassifierOutputs(cal.embeddings[rows], cal.logits[rows], cal.labels[rows])
    named = kcal.ClassifierOutputs(cal.embeddings[rows], cal.logits[rows], names[cal.labels[rows]])
    queries = kcal.ClassifierOutputs(new.embeddings[:40], new.logits[:40])
    plain, by_name = kcal.fit_on(METHODS[method].factory(), numbered), METHODS[method].factory()
    kcal.fit_on(by_name, named, classes=names)
    assert by_name.classes_.tolist() == names.tolist()
    np.testing.assert_allclose(kcal.predict_on(by_name, queries), kcal.predict_on(plain, queries), atol=1e-6)
    if method != "kcal-blend":
        with pytest.raises(kcal.InvalidInputError, match=r"^y "):
            kcal.fit_on(METHODS[method].factory(), named)  # which column is which is never guessed
