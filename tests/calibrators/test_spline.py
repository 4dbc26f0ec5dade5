"""Spline calibration adds the slope of the least-squares spline, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import logit, softmax

from kcal import SplineCalibration
from one_class_problems import two_columns
from pooled_network import pooled

pytestmark = pytest.mark.filterwarnings("ignore::kcal.FewSamplesWarning")

FORMS = ["one-versus-rest", "rank", "top"]


def natural_basis(places: Any, knots: Any) -> tuple[Any, Any]:
    """Return truncated powers, a basis of natural cubic splines, and their slopes: linear beyond the outer knots."""

    def cube(k: int) -> tuple[Any, Any]:
        parts = [np.maximum(places - knots[j], 0) for j in (k, -1)]
        value = (parts[0] ** 3 - parts[1] ** 3) / (knots[-1] - knots[k])
        return value, 3 * (parts[0] ** 2 - parts[1] ** 2) / (knots[-1] - knots[k])

    last = cube(len(knots) - 2)
    bends = [cube(k) for k in range(len(knots) - 2)]
    values = [np.ones_like(places), places] + [bend[0] - last[0] for bend in bends]
    slopes = [np.zeros_like(places), np.ones_like(places)] + [bend[1] - last[1] for bend in bends]
    return np.stack(values, axis=1), np.stack(slopes, axis=1)


def slow_correction(scores: Any, labels: Any, weights: Any, n_knots: int = 6) -> Any:
    """Return s + h′ of ascending scores by weighted least squares in the other basis, row by row."""
    typical, total, reached, places, heights, height = weights.mean(), weights.sum(), 0.0, [], [], 0.0
    for score, label, weight in zip(scores, labels, weights, strict=True):
        # half of a row's weight lies below its middle, and half a typical row at either end below 0 and above 1
        places.append(min(max((reached + weight / 2 - typical / 2) / (total - typical), 0.0), 1.0))
        heights.append((height + (weight + typical) / 2 * (label - score)) / total)
        reached, height = reached + weight, height + weight * (label - score)
    values, slopes = natural_basis(np.array(places), np.linspace(0, 1, n_knots))
    roots = np.sqrt(weights)
    return scores + slopes @ np.linalg.lstsq(roots[:, None] * values, roots * np.array(heights), rcond=None)[0]


def fit_scores(scores: Any, labels: Any, weights: Any = None, **parameters: Any) -> tuple[Any, Any]:
    """Return the scores and corrected scores of the second of two classes, as published."""
    fitted = SplineCalibration(floor=False, **parameters)
    fitted.fit(two_columns(logit(scores)), labels, sample_weight=weights)
    return fitted.scores_[1], fitted.corrected_[1]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_knots", [2, 3, 6, 9])
def test_corrected_scores_are_those_of_a_loop_over_the_definition(
    form: str, weighted: bool, n_knots: int, problem: Any
) -> None:
    weights = np.random.default_rng(0).gamma(0.3, size=240) if weighted else np.ones(240)
    weights[[0, -1]] = weights.mean() / 1000 if weighted else 1.0  # places of light rows would lie outside [0, 1]
    probs, hits = softmax(problem.logits, axis=1), np.eye(3)[problem.labels]
    if form != "one-versus-rest":
        order = np.argsort(-probs, axis=1)[:, : 1 if form == "top" else 3]
        probs, hits = np.take_along_axis(probs, order, 1), np.take_along_axis(hits, order, 1)
    fitted = SplineCalibration(form=form, knots=n_knots, floor=False)
    fitted.fit(problem.logits, problem.labels, sample_weight=weights)
    assert len(fitted.scores_) == probs.shape[1]
    for k, (scores, corrected) in enumerate(zip(fitted.scores_, fitted.corrected_, strict=True)):
        order = np.argsort(probs[:, k])
        expected = slow_correction(probs[order, k], hits[order, k], weights[order], n_knots)
        np.testing.assert_allclose(scores, probs[order, k], atol=1e-12)
        np.testing.assert_allclose(corrected, expected.clip(0, 1), atol=1e-8)


@pytest.mark.parametrize("form", ["one-versus-rest", "rank"])
def test_prediction_is_the_interpolated_curves_normalised_and_pooled(form: str, problem: Any) -> None:
    fitted = SplineCalibration(form=form).fit(problem.logits, problem.labels)
    rows = np.concatenate([problem.test_logits, problem.logits, [[50.0, 0.0, -50.0]]])
    p = softmax(rows, axis=1)
    order = np.argsort(-p, axis=1) if form == "rank" else np.broadcast_to(np.arange(3), p.shape)
    expected = np.empty_like(p)
    for k, (scores, corrected) in enumerate(zip(fitted.scores_, fitted.corrected_, strict=True)):
        own = np.take_along_axis(p, order[:, [k]], 1)
        np.put_along_axis(expected, order[:, [k]], np.interp(own, scores, corrected), 1)
    expected = pooled(expected / expected.sum(axis=1, keepdims=True), rows, problem.logits, problem.labels)
    np.testing.assert_allclose(fitted.predict_proba(rows), expected, atol=1e-9)


def test_the_top_class_is_interpolated_and_the_others_share_the_rest(problem: Any) -> None:
    fitted = SplineCalibration(form="top").fit(problem.logits, problem.labels)
    rows = np.concatenate([problem.test_logits, np.log([[1 - 1e-14, 5e-15, 5e-15]])])
    p = softmax(rows, axis=1)
    is_top = np.eye(3, dtype=bool)[p.argmax(axis=1)]
    tops = np.interp(p[is_top], fitted.scores_[0], fitted.corrected_[0])[:, None]
    expected = np.where(is_top, tops, (1 - tops) * softmax(np.where(is_top, -np.inf, rows), axis=1))
    expected = pooled(expected, rows, problem.logits, problem.labels)
    np.testing.assert_allclose(fitted.predict_proba(rows), expected, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_tied_logits_are_corrected_alike_however_they_are_shifted(form: str) -> None:
    generator = np.random.default_rng(0)
    logits = generator.integers(-2, 3, size=(200, 3)).astype(float)
    labels = generator.integers(0, 3, 200)
    plain = SplineCalibration(form=form).fit(logits, labels).predict_proba(logits)
    shift = generator.normal(scale=50, size=(200, 1))
    shifted = SplineCalibration(form=form).fit(logits + shift, labels).predict_proba(logits - 0.7)
    np.testing.assert_allclose(shifted, plain, atol=1e-9)


def test_scores_too_small_to_be_distinguished_are_one_score() -> None:
    labels = np.array([0, 1, 0, 0, 1, 1])
    small, tied = (
        SplineCalibration(knots=3).fit(two_columns(np.array([*lowest, -1.4, 0.8])), labels)
        for lowest in ([-5000.0, -2000.0, -900.0, -740.0], [-740.0] * 4)
    )
    assert len(small.scores_[1]) == 3
    np.testing.assert_array_equal(small.scores_[1], tied.scores_[1])
    np.testing.assert_array_equal(small.corrected_[1], tied.corrected_[1])


def test_the_floor_keeps_scores_a_sample_away_from_zero_and_one(problem: Any) -> None:
    """The published clip is to [0, 1]; the network's part keeps probabilities above 0 all the same."""
    weights = np.arange(1.0, 241.0)
    for given, least in ((None, 1 / 240), (weights, (weights**2).sum() / weights.sum() ** 2)):
        published, floored = (
            SplineCalibration(floor=floor).fit(problem.logits, problem.labels, sample_weight=given)
            for floor in (False, True)
        )
        assert min(corrected.min() for corrected in published.corrected_) == 0
        assert (published.predict_proba(problem.test_logits) > 0).all()
        for scores, clipped, corrected in zip(published.scores_, published.corrected_, floored.corrected_, strict=True):
            expected = np.clip(clipped, np.minimum(scores, least), np.maximum(scores, 1 - least))
            np.testing.assert_allclose(corrected, expected, rtol=1e-12)


@pytest.mark.filterwarnings("ignore::kcal.errors.MissingClassWarning")
def test_a_row_corrected_to_nothing_keeps_its_input() -> None:
    generator = np.random.default_rng(10)
    logits, labels = generator.normal(scale=2, size=(5, 3)), generator.integers(0, 3, 5)
    fitted = SplineCalibration(floor=False).fit(logits, labels)
    probs = generator.dirichlet(np.ones(3), 2000)
    curves = zip(probs.T, fitted.scores_, fitted.corrected_, strict=True)
    kept = probs[np.all([np.interp(*curve) == 0 for curve in curves], axis=0)]
    assert len(kept) > 100
    np.testing.assert_allclose(
        fitted.predict_proba(np.log(kept)), pooled(kept, np.log(kept), logits, labels), atol=1e-12
    )
