"""Correcting posteriors for class frequencies that differ between the calibration set and the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.errors import InvalidInputError
from kcal.kernels import in_double


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
    if hasattr(prior, "to_dict"):  # a pandas Series goes by its index
        prior = prior.to_dict()
    if isinstance(prior, Mapping):
        names = classes.tolist()
        wrong = next((label for label in prior if label not in names), None)
        if wrong is not None:
            raise InvalidInputError(f"prior names {wrong!r}, which is not among the classes.")
        missing = next((label for label in names if label not in prior), None)
        if missing is not None:
            raise InvalidInputError(f"prior leaves out {missing!r}; give every class a frequency, if only 0.")
        prior = [prior[label] for label in names]
    values = np.asarray(prior, dtype=np.float64)
    if values.shape != (len(classes),):
        raise InvalidInputError(f"prior must have one entry a class ({len(classes)}); got shape {values.shape}.")
    if not (np.isfinite(values).all() and (values >= 0).all() and abs(values.sum() - 1.0) < 1e-3):
        raise InvalidInputError(f"prior must be frequencies that sum to 1; got {values.tolist()} (sum {values.sum()}).")
    frequencies: NDArray[np.float64] = values / values.sum()
    return frequencies


def apply_prior(
    probabilities: torch.Tensor, prior: NDArray[np.float64] | None, frequencies: NDArray[np.float64]
) -> torch.Tensor:
    """Return p_k · prior_k / frequency_k, normalised; classes that were never seen stay at 0."""
    if prior is None:
        return probabilities
    seen = frequencies > 0
    ratios = np.divide(prior, frequencies, out=np.zeros_like(prior), where=seen)
    wide = in_double(probabilities)  # a prior over tiny frequencies is huge
    corrected = wide * torch.as_tensor(ratios).to(wide)
    # All evidence for classes that the prior rules out: the prior is all that is left.
    fallback = torch.as_tensor(np.where(seen, prior, 0.0)).to(wide)
    corrected = torch.where(corrected.sum(dim=1, keepdim=True) > 0, corrected, fallback)
    return (corrected / corrected.sum(dim=1, keepdim=True)).to(probabilities)


def smooth(probabilities: torch.Tensor, share: float) -> torch.Tensor:
    """Return (1 − share)·p + share/K: a share of the mass spread evenly over all classes."""
    return probabilities if share == 0 else (1.0 - share) * probabilities + share / probabilities.shape[1]
