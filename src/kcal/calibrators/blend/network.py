"""The calibrators of the network in a blend, with out-of-fold predictions for fitting the pool."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.calibrators.blend.sharpness import LOWEST_LOG_PROB
from kcal.calibrators.holdout import fold_codes, stratified_folds
from kcal.calibrators.kcal.samples import Samples
from kcal.calibrators.logit_base import to_log_probs
from kcal.calibrators.scaling.linear import LinearModel, fit_structured_matrix
from kcal.calibrators.scaling.temperature import TemperatureModel, fit_temperature
from kcal.errors import InvalidInputError

Index = NDArray[np.int64]
Floats = NDArray[np.float64]
NetworkModel = TemperatureModel | LinearModel

MODELS: dict[str, type[TemperatureModel] | type[LinearModel]] = {"ts": TemperatureModel, "sms": LinearModel}


@dataclass(frozen=True, eq=False)
class NetworkFit:
    """Calibrators of the network fitted on all samples, and log probabilities of each sample without its fold."""

    models: tuple[NetworkModel, ...]
    out_of_fold: tuple[torch.Tensor, ...]  # (n, n_classes) each, float64
    min_log_prob: float  # lowest log probability of the network for a class of a sample


def cross_fit_network(
    logits: torch.Tensor, samples: Samples, *, choice: str, folds: int, seed: int, representation: str = "logits"
) -> NetworkFit:
    """Fit temperature scaling and, where cross-validation prefers it, structured matrix scaling beside it.

    It is preferred if it lowers the out-of-fold log-loss by more than one standard error of the difference; with
    groups, that of the group means. ``choice`` "ts" fits the first only, "sms" always both, "auto" compares.
    """
    lowest = float(network_log_probs(logits, representation).min())
    log_probs, codes, weights, groups = (
        to_log_probs(logits, representation),
        samples.codes,
        samples.weights,
        samples.groups,
    )
    if groups is None:
        fold_of = stratified_folds(codes, min(folds, len(codes)), seed)
    else:
        fold_of = fold_codes(codes, min(folds, len(np.unique(groups))), groups, seed)
    temperature, scaled = _cross_fit(fit_temperature, log_probs, codes, weights, fold_of)
    if choice == "ts":
        return NetworkFit((temperature,), (scaled,), lowest)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of classes without samples, for which temperature scaling does
        matrix, mapped = _cross_fit(fit_structured_matrix, log_probs, codes, weights, fold_of)
    gains = (mapped - scaled).numpy()[np.arange(len(codes)), codes]
    shares = weights / weights.sum()
    gain = float(shares @ gains)
    if choice == "auto" and gain <= _standard_error(shares, gains - gain, groups):
        return NetworkFit((temperature,), (scaled,), lowest)
    return NetworkFit((temperature, matrix), (scaled, mapped), lowest)


def _standard_error(shares: Floats, deviations: Floats, groups: Index | None) -> float:
    """Return the standard error of a weighted mean; samples of a group are not independent."""
    if groups is None:
        return float(np.sqrt(shares**2 @ deviations**2))
    _, codes = np.unique(groups, return_inverse=True)
    by_group = np.bincount(codes, weights=shares * deviations)
    return float(np.sqrt((by_group**2).sum() * len(by_group) / (len(by_group) - 1)))


def _cross_fit(
    fit: Callable[[torch.Tensor, Index, Floats], NetworkModel],
    log_probs: torch.Tensor,
    codes: Index,
    weights: Floats,
    fold_of: Index,
) -> tuple[NetworkModel, torch.Tensor]:
    """Return the model of all samples, and log probabilities of each sample by the model of the other folds."""
    out_of_fold = torch.empty_like(log_probs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a fold may lack classes or be separable
        for fold in np.unique(fold_of).tolist():
            inside, outside = np.flatnonzero(fold_of == fold), np.flatnonzero(fold_of != fold)
            model = fit(log_probs[outside], codes[outside], weights[outside])
            out_of_fold[inside] = model.log_probs(log_probs[inside])
    return fit(log_probs, codes, weights), out_of_fold


def network_log_probs(rows: torch.Tensor, representation: str) -> torch.Tensor:
    """Return log probabilities of the network, (n, n_classes), bounded below; of logits in their own precision."""
    if representation == "logits":
        return torch.log_softmax(rows.cpu(), dim=1).clamp_min(LOWEST_LOG_PROB)
    try:
        return to_log_probs(rows, representation)
    except InvalidInputError as error:
        raise InvalidInputError("logits", error.expected, got=error.got, remedy=error.remedy) from error
