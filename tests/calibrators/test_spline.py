"""Spline calibration adds the slope of the least-squares spline, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from scipy.interpolate import CubicSpline

from kcal import SplineCalibration, TemperatureScaling
from kcal.calibrators.spline.estimator import clip_corrected, correct_scores, slope_matrix
from kcal.errors import InvalidInputError, MissingClassWarning
from pooled_network import pooled

FORMS = ["one-versus-rest", "rank", "top"]


def softmax(logits: np.ndarray) -> np.ndarray:
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def truncated_powers(places: np.ndarray, knots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return another basis of natural cubic splines, and its slope: linear beyond the outer knots."""

    def cube(k: int) -> tuple[np.ndarray, np.ndarray]:
        parts = [np.maximum(places - knots[j], 0) for j in (k, -1)]
        value = (parts[0] ** 3 - parts[1] ** 3) / (knots[-1] - knots[k])
        return value, 3 * (parts[0] ** 2 - parts[1] ** 2) / (knots[-1] - knots[k])

    last = cube(len(knots) - 2)
    bends = [cube(k) for k in range(len(knots) - 2)]
    values = [np.ones_like(places), places] + [bend[0] - last[0] for bend in bends]
    slopes = [np.zeros_like(places), np.ones_like(places)] + [bend[1] - last[1] for bend in bends]
    return np.stack(values, axis=1), np.stack(slopes, axis=1)


def test_the_slope_is_that_of_explicit_least_squares_in_another_basis() -> None:
    generator = np.random.default_rng(0)
    cumulative = np.cumsum(generator.normal(size=80)) / 80
    to_knots, to_slopes = slope_matrix(np.ones(80), 6)
    values, slopes = truncated_powers(np.linspace(0, 1, 80), np.linspace(0, 1, 6))
    expected = slopes @ np.linalg.lstsq(values, cumulative, rcond=None)[0]
    np.testing.assert_allclose(to_slopes @ (to_knots @ cumulative), expected, atol=1e-9)


def test_the_fit_is_scipys_natural_spline_where_that_passes_through_every_point() -> None:
    values = np.random.default_rng(0).normal(size=6)
    to_knots, to_slopes = slope_matrix(np.ones(6), 6)
    spline = CubicSpline(np.linspace(0, 1, 6), values, bc_type="natural")
    np.testing.assert_allclose(to_knots @ values, values, atol=1e-12)
    np.testing.assert_allclose(to_slopes @ (to_knots @ values), spline(np.linspace(0, 1, 6), 1), atol=1e-12)


def test_the_corrected_scores_are_those_of_a_loop_over_the_definition() -> None:
    generator = np.random.default_rng(0)
    scores = generator.random(60)
    labels = (generator.random(60) < scores**2).astype(float)
    order = np.argsort(scores)
    total, heights = 0.0, []
    for i in order:
        total += labels[i] - scores[i]
        heights.append(total / 60)
    values, slopes = truncated_powers(np.arange(60) / 59, np.linspace(0, 1, 6))
    expected = scores[order] + slopes @ np.linalg.lstsq(values, np.array(heights), rcond=None)[0]
    found, corrected = correct_scores(np.log(scores), labels, np.ones(60), 6, None)
    np.testing.assert_allclose(found, scores[order], atol=1e-12)
    np.testing.assert_allclose(corrected, expected, atol=1e-9)


def weighted_oracle(scores: np.ndarray, labels: np.ndarray, weights: np.ndarray, n_knots: int) -> np.ndarray:
    """Return s + h′ of ascending scores by weighted least squares in the other basis, row by row."""
    typical, total, reached, places, heights, height = weights.mean(), weights.sum(), 0.0, [], [], 0.0
    for score, label, weight in zip(scores, labels, weights, strict=True):
        # half of a row's weight lies below its middle, and half a typical row at either end below 0 and above 1
        places.append(min(max((reached + weight / 2 - typical / 2) / (total - typical), 0.0), 1.0))
        heights.append((height + (weight + typical) / 2 * (label - score)) / total)
        reached, height = reached + weight, height + weight * (label - score)
    values, slopes = truncated_powers(np.array(places), np.linspace(0, 1, n_knots))
    roots = np.sqrt(weights)
    at_knots = np.linalg.lstsq(roots[:, None] * values, roots * np.array(heights), rcond=None)[0]
    return np.asarray(scores + slopes @ at_knots)


@pytest.mark.parametrize("n_knots", [3, 6])
def test_weighted_scores_are_corrected_by_weighted_least_squares(n_knots: int) -> None:
    generator = np.random.default_rng(0)
    scores, weights = np.sort(generator.random(60)), generator.gamma(0.3, size=60)
    weights[[0, -1]] = 1e-3  # lighter than most: their places would lie outside [0, 1]
    labels = (generator.random(60) < scores**2).astype(float)
    found = correct_scores(np.log(scores), labels, weights, n_knots, None)[1]
    np.testing.assert_allclose(found, weighted_oracle(scores, labels, weights, n_knots), atol=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_number_of_knots_is_the_one_asked_for(weighted: bool, problem: Any) -> None:
    weights = np.random.default_rng(0).random(240) if weighted else np.ones(240)
    scores = softmax(problem.logits)
    for n_knots in (2, 3, 9):
        fitted = SplineCalibration(knots=n_knots, floor=False)
        fitted.fit(problem.logits, problem.labels, sample_weight=weights if weighted else None)
        for k in range(3):
            order = np.argsort(scores[:, k])
            oracle = weighted_oracle(scores[order, k], (problem.labels == k)[order], weights[order], n_knots)
            np.testing.assert_allclose(fitted.corrected_[k], oracle.clip(0, 1), atol=1e-8)


def test_scores_between_two_are_interpolated_by_their_distance_and_outside_keep_the_ends(problem: Any) -> None:
    fitted = SplineCalibration(form="top").fit(problem.logits, problem.labels)
    scores, corrected = fitted.scores_[0], fitted.corrected_[0]
    place = int(np.argmax(np.diff(scores) * (scores[:-1] > 0.6)))  # there the first class stays the top one
    quarter = scores[place] + 0.25 * (scores[place + 1] - scores[place])
    rows = np.log([[quarter, 1 - quarter - 1e-6, 1e-6], [1 - 1e-14, 5e-15, 5e-15]])
    tops = np.array([0.75 * corrected[place] + 0.25 * corrected[place + 1], corrected[-1]])
    others = softmax(np.where([[True, False, False]], -np.inf, rows))  # they share the rest in proportion
    expected = np.where([[True, False, False]], tops[:, None], (1 - tops)[:, None] * others)
    expected = pooled(expected, rows, problem.logits, problem.labels)
    np.testing.assert_allclose(fitted.predict_proba(rows), expected, atol=1e-9)


def test_tied_scores_get_one_value_whatever_the_order_of_the_rows() -> None:
    generator = np.random.default_rng(0)
    scores = generator.choice([0.1, 0.3, 0.8], size=120)
    labels = (generator.random(120) < 0.5).astype(float)
    found = correct_scores(np.log(scores), labels, np.ones(120), 6, None)
    order = generator.permutation(120)
    again = correct_scores(np.log(scores[order]), labels[order], np.ones(120), 6, None)
    np.testing.assert_allclose(found[0], [0.1, 0.3, 0.8], atol=1e-12)
    np.testing.assert_allclose(again[1], found[1], atol=1e-12)


def test_tied_logits_are_corrected_alike_however_they_are_shifted() -> None:
    generator = np.random.default_rng(0)
    logits = generator.integers(-2, 3, size=(200, 3)).astype(float)
    labels = generator.integers(0, 3, 200)
    for form in FORMS:
        plain = SplineCalibration(form=form).fit(logits, labels).predict_proba(logits)
        shift = generator.normal(scale=50, size=(200, 1))
        shifted = SplineCalibration(form=form).fit(logits + shift, labels).predict_proba(logits - 0.7)
        np.testing.assert_allclose(shifted, plain, atol=1e-9)


def wide_logits(spread: str, n: int, generator: np.random.Generator) -> np.ndarray:
    if spread == "mixed":
        return generator.choice([-1e4, 1e4, 0.0, 3.0], size=(n, 10)) + generator.normal(size=(n, 10))
    return generator.normal(scale=float(spread), size=(n, 10))


@pytest.mark.parametrize("spread", ["300", "1000", "mixed"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("weighted", [False, True])
def test_widely_spread_logits_give_valid_rows_and_no_zeros_with_the_floor(
    form: str, spread: str, weighted: bool
) -> None:
    generator = np.random.default_rng(0)
    logits, labels = wide_logits(spread, 300, generator), generator.integers(0, 10, 300)
    weights = np.maximum(generator.random(300) ** 8, 1e-9) if weighted else None
    test = np.concatenate([logits, wide_logits(spread, 3_000, generator)])
    for floor in (True, False):
        fitted = SplineCalibration(form=form, floor=floor).fit(logits, labels, sample_weight=weights)
        p = fitted.predict_proba(test)
        assert all((np.diff(scores) > 0).all() for scores in fitted.scores_)
        assert np.isfinite(p).all()
        np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-12)
        assert (p >= (0.99e-12 if floor else 0.0)).all()


def test_scores_too_small_to_be_distinguished_get_their_mean() -> None:
    logs = np.array([-5000.0, -2000.0, -900.0, -740.0, np.log(0.2), np.log(0.7)])
    labels = np.array([0.0, 1.0, 0.0, 0.0, 1.0, 1.0])
    scores, corrected = correct_scores(logs, labels, np.ones(6), 3, None)
    tied, expected = correct_scores(np.maximum(logs, -740.0), labels, np.ones(6), 3, None)
    assert len(scores) == 3
    np.testing.assert_array_equal(scores, tied)
    np.testing.assert_array_equal(corrected, expected)


def error_of_recovery(n: int, seed: int, correction: Any) -> float:
    """Fit the top form to n samples whose rightness is s + correction(t) at top score s, and measure what it finds."""
    generator = np.random.default_rng(seed)
    scores = generator.uniform(0.4, 0.9, n)
    right = generator.random(n) < scores + correction((scores - 0.4) / 0.5)
    labels = np.where(right, 0, generator.integers(1, 3, n))
    fitted = SplineCalibration(form="top").fit(rows_with_top(scores), labels)
    grid = np.linspace(0.41, 0.89, 200)
    found = fitted.predict_proba(rows_with_top(grid))[:, 0]
    return float(np.sqrt(((found - grid - correction((grid - 0.4) / 0.5)) ** 2).mean()))


def rows_with_top(scores: np.ndarray) -> np.ndarray:
    return np.log(np.stack([scores, (1 - scores) / 2, (1 - scores) / 2], axis=1))


def test_a_warp_that_is_a_spline_is_found_at_the_rate_of_a_parametric_model() -> None:
    heights = CubicSpline(np.linspace(0, 1, 6), [0.0, -0.01, -0.03, -0.02, -0.04, -0.04], bc_type="natural")
    sizes = np.array([1_000, 4_000, 16_000, 64_000])
    errors = [np.mean([error_of_recovery(n, seed, lambda t: heights(t, 1)) for seed in range(12)]) for n in sizes]
    rate = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert rate == pytest.approx(-0.5, abs=0.1)
    assert errors[-1] < 0.01


def test_a_smooth_warp_of_the_top_score_is_undone_as_samples_grow() -> None:
    errors = [error_of_recovery(n, 0, lambda t: -0.3 * t**2) for n in (1_000, 100_000)]
    assert errors[1] < 0.02  # the spline is straight at its ends, the warp is not
    assert errors[1] < 0.5 * errors[0]


@pytest.mark.skipif(find_spec("probmetrics") is None, reason="compares with probmetrics")
def test_probmetrics_corrects_scores_alike() -> None:
    splines = pytest.importorskip("probmetrics.calibrators.splines", exc_type=ImportError)
    generator = np.random.default_rng(0)
    scores = generator.random(500)
    labels = generator.random(500) < scores**2
    theirs = splines.CDFSplineCalibrator().fit(np.stack([1 - scores, scores], axis=1), labels.astype(np.int64))
    ours = correct_scores(np.log(scores), labels.astype(float), np.ones(500), 6, None)
    np.testing.assert_allclose(theirs.calib_scores_, ours[0], atol=1e-6)
    np.testing.assert_allclose(theirs.calib_acc_, ours[1], atol=1e-5)


def test_the_rank_form_is_a_spline_of_each_rank_by_itself(problem: Any) -> None:
    fitted = SplineCalibration(form="rank").fit(problem.logits, problem.labels)
    descending = -np.sort(-softmax(problem.logits), axis=1)
    order = np.argsort(-problem.logits, axis=1)
    expected = np.empty((240, 3))
    for rank in range(3):
        hits = (order[:, rank] == problem.labels).astype(float)
        scores, corrected = correct_scores(np.log(descending[:, rank]), hits, np.ones(240), 6, None)
        kept = clip_corrected(corrected, scores, 1 / 240)
        np.put_along_axis(expected, order[:, [rank]], np.interp(descending[:, rank], scores, kept)[:, None], 1)
    expected = pooled(expected / expected.sum(axis=1, keepdims=True), problem.logits, problem.logits, problem.labels)
    np.testing.assert_allclose(fitted.predict_proba(problem.logits), expected, atol=1e-9)


def test_classes_that_tie_are_corrected_alike_by_rank(problem: Any) -> None:
    tied = np.concatenate([problem.logits, np.tile([2.0, 2.0, 0.0], (20, 1)), np.zeros((20, 3))])
    labels = np.concatenate([problem.labels, np.arange(40) % 3])
    p = SplineCalibration(form="rank").fit(tied, labels).predict_proba(np.array([[2.0, 2.0, 0.0], [1.0, 1.0, 1.0]]))
    assert p[0, 0] == p[0, 1]
    np.testing.assert_allclose(p[1], 1 / 3, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_weights_count_in_relation_to_one_another_and_much_as_repetition(form: str) -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(scale=2, size=(3_000, 3))
    labels = (0.5 * logits + generator.gumbel(size=logits.shape)).argmax(axis=1)
    weights = generator.integers(0, 4, 3_000)
    fitted = SplineCalibration(form=form).fit(logits, labels, sample_weight=weights).predict_proba(logits)
    scaled = SplineCalibration(form=form).fit(logits, labels, sample_weight=weights / 7).predict_proba(logits)
    kept = SplineCalibration(form=form).fit(
        logits[weights > 0], labels[weights > 0], sample_weight=weights[weights > 0]
    )
    repeated = SplineCalibration(form=form).fit(np.repeat(logits, weights, axis=0), np.repeat(labels, weights))
    np.testing.assert_allclose(scaled, fitted, atol=1e-9)
    np.testing.assert_allclose(kept.predict_proba(logits), fitted, atol=1e-12)
    np.testing.assert_allclose(repeated.predict_proba(logits), fitted, atol=2e-3)


def test_a_class_without_samples_is_warned_of(problem: Any) -> None:
    logits = np.hstack([problem.logits, problem.logits.mean(axis=1, keepdims=True) - 3])
    with pytest.warns(MissingClassWarning, match="1 of 4 classes"):
        fitted = SplineCalibration().fit(logits, problem.labels)
    assert (fitted.predict_proba(logits) > 0).all()


def test_calibrated_scores_stay_as_they_are() -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(scale=1.5, size=(50_000, 3))
    labels = (logits + generator.gumbel(size=logits.shape)).argmax(axis=1)
    fitted = SplineCalibration().fit(logits, labels)
    assert np.abs(fitted.predict_proba(logits[:2000]) - softmax(logits[:2000])).mean() < 0.01


@pytest.mark.parametrize("form", FORMS)
def test_on_an_overconfident_network_it_does_best_after_temperature_scaling(form: str) -> None:
    generator = np.random.default_rng(0)
    true = generator.normal(scale=2.5, size=(12_000, 10))
    labels = (true + generator.gumbel(size=true.shape)).argmax(axis=1)
    logits, tempered = 5 * true, TemperatureScaling().fit(5 * true[:3000], labels[:3000])
    own = np.arange(9_000), labels[3000:]

    def loss(calibrator: Any, scores: np.ndarray) -> float:
        return float(-np.log(calibrator.predict_proba(scores)[own]).mean())

    plain = SplineCalibration(form=form).fit(logits[:3000], labels[:3000])
    scores = tempered.predict_log_proba(logits)
    after = SplineCalibration(form=form).fit(scores[:3000], labels[:3000])
    assert loss(after, scores[3000:]) < 1.02 * loss(tempered, logits[3000:])
    alone = plain.model_.log_probs(torch.log_softmax(torch.from_numpy(logits[3000:]), dim=1))  # without the network
    assert loss(after, scores[3000:]) < -float(alone.numpy()[own].mean()) - 0.01


def test_the_published_clip_is_to_zero_and_one_and_the_floor_keeps_above_zero(problem: Any) -> None:
    corrected, scores = np.array([-0.3, 0.2, 1.4]), np.array([0.001, 0.1, 0.999])
    np.testing.assert_array_equal(clip_corrected(corrected, scores, 0.0), [0.0, 0.2, 1.0])
    np.testing.assert_array_equal(clip_corrected(corrected, scores, 0.01), [0.001, 0.2, 0.999])
    np.testing.assert_array_equal(clip_corrected(corrected, np.array([0.1, 0.1, 0.9]), 0.01), [0.01, 0.2, 0.99])
    published = SplineCalibration(floor=False).fit(problem.logits, problem.labels)
    floored = SplineCalibration().fit(problem.logits, problem.labels)
    assert min(corrected.min() for corrected in published.corrected_) == 0
    assert min(corrected.min() for corrected in floored.corrected_) > 0
    assert (published.predict_proba(problem.test_logits) > 0).all()  # the network's part


def test_a_row_corrected_to_nothing_keeps_its_input(problem: Any) -> None:
    fitted = SplineCalibration().fit(problem.logits, problem.labels)
    fitted.model_ = replace(fitted.model_, floor=False, corrected=tuple(map(torch.zeros_like, fitted.model_.corrected)))
    expected = pooled(softmax(problem.test_logits), problem.test_logits, problem.logits, problem.labels)
    np.testing.assert_allclose(fitted.predict_proba(problem.test_logits), expected, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.filterwarnings("ignore::kcal.errors.MissingClassWarning")
def test_a_few_samples_give_valid_rows(form: str, n: int, problem: Any) -> None:
    fitted = SplineCalibration(form=form).fit(problem.logits[:n], problem.labels[:n])
    p = fitted.predict_proba(problem.test_logits)
    assert np.isfinite(p).all()
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_permuting_classes_permutes_columns_in_every_form(form: str, problem: Any) -> None:
    columns = np.array([1, 2, 0])
    plain = SplineCalibration(form=form).fit(problem.logits, problem.labels).predict_proba(problem.test_logits)
    turned = SplineCalibration(form=form).fit(problem.logits[:, columns], np.argsort(columns)[problem.labels])
    np.testing.assert_allclose(turned.predict_proba(problem.test_logits[:, columns]), plain[:, columns], atol=1e-9)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [({"form": "all"}, "form must be"), ({"knots": 1}, "knots must be"), ({"floor": 0.5}, "floor must be")],
)
def test_parameters_that_are_invalid_raise(parameters: dict[str, Any], message: str, problem: Any) -> None:
    with pytest.raises(InvalidInputError, match=message):
        SplineCalibration(**parameters).fit(problem.logits, problem.labels)
