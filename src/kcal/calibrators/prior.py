"""Correct class posteriors for class frequencies that differ between the calibration set and deployment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray

from kcal.errors import InvalidInputError
from kcal.kernels import in_double
from kcal.validation import check_choice, check_frequencies

REMEDY = 'Pass "uniform", a list such as [0.7, 0.2, 0.1], or a mapping from class to frequency.'


def check_prior(prior: Any, classes: NDArray[Any]) -> torch.Tensor | None:
    """Return the class frequencies of deployment, (n_classes,) in float64, or None.

    ``prior`` is "uniform", a sequence in the order of ``classes``, or a mapping from class to frequency.
    """
    if prior is None:
        return None
    if isinstance(prior, str):
        check_choice(prior, "prior", ("uniform",))
        return torch.full((len(classes),), 1.0 / len(classes), dtype=torch.float64)
    return torch.from_numpy(check_frequencies(_by_class(prior, classes), len(classes), "prior", REMEDY))


def _by_class(prior: Any, classes: NDArray[Any]) -> Any:
    """Return the entries of a mapping, or of a pandas Series by its index, in the order of the classes."""
    if hasattr(prior, "to_dict"):
        prior = prior.to_dict()
    if not isinstance(prior, Mapping):
        return prior
    names = classes.tolist()
    different = [*(label for label in prior if label not in names), *(label for label in names if label not in prior)]
    if different:
        raise InvalidInputError(
            "prior", "must give every class a frequency, or 0, and no other", got=repr(different[0])
        )
    return [prior[label] for label in names]


def check_prior_reaches(prior: torch.Tensor | None, frequencies: torch.Tensor) -> None:
    """Raise if the prior excludes every class that has calibration samples."""
    if prior is not None and not bool(prior[frequencies > 0].any()):
        raise InvalidInputError("prior", "gives nothing to the classes that have calibration samples")


def apply_prior(probs: torch.Tensor, prior: torch.Tensor | None, frequencies: torch.Tensor) -> torch.Tensor:
    """Return p_k · prior_k / frequency_k, normalised; classes without calibration samples stay at 0."""
    if prior is None:
        return probs
    seen = frequencies > 0
    wide = in_double(probs)  # a prior over tiny frequencies is huge
    corrected = wide * torch.where(seen, prior / frequencies, 0.0).to(wide)
    # Where all mass is on classes that the prior excludes, the prior is the only information left.
    fallback = torch.where(seen, prior, 0.0).to(wide)
    corrected = torch.where(corrected.sum(dim=1, keepdim=True) > 0, corrected, fallback)
    return (corrected / corrected.sum(dim=1, keepdim=True)).to(probs)


def smooth(probs: torch.Tensor, share: float) -> torch.Tensor:
    """Return (1 − share)·p + share/K: part of the mass spread evenly over all classes."""
    return probs if share == 0 else (1.0 - share) * probs + share / probs.shape[1]
