"""I-Max binning: log-odds fall into a few bins that keep the most information; the output is the rate of the bin."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.calibrators.class_scores import (
    Tensors,
    fit_maps,
    one_versus_rest,
    replace_top,
    rounded_log_odds,
    top_accuracy,
)
from kcal.calibrators.imax.bins import find_bins, place
from kcal.calibrators.logit_base import MAX_BINS, Codes, Floats, LogitCalibrator, fitted, to_log_probs
from kcal.calibrators.model_state import LogitModel, ragged
from kcal.calibrators.piecewise import step_values
from kcal.validation import check_choice, check_integer, parameter

FORMS = ("shared", "classwise", "top")


@dataclass(frozen=True)
class IMaxModel(LogitModel):
    """Bins of log-odds and their rates: one set for all classes or the top class, or one per class."""

    form: str
    boundaries: Tensors = ragged()
    rates: Tensors = ragged(like="boundaries", longer_by=1)

    def log_probs(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Return calibrated log probabilities, (n, n_classes)."""
        if self.form == "top":
            top = self._rates_of(rounded_log_odds(log_probs).amax(dim=1, keepdim=True))[:, 0]
            return replace_top(log_probs, torch.log(top), torch.log1p(-top))
        return torch.log_softmax(torch.logit(self._rates_of(rounded_log_odds(log_probs))), dim=1)

    def binned_scores(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Return the rate of each class's bin, (n, n_classes); for the form "top", probabilities."""
        if self.form == "top":
            return torch.exp(self.log_probs(log_probs))
        return self._rates_of(rounded_log_odds(log_probs))

    def _rates_of(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the rate of each bin; a score at a boundary belongs to the upper bin."""
        return step_values(self.boundaries, self.rates, scores, or_equal=True)

    def summary(self) -> dict[str, str]:
        """Return form and number of bins for display."""
        return {"form": self.form, "bins": ", ".join(str(len(rates)) for rates in self.rates[:5])}


@dataclass(kw_only=True, eq=False, repr=False)
class IMaxBinning(LogitCalibrator):
    """Bin log-odds to maximise the mutual information of bin and label; a bin's output is its rate of positives.

    λ_k = z_k − logsumexp_{j≠k} z_j,   p_k ∝ r / (1 − r), r the rate of the bin of λ_k:
    r_b = positives / samples of bin b, clipped to [1/(n_b + 2), 1 − 1/(n_b + 2)]

    The boundaries depend on the scores alone, the rates on the labels. Rates of one class against the rest do not sum
    to 1 over the classes: :meth:`predict_proba` normalises their odds, :meth:`binned_scores` returns the rates.

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
    boundaries_ : list of array
        Log-odds between bins, ascending: one array for all classes or the top class, or one per class.
    rates_ : list of array
        Output of every bin, each array one longer than the boundaries.
    """

    method: ClassVar[str] = "imax"
    pools_network: ClassVar[bool] = True
    model_class = IMaxModel
    boundaries_ = fitted("boundaries")
    rates_ = fitted("rates")
    form: str = parameter("shared", check_choice, choices=FORMS)
    bins: int = parameter(15, check_integer, minimum=1, maximum=MAX_BINS)
    model_: IMaxModel = field(init=False)

    def binned_scores(self, X: Any) -> Any:
        """Return the rate of each class's bin, (n, n_classes), which need not sum to 1.

        The form "top" has rates of the top class only and returns probabilities.
        """
        rows, kind = self._check_rows(X)
        return kind.give_back(self.model_.binned_scores(to_log_probs(rows, self.representation_)))

    @property
    def fits_each_class(self) -> bool:
        """Whether every class has bins of its own."""
        return self.form == "classwise"

    def _fit_log_probs(self, log_probs: torch.Tensor, codes: Codes, weights: Floats) -> IMaxModel:
        scores = rounded_log_odds(log_probs).numpy()
        targets = one_versus_rest(codes, log_probs.shape[1]).astype(np.float64)
        if self.form == "top":
            scores, targets = scores.max(axis=1, keepdims=True), top_accuracy(log_probs, codes)[:, None]
        maps = fit_maps(self._fit_bins, scores, targets, weights, shared=self.form == "shared")
        return IMaxModel(self.form, *maps)

    def _fit_bins(self, scores: Floats, targets: Floats, weights: Floats) -> tuple[Floats, Floats]:
        """Return boundaries and rates; every class starts from the same draws, so that their order plays no part."""
        boundaries = find_bins(scores, weights, int(self.bins), np.random.default_rng(self.seed)).boundaries
        return boundaries, bin_rates(place(boundaries, scores), targets, weights, len(boundaries) + 1)


def bin_rates(places: NDArray[np.int64], targets: Floats, counts: Floats, n_bins: int) -> Floats:
    """Return the rate of positives of every bin, clipped by its size; an empty bin has that of all samples."""
    sizes = np.bincount(places, counts, n_bins)
    positives = np.bincount(places, counts * targets, n_bins)
    empty = sizes == 0
    sizes[empty], positives[empty] = counts.sum(), (counts * targets).sum()
    margin = 1 / (sizes + 2)
    rates: Floats = np.clip(positives / sizes, margin, 1 - margin)
    return rates
