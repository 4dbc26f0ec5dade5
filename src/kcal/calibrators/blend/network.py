"""The calibrators of the network in a blend, with out-of-fold predictions for fitting the pool."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.calibrators.holdout import fold_codes, stratified_folds
from kcal.calibrators.kcal.samples import Samples
from kcal.calibrators.scaling.linear import DiagonalModel, LinearModel, fit_structured_matrix, fit_structured_vector
from kcal.calibrators.scaling.temperature import TemperatureModel, fit_temperature

Index = NDArray[np.int64]
Floats = NDArray[np.float64]
NetworkModel = TemperatureModel | DiagonalModel

NAMES: dict[type[NetworkModel], str] = {TemperatureModel: "ts", DiagonalModel: "svs", LinearModel: "sms"}
FITS: dict[str, Callable[[torch.Tensor, Index, Floats], NetworkModel]] = {
    "svs": fit_structured_vector,
    "sms": fit_structured_matrix,
}
MANY_CLASSES = 200
"""Number of classes from which a matrix takes too long to fit, and has too many entries for its samples."""


@dataclass(frozen=True, eq=False)
class NetworkFit:
    """Calibrators of the network fitted on all samples, and log probabilities of each sample without its fold."""

    models: tuple[NetworkModel, ...] = ()
    out_of_fold: tuple[torch.Tensor, ...] = ()  # (n, n_classes) each, float64
    min_log_prob: float = 0.0  # lowest log probability of the network for a class of a sample


def cross_fit_network(log_probs: torch.Tensor, samples: Samples, *, choice: str, folds: int, seed: int) -> NetworkFit:
    """Fit temperature scaling and, where cross-validation prefers it, a structured linear map beside it.

    The map is structured matrix scaling, or with many classes structured vector scaling. It is preferred if it lowers
    the out-of-fold log-loss by more than one standard error of the difference; with groups, that of the group means.
    ``choice`` "ts" fits temperature scaling only, "svs" and "sms" always both, "auto" compares.
    """
    lowest = float(log_probs.min())
    if samples.groups is None:
        fold_of = stratified_folds(samples.codes, min(folds, len(samples.codes)), seed)
    else:
        n_groups = len(np.unique(samples.groups))
        fold_of = fold_codes(samples.codes, min(folds, n_groups), samples.groups, seed)
    temperature, scaled = _cross_fit(fit_temperature, log_probs, samples, fold_of)
    if choice == "ts":
        return NetworkFit((temperature,), (scaled,), lowest)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of classes without samples, for which temperature scaling does
        name = choice if choice != "auto" else "svs" if log_probs.shape[1] >= MANY_CLASSES else "sms"
        linear, mapped = _cross_fit(FITS[name], log_probs, samples, fold_of)
    gains = (mapped - scaled).numpy()[np.arange(len(samples.codes)), samples.codes]
    if choice == "auto" and not _is_gain(gains, samples):
        return NetworkFit((temperature,), (scaled,), lowest)
    return NetworkFit((temperature, linear), (scaled, mapped), lowest)


def _is_gain(gains: Floats, samples: Samples) -> bool:
    """Return whether a mean is above its standard error; samples of a group are not independent."""
    shares = samples.weights / samples.weights.sum()
    gain = float(shares @ gains)
    deviations, correction = shares * (gains - gain), 1.0
    if samples.groups is not None:
        deviations = np.bincount(np.unique(samples.groups, return_inverse=True)[1], weights=deviations)
        correction = len(deviations) / (len(deviations) - 1)
    return gain > float(np.sqrt((deviations**2).sum() * correction))


def _cross_fit(
    fit: Callable[[torch.Tensor, Index, Floats], NetworkModel],
    log_probs: torch.Tensor,
    samples: Samples,
    fold_of: Index,
) -> tuple[NetworkModel, torch.Tensor]:
    """Return the model of all samples, and log probabilities of each sample by the model of the other folds."""
    out_of_fold = torch.empty_like(log_probs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a fold may lack classes or be separable
        for fold in np.unique(fold_of).tolist():
            inside, outside = np.flatnonzero(fold_of == fold), np.flatnonzero(fold_of != fold)
            model = fit(log_probs[outside], samples.codes[outside], samples.weights[outside])
            out_of_fold[inside] = model.log_probs(log_probs[inside])
    return fit(log_probs, samples.codes, samples.weights), out_of_fold
