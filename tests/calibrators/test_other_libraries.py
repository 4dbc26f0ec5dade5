"""The same optimum as independent implementations, or a better one; those that are not installed are skipped."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator

from kcal import TemperatureScaling, VennAbers
from pooled_network import pooled
from two_input_problems import prior_penalty

pytestmark = pytest.mark.other_libraries


class Network(ClassifierMixin, BaseEstimator):
    """A classifier whose logits are its inputs."""

    def __init__(self, n_classes: int = 3) -> None:
        self.n_classes = n_classes
        self.classes_ = np.arange(n_classes)

    def fit(self, X: Any, y: Any) -> Network:
        return self

    def predict(self, X: NDArray[np.float64]) -> NDArray[np.int64]:
        return X.argmax(axis=1)

    def decision_function(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        return X


def test_the_temperature_is_scikit_learns(problem: Any) -> None:
    pytest.importorskip("sklearn", minversion="1.8")
    theirs = CalibratedClassifierCV(FrozenEstimator(Network()), method="temperature").fit(
        problem.logits, problem.labels
    )
    beta = theirs.calibrated_classifiers_[0].calibrators[0].beta_
    many = np.tile(problem.logits, (4000, 1)), np.tile(problem.labels, 4000)  # the prior vanishes
    mine = TemperatureScaling().fit(*many)
    assert mine.temperature_ == pytest.approx(1 / float(beta), rel=1e-4)
    np.testing.assert_allclose(
        mine.predict_proba(problem.test_logits), theirs.predict_proba(problem.test_logits), atol=1e-4
    )

    def loss(temperature: float) -> float:
        log_probs = log_softmax(problem.logits / temperature, axis=1)
        prior = prior_penalty(np.log(temperature)) / len(many[1])
        return prior - float(log_probs[np.arange(len(problem.labels)), problem.labels].mean())

    assert loss(mine.temperature_) <= loss(1 / float(beta)) + 1e-12


def test_venn_abers_prediction_is_that_of_its_authors(problem: Any) -> None:
    venn_abers = pytest.importorskip("venn_abers.venn_abers")
    probs, new_probs = softmax(problem.logits, axis=1), softmax(problem.test_logits, axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of divisions by zero, which it expects
        theirs, pairs = venn_abers.predict_proba_prefitted_va(probs, problem.labels, new_probs, va_tpe="one_vs_rest")
    mine = VennAbers(maps="class").fit(problem.logits, problem.labels)
    expected = pooled(theirs, problem.test_logits, problem.logits, problem.labels)
    np.testing.assert_allclose(mine.predict_proba(problem.test_logits), expected, atol=1e-9)
    odds = np.log(new_probs) - np.log1p(-new_probs)
    for k, pair in enumerate(pairs):
        lower = mine.lower_[k][np.searchsorted(mine.thresholds_[k], odds[:, k], "right")]
        upper = mine.upper_[k][np.searchsorted(mine.thresholds_[k], odds[:, k], "left")]
        np.testing.assert_allclose(np.column_stack([lower, upper]), pair, atol=1e-9)
