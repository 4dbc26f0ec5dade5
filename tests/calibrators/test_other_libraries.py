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

from kcal import BetaCalibration, HistogramBinning, IsotonicCalibration, TemperatureScaling, VennAbers
from kcal.metrics import negative_log_likelihood
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


def two_classes(n: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Logits of two classes, the probability of the second, and labels that follow a warp of it."""
    generator = np.random.default_rng(seed)
    score = generator.normal(scale=2.5, size=n)
    true = 1 / (1 + np.exp(-(0.5 * score + 0.4)))
    labels = (generator.random(n) < true).astype(np.int64)
    return np.column_stack([np.zeros(n), score]), 1 / (1 + np.exp(-score)), labels


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


def test_the_temperature_is_netcals_or_better(problem: Any) -> None:
    scaling = pytest.importorskip("netcal.scaling")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = scaling.TemperatureScaling()
        theirs.fit(softmax(problem.logits, axis=1), problem.labels)
        found = theirs.transform(softmax(problem.logits, axis=1))
    mine = TemperatureScaling().fit(problem.logits, problem.labels).predict_proba(problem.logits)
    assert negative_log_likelihood(mine, problem.labels) <= negative_log_likelihood(found, problem.labels) + 1e-6


def test_beta_calibration_of_two_classes_is_betacals() -> None:
    betacal = pytest.importorskip("betacal")
    logits, probability, labels = two_classes(4000, 0)
    new_logits, new_probability, new_labels = two_classes(4000, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = betacal.BetaCalibration(parameters="abm").fit(probability[:, None], labels).predict(new_probability)
    mine = BetaCalibration(penalty=0.0, maps="class").fit(logits, labels).predict_proba(new_logits)[:, 1]
    np.testing.assert_allclose(mine, theirs, atol=2e-3)  # theirs is regularised a little
    both = [negative_log_likelihood(np.column_stack([1 - p, p]), new_labels) for p in (mine, np.ravel(theirs))]
    assert both[0] <= both[1] + 1e-4


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


@pytest.mark.parametrize("kind", ["isotonic", "histogram"])
def test_binning_and_isotonic_regression_are_netcals_but_for_their_extremes(kind: str) -> None:
    binning = pytest.importorskip("netcal.binning")
    logits, probability, labels = two_classes(4000, 2)
    new_logits, new_probability, _ = two_classes(500, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = binning.IsotonicRegression() if kind == "isotonic" else binning.HistogramBinning(bins=15)
        theirs.fit(probability, labels)
        expected = np.ravel(theirs.transform(new_probability))
    method: Any = IsotonicCalibration if kind == "isotonic" else HistogramBinning
    options = {} if kind == "isotonic" else {"bins": 15, "binning": "equal-width"}
    mine = method(maps="class", **options).fit(logits, labels).predict_proba(new_logits)[:, 1]
    inner = (new_probability > 0.05) & (new_probability < 0.95)  # at the ends ours stay away from 0 and 1
    assert np.abs(mine - expected)[inner].mean() < 0.01
