"""The fitted blend: its formula and everything the formula needs.

log p(x) = g·(Σ_j w_j·log p_j(x) + Σ_i v_i·log n_i(x) + bias) + (1 − g)·log n_1(x), normalised, then sharpened

p_j is a kernel density estimate (a metric, a bandwidth) with a background mass, n_i the calibrated network, g the gate.
Constants per sample are left out until the end, where the result is normalised.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch

from kcal.calibrators.blend.experts import Expert
from kcal.calibrators.blend.head import LinearHead
from kcal.calibrators.blend.network import NAMES, NetworkModel
from kcal.calibrators.blend.pool import Pool, PoolInputs
from kcal.calibrators.blend.sharpness import Sharpness
from kcal.calibrators.logit_base import to_log_probs
from kcal.calibrators.model_state import Stored, StoredModel, nested, several, tensor
from kcal.calibrators.scaling.linear import DiagonalModel, LinearModel
from kcal.calibrators.scaling.temperature import TemperatureModel
from kcal.errors import FileFormatError
from kcal.kernels import ClassSums

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
    frequencies: torch.Tensor  # (1, n_classes) or (n, n_classes)
    excluded: torch.Tensor | None = None  # (n_classes,) or (n, n_classes), classes of probability 0

    @property
    def fallback(self) -> torch.Tensor:
        """Scores where the gate is closed, (n, n_classes) or (1, n_classes): the network, or the class frequencies."""
        return self.network[0] if self.network else self.frequencies.log()


@dataclass(frozen=True, eq=False, kw_only=True)
class BlendFormula(StoredModel, ABC):
    """The formula, from class sums and logits on: everything but the supports of the estimates."""

    network: tuple[NetworkModel, ...] = several(TemperatureModel, DiagonalModel, LinearModel)  # empty without logits
    pool: Pool = nested(Pool)  # weights of the estimates and the network calibrators, bias per class
    sharpness: Sharpness = nested(Sharpness)
    frequencies: torch.Tensor = tensor("classes")  # estimated class frequencies
    sample_frequencies: torch.Tensor = tensor("classes")  # as counted in the calibration set
    background: float  # mass that is spread over the classes, relative to the median mass at a calibration sample
    min_log_prob: float  # lowest log probability of the network for a class of a calibration sample
    gate_threshold: float | None = None  # log mass of the first expert at which g is ½; None for g = 1 everywhere
    group_efficiency: float = 1.0  # information of a sample relative to an independent one
    network_loss: float | None = None  # out-of-fold log-loss of the network, temperature scaled, beside the pool's
    representation: str = "logits"  # of the network's rows
    head: LinearHead | None = nested(LinearHead, default=None)  # computes the logits; None if they are given
    prior: torch.Tensor | None = tensor("classes", optional=True)  # class frequencies of deployment

    @property
    @abstractmethod
    def medians(self) -> tuple[torch.Tensor, ...]:
        """Median log mass at a calibration sample from the others, by expert and bandwidth."""

    @property
    @abstractmethod
    def middle(self) -> int:
        """Position of the best single bandwidth of the first expert."""

    @property
    @abstractmethod
    def lacks_classes(self) -> bool:
        """Whether there are classes without calibration samples."""

    @property
    @abstractmethod
    def frequency_factors(self) -> torch.Tensor:
        """Factors of class sums that lead from the counted to the estimated class frequencies, (n_classes, 1)."""

    def inputs_of(self, class_sums: tuple[ClassSums, ...], log_probs: torch.Tensor | None) -> BlendInputs:
        """Return the inputs of the formula, from the sums of the experts and log probabilities of the network."""
        sums = tuple([self.at_estimated_frequencies(part) for part in class_sums])
        like = sums[0].sums
        frequencies = self.frequencies[None].to(like)
        if log_probs is None:
            return BlendInputs(sums, (), frequencies)
        log_probs = log_probs.to(like)
        # A linear map would carry a value far below all calibration samples over to other classes.
        bounded = log_probs.clamp_min(self.min_log_prob)
        excluded = log_probs < min(MASKED, MASK_FACTOR * self.min_log_prob)
        return BlendInputs(sums, tuple([model.scores(bounded) for model in self.network]), frequencies, excluded)

    def log_probs(self, inputs: BlendInputs) -> torch.Tensor:
        """Return log probabilities, (n, n_classes)."""
        pooled = self.pool_inputs(inputs)
        log_probs = self.sharpness.sharpen(pooled.log_probs(self.pool.weights, self.pool.bias), pooled.gate)
        if self.prior is None:
            return log_probs
        return torch.log_softmax(log_probs + (self.prior / self.frequencies).log().to(log_probs), dim=1)

    def pool_inputs(self, inputs: BlendInputs) -> PoolInputs:
        """Return what the pool combines: the estimates with their background, the network, the gate."""
        floor = self.background * inputs.frequencies.T
        log_masses = [
            log_mass_with_background(sums, median, floor)
            for median, sums in zip(self.medians, inputs.sums, strict=True)
        ]
        if self.lacks_classes:
            missing = (self.sample_frequencies == 0)[:, None]
            log_masses = [fill_missing_classes(part, missing, inputs.fallback.T) for part in log_masses]
        estimates = [part.transpose(1, 2) for part in log_masses]
        experts = torch.cat([*estimates, *(scores[None] for scores in inputs.network)])
        return PoolInputs(experts, self.gate(inputs.sums[0]), inputs.fallback, inputs.excluded)

    def gate(self, sums: ClassSums) -> torch.Tensor:
        """Return g = sigmoid(steepness·(log mass − threshold)), (n, 1), by the sums of the first expert."""
        log_mass = total_log_mass(sums, self.middle)[:, None]
        if self.gate_threshold is None:
            return torch.ones_like(log_mass)
        return torch.sigmoid(GATE_STEEPNESS * (log_mass - self.gate_threshold))

    def at_estimated_frequencies(self, sums: ClassSums) -> ClassSums:
        """Return class sums scaled from the counted to the estimated class frequencies, in place."""
        return ClassSums(sums.sums.mul_(self.frequency_factors.to(sums.sums)), sums.offsets)


@dataclass(frozen=True, eq=False, kw_only=True)
class BlendModel(BlendFormula):
    """Kernel density estimates pooled with the calibrated network."""

    experts: tuple[Expert, ...] = several(Expert)  # one per metric

    @classmethod
    def from_state(cls, stored: Stored) -> Self:
        """Return the stored model; its parts must fit together."""
        model = super().from_state(stored)
        if len(model.pool.weights) != len(model.names):
            raise FileFormatError("the stored weights do not fit the estimates and the network calibrators.")
        return model

    @property
    def medians(self) -> tuple[torch.Tensor, ...]:
        """Median log mass at a calibration sample from the others, by expert and bandwidth."""
        return tuple(expert.median_evidence for expert in self.experts)

    @property
    def middle(self) -> int:
        """Position of the best single bandwidth of the first expert."""
        return self.experts[0].middle

    @cached_property
    def lacks_classes(self) -> bool:
        """Whether there are classes without calibration samples."""
        return bool((self.sample_frequencies == 0).any())

    @cached_property
    def frequency_factors(self) -> torch.Tensor:
        """Factors of class sums that lead from the counted to the estimated class frequencies, (n_classes, 1)."""
        counted = torch.where(self.sample_frequencies > 0, self.sample_frequencies, self.frequencies)
        return (self.frequencies / counted).clamp_max(MAX_FREQUENCY_FACTOR)[:, None]

    @property
    def names(self) -> list[str]:
        """Names of the estimates and the network calibrators, in the order of the pool weights."""
        names = [f"{expert.metric} × {factor:.3g}" for expert in self.experts for factor in expert.factors.tolist()]
        return names + [NAMES[type(model)] for model in self.network]

    @property
    def weights(self) -> dict[str, float]:
        """Pool weight of each estimate and network calibrator, by name."""
        return dict(zip(self.names, self.pool.weights.tolist(), strict=True))

    @property
    def bandwidths(self) -> dict[str, float]:
        """Best single bandwidth of each metric."""
        return {expert.metric: expert.bandwidth for expert in self.experts}

    def inputs(self, embeddings: torch.Tensor, logits: torch.Tensor | None) -> BlendInputs:
        """Return the inputs of the formula for new samples."""
        log_probs = None if logits is None else to_log_probs(logits, self.representation)
        return self.inputs_of(tuple(expert.class_sums(embeddings) for expert in self.experts), log_probs)

    def log_evidence(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Return the log density of the calibration set, in the first metric, at each embedding, (n,)."""
        return self.experts[0].log_evidence(embeddings)

    def evidence(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Return the share of calibration samples with less evidence than each embedding, (n,), in the first metric."""
        return self.experts[0].evidence(embeddings)

    def with_reference(self, embeddings: torch.Tensor, groups: torch.Tensor | None) -> Self:
        """Return the model with the evidence of the calibration samples."""
        first, *others = self.experts
        return replace(self, experts=(first.with_reference(embeddings, groups), *others))

    def to(self, device: str | torch.device) -> Self:
        """Return the model with its kernel sums on another device."""
        return replace(self, experts=tuple(expert.to(device) for expert in self.experts))


def total_log_mass(sums: ClassSums, middle: int) -> torch.Tensor:
    """Return the log mass of all classes at one of the bandwidths, (n,)."""
    mass = sums.sums[middle].sum(dim=0).clamp_min_(torch.finfo(sums.sums.dtype).tiny)
    return mass.log_() + sums.offsets[middle]


def log_mass_with_background(sums: ClassSums, median_evidence: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    """Return log(S_k/m + ε·π_k), (n_factors, n_classes, n), up to a constant per sample; m is the median mass.

    ``floor`` is ε·π, (n_classes, 1) or (n_classes, n).
    """
    of_sums, of_floor = mass_factors(sums.offsets, median_evidence)
    masses = sums.sums * of_sums[:, None]
    masses.addcmul_(floor.expand(masses.shape[1:])[None], of_floor[:, None])
    return masses.clamp_min_(torch.finfo(masses.dtype).tiny).log_()


def mass_factors(offsets: torch.Tensor, median_evidence: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the factors of class sums and of the background, (n_factors, n), that make them one mass.

    They are exp(offset)/m and 1 over the larger of the two, so that nothing overflows.
    """
    above = offsets - median_evidence.to(offsets)[:, None]
    high = above.clamp_min(0.0)
    return torch.exp(above - high), torch.exp(-high)


def fill_missing_classes(log_masses: torch.Tensor, missing: torch.Tensor, fallback: torch.Tensor) -> torch.Tensor:
    """Return log masses, (…, n_classes, n), with the share of the fallback for classes without calibration samples.

    ``missing`` is (n_classes, 1), ``fallback`` (n_classes, n) or (n_classes, 1).
    """
    present, share = (
        torch.logsumexp(values.masked_fill(missing, -torch.inf), dim=-2, keepdim=True)
        for values in (log_masses, fallback)
    )
    return torch.where(missing, present + fallback - share, log_masses)
