"""The README of the embedded example states what its files hold."""

from __future__ import annotations

import itertools
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from kcal.calibrators import TemperatureScaling
from kcal.datasets import COMPANIONS, Example, ExamplePart, load_example

FOLDER = resources.files("kcal.datasets")
README = (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def example() -> Example:
    return load_example()


def stated(name: str) -> list[float]:
    """Return the numbers of a row of the README."""
    row = next(line for line in README.splitlines() if line.startswith(f"| {name} |") and "0." in line)
    return [float(cell) for cell in row.strip("| ").split("|")[1:]]


def negative_log_likelihood(part: ExamplePart, temperature: float = 1.0) -> float:
    log_probabilities = log_softmax(part.logits.astype(np.float64) / temperature, axis=1)
    return -log_probabilities[np.arange(len(part)), part.labels].mean()


def confidences_and_hits(part: ExamplePart) -> tuple[np.ndarray, np.ndarray]:
    probabilities = np.exp(log_softmax(part.logits.astype(np.float64), axis=1))
    return probabilities.max(axis=1), probabilities.argmax(axis=1) == part.labels


def calibration_error(part: ExamplePart) -> float:
    confidences, hits = confidences_and_hits(part)
    edges = np.linspace(0, 1, 16)
    masks = [(low < confidences) & (confidences <= high) for low, high in itertools.pairwise(edges)]
    return sum(mask.mean() * abs(hits[mask].mean() - confidences[mask].mean()) for mask in masks if mask.any())


@pytest.mark.parametrize("name", ["train", "calibration", "test"])
def test_figures_of_a_part_are_measured(example, name):
    part = getattr(example, name)
    confidences, hits = confidences_and_hits(part)
    loss = lambda temperature: negative_log_likelihood(part, temperature)  # noqa: E731 (convex in 1/T)
    temperature = float(minimize_scalar(loss, bounds=(0.1, 4.0), method="bounded").x)
    measured = [hits.mean(), confidences.mean(), calibration_error(part), loss(1.0)]
    np.testing.assert_allclose(stated(name)[:4], measured, atol=5.1e-5)
    assert stated(name)[4] == pytest.approx(temperature, abs=0.0101)
    assert stated(name)[5] == pytest.approx(loss(temperature), abs=1e-4)


@pytest.mark.parametrize("loss", COMPANIONS)
def test_figures_of_a_companion_are_measured(example, loss):
    companion = example.companion(loss)
    temperature = TemperatureScaling().fit(companion.calibration_logits, example.calibration.labels).temperature_
    part = replace(example.test, logits=companion.test_logits)
    measured = [confidences_and_hits(part)[1].mean(), calibration_error(part), negative_log_likelihood(part)]
    measured += [temperature, negative_log_likelihood(part, temperature)]
    assert stated(loss)[3] == pytest.approx(measured[3], abs=5.1e-3)
    np.testing.assert_allclose(np.delete(stated(loss), 3), np.delete(measured, 3), atol=5.1e-5)


def test_provenance_and_readme_name_the_source_and_its_licence(example):
    for text in (example.provenance, README):
        assert all(word in text for word in ("Fashion-MNIST", "Zalando SE", "MIT"))


def test_files_stay_small():
    sizes = {path.name: len(path.read_bytes()) for path in FOLDER.iterdir() if path.name.startswith("fashion")}
    images = sizes.pop("fashion_mnist_test_images.npz")
    assert images < 5_000_000
    assert sum(sizes.values()) < 5_000_000
