"""Histogram binning and scaling-binning: a value per bin of a class's score, from labels or from scores.

histogram         q_k = clip(Σ_{i∈b} 1{y_i = k} / n_b, 1/(n_b + 2), 1 − 1/(n_b + 2)),   b the bin of p_k
scaling-binning   q_k = (1/n_b)·Σ_{i∈b} p_ik(T),   p(T) = softmax(z / T),   b the bin of p_k(T)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy.special import expit

from kcal.calibrators.binary.one_versus_rest import Hits, OneVersusRest, OneVersusRestModel
from kcal.calibrators.class_scores import Tensors, fit_maps, one_versus_rest, rounded_log_odds
from kcal.calibrators.logit_base import MAX_BINS, Codes, Floats, fitted
from kcal.calibrators.model_state import ragged
from kcal.calibrators.piecewise import step_values
from kcal.calibrators.temperature_prior import fit_temperature
from kcal.validation import ALMOST_ZERO, check_choice, check_integer, parameter

BINNINGS = ("equal-mass", "equal-width")


@dataclass(frozen=True)
class BinnedModel(OneVersusRestModel):
    """g(s) = value of the bin of s; a score at an edge belongs to the lower bin."""

    edges: Tensors = ragged()  # log-odds
    values: Tensors = ragged(like="edges", longer_by=1)

    def log_map(self, scores: torch.Tensor) -> torch.Tensor:
        """Return log g_k(s_k), (n, n_classes)."""
        return torch.log(step_values(self.edges, self.values, scores))


@dataclass(frozen=True, kw_only=True)
class ScaledBinnedModel(BinnedModel):
    """A binned model of the log-odds at a temperature."""

    temperature: float

    def scores(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Return the log-odds of the scaled probabilities, (n, n_classes)."""
        return scaled_log_odds(log_probs, self.temperature)

    def summary(self) -> dict[str, str]:
        """Return the temperature and the kind of maps for display."""
        return {"temperature": f"{self.temperature:.4g}", **super().summary()}


@dataclass(kw_only=True, eq=False, repr=False)
class HistogramBinning(OneVersusRest):
    """Replace the probability of each class by the frequency of the class in its bin, then normalise.

    Frequencies are kept 1/(n_b + 2) away from 0 and 1, with n_b the samples in the bin, so that a bin of only positives
    gives a value near 1, not 1. Equal scores share a bin. An equal-width bin without samples gives its middle.

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
    edges_ = fitted("edges")
    rates_ = fitted("values")
    bins: int = parameter(15, check_integer, minimum=1, maximum=MAX_BINS)
    binning: str = parameter("equal-width", check_choice, choices=BINNINGS)

    def _fit_map(self, scores: Floats, hits: Hits, weights: Floats) -> tuple[Floats, ...]:
        inner = np.arange(1, self.bins) / self.bins
        if self.binning == "equal-width":
            edges = np.log(inner) - np.log1p(-inner)
        else:
            edges = equal_mass_edges(scores, weights, self.bins)
        places = np.searchsorted(edges, scores)
        counts = np.bincount(places, weights=weights, minlength=len(edges) + 1)
        positives = np.bincount(places, weights=weights * hits, minlength=len(edges) + 1)
        middles = (np.arange(len(counts)) + 0.5) / len(counts)  # only equal-width bins can be empty
        rates = np.divide(positives, counts, out=middles, where=counts > 0)
        margin = np.where(counts > 0, 1 / (counts + 2), 0.0)
        return edges, np.clip(rates, margin, 1 - margin)


@dataclass(kw_only=True, eq=False, repr=False)
class ScalingBinning(OneVersusRest):
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
    edges_ = fitted("edges")
    means_ = fitted("values")
    bins: int | None = parameter(None, check_integer, minimum=1, maximum=MAX_BINS)

    def _fit_maps(self, log_probs: torch.Tensor, codes: Codes, weights: Floats, *, shared: bool) -> ScaledBinnedModel:
        temperature = fit_temperature(log_probs, codes, weights)
        bins = max(100, 10 * log_probs.shape[1]) if self.bins is None else self.bins

        def average_bins(scores: Floats, hits: Hits, weights: Floats) -> tuple[Floats, ...]:
            edges = equal_mass_edges(scores, weights, bins)
            places = np.searchsorted(edges, scores)
            means = np.bincount(places, weights=weights * expit(scores)) / np.bincount(places, weights=weights)
            return edges, np.maximum(means, ALMOST_ZERO)

        scores, targets = scaled_log_odds(log_probs, temperature).numpy(), one_versus_rest(codes, log_probs.shape[1])
        maps = fit_maps(average_bins, scores, targets, weights, shared=shared)
        return ScaledBinnedModel(*maps, temperature=temperature)


def scaled_log_odds(log_probs: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the log-odds of softmax(z / T), (n, n_classes)."""
    return rounded_log_odds(torch.log_softmax(log_probs / temperature, dim=1))


def equal_mass_edges(scores: Floats, weights: Floats, bins: int) -> Floats:
    """Return up to ``bins − 1`` ascending edges between bins of equal weight, halfway between neighbours.

    Equal scores share a bin: a cut between them moves to the nearer end of their run.
    """
    values, places = np.unique(scores, return_inverse=True)
    reached = np.cumsum(np.bincount(places, weights=weights))
    targets = reached[-1] * np.arange(1, bins) / bins
    after = np.searchsorted(reached, targets - 1e-9 * reached[-1])  # the first value that reaches the target
    before = np.maximum(after - 1, 0)
    nearer = np.where(targets - reached[before] < reached[after] - targets, before, after)
    cuts = np.unique(nearer[nearer < len(values) - 1])
    upper = values[cuts + 1]
    # the middle of two neighbouring numbers can round to the upper one, which would leave its bin empty
    return np.asarray(np.minimum((values[cuts] + upper) / 2, np.nextafter(upper, -np.inf)), dtype=np.float64)
