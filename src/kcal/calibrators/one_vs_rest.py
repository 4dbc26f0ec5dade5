"""One calibration map per class, fitted to "this class or another", and normalisation of the outputs.

s_k = log p_k − log(1 − p_k),   q_k = g_k(s_k),   p′_k = q_k / Σ_j q_j

platt             g(s) = σ(a·s + c)
beta              g(s) = σ(a·log p − b·log(1 − p) + c),   a, b ≥ 0
isotonic          g = argmin over non-decreasing g of Σ_i (1{y_i = k} − g(s_ik))²
venn-abers        g(s) = p₁ / (1 − p₀ + p₁),   p₀, p₁ the isotonic fits at s with (s, 0) or (s, 1) added to the samples
histogram         g(s) = clip(Σ_{i∈b} 1{y_i = k} / n_b, 1/(n_b + 2), 1 − 1/(n_b + 2)),   b the bin of s
scaling-binning   g(s) = (1/n_b)·Σ_{i∈b} p_ik(T),   p(T) = softmax(z / T),   b the bin of p_k(T)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.isotonic import IsotonicRegression

from kcal.calibrators.base import buffer, fitted, option
from kcal.calibrators.class_scores import (
    FitMap,
    fit_maps,
    fitted_maps,
    interpolate,
    pick,
    places,
    rounded_log_odds,
)
from kcal.calibrators.logits import MAX_BINS, MAX_PENALTY, LogitCalibrator, LogitModel
from kcal.calibrators.solvers import minimise
from kcal.calibrators.temperature_prior import fit_temperature
from kcal.errors import without_warnings
from kcal.samples import Floats, Samples, stratified_folds
from kcal.validation import ALMOST_ZERO, check_choice, check_integer, check_number, parameter

Hits = NDArray[np.bool_]
Point = tuple[float, float]

MAPS = ("auto", "class", "shared")
BINNINGS = ("equal-mass", "equal-width")
SHARING_FOLDS = 3
"""For the choice between a map per class and a shared one; the two are rarely close."""
MAX_CURVE_LOG_ODDS = float(-np.log(ALMOST_ZERO))
"""Log-odds of Platt scaling and beta calibration are clipped here, where p or 1 − p is 1e-12."""


def one_vs_rest(calibrator: Any, samples: Samples, fit_map: FitMap, *, scale: bool = False) -> LogitModel:
    """Return the calibrator's model with a map per class, or one for the scores of all classes, as ``maps`` says.

    "auto" takes a shared map if its cross-validated log-loss is the lower one. The targets of ``fit_map`` are whether
    the label is the class of the score. With ``scale``, the scores are those of the network scaled by its temperature.
    """

    def fit(samples: Samples, *, shared: bool) -> LogitModel:
        options = {"temperature": fit_temperature(samples.logits, samples.codes, samples.weights)} if scale else {}
        scores = rounded_log_odds(scaled(samples.logits, **options)).numpy()
        hits = samples.codes[:, None] == np.arange(samples.n_classes)
        tables = fit_maps(fit_map, scores, hits, samples.weights, shared=shared)
        model: LogitModel = calibrator._model_class(**tables, **options)
        return model

    if calibrator.maps != "auto" or len(samples) < 2 * SHARING_FOLDS:
        return fit(samples, shared=calibrator.maps != "class")
    folds = stratified_folds(samples.codes, SHARING_FOLDS, calibrator.seed)
    losses = {True: 0.0, False: 0.0}
    for shared, fold in product(losses, range(SHARING_FOLDS)):
        inside, outside = (samples.select(np.flatnonzero(rows)) for rows in (folds != fold, folds == fold))
        with without_warnings():  # the fit to all samples warns
            log_probs = fit(inside, shared=shared).log_probs(outside.logits).numpy()
        losses[shared] -= float(outside.weights @ log_probs[np.arange(len(outside)), outside.codes])
    return fit(samples, shared=losses[True] <= losses[False])


def scaled(log_probs: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Return log softmax(z / T), (n, n_classes)."""
    return log_probs if temperature == 1 else torch.log_softmax(log_probs / temperature, dim=1)


def fitted_sharing() -> Any:
    """Declare a fitted attribute: "class" if every class has a map of its own, "shared" if there is one for all."""
    return property(lambda calibrator: "shared" if calibrator.model_.sizes["n_maps"] == 1 else "class")


class LogisticModel(LogitModel):
    """σ(a·s + c) or, with three coefficients, σ(a·log p − b·log(1 − p) + c), normalised."""

    coefficients: torch.Tensor = buffer("n_maps", "n_coefficients")

    def log_probs(self, log_probs: torch.Tensor, embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated log-probabilities, (n, n_classes)."""
        features = logistic_features(rounded_log_odds(log_probs), self.coefficients.shape[1])
        return torch.log_softmax(log_sigmoid((features * self.coefficients).sum(dim=-1)), dim=1)


class PlattScaling(LogitCalibrator):
    """Fit a logistic curve to the log-odds of each class against the rest, then normalise.

    The targets are Platt's: (n₊ + 1)/(n₊ + 2) for the n₊ positives and 1/(n₋ + 2) for the n₋ negatives, so that
    separable data have a finite solution. The loss is convex and solved to high precision.

    Parameters
    ----------
    maps : "auto", "class" or "shared"
        A map per class, or one for the scores of all classes together, which needs far fewer samples per class. "auto"
        takes the one with the lower cross-validated log-loss.
    representation, seed
        As in :class:`TemperatureScaling`; the seed is that of the folds of the cross-validation.

    Attributes
    ----------
    coefficients_ : list of arrays
        a_k and c_k of each curve.
    """

    method = "platt"
    _pools_network = _fits_each_class = True
    _model_class = LogisticModel
    maps_ = fitted_sharing()
    coefficients_ = fitted_maps("coefficients")
    maps: str = parameter("auto", check_choice, choices=MAPS)

    def _fit_model(self, samples: Samples) -> LogitModel:
        def fit_map(scores: Floats, hits: Hits, weights: Floats) -> dict[str, Floats]:
            positives, negatives = weights[hits].sum(), weights[~hits].sum()
            targets = np.where(hits, (positives + 1) / (positives + 2), 1 / (negatives + 2))
            return {"coefficients": fit_logistic(scores, targets, weights, start=[1.0, 0.0])}

        return one_vs_rest(self, samples, fit_map)


class BetaCalibration(LogitCalibrator):
    """Fit a beta-calibration curve to each class against the rest, then normalise.

    It is the correct curve if the scores of positives and of negatives follow beta distributions. a = b = 1 and c = 0
    changes nothing; a = b is Platt scaling. The loss is convex and solved with a, b ≥ 0 exactly.

    Parameters
    ----------
    penalty : float
        penalty/2·((a − 1)² + (b − 1)² + c²) is added to the summed log-loss: a normal prior around the curve that
        changes nothing, about as strong as one sample. It keeps the curve of a class with few or separable samples
        finite and vanishes as samples grow; 0 is the published loss.
    maps, representation, seed
        As in :class:`PlattScaling`.

    Attributes
    ----------
    coefficients_ : list of arrays
        a_k, b_k and c_k of each curve.
    """

    method = "beta"
    _pools_network = _fits_each_class = True
    _model_class = LogisticModel
    maps_ = fitted_sharing()
    coefficients_ = fitted_maps("coefficients")
    maps: str = parameter("auto", check_choice, choices=MAPS)
    penalty: float = parameter(1.0, check_number, minimum=0, maximum=MAX_PENALTY)

    def _fit_model(self, samples: Samples) -> LogitModel:
        bounds, start = [(0.0, None), (0.0, None), (None, None)], [1.0, 1.0, 0.0]

        def fit_map(scores: Floats, hits: Hits, weights: Floats) -> dict[str, Floats]:
            targets, penalty = hits.astype(np.float64), self.penalty
            coefficients = fit_logistic(scores, targets, weights, start=start, penalty=penalty, bounds=bounds)
            return {"coefficients": coefficients}

        return one_vs_rest(self, samples, fit_map)


def logistic_features(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Return s and 1, (…, 2), or log p, −log(1 − p) and 1, (…, 3), of log-odds s."""
    clipped = scores.clamp(-MAX_CURVE_LOG_ODDS, MAX_CURVE_LOG_ODDS)
    parts = [clipped] if count == 2 else [log_sigmoid(clipped), -log_sigmoid(-clipped)]
    return torch.stack([*parts, torch.ones_like(clipped)], dim=-1)


def log_sigmoid(scores: torch.Tensor) -> torch.Tensor:
    """Return log σ(s)."""
    return -torch.logaddexp(torch.zeros_like(scores), -scores)


def fit_logistic(
    scores: Floats,
    targets: Floats,
    weights: Floats,
    *,
    start: Sequence[float],
    penalty: float = 0.0,
    bounds: Sequence[tuple[float | None, None]] | None = None,
) -> Floats:
    """Return the coefficients that minimise the logistic loss of scores (n,) against targets in [0, 1].

    penalty/2 times the squared distance from ``start`` is added to the summed loss.
    """
    features = logistic_features(torch.from_numpy(scores), len(start)).numpy()
    total, centre = weights.sum(), np.asarray(start, dtype=np.float64)

    def loss(coefficients: Floats) -> tuple[float, Floats]:
        log_odds, away = features @ coefficients, coefficients - centre
        value = weights @ (np.logaddexp(0.0, log_odds) - targets * log_odds) + penalty / 2 * away @ away
        gradient = (weights * (expit(log_odds) - targets)) @ features + penalty * away
        return float(value / total), gradient / total

    return minimise(loss, centre, name="a logistic curve", bounds=bounds, ftol=1e-15, gtol=1e-9)


class IsotonicModel(LogitModel):
    """Functions of the log-odds that are linear between knots and constant outside them, normalised."""

    knots: torch.Tensor = buffer("n_maps", "n_knots")
    values: torch.Tensor = buffer("n_maps", "n_knots")

    def log_probs(self, log_probs: torch.Tensor, embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated log-probabilities, (n, n_classes)."""
        probs = interpolate(self.knots, self.values, rounded_log_odds(log_probs))
        return torch.log_softmax(torch.log(probs), dim=1)


class IsotonicCalibration(LogitCalibrator):
    """Replace the probability of each class by a non-decreasing function of it (least squares), then normalise.

    scikit-learn fits the functions, each with two additional samples: a positive at its lowest score and a negative at
    its highest. Without them the function is 0 below the lowest positive, where about one new positive in n + 1 samples
    falls, and its log-loss infinite; with them it is 1/(n_b + 1) over the n_b samples there, and n_b/(n_b + 1) above
    the highest negative.

    Parameters
    ----------
    maps, representation, seed
        As in :class:`PlattScaling`.

    Attributes
    ----------
    knots_ : list of arrays
        Log-odds between which each function is linear, ascending.
    values_ : list of arrays
        The functions at the knots; constant outside.
    """

    method = "isotonic"
    _pools_network = _fits_each_class = True
    _model_class = IsotonicModel
    maps_ = fitted_sharing()
    knots_ = fitted_maps("knots")
    values_ = fitted_maps("values")
    maps: str = parameter("auto", check_choice, choices=MAPS)

    def _fit_model(self, samples: Samples) -> LogitModel:
        def fit_map(scores: Floats, hits: Hits, weights: Floats) -> dict[str, Floats]:
            regression = IsotonicRegression(out_of_bounds="clip").fit(
                np.concatenate([scores, [scores.min(), scores.max()]]),
                np.concatenate([hits, [1.0, 0.0]]),
                sample_weight=np.concatenate([weights, [1.0, 1.0]]),
            )
            return {"knots": regression.X_thresholds_, "values": regression.y_thresholds_}

        return one_vs_rest(self, samples, fit_map)


class VennAbersModel(LogitModel):
    """p₁ / (1 − p₀ + p₁) of two step functions of the log-odds, normalised."""

    thresholds: torch.Tensor = buffer("n_maps", "n_thresholds")
    lower: torch.Tensor = buffer("n_maps", "n_steps")
    upper: torch.Tensor = buffer("n_maps", "n_steps")

    def log_probs(self, log_probs: torch.Tensor, embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated log-probabilities, (n, n_classes)."""
        scores = rounded_log_odds(log_probs)
        p_0 = pick(self.lower, places(self.thresholds, scores, or_equal=True))
        p_1 = pick(self.upper, places(self.thresholds, scores))
        return torch.log_softmax(torch.log(p_1 / (1 - p_0 + p_1)), dim=1)


class VennAbers(LogitCalibrator):
    """Merge the two isotonic fits that a sample's own possible labels would give, for each class against the rest.

    One of p₀ and p₁ is a calibrated probability of the class, whatever the distribution; their merger, normalised over
    classes, is the single prediction with the lowest worst-case log-loss regret (Vovk, Petej and Fedorova, 2015). Both
    are step functions that are computed once, exactly and in linear time. A sample weighs as much as the mean
    calibration sample.

    Parameters
    ----------
    maps, representation, seed
        As in :class:`PlattScaling`.

    Attributes
    ----------
    thresholds_ : list of arrays
        Log-odds at which the steps of each class begin, ascending.
    lower_, upper_ : list of arrays
        p₀ from each threshold on, after its value below the first; p₁ up to each threshold, then its value above all.
    """

    method = "venn-abers"
    _pools_network = _fits_each_class = True
    _model_class = VennAbersModel
    maps_ = fitted_sharing()
    thresholds_ = fitted_maps("thresholds")
    lower_ = fitted_maps("lower")
    upper_ = fitted_maps("upper")
    maps: str = parameter("auto", check_choice, choices=MAPS)

    def _fit_model(self, samples: Samples) -> LogitModel:
        def fit_map(scores: Floats, hits: Hits, weights: Floats) -> dict[str, Floats]:
            thresholds, index = np.unique(scores, return_inverse=True)
            mass, positive = (np.bincount(index, part).astype(np.float64) for part in (weights, weights * hits))
            upper = np.append(with_positive(mass, positive), 1.0)
            lower = np.append(0.0, 1 - with_positive(mass[::-1], (mass - positive)[::-1])[::-1])  # the mirror image
            return {"thresholds": thresholds, "lower": lower, "upper": upper}

        return one_vs_rest(self, samples, fit_map)


def with_positive(mass: Floats, positive: Floats) -> Floats:
    """Return the isotonic fit at each place with a positive of weight 1 added there, (m,).

    ``mass`` and ``positive`` are the weights of all and of positive samples by ascending score. The fit is the slope of
    the greatest convex minorant of the cumulative sums P₀, …, P_m. A positive at place i shifts P₀, …, P_{i−1} by
    (−1, −1). What lies to the right of the shifted points is the minorant of the step before: every point is put on
    the stack once.
    """
    points = list(zip(np.cumsum(mass).tolist(), np.cumsum(positive).tolist(), strict=True))
    stack: list[Point] = []  # corners of the minorant, the leftmost on top
    for point in [*reversed(points), (-1.0, -1.0)]:
        _push(stack, point)
    values = []
    for x, y in points:
        slope = _slope_between(stack[-1], stack[-2])
        values.append(slope)
        shifted = (x - 1, y - 1)
        if _slope_between(stack[-1], shifted) < slope:
            stack.pop()
            _push(stack, shifted)
    return np.array(values)


def _push(stack: list[Point], point: Point) -> None:
    """Put a point to the left of all corners on the stack, and remove the corners that lie above the minorant."""
    while len(stack) > 1 and _slope_between(point, stack[-1]) >= _slope_between(stack[-1], stack[-2]):
        stack.pop()
    stack.append(point)


def _slope_between(left: Point, right: Point) -> float:
    return (right[1] - left[1]) / (right[0] - left[0])


class BinnedModel(LogitModel):
    """The values of bins of the log-odds of softmax(z / T), normalised; a score at an edge is in the lower bin."""

    edges: torch.Tensor = buffer("n_maps", "n_edges")
    values: torch.Tensor = buffer("n_maps", "n_bins")
    temperature: float = option(1.0)

    def log_probs(self, log_probs: torch.Tensor, embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated log-probabilities, (n, n_classes)."""
        scores = rounded_log_odds(scaled(log_probs, self.temperature))
        return torch.log_softmax(torch.log(pick(self.values, places(self.edges, scores))), dim=1)


class HistogramBinning(LogitCalibrator):
    """Replace the probability of each class by the frequency of the class in its bin, then normalise.

    Frequencies are kept 1/(n_b + 2) away from 0 and 1, with n_b the samples in the bin: a bin of only positives gives a
    value near 1, not 1. Equal scores share a bin. An equal-width bin without samples gives its middle.

    Parameters
    ----------
    bins : int
        Maximal number of bins per map; ties can leave fewer.
    binning : "equal-width" or "equal-mass"
        [0, 1] cut evenly (closed on the right), or bins with equal numbers of samples. With many more classes than
        bins all samples of a class share its highest equal-mass bin with as many of others, and accuracy suffers.
    maps, representation, seed
        As in :class:`PlattScaling`.

    Attributes
    ----------
    edges_ : list of arrays
        Inner edges of the bins of each map, as log-odds, ascending.
    rates_ : list of arrays
        Output of each bin before rows are normalised; one more than there are edges.
    """

    method = "histogram"
    _pools_network = _fits_each_class = True
    _model_class = BinnedModel
    maps_ = fitted_sharing()
    edges_ = fitted_maps("edges")
    rates_ = fitted_maps("values")
    maps: str = parameter("auto", check_choice, choices=MAPS)
    bins: int = parameter(15, check_integer, minimum=1, maximum=MAX_BINS)
    binning: str = parameter("equal-width", check_choice, choices=BINNINGS)

    def _fit_model(self, samples: Samples) -> LogitModel:
        inner = np.arange(1, self.bins) / self.bins

        def fit_map(scores: Floats, hits: Hits, weights: Floats) -> dict[str, Floats]:
            equal_width = self.binning == "equal-width"
            edges = np.log(inner) - np.log1p(-inner) if equal_width else equal_mass_edges(scores, weights, self.bins)
            index, n_bins = np.searchsorted(edges, scores), len(edges) + 1
            middles = (np.arange(n_bins) + 0.5) / n_bins  # only equal-width bins can be empty
            return {"edges": edges, "values": bin_rates(index, hits, weights, middles)}

        return one_vs_rest(self, samples, fit_map)


def bin_rates(index: NDArray[np.int64], targets: Any, weights: Floats, empty: Floats) -> Floats:
    """Return the mean target of the samples in each bin, kept 1/(n_b + 2) away from 0 and 1.

    ``index`` is the bin of each sample; ``empty`` are the rates of bins without samples, (n_bins,).
    """
    sizes, positives = (np.bincount(index, part, len(empty)) for part in (weights, weights * targets))
    margin = 1 / (sizes + 2)
    rates = np.clip(positives / np.where(sizes > 0, sizes, 1.0), margin, 1 - margin)
    return np.where(sizes > 0, rates, empty)


class ScalingBinning(LogitCalibrator):
    """Scale by a temperature, round the probability of each class to the mean of its bin, and normalise.

    Labels are used for the temperature only; bins hold equal numbers of samples and give the mean of the scaled
    probabilities, which varies far less than the mean of labels in histogram binning. The maps have few distinct
    outputs, so that their calibration error can be measured without the bias of binning. One set of samples serves all
    steps, as in the published code: one temperature cannot overfit much.

    Parameters
    ----------
    bins : int, optional
        Maximal number of bins per map; ties can leave fewer. By default ten per class and at least 100: the samples of
        one of K equally frequent classes fill one bin in K, and many bins cost little where no labels are averaged.
    maps, representation, seed
        As in :class:`PlattScaling`.

    Attributes
    ----------
    temperature_ : float
        T of the scaling.
    edges_ : list of arrays
        Inner edges of the bins of each map, as log-odds of the scaled probabilities, ascending.
    means_ : list of arrays
        Output of each bin before rows are normalised; one more than there are edges.
    """

    method = "scaling-binning"
    _pools_network = _fits_each_class = True
    _model_class = BinnedModel
    maps_ = fitted_sharing()
    temperature_ = fitted("temperature")
    edges_ = fitted_maps("edges")
    means_ = fitted_maps("values")
    maps: str = parameter("auto", check_choice, choices=MAPS)
    bins: int | None = parameter(None, check_integer, minimum=1, maximum=MAX_BINS)

    def _fit_model(self, samples: Samples) -> LogitModel:
        bins = max(100, 10 * samples.n_classes) if self.bins is None else self.bins

        def fit_map(scores: Floats, _: Hits, weights: Floats) -> dict[str, Floats]:
            edges = equal_mass_edges(scores, weights, bins)
            index = np.searchsorted(edges, scores)
            means = np.bincount(index, weights * expit(scores)) / np.bincount(index, weights)
            return {"edges": edges, "values": np.maximum(means, ALMOST_ZERO)}

        return one_vs_rest(self, samples, fit_map, scale=True)


def equal_mass_edges(scores: Floats, weights: Floats, bins: int) -> Floats:
    """Return up to ``bins − 1`` ascending edges between bins of equal weight, halfway between neighbours.

    Equal scores share a bin: a cut between them moves to the nearer end of their run.
    """
    values, index = np.unique(scores, return_inverse=True)
    reached = np.cumsum(np.bincount(index, weights))
    targets = reached[-1] * np.arange(1, bins) / bins
    after = np.searchsorted(reached, targets - 1e-9 * reached[-1])  # the first value that reaches the target
    before = np.maximum(after - 1, 0)
    nearer = np.where(targets - reached[before] < reached[after] - targets, before, after)
    cuts = np.unique(nearer[nearer < len(values) - 1])
    upper = values[cuts + 1]
    # the middle of two neighbouring numbers can round to the upper one, which would leave its bin empty
    return np.asarray(np.minimum((values[cuts] + upper) / 2, np.nextafter(upper, -np.inf)), dtype=np.float64)
