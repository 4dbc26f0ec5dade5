"""The fitted blend: its formula and everything the formula needs.

log p(x) = g·(Σ_j w_j·log p_j(x) + Σ_i v_i·log n_i(x) + bias) + (1 − g)·log n_1(x), normalised, then sharpened

p_j is a kernel density estimate (a metric, a bandwidth) with a background mass, n_i the calibrated network, g the gate.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.calibrators.blend.experts import Expert
from kcal.calibrators.blend.network import NetworkModel, model_name, network_log_probs
from kcal.calibrators.blend.pool import Pool, pooled_log_probs
from kcal.calibrators.blend.sharpness import LOWEST_LOG_PROB, Sharpness
from kcal.kernels import ClassSums, log_densities
from kcal.projection import project

Floats = NDArray[np.float64]

MASKED = -5000.0
"""Log probability below which the network did not predict a class as unlikely but a mask removed it; lower where
calibration samples came near it."""
MASK_FACTOR = 10.0
"""A mask is below this multiple of the lowest log probability of calibration samples."""
MAX_FREQUENCY_FACTOR = 1e6
"""Bound of the factor by which the sums of a class grow, so that single precision can represent them."""


@dataclass(frozen=True)
class Gate:
    """g = sigmoid(steepness·(log mass − threshold)): the share of the pool in the prediction."""

    threshold: float  # −inf for g = 1 everywhere
    steepness: float = 4.0

    def __call__(self, log_mass: torch.Tensor) -> torch.Tensor:
        """Return g for log masses of any shape."""
        if self.threshold == -np.inf:
            return torch.ones_like(log_mass)
        return torch.sigmoid(self.steepness * (log_mass - self.threshold))


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

    def rows(self, index: torch.Tensor) -> BlendInputs:
        """Return the inputs of some samples; ``frequencies`` and ``excluded`` must be per class."""
        sums = tuple(ClassSums(part.sums[..., index], part.offsets[..., index]) for part in self.sums)
        return replace(self, sums=sums, network=tuple(scores[index] for scores in self.network))


@dataclass(frozen=True, eq=False)
class BlendModel:
    """Kernel density estimates pooled with the calibrated network.

    Parameters
    ----------
    experts : tuple of Expert
        Kernel density estimates, one per metric.
    network : tuple
        Calibrators of the network; empty without logits.
    pool : Pool
        Weights of experts (by bandwidth) and network calibrators, and a bias per class.
    gate : Gate
        Share of the pool in the prediction, by the log mass of the first expert.
    sharpness : Sharpness
        Temperature by entropy.
    background : float
        Background mass, relative to the median mass at calibration samples.
    frequencies, sample_frequencies : (n_classes,) arrays
        Estimated class frequencies, and those counted in the calibration set.
    min_log_prob : float
        Lowest log probability that the network gave to a class of a calibration sample.
    representation : str
        Whether the network's rows are "logits" or "probabilities".
    prior : (n_classes,) array or None
        Class frequencies of deployment.
    group_efficiency : float
        Information of a sample relative to an independent one.
    """

    experts: tuple[Expert, ...]
    network: tuple[NetworkModel, ...]
    pool: Pool
    gate: Gate
    background: float
    frequencies: Floats
    sample_frequencies: Floats
    sharpness: Sharpness = field(default_factory=Sharpness)
    min_log_prob: float = 0.0
    representation: str = "logits"
    prior: Floats | None = None
    group_efficiency: float = 1.0

    @property
    def names(self) -> list[str]:
        """Names of the pool's members, in the order of its weights."""
        estimates = [name for expert in self.experts for name in expert.names]
        return estimates + [model_name(model) for model in self.network]

    def inputs(self, embeddings: torch.Tensor, logits: torch.Tensor | None) -> BlendInputs:
        """Return the inputs of the formula for new samples."""
        sums = tuple(self.adjusted(expert.class_sums(embeddings)) for expert in self.experts)
        like = sums[0].sums
        frequencies = torch.from_numpy(self.frequencies).to(like)
        if logits is None:
            return BlendInputs(sums, (), frequencies)
        log_probs = network_log_probs(logits, self.representation).clamp_min(LOWEST_LOG_PROB).to(like.dtype)
        # A linear map would carry a value far below all calibration samples over to other classes.
        bounded = log_probs.clamp_min(self.min_log_prob)
        excluded = log_probs < min(MASKED, MASK_FACTOR * self.min_log_prob)
        return BlendInputs(sums, tuple(model.scores(bounded) for model in self.network), frequencies, excluded)

    def log_probs(self, inputs: BlendInputs) -> torch.Tensor:
        """Return log probabilities, (n, n_classes)."""
        gate = self.gate_values(inputs)
        scores = self._estimate_scores(inputs)
        scores += torch.from_numpy(self.pool.bias).to(scores)
        n_estimates = len(self.pool.weights) - len(inputs.network)
        for network_scores, weight in zip(inputs.network, self.pool.weights[n_estimates:], strict=True):
            scores.add_(network_scores, alpha=float(weight))
        log_probs = pooled_log_probs(scores, inputs.fallback, gate, inputs.excluded)
        log_probs = self.sharpness.sharpen(log_probs, gate)
        if self.prior is None:
            return log_probs
        with np.errstate(divide="ignore"):  # a class that the prior excludes
            shift = torch.from_numpy(np.log(self.prior / self.frequencies)).to(log_probs)
        return torch.log_softmax(log_probs + shift, dim=1)

    def estimates(self, inputs: BlendInputs) -> list[torch.Tensor]:
        """Return log p_j up to a constant per sample, (n_factors, n_classes, n) for each expert."""
        floor = self.background * inputs.frequencies
        floor, fallback = (x.T if x.ndim == 2 else x[:, None] for x in (floor, inputs.fallback))
        missing = torch.from_numpy(self.sample_frequencies == 0)[:, None]
        log_masses = [
            log_mass_with_background(sums, expert.median_evidence, floor)
            for expert, sums in zip(self.experts, inputs.sums, strict=True)
        ]
        return [fill_missing_classes(part, missing, fallback) for part in log_masses] if missing.any() else log_masses

    def gate_values(self, inputs: BlendInputs) -> torch.Tensor:
        """Return g, (n, 1)."""
        return self.gate(total_log_mass(inputs.sums[0], self.experts[0].middle))[:, None]

    def log_evidence(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Return the log density of the calibration set in the first metric at each embedding, (n,)."""
        expert = self.experts[0]
        points = expert.support.points
        queries = project(expert.projection, embeddings.to(device=points.device, dtype=points.dtype))
        return log_densities(queries, expert.support, expert.bandwidth)

    def adjusted(self, sums: ClassSums) -> ClassSums:
        """Return class sums at the estimated class frequencies in place of the counted ones."""
        factors = frequency_factors(self.frequencies, self.sample_frequencies)
        return ClassSums(sums.sums.mul_(torch.from_numpy(factors).to(sums.sums)[:, None]), sums.offsets)

    def to(self, device: str | torch.device) -> BlendModel:
        """Return the model with its kernel sums on another device."""
        place = torch.device(device)
        experts = tuple(
            replace(expert, projection=expert.projection.to(place), support=expert.support.to(device=place))
            for expert in self.experts
        )
        return replace(self, experts=experts)

    def _estimate_scores(self, inputs: BlendInputs) -> torch.Tensor:
        """Return Σ_j w_j·log p_j, (n, n_classes)."""
        total, start = torch.zeros_like(inputs.sums[0].sums[0]), 0
        for log_masses in self.estimates(inputs):
            weights = torch.from_numpy(self.pool.weights[start : start + len(log_masses)]).to(total)
            total += torch.tensordot(weights, log_masses, dims=1)
            start += len(log_masses)
        return total.T.contiguous()


def frequency_factors(frequencies: Floats, sample_frequencies: Floats) -> Floats:
    """Return the factors of the class sums, (n_classes,), that replace counted by estimated class frequencies."""
    counted = np.where(sample_frequencies > 0, sample_frequencies, frequencies)
    return np.minimum(frequencies / counted, MAX_FREQUENCY_FACTOR)


def total_log_mass(sums: ClassSums, middle: int) -> torch.Tensor:
    """Return the log mass of all classes at the best single bandwidth, (n,)."""
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
    present, share = (
        torch.logsumexp(values.masked_fill(missing, -torch.inf), dim=-2, keepdim=True)
        for values in (log_masses, fallback)
    )
    return torch.where(missing, present + fallback - share, log_masses)
