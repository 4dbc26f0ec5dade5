"""The fitted blend: its formula and everything the formula needs.

log p(x) = g·(Σ_j w_j·log p_j(x) + Σ_i v_i·log n_i(x) + bias) + (1 − g)·log n_1(x), normalised, then sharpened

p_j is a kernel density estimate (a metric, a bandwidth) with a background mass, n_i the calibrated network, g the gate.
Constants per sample are left out until the end, where the result is normalised.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.calibrators.blend.experts import Expert
from kcal.calibrators.blend.network import MODELS, NetworkModel, network_log_probs
from kcal.calibrators.blend.pool import Pool, pooled_log_probs
from kcal.calibrators.blend.sharpness import Sharpness
from kcal.kernels import ClassSums

Floats = NDArray[np.float64]

MASKED, MASK_FACTOR = -5000.0, 10.0
"""A class is masked out of the logits, not unlikely, if its log probability is below the first, and below the second
times the lowest one of calibration samples."""
MAX_FREQUENCY_FACTOR = 1e6
"""Bound of the factor by which the sums of a class grow, so that single precision can represent them."""
GATE_STEEPNESS = 4.0


@dataclass(frozen=True, eq=False)
class BlendInputs:
    """The inputs of the formula for n samples: out-of-fold when the blend is fitted, of new samples afterwards."""

    sums: tuple[ClassSums, ...]  # of each expert, (n_factors, n_classes, n), at the estimated class frequencies
    network: tuple[torch.Tensor, ...]  # scores of each network calibrator, (n, n_classes)
    frequencies: torch.Tensor  # (n_classes,) or (n, n_classes)
    excluded: torch.Tensor | None = None  # (n_classes,) or (n, n_classes), classes of probability 0

    @property
    def fallback(self) -> torch.Tensor:
        """Scores where the gate is closed, (n, n_classes) or (n_classes,): the network, or the class frequencies."""
        return self.network[0] if self.network else self.frequencies.log()


@dataclass(frozen=True, eq=False)
class BlendModel:
    """Kernel density estimates pooled with the calibrated network."""

    experts: tuple[Expert, ...]  # one per metric
    network: tuple[NetworkModel, ...]  # calibrators of the network; empty without logits
    pool: Pool  # weights of the estimates and the network calibrators, bias per class
    background: float  # mass that is spread over the classes, relative to the median mass at a calibration sample
    frequencies: Floats  # (n_classes,), estimated class frequencies
    sample_frequencies: Floats  # (n_classes,), as counted in the calibration set
    gate_threshold: float | None = None  # log mass of the first expert at which g is ½; None for g = 1 everywhere
    sharpness: Sharpness = field(default_factory=Sharpness)
    group_efficiency: float = 1.0  # information of a sample relative to an independent one
    min_log_prob: float = 0.0  # lowest log probability of the network for a class of a calibration sample
    representation: str = "logits"  # of the network's rows
    prior: Floats | None = None  # (n_classes,), class frequencies of deployment

    @property
    def weights(self) -> dict[str, float]:
        """Pool weight of each estimate and network calibrator, by name."""
        names = [f"{expert.metric} × {factor:.3g}" for expert in self.experts for factor in expert.factors]
        return dict(zip(names + self.network_names, self.pool.weights.tolist(), strict=True))

    @property
    def network_names(self) -> list[str]:
        """Names of the network calibrators."""
        return [name for model in self.network for name, kind in MODELS.items() if type(model) is kind]

    @property
    def bias(self) -> Floats:
        """Bias of each class, (n_classes,)."""
        return self.pool.bias

    @property
    def bandwidths(self) -> dict[str, float]:
        """Best single bandwidth of each metric."""
        return {expert.metric: expert.bandwidth for expert in self.experts}

    def inputs(self, embeddings: torch.Tensor, logits: torch.Tensor | None) -> BlendInputs:
        """Return the inputs of the formula for new samples."""
        sums = tuple(self.at_estimated_frequencies(expert.class_sums(embeddings)) for expert in self.experts)
        like = sums[0].sums
        frequencies = torch.from_numpy(self.frequencies).to(like)
        if logits is None:
            return BlendInputs(sums, (), frequencies)
        log_probs = network_log_probs(logits, self.representation).to(like.dtype)
        # A linear map would carry a value far below all calibration samples over to other classes.
        bounded = log_probs.clamp_min(self.min_log_prob)
        excluded = log_probs < min(MASKED, MASK_FACTOR * self.min_log_prob)
        return BlendInputs(sums, tuple(model.scores(bounded) for model in self.network), frequencies, excluded)

    def log_probs(self, inputs: BlendInputs) -> torch.Tensor:
        """Return log probabilities, (n, n_classes)."""
        gate, scores, used = self.gate_values(inputs), torch.zeros_like(inputs.sums[0].sums[0]), 0
        for log_masses in self.estimates(inputs):
            weights = torch.from_numpy(self.pool.weights[used : used + len(log_masses)]).to(scores)
            scores += torch.tensordot(weights, log_masses, dims=1)
            used += len(log_masses)
        scores = scores.T.contiguous().add_(torch.from_numpy(self.pool.bias).to(scores))
        for network_scores, weight in zip(inputs.network, self.pool.weights[used:].tolist(), strict=True):
            scores.add_(network_scores, alpha=weight)
        log_probs = pooled_log_probs(scores, inputs.fallback, gate, inputs.excluded)
        log_probs = self.sharpness.sharpen(log_probs, gate)
        if self.prior is None:
            return log_probs
        with np.errstate(divide="ignore"):  # a class that the prior excludes
            shift = torch.from_numpy(np.log(self.prior / self.frequencies)).to(log_probs)
        return torch.log_softmax(log_probs + shift, dim=1)

    def estimates(self, inputs: BlendInputs) -> list[torch.Tensor]:
        """Return log p_j up to a constant per sample, (n_factors, n_classes, n) for each expert."""
        floor, fallback = self.background * inputs.frequencies, inputs.fallback
        floor, fallback = (values.T if values.ndim == 2 else values[:, None] for values in (floor, fallback))
        missing = torch.from_numpy(self.sample_frequencies == 0)[:, None]
        return [
            fill_missing_classes(log_mass_with_background(sums, expert.median_evidence, floor), missing, fallback)
            for expert, sums in zip(self.experts, inputs.sums, strict=True)
        ]

    def gate_values(self, inputs: BlendInputs) -> torch.Tensor:
        """Return g = sigmoid(steepness·(log mass − threshold)), (n, 1)."""
        log_mass = total_log_mass(inputs.sums[0], self.experts[0].middle)[:, None]
        if self.gate_threshold is None:
            return torch.ones_like(log_mass)
        return torch.sigmoid(GATE_STEEPNESS * (log_mass - self.gate_threshold))

    def at_estimated_frequencies(self, sums: ClassSums) -> ClassSums:
        """Return class sums scaled from the counted to the estimated class frequencies, in place."""
        counted = np.where(self.sample_frequencies > 0, self.sample_frequencies, self.frequencies)
        factors = torch.from_numpy(np.minimum(self.frequencies / counted, MAX_FREQUENCY_FACTOR))
        return ClassSums(sums.sums.mul_(factors.to(sums.sums)[:, None]), sums.offsets)

    def log_evidence(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Return the log density of the calibration set, in the first metric, at each embedding, (n,)."""
        return self.experts[0].log_evidence(embeddings)

    def to(self, device: str | torch.device) -> BlendModel:
        """Return the model with its kernel sums on another device."""
        return replace(self, experts=tuple(expert.to(device) for expert in self.experts))


def total_log_mass(sums: ClassSums, middle: int) -> torch.Tensor:
    """Return the log mass of all classes at one of the bandwidths, (n,)."""
    mass = sums.sums[middle].sum(dim=0).clamp_min_(torch.finfo(sums.sums.dtype).tiny)
    return mass.log_() + sums.offsets[middle]


def log_mass_with_background(sums: ClassSums, median_evidence: tuple[float, ...], floor: torch.Tensor) -> torch.Tensor:
    """Return log(S_k/m + ε·π_k), (n_factors, n_classes, n), up to a constant per sample; m is the median mass.

    ``floor`` is ε·π, (n_classes, 1) or (n_classes, n).
    """
    above = sums.offsets - sums.offsets.new_tensor(median_evidence)[:, None]  # (n_factors, n)
    high = above.clamp_min(0.0)  # so that nothing overflows
    masses = sums.sums * torch.exp(above - high)[:, None]
    masses.addcmul_(floor.expand(masses.shape[1:])[None], torch.exp(-high)[:, None])
    return masses.clamp_min_(torch.finfo(masses.dtype).tiny).log_()


def fill_missing_classes(log_masses: torch.Tensor, missing: torch.Tensor, fallback: torch.Tensor) -> torch.Tensor:
    """Return log masses, (…, n_classes, n), with the share of the fallback for classes without calibration samples.

    ``missing`` is (n_classes, 1), ``fallback`` (n_classes, n) or (n_classes, 1).
    """
    if not bool(missing.any()):
        return log_masses
    present, share = (
        torch.logsumexp(values.masked_fill(missing, -torch.inf), dim=-2, keepdim=True)
        for values in (log_masses, fallback)
    )
    return torch.where(missing, present + fallback - share, log_masses)
