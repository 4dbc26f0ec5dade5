"""Class frequencies that change: thinning, Bayes' rule, estimated priors, and what the study measures."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from experiments.shift import UNIFORM, estimated_prior, presumed_frequencies, thinned
from experiments.study import TaskSetting
from kcal.benchmark import Task
from kcal.benchmark.tasks import row_splits
from kcal.monitoring import adjust_prior

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


def test_thinning_gives_the_wanted_frequencies() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(3), [1000, 500, 200]))
    kept = np.bincount(labels[thinned(labels, 100.0, 3, 0)])
    assert kept.tolist() == [10, 50, 200]  # shares 1/100, 1/10 and 1
    assert np.bincount(labels[thinned(labels, 1 / 100, 3, 0)]).tolist() == [1000, 50, 2]
    assert np.bincount(labels[thinned(labels, UNIFORM, 3, 0)]).tolist() == [200, 200, 200]
    assert thinned(labels, 1.0, 3, 0).tolist() == list(range(1700))


@pytest.mark.parametrize("method", ["kcal-untrained", "kcal-blend"])
def test_the_correction_of_the_study_is_the_parameter_prior(method: str, task: Task) -> None:
    setting, split = TaskSetting(task), row_splits(150, 0.4, 1, 0)[0]
    prior = np.array([0.6, 0.3, 0.1])
    options = {} if method == "kcal-blend" else {"smoothing": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = setting.fit(setting.calibrator(method, **options), split)
        own = setting.fit(setting.calibrator(method, prior=prior.tolist(), **options), split)
    labels = task.pool.labels[split.calibration]
    presumed = presumed_frequencies(plain, labels, 3)
    np.testing.assert_allclose(adjust_prior(plain.probs.astype(np.float64), prior, presumed), own.probs, atol=1e-6)
    assert np.abs(plain.probs - own.probs).max() > 0.01
    counted = np.bincount(labels) / len(labels)
    expected = plain.calibrator.frequencies_ if method == "kcal-blend" else counted
    np.testing.assert_array_equal(presumed, expected)
    assert (expected != counted).any() == (method == "kcal-blend")  # the blend's include the network's predictions


def test_the_estimated_prior_is_the_true_one_within_sampling_error() -> None:
    points, labels = draw(40_000, AFTER, 3)
    found = estimated_prior(posterior(points, BEFORE), BEFORE, tolerance=1e-8)
    np.testing.assert_allclose(found, AFTER, atol=0.02)
    assert found.sum() == pytest.approx(1)
    corrected = adjust_prior(posterior(points, BEFORE), found, BEFORE)
    np.testing.assert_allclose(corrected.mean(axis=0), found, atol=1e-5)  # where it comes to rest
    assert np.abs(np.bincount(labels) / len(labels) - BEFORE).max() > 0.3
