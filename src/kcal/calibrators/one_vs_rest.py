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

import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.isotonic import IsotonicRegression

from kcal.calibrators.base import fitted
from kcal.calibrators.class_scores import PADDING, interpolate, pick, places, rounded_log_odds
from kcal.calibrators.logits import MAX_BINS, MAX_PENALTY, Floats, LogitCalibrator, LogitModel
from kcal.calibrators.quasi_newton import minimise_convex
from kcal.calibrators.temperature_prior import fit_temperature
from kcal.samples import Samples, stratified_folds
from kcal.validation import ALMOST_ZERO, check_choice, check_integer, check_number, parameter

Hits = NDArray[np.bool_]
FitMap = Callable[[Floats, Any, Floats], tuple[Floats, ...]]
"""Fit a map of scores (n,) to targets (n,), with weights (n,), and return the arrays that describe it."""
Point = tuple[float, float]

MAPS = ("auto", "class", "shared")
BINNINGS = ("equal-mass", "equal-width")
FOLDS = 3
"""For the choice between a map per class and a shared one; the two are rarely close."""
MAX_LOG_ODDS = float(-np.log(ALMOST_ZERO))
"""Log-odds of Platt scaling and beta calibration are clipped here, where p or 1 − p is 1e-12."""


class MapsModel(LogitModel):
    """Base class of models with maps of single scores: one per column of scores, or one for all columns.

    Every array that describes the maps is a table with a row per map. Rows of maps with fewer entries are padded: by
    ``PADDING`` in the first table, whose number of columns is ``size``, by their last entries in the others.
    """

    tables: ClassVar[dict[str, int]]
    """Names of the tables; each has so many columns more than the first."""

    def __init__(self, *, n_maps: int, size: int, **config: Any) -> None:
        super().__init__(n_maps=n_maps, size=size, **config)
        shapes = {name: (n_maps, size + extra) for name, extra in self.tables.items()}
        self.declare(dtype=torch.float64, **shapes)

    @classmethod
    def fit_maps(
        cls, fit_map: FitMap, scores: Floats, targets: Any, weights: Floats, *, shared: bool = False, **config: Any
    ) -> Self:
        """Return the model with a map fitted to each column of scores (n, k), or to all of them together."""
        if shared:
            weights = np.repeat(weights, scores.shape[1])
            scores, targets = scores.reshape(-1, 1), targets.reshape(-1, 1)
        maps = [fit_map(column, hits, weights) for column, hits in zip(scores.T, targets.T, strict=True)]
        first = next(iter(cls.tables))
        tables = {
            name: padded(rows, PADDING if name == first else None)
            for name, rows in zip(cls.tables, zip(*maps, strict=True), strict=True)
        }
        return cls(n_maps=len(maps), size=tables[first].shape[1], **config).fill(**tables)

    def arrays(self, name: str) -> list[Floats]:
        """Return a table as one array per map, without padding."""
        sizes = (self.get_buffer(next(iter(self.tables))) < PADDING).sum(dim=1) + self.tables[name]
        return [row[:size].cpu().numpy() for row, size in zip(self.get_buffer(name), sizes.tolist(), strict=True)]


def padded(rows: Sequence[Floats], filler: float | None) -> torch.Tensor:
    """Return a table of arrays of several lengths, (k, m), padded by a number or by their last entries."""
    width = max(map(len, rows))
    ends = [row[-1:].sum() if filler is None else filler for row in rows]
    table = [np.pad(row, (0, width - len(row)), constant_values=end) for row, end in zip(rows, ends, strict=True)]
    return torch.from_numpy(np.stack(table))


def fitted_maps(name: str) -> Any:
    """Declare a fitted attribute that is a table of ``model_``, as a list of arrays, one per map."""
    return property(lambda calibrator: calibrator.model_.arrays(name))


class OneVsRestModel(MapsModel):
    """Base class of the models: maps of log-odds, normalised."""

    @abstractmethod
    def log_map(self, scores: torch.Tensor) -> torch.Tensor:
        """Return log g_k(s_k), (n, n_classes), finite."""

    @property
    def maps(self) -> str:
        """Whether every class has a map of its own, "class", or all have one, "shared"."""
        return "shared" if self.config["n_maps"] == 1 else "class"

    def log_probs(self, log_probs: torch.Tensor, embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated log-probabilities, (n, n_classes)."""
        return torch.log_softmax(self.log_map(rounded_log_odds(log_probs)), dim=1)

    def summary(self) -> dict[str, str]:
        """Return the kind of maps for display."""
        return {"maps": "one shared by all classes" if self.maps == "shared" else "one per class"}


@dataclass(kw_only=True, eq=False, repr=False)
class OneVsRest(LogitCalibrator):
    """Base class of the methods that map the score of each class by itself; parameters as in :class:`PlattScaling`."""

    fits_each_class = True
    pools_network: ClassVar[bool] = True
    model_class: ClassVar[type[OneVsRestModel]]
    maps_ = fitted("maps")
    maps: str = parameter("auto", check_choice, choices=MAPS)

    @abstractmethod
    def _fit_map(self, scores: Floats, hits: Hits, weights: Floats) -> tuple[Floats, ...]:
        """Return the arrays of a map from scores and whether the label is the class of the score, all (n,)."""

    def _fit_maps(self, samples: Samples, *, shared: bool) -> OneVsRestModel:
        """Return the model with a map per class, or one for the scores of all classes together."""
        scores, hits = rounded_log_odds(samples.logits).numpy(), samples.codes[:, None] == np.arange(samples.n_classes)
        return self.model_class.fit_maps(self._fit_map, scores, hits, samples.weights, shared=shared)

    def _fit_model(self, samples: Samples) -> OneVsRestModel:
        shared = self._sharing_is_better(samples) if self.maps == "auto" else self.maps == "shared"
        return self._fit_maps(samples, shared=shared)

    def _sharing_is_better(self, samples: Samples) -> bool:
        """Return whether a shared map has the lower cross-validated log-loss."""
        if len(samples) < 2 * FOLDS:
            return True
        folds = stratified_folds(samples.codes, FOLDS, self.seed)
        losses = {True: 0.0, False: 0.0}
        for shared, fold in product(losses, range(FOLDS)):
            inside, outside = (samples.select(np.flatnonzero(rows)) for rows in (folds != fold, folds == fold))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the fit to all samples warns
                log_probs = self._fit_maps(inside, shared=shared).log_probs(outside.logits).numpy()
            losses[shared] -= float(outside.weights @ log_probs[np.arange(len(outside)), outside.codes])
        return losses[True] <= losses[False]


class LogisticModel(OneVsRestModel):
    """σ(a·s + c) or, with three coefficients, σ(a·log p − b·log(1 − p) + c)."""

    tables: ClassVar[dict[str, int]] = {"coefficients": 0}
    coefficients: torch.Tensor

    def log_map(self, scores: torch.Tensor) -> torch.Tensor:
        """Return log g_k(s_k), (n, n_classes)."""
        features = logistic_features(scores, self.coefficients.shape[1])
        return log_sigmoid((features * self.coefficients).sum(dim=-1))


class PlattScaling(OneVsRest):
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

    method: ClassVar[str] = "platt"
    model_class = LogisticModel
    coefficients_ = fitted_maps("coefficients")

    def _fit_map(self, scores: Floats, hits: Hits, weights: Floats) -> tuple[Floats, ...]:
        positives, negatives = weights[hits].sum(), weights[~hits].sum()
        targets = np.where(hits, (positives + 1) / (positives + 2), 1 / (negatives + 2))
        return (fit_logistic(scores, targets, weights, start=[1.0, 0.0]),)


@dataclass(kw_only=True, eq=False, repr=False)
class BetaCalibration(OneVsRest):
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

    method: ClassVar[str] = "beta"
    model_class = LogisticModel
    coefficients_ = fitted_maps("coefficients")
    penalty: float = parameter(1.0, check_number, minimum=0, maximum=MAX_PENALTY)

    def _fit_map(self, scores: Floats, hits: Hits, weights: Floats) -> tuple[Floats, ...]:
        bounds = [(0.0, None), (0.0, None), (None, None)]
        targets = hits.astype(np.float64)
        return (fit_logistic(scores, targets, weights, start=[1.0, 1.0, 0.0], penalty=self.penalty, bounds=bounds),)


def logistic_features(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Return s and 1, (…, 2), or log p, −log(1 − p) and 1, (…, 3), of log-odds s."""
    clipped = scores.clamp(-MAX_LOG_ODDS, MAX_LOG_ODDS)
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

    return minimise_convex(loss, centre, name="a logistic curve", bounds=bounds, ftol=1e-15, gtol=1e-9)


class IsotonicModel(OneVsRestModel):
    """Linear interpolation between knots, which are log-odds; constant outside them."""

    tables: ClassVar[dict[str, int]] = {"knots": 0, "values": 0}
    knots: torch.Tensor
    values: torch.Tensor

    def log_map(self, scores: torch.Tensor) -> torch.Tensor:
        """Return log g_k(s_k), (n, n_classes)."""
        return torch.log(interpolate(self.knots, self.values, scores))


class IsotonicCalibration(OneVsRest):
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

    method: ClassVar[str] = "isotonic"
    model_class = IsotonicModel
    knots_ = fitted_maps("knots")
    values_ = fitted_maps("values")

    def _fit_map(self, scores: Floats, hits: Hits, weights: Floats) -> tuple[Floats, ...]:
        regression = IsotonicRegression(out_of_bounds="clip").fit(
            np.concatenate([scores, [scores.min(), scores.max()]]),
            np.concatenate([hits, [1.0, 0.0]]),
            sample_weight=np.concatenate([weights, [1.0, 1.0]]),
        )
        return regression.X_thresholds_, regression.y_thresholds_


class VennAbersModel(OneVsRestModel):
    """p₀ and p₁ as step functions of the log-odds; thresholds are the distinct ones of the calibration samples."""

    tables: ClassVar[dict[str, int]] = {"thresholds": 0, "lower": 1, "upper": 1}
    thresholds: torch.Tensor
    lower: torch.Tensor
    upper: torch.Tensor

    def log_map(self, scores: torch.Tensor) -> torch.Tensor:
        """Return log g_k(s_k), (n, n_classes)."""
        lower = pick(self.lower, places(self.thresholds, scores, or_equal=True))
        upper = pick(self.upper, places(self.thresholds, scores))
        return torch.log(upper / (1 - lower + upper))


class VennAbers(OneVsRest):
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

    method: ClassVar[str] = "venn-abers"
    model_class = VennAbersModel
    thresholds_ = fitted_maps("thresholds")
    lower_ = fitted_maps("lower")
    upper_ = fitted_maps("upper")

    def _fit_map(self, scores: Floats, hits: Hits, weights: Floats) -> tuple[Floats, ...]:
        thresholds, index = np.unique(scores, return_inverse=True)
        mass, positive = (np.bincount(index, part).astype(np.float64) for part in (weights, weights * hits))
        upper = with_positive(mass, positive)
        lower = 1 - with_positive(mass[::-1], (mass - positive)[::-1])[::-1]  # the mirror image
        return thresholds, np.concatenate([[0.0], lower]), np.concatenate([upper, [1.0]])


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
        slope = _slope(stack[-1], stack[-2])
        values.append(slope)
        shifted = (x - 1, y - 1)
        if _slope(stack[-1], shifted) < slope:
            stack.pop()
            _push(stack, shifted)
    return np.array(values)


def _push(stack: list[Point], point: Point) -> None:
    """Put a point to the left of all corners on the stack, and remove the corners that lie above the minorant."""
    while len(stack) > 1 and _slope(point, stack[-1]) >= _slope(stack[-1], stack[-2]):
        stack.pop()
    stack.append(point)


def _slope(left: Point, right: Point) -> float:
    return (right[1] - left[1]) / (right[0] - left[0])


class BinnedModel(OneVsRestModel):
    """The value of the bin of a score; a score at an edge, given as log-odds, belongs to the lower bin."""

    tables: ClassVar[dict[str, int]] = {"edges": 0, "values": 1}
    edges: torch.Tensor
    values: torch.Tensor

    def log_map(self, scores: torch.Tensor) -> torch.Tensor:
        """Return log g_k(s_k), (n, n_classes)."""
        return torch.log(pick(self.values, places(self.edges, scores)))


@dataclass(kw_only=True, eq=False, repr=False)
class HistogramBinning(OneVsRest):
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

    method: ClassVar[str] = "histogram"
    model_class = BinnedModel
    edges_ = fitted_maps("edges")
    rates_ = fitted_maps("values")
    bins: int = parameter(15, check_integer, minimum=1, maximum=MAX_BINS)
    binning: str = parameter("equal-width", check_choice, choices=BINNINGS)

    def _fit_map(self, scores: Floats, hits: Hits, weights: Floats) -> tuple[Floats, ...]:
        inner = np.arange(1, self.bins) / self.bins
        equal_width = self.binning == "equal-width"
        edges = np.log(inner) - np.log1p(-inner) if equal_width else equal_mass_edges(scores, weights, self.bins)
        index, n_bins = np.searchsorted(edges, scores), len(edges) + 1
        middles = (np.arange(n_bins) + 0.5) / n_bins  # only equal-width bins can be empty
        return edges, bin_rates(index, hits, weights, middles)


def bin_rates(index: NDArray[np.int64], targets: Any, weights: Floats, empty: Floats) -> Floats:
    """Return the mean target of the samples in each bin, kept 1/(n_b + 2) away from 0 and 1.

    ``index`` is the bin of each sample; ``empty`` are the rates of bins without samples, (n_bins,).
    """
    sizes, positives = (np.bincount(index, part, len(empty)) for part in (weights, weights * targets))
    margin = 1 / (sizes + 2)
    rates = np.clip(positives / np.where(sizes > 0, sizes, 1.0), margin, 1 - margin)
    return np.where(sizes > 0, rates, empty)


class ScaledBinnedModel(BinnedModel):
    """Bins of the log-odds of softmax(z / T)."""

    temperature: torch.Tensor

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.declare(temperature=())

    def log_probs(self, log_probs: torch.Tensor, embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated log-probabilities, (n, n_classes)."""
        return super().log_probs(torch.log_softmax(log_probs / self.temperature, dim=1))

    def summary(self) -> dict[str, str]:
        """Return the temperature and the kind of maps for display."""
        return {"temperature": f"{float(self.temperature):.4g}", **super().summary()}


@dataclass(kw_only=True, eq=False, repr=False)
class ScalingBinning(OneVsRest):
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

    method: ClassVar[str] = "scaling-binning"
    model_class = ScaledBinnedModel
    temperature_ = fitted("temperature")
    edges_ = fitted_maps("edges")
    means_ = fitted_maps("values")
    bins: int | None = parameter(None, check_integer, minimum=1, maximum=MAX_BINS)

    def _fit_maps(self, samples: Samples, *, shared: bool) -> ScaledBinnedModel:
        bins = max(100, 10 * samples.n_classes) if self.bins is None else self.bins

        def average_bins(scores: Floats, _: Floats, weights: Floats) -> tuple[Floats, ...]:
            edges = equal_mass_edges(scores, weights, bins)
            index = np.searchsorted(edges, scores)
            means = np.bincount(index, weights * expit(scores)) / np.bincount(index, weights)
            return edges, np.maximum(means, ALMOST_ZERO)

        temperature = fit_temperature(samples.logits, samples.codes, samples.weights)
        scores = rounded_log_odds(torch.log_softmax(samples.logits / temperature, dim=1)).numpy()
        model = ScaledBinnedModel.fit_maps(average_bins, scores, scores, samples.weights, shared=shared)
        return model.fill(temperature=temperature)


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
