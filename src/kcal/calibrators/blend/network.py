"""The network's own opinion, calibrated, and what it says of samples that it was not calibrated on."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.calibrators.base import Calibrator
from kcal.calibrators.scaling.linear import StructuredMatrixScaling
from kcal.calibrators.scaling.temperature import TemperatureScaling

Index = NDArray[np.int64]


@dataclass(frozen=True)
class Partner:
    """A calibrated network: its calibrator, fitted on all samples, and its cross-fitted log probabilities."""

    calibrator: TemperatureScaling | StructuredMatrixScaling
    cross_fitted: torch.Tensor  # (n, n_classes), double

    def says(self, logits: torch.Tensor) -> torch.Tensor:
        """Return log probabilities of other samples, (n, n_classes), double."""
        return self.calibrator._log_probabilities(logits).cpu().double()

    def heights(self, logarithms: torch.Tensor) -> torch.Tensor:
        """Return the same but for what all classes of a row share, from log-softmax of the logits, in its precision."""
        if isinstance(self.calibrator, TemperatureScaling):
            return logarithms / self.calibrator.temperature_
        matrix, bias = self.calibrator.weights_, self.calibrator.bias_
        return torch.addmm(torch.from_numpy(bias).to(logarithms), logarithms, torch.from_numpy(matrix.T).to(logarithms))


PARTNERS = ("auto", "ts", "sms")


def find_partners(
    network_calibrator: str,
    logits: torch.Tensor,
    codes: Index,
    weights: NDArray[np.float64],
    folds: Index,
    representation: str,
    groups: Index | None = None,
) -> list[Partner]:
    """Return temperature scaling and, where cross-validation finds it better, structured matrix scaling.

    Better is a lower log-loss by more than one standard error of the difference, that of the groups' means where there
    are groups: what one patient gains tells little of another. "ts" never looks further, "sms" always takes both.
    """
    if network_calibrator == "ts":
        return [_cross_fit(_candidates(representation)[0], logits, codes, weights, folds)]
    first, second = (_cross_fit(make, logits, codes, weights, folds) for make in _candidates(representation))
    rows = np.arange(len(codes))
    gains = (second.cross_fitted - first.cross_fitted).numpy()[rows, codes]
    shares = weights / weights.sum()
    gain = float(shares @ gains)
    error = _standard_error(shares, gains - gain, groups)
    return [first, second] if gain > error or network_calibrator == "sms" else [first]


def _standard_error(shares: NDArray[np.float64], deviations: NDArray[np.float64], groups: Index | None) -> float:
    """Return the standard error of a weighed mean; samples of a group move together."""
    if groups is None:
        return float(np.sqrt(shares**2 @ deviations**2))
    _, codes = np.unique(groups, return_inverse=True)
    by_group = np.bincount(codes, weights=shares * deviations)
    return float(np.sqrt((by_group**2).sum() * len(by_group) / (len(by_group) - 1)))


def _candidates(representation: str) -> tuple[Calibrator, Calibrator]:
    return TemperatureScaling(representation=representation), StructuredMatrixScaling(representation=representation)


def _cross_fit(
    calibrator: Calibrator, logits: torch.Tensor, codes: Index, weights: NDArray[np.float64], folds: Index
) -> Partner:
    predicted = torch.empty(logits.shape, dtype=torch.float64)
    for fold in np.unique(folds).tolist():
        inside, outside = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
        part = _fit(type(calibrator)(**calibrator.get_params()), logits[outside], codes[outside], weights[outside])
        predicted[inside] = part._log_probabilities(logits[inside])
    return Partner(_fit(calibrator, logits, codes, weights, whole=True), predicted)


def _fit(
    calibrator: Any, logits: torch.Tensor, codes: Index, weights: NDArray[np.float64], *, whole: bool = False
) -> Calibrator:
    with warnings.catch_warnings():
        if not (whole and isinstance(calibrator, TemperatureScaling)):
            warnings.simplefilter("ignore", UserWarning)  # a fold may miss classes or be separable
        fitted: Calibrator = calibrator.fit(logits, codes, sample_weight=weights)
    return fitted
