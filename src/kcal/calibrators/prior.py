"""Correcting posteriors for class frequencies that differ between the calibration set and the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.errors import InvalidInputError


def check_prior(prior: Any, classes: NDArray[Any]) -> NDArray[np.float64] | None:
    """Return the class frequencies of the field, one a class, or None.

    ``prior`` is "uniform", a sequence in the order of ``classes``, or a mapping from class to frequency.
    """
    if prior is None:
        return None
    if isinstance(prior, str):
        if prior != "uniform":
            raise InvalidInputError(f'prior must be "uniform", a sequence or a mapping; got {prior!r}.')
        return np.full(len(classes), 1.0 / len(classes))
    if isinstance(prior, Mapping):
        unknown = set(prior) - set(classes.tolist())
        if unknown:
            raise InvalidInputError(f"prior names {next(iter(unknown))!r}, which is not among the classes.")
        prior = [prior.get(label, 0.0) for label in classes.tolist()]
    values = np.asarray(prior, dtype=np.float64)
    if values.shape != (len(classes),):
        raise InvalidInputError(f"prior must have one entry a class ({len(classes)}); got shape {values.shape}.")
    if not (np.isfinite(values).all() and (values >= 0).all() and abs(values.sum() - 1.0) < 1e-3):
        raise InvalidInputError(f"prior must be frequencies that sum to 1; got {values.tolist()} (sum {values.sum()}).")
    frequencies: NDArray[np.float64] = values / values.sum()
    return frequencies


def apply_prior(
    log_probabilities: torch.Tensor, prior: NDArray[np.float64] | None, frequencies: NDArray[np.float64]
) -> torch.Tensor:
    """Return log p_k + log(prior_k / frequency_k), normalised; classes that were never seen stay at −inf."""
    if prior is None:
        return log_probabilities
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(frequencies > 0, prior / frequencies, 0.0)
        log_ratio = torch.as_tensor(np.log(ratio)).to(log_probabilities)
        seen_prior = torch.as_tensor(np.log(np.where(frequencies > 0, prior, 0.0))).to(log_probabilities)
    corrected = log_probabilities + log_ratio
    # All evidence for classes that the prior rules out: the prior is all that is left.
    contradicted = torch.isneginf(corrected).all(dim=1, keepdim=True)
    return torch.log_softmax(torch.where(contradicted, seen_prior, corrected), dim=1)


def smooth(log_probabilities: torch.Tensor, share: float) -> torch.Tensor:
    """Return log((1 − share)·p + share/K): a share of the mass spread evenly over all classes."""
    if share == 0:
        return log_probabilities
    return torch.log((1.0 - share) * torch.exp(log_probabilities) + share / log_probabilities.shape[1])
