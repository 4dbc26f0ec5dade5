"""I-Max binning: log-odds in a few bins that keep the most information; the output is the rate of the bin.

λ_k = log p_k − log(1 − p_k),   p′_k ∝ r / (1 − r),   r the rate of positives in the bin of λ_k
boundary         g_b = log[(sp(φ_{b+1}) − sp(φ_b)) / (sp(−φ_b) − sp(−φ_{b+1}))],   sp = softplus
representative   φ_b = logit of the mean of σ(λ) in the bin

For the bins the label is modelled by the network: 1 with probability σ(λ). Bins lose the mean of KL(σ(λ)‖σ(φ)) of the
information about it if every φ is the mean of its bin, and more otherwise. Boundaries and representatives in turn
minimise that mean exactly, given the other: the mutual information of bin and label never decreases; the maximum that
it reaches may be a local one.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit

from kcal.calibrators.base import buffer, option
from kcal.calibrators.class_scores import (
    fit_maps,
    fitted_maps,
    pick,
    places,
    replace_top,
    rounded_log_odds,
    top_accuracy,
)
from kcal.calibrators.logits import MAX_BINS, LogitCalibrator, LogitModel
from kcal.calibrators.one_vs_rest import bin_rates
from kcal.samples import Floats, Samples
from kcal.validation import check_choice, check_integer, parameter

IMAX_FORMS = ("shared", "classwise", "top")
MAX_ALTERNATIONS = 200
CANDIDATES = 4
MAX_SEEDED = 2**16
"""Seeds are drawn from at most so many scores, at evenly spaced ranks."""
MAX_LOG_ODDS = 700.0  # σ of minus this is still above zero
SAME_SCORE = 1e-12  # distance below which scores are the same


class IMaxModel(LogitModel):
    """Bins of log-odds and their rates: one set for all classes or the top class, or one per class."""

    boundaries: torch.Tensor = buffer("n_maps", "n_boundaries")
    rates: torch.Tensor = buffer("n_maps", "n_bins")
    form: str = option()

    def log_probs(self, log_probs: torch.Tensor, embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated log-probabilities, (n, n_classes)."""
        scores = rounded_log_odds(log_probs)
        if self.form == "top":
            top = self.rates_at(scores.amax(dim=1, keepdim=True))[:, 0]
            return replace_top(log_probs, torch.log(top), torch.log1p(-top))
        return torch.log_softmax(torch.logit(self.rates_at(scores)), dim=1)

    def rates_at(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the rate of the bin of each score; a score at a boundary belongs to the upper bin."""
        return pick(self.rates, places(self.boundaries, scores, or_equal=True))


class IMaxBinning(LogitCalibrator):
    """Bin log-odds to maximise the mutual information of bin and label; a bin's output is its rate of positives.

    λ_k = z_k − logsumexp_{j≠k} z_j,   p_k ∝ r / (1 − r), r the rate of the bin of λ_k:
    r_b = positives / samples of bin b, clipped to [1/(n_b + 2), 1 − 1/(n_b + 2)]

    The boundaries depend on the scores alone, the rates on the labels. Rates of one class against the rest do not sum
    to 1 over the classes: predictions normalise their odds.

    Parameters
    ----------
    form : "shared", "classwise" or "top"
        "shared" pools all classes into one binary problem (sCW); "classwise" bins every class separately (CW);
        "top" bins the top class's log-odds, and the other classes share the rest in proportion.
    bins : int
        Maximal number of bins.
    representation, seed
        As in :class:`TemperatureScaling`; the seed is that of the start of the alternation.

    Attributes
    ----------
    boundaries_ : list of arrays
        Log-odds between bins, ascending: one array for all classes or the top class, or one per class.
    rates_ : list of arrays
        Output of every bin, each array one longer than the boundaries.
    """

    method = "imax"
    _pools_network = True
    _model_class = IMaxModel
    boundaries_ = fitted_maps("boundaries")
    rates_ = fitted_maps("rates")
    form: str = parameter("shared", check_choice, choices=IMAX_FORMS)
    bins: int = parameter(15, check_integer, minimum=1, maximum=MAX_BINS)

    @property
    def _fits_each_class(self) -> bool:
        """Whether every class has bins of its own."""
        return self.form == "classwise"

    def _fit_model(self, samples: Samples) -> IMaxModel:
        scores, targets = rounded_log_odds(samples.logits).numpy(), np.eye(samples.n_classes)[samples.codes]
        if self.form == "top":
            scores = scores.max(axis=1, keepdims=True)
            targets = top_accuracy(samples.logits, samples.codes)[:, None]
        tables = fit_maps(self._fit_bins, scores, targets, samples.weights, shared=self.form == "shared")
        return IMaxModel(form=self.form, **tables)

    def _fit_bins(self, scores: Floats, targets: Floats, weights: Floats) -> dict[str, Floats]:
        """Return boundaries and rates; every class starts from the same draws, so that their order plays no part."""
        boundaries = find_boundaries(scores, weights, int(self.bins), np.random.default_rng(self.seed))
        index = np.searchsorted(boundaries, scores, side="right")
        overall = bin_rates(np.zeros_like(index), targets, weights, np.zeros(1))  # of a bin without samples
        rates = bin_rates(index, targets, weights, np.repeat(overall, len(boundaries) + 1))
        return {"boundaries": boundaries, "rates": rates}


def find_boundaries(log_odds: Floats, weights: Floats, n_bins: int, generator: np.random.Generator) -> Floats:
    """Return the boundaries between bins of scores (n,), ascending; fewer if the scores have fewer values."""
    order = np.argsort(log_odds, kind="stable")
    scores, weights = np.clip(log_odds[order], -MAX_LOG_ODDS, MAX_LOG_ODDS), weights[order]
    positive, negative = weights * expit(scores), weights * expit(-scores)  # both exact in their own tail
    boundaries = boundaries_between(draw_seeds(scores, weights, n_bins, generator))
    for _ in range(MAX_ALTERNATIONS):
        edges = np.concatenate([[0], np.searchsorted(scores, boundaries, side="left"), [len(scores)]])
        ones, zeros = _sums(positive, edges), _sums(negative, edges)
        empty = (ones + zeros) == 0
        ones[empty], zeros[empty] = positive.sum(), negative.sum()
        moved = boundaries_between(np.sort(np.log(ones) - np.log(zeros)))
        if np.array_equal(moved, boundaries):
            break
        boundaries = moved
    return boundaries


def boundaries_between(representatives: Floats) -> Floats:
    """Return the log-odds that are as far, in KL, from each representative as from the next, (n − 1,)."""
    low, high = representatives[:-1], representatives[1:]
    gap = high - low
    rise, fall = np.logaddexp(0, high) - np.logaddexp(0, low), np.logaddexp(0, -low) - np.logaddexp(0, -high)
    with np.errstate(divide="ignore", invalid="ignore"):
        between = np.where(gap > SAME_SCORE, np.log(rise) - np.log(fall), low)
    boundaries: Floats = np.maximum.accumulate(np.clip(between, low, high))
    return boundaries


def draw_seeds(scores: Floats, weights: Floats, n_bins: int, generator: np.random.Generator) -> Floats:
    """Return ascending first representatives: k-means++ under :func:`seed_distance`, the best of four per seed."""
    if len(scores) > MAX_SEEDED:
        kept = np.linspace(0, len(scores) - 1, MAX_SEEDED).round().astype(np.int64)
        scores, weights = scores[kept], weights[kept]
    seeds = [generator.choice(scores, p=weights / weights.sum())]
    nearest = seed_distance(scores, seeds[0])
    while len(seeds) < n_bins:
        mass = np.where(nearest > SAME_SCORE, nearest * weights, 0.0)
        if not mass.any():
            break
        candidates = generator.choice(scores, CANDIDATES, p=mass / mass.sum())
        remaining = np.minimum(nearest, seed_distance(scores, candidates[:, None]))  # (candidates, n)
        best = int(np.argmin(remaining @ weights))
        seeds.append(candidates[best])
        nearest = remaining[best]
    return np.sort(np.array(seeds))


def seed_distance(scores: Floats, seeds: Floats) -> Floats:
    """Return ½KL(σ(a)‖σ(c)) + ½KL(σ(b)‖σ(c)), c = (a + b)/2, of every score and seed (broadcast)."""
    middle, half = (scores + seeds) / 2, (scores - seeds) / 2
    drift = (expit(scores) - expit(seeds)) * half
    bend = 2 * np.logaddexp(0, middle) - np.logaddexp(0, scores) - np.logaddexp(0, seeds)
    distance: Floats = np.maximum(0.5 * (drift + bend), 0.0)
    return distance


def _sums(values: Floats, edges: NDArray[np.int64]) -> Floats:
    """Return the sum of each run of values between edges; an empty run sums to 0."""
    starts = np.minimum(edges[:-1], len(values) - 1)
    return np.where(np.diff(edges) > 0, np.add.reduceat(values, starts), 0.0)
