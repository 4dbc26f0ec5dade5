"""What a fitted blend answers: estimates and network put together, in few passes over few numbers.

Whatever all classes of a row share is left out until the end, where answers are normalised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from kcal.calibrators.blend.experts import told_of_absent
from kcal.calibrators.blend.sharpness import IMPOSSIBLE
from kcal.calibrators.logit_base import to_log_probs
from kcal.calibrators.prior import check_prior
from kcal.kernels import ClassSums

if TYPE_CHECKING:
    from kcal.calibrators.blend.estimator import KCalBlend

RULED_OUT = -5000.0
"""The log probability below which a network does not doubt a class but was told to leave it out, by a mask; lower where
calibration samples came near it."""
BEYOND = 10.0
"""Times the least log probability of calibration samples."""


def blended(blend: KCalBlend, rows: torch.Tensor, scores: torch.Tensor | None) -> torch.Tensor:
    """Return log probabilities, (n, n_classes), of embeddings and, if it was fitted so, of their logits."""
    sums = [reweighed(blend, expert.class_sums(rows)) for expert in blend._experts]
    logarithms = None if scores is None else _network_logarithms(blend, scores).to(sums[0].sums.dtype)
    network = [] if logarithms is None else _network_heights(blend, logarithms)
    log_frequencies = torch.from_numpy(np.log(blend._frequencies)).to(sums[0].sums)
    near, far = share_of_pool(blend, evidence_of(blend, sums[0])), network[0] if network else log_frequencies
    pooled = _estimated_heights(blend, sums, far) + torch.from_numpy(blend._pool.bias).to(log_frequencies)
    for heights, weight in zip(network, blend._pool.weights[len(blend._pool.weights) - len(network) :], strict=True):
        pooled.add_(heights, alpha=float(weight))
    heights = torch.lerp(far.expand_as(pooled), pooled, near)
    if logarithms is not None:
        heights.masked_fill_(logarithms < min(RULED_OUT, BEYOND * blend._least_logarithm), -torch.inf)
    answers = blend.sharpness_.sharpened(torch.log_softmax(heights, dim=1), near)
    prior = check_prior(blend.prior, blend.classes_)
    if prior is None:
        return answers
    with np.errstate(divide="ignore"):  # a class that the prior rules out
        moved = torch.from_numpy(np.log(prior / blend._frequencies)).to(answers)
    return torch.log_softmax(answers + moved, dim=1)


def reweighed(blend: KCalBlend, found: ClassSums) -> ClassSums:
    """Return class sums, (n_scales, n_classes, n), as if each class had been seen as often as is likely; overwrites."""
    found.sums.mul_(torch.from_numpy(blend._frequency_factors()).to(found.sums)[:, None])
    return found


def evidence_of(blend: KCalBlend, found: ClassSums) -> torch.Tensor:
    """Return the log mass that reaches each row in the first metric, (n, 1)."""
    middle = blend._experts[0].middle
    mass = found.sums[middle].sum(dim=0).clamp_min_(torch.finfo(found.sums.dtype).tiny)
    return (mass.log_() + found.offsets[middle])[:, None]


def share_of_pool(blend: KCalBlend, evidence: torch.Tensor) -> torch.Tensor:
    """Return g, the share of the pool in the answer, from log masses."""
    if blend._least_evidence == -np.inf:  # never hands over
        return torch.ones_like(evidence)
    return torch.sigmoid(blend._steepness * (evidence - blend._least_evidence))


def least_logarithm(scores: torch.Tensor, representation: str) -> float:
    """Return the least log probability that the network gives to a class."""
    return max(float(_log_softmax(scores, representation).min()), IMPOSSIBLE)


def _network_logarithms(blend: KCalBlend, scores: torch.Tensor) -> torch.Tensor:
    """Return log probabilities of the network as it is, (n, n_classes)."""
    return _log_softmax(scores, blend._partners[0].calibrator.representation).clamp_min(IMPOSSIBLE)


def _network_heights(blend: KCalBlend, logarithms: torch.Tensor) -> list[torch.Tensor]:
    """Return what the calibrated network says, each (n, n_classes).

    What lies below all that was seen is taken for the least that was: a matrix would carry it on to other classes.
    """
    seen = logarithms.clamp_min(blend._least_logarithm)
    return [partner.heights(seen) for partner in blend._partners]


def _estimated_heights(blend: KCalBlend, sums: list[ClassSums], far: torch.Tensor) -> torch.Tensor:
    """Return Σ_j w_j·log p_j of all metrics and bandwidths, (n, n_classes)."""
    absent = torch.from_numpy(blend._experts[0].estimate._frequencies == 0)
    floor = torch.from_numpy(blend.background_ * blend._frequencies).to(sums[0].sums)
    total = torch.zeros_like(sums[0].sums[0])
    weights = torch.from_numpy(blend._pool.weights).to(total)
    for expert, found in zip(blend._experts, sums, strict=True):
        masses = expert.log_masses(found, floor)  # (n_scales, n_classes, n)
        if bool(absent.any()):
            masses = told_of_absent(masses.transpose(1, 2), absent, far).transpose(1, 2)
        own, weights = weights[: len(masses)], weights[len(masses) :]
        total += torch.tensordot(own, masses, dims=1)
    return total.T.contiguous()


def _log_softmax(rows: torch.Tensor, representation: str) -> torch.Tensor:
    """Return log-softmax of logits in their own precision; of probabilities in float64."""
    return torch.log_softmax(rows.cpu(), dim=1) if representation == "logits" else to_log_probs(rows, representation)
