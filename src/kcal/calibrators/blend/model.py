"""The fitted blend: its formula and everything the formula needs.

p = λ_1·pool + λ_2·f + λ_3·r + λ_4·d,     pool ∝ f^(w_f)·r^(w_r)·d'^(w_d)

f is the network (``network.py``), r its last layer refitted (``ridge.py``), d the kernel estimate (``kernel.py``), d'
the same with the background of the pool; the exponents w and the shares λ are those of ``pool.py``. All are fitted on
out-of-fold predictions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch

from kcal.calibrators.blend.head import LinearHead
from kcal.calibrators.blend.kernel import counts_of, log_estimate, log_scale_of
from kcal.calibrators.blend.network import NetworkModel
from kcal.calibrators.blend.pool import pool_log_probs
from kcal.calibrators.kcal.model import KernelEstimate
from kcal.calibrators.logit_base import to_log_probs
from kcal.calibrators.model_state import StoredModel, nested, tensor
from kcal.calibrators.ridge import RidgeModel
from kcal.kernels import ClassSums, SortedSupport

EXPERTS = ("network", "refit", "samples")
MASKED, MASK_FACTOR = -5000.0, 10.0
"""A class is masked out of the logits, not unlikely, if its log probability is below the first, and below the second
times the lowest one of calibration samples."""
MIN_PROB = 1e-12
"""Of an expert, in logarithms."""


@dataclass(frozen=True, eq=False)
class Experts:
    """The predictions that a blend combines, of n samples."""

    pooled: torch.Tensor  # (3, n, n_classes), logarithms: network, refit, kernel estimate of the pool
    estimate: torch.Tensor  # (n, n_classes), logarithms of the kernel estimate of the mixture
    counts: torch.Tensor  # (n, n_classes), samples of each class near a sample
    excluded: torch.Tensor  # (n, n_classes), classes that the network masks

    @property
    def mixed(self) -> torch.Tensor:
        """Logarithms of network, refit and kernel estimate in the mixture, (3, n, n_classes)."""
        return torch.cat([self.pooled[:2], self.estimate[None]])


@dataclass(frozen=True, eq=False, kw_only=True)
class BlendFormula(StoredModel):
    """The formula, from class sums, points and logits on: everything but the support."""

    network: NetworkModel = nested(NetworkModel)
    refit: RidgeModel = nested(RidgeModel)
    exponents: torch.Tensor = tensor(3)  # w, of network, refit and kernel estimate
    shares: torch.Tensor = tensor(4)  # λ, of the pool, network, refit and kernel estimate
    centre: torch.Tensor = tensor("dimension")  # of the calibration points
    radius: float  # of the ball around the centre that holds them: the refit does not extrapolate beyond
    background: float  # β
    pool_background: float  # that of the pool
    log_scale: float  # makes numbers of samples of class sums
    frequencies: torch.Tensor = tensor("classes")  # class frequencies that the probabilities assume
    min_log_prob: float  # lowest log probability of the network for a class of a calibration sample
    loss: float  # out-of-fold log-loss
    network_loss: float  # that of the network alone
    group_efficiency: float = 1.0  # information of a sample relative to an independent one
    has_logits: bool = True
    representation: str = "logits"  # of the network's rows
    head: LinearHead | None = nested(LinearHead, default=None)  # computes the logits; None if they are given
    prior: torch.Tensor | None = tensor("classes", optional=True)  # class frequencies of deployment

    def experts(self, sums: ClassSums, points: torch.Tensor, log_probs: torch.Tensor | None) -> Experts:
        """Return the experts of class sums, points and log probabilities of the network; None without logits."""
        counts = counts_of(sums, self.log_scale)[0]
        points = points.to(counts)
        if log_probs is None:
            log_probs = torch.zeros_like(counts)
        log_probs = log_probs.to(counts)
        # A linear map would carry a value far below all calibration samples over to other classes.
        bounded = log_probs.clamp_min(self.min_log_prob)
        network = self.network.probs(bounded).clamp_min(MIN_PROB)
        refit = self.refit.log_probs(self.inside(points), bounded).clamp_min(log_of(MIN_PROB))
        pooled = torch.stack([network.log(), refit, log_estimate(counts, network, self.pool_background)])
        estimate = log_estimate(counts, network, self.background)
        return Experts(pooled, estimate, counts, log_probs < min(MASKED, MASK_FACTOR * self.min_log_prob))

    def inside(self, points: torch.Tensor) -> torch.Tensor:
        """Return points, (n, d), moved towards the centre into the ball of the calibration points."""
        offsets = points - self.centre.to(points)
        lengths: torch.Tensor = torch.linalg.vector_norm(offsets, dim=1, keepdim=True)
        lengths = lengths.clamp_min(torch.finfo(points.dtype).tiny)
        return self.centre.to(points) + offsets * (self.radius / lengths).clamp_max(1.0)

    def log_probs(self, experts: Experts) -> torch.Tensor:
        """Return log probabilities, (n, n_classes)."""
        return self.deployed(self.mixed(experts).masked_fill(experts.excluded, -torch.inf))

    def mixed(self, experts: Experts) -> torch.Tensor:
        """Return the logarithm of the mixture, (n, n_classes)."""
        parts = torch.cat([pool_log_probs(self.exponents, experts.pooled)[None], experts.mixed])
        return torch.logsumexp(parts + self.shares.log().to(parts)[:, None, None], dim=0)

    def deployed(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Return normalised log probabilities, for the class frequencies of deployment."""
        if self.prior is not None:
            log_probs = log_probs + (self.prior / self.frequencies).log().to(log_probs)
        return torch.log_softmax(log_probs, dim=1)


@dataclass(frozen=True, eq=False, kw_only=True)
class BlendModel(StoredModel):
    """The network, its refitted last layer and a kernel estimate over the calibration samples."""

    estimate: KernelEstimate = nested(KernelEstimate)
    metric: str  # "unit" or "identity"
    formula: BlendFormula = nested(BlendFormula)

    @property
    def frequencies(self) -> torch.Tensor:
        """Class frequencies that the probabilities assume."""
        return self.formula.frequencies

    @property
    def prior(self) -> torch.Tensor | None:
        """Class frequencies of deployment."""
        return self.formula.prior

    @property
    def weights(self) -> dict[str, float]:
        """Exponent of each expert in the pool, by name."""
        return dict(zip(EXPERTS, self.formula.exponents.tolist(), strict=True))

    @property
    def shares(self) -> dict[str, float]:
        """Share of the pool and of each expert in the prediction, by name."""
        return dict(zip(("pool", *EXPERTS), self.formula.shares.tolist(), strict=True))

    @property
    def bandwidth(self) -> float:
        """Bandwidth of the kernel estimate."""
        return self.estimate.bandwidth

    def experts(self, embeddings: torch.Tensor, logits: torch.Tensor | None) -> Experts:
        """Return the experts of new samples."""
        log_probs = None if logits is None else to_log_probs(logits, self.formula.representation)
        points = self.estimate.project(embeddings)
        sums = self.estimate.prepared.class_sums(points)
        return self.formula.experts(ClassSums(sums.sums.cpu(), sums.offsets.cpu()), points.cpu(), log_probs)

    def log_probs(self, embeddings: torch.Tensor, logits: torch.Tensor | None) -> torch.Tensor:
        """Return log probabilities, (n, n_classes)."""
        return self.formula.log_probs(self.experts(embeddings, logits))

    def log_evidence(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Return the log density of the calibration set at each embedding, (n,)."""
        return self.estimate.log_evidence(embeddings)

    def evidence(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Return the share of calibration samples with less evidence than each embedding, (n,)."""
        return self.estimate.evidence(embeddings)

    def with_reference(self, embeddings: torch.Tensor, groups: torch.Tensor | None) -> Self:
        """Return the model with the evidence of the calibration samples."""
        return replace(self, estimate=self.estimate.with_reference(embeddings, groups))

    def with_formula(self, **values: object) -> Self:
        """Return the model with other values in its formula."""
        return replace(self, formula=replace(self.formula, **values))  # type: ignore[arg-type]

    def with_prior(self, prior: torch.Tensor | None) -> Self:
        """Return the model for other class frequencies of deployment."""
        return self.with_formula(prior=prior)

    def with_support(self, support: SortedSupport, n_samples: float) -> Self:
        """Return the model with another support, of ``n_samples`` samples."""
        model = replace(self, estimate=replace(self.estimate, support=support))
        return model.with_formula(log_scale=log_scale_of(support, n_samples))

    def to(self, device: str | torch.device) -> Self:
        """Return the model with its kernel sums on another device."""
        return replace(self, estimate=self.estimate.to(device))


def log_of(value: float) -> float:
    """Return the logarithm of a number."""
    return float(torch.tensor(value, dtype=torch.float64).log())
