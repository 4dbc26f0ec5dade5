"""The fitted blend: its formula and everything the formula needs.

p = λ_1·pool + λ_2·f + λ_3·r + λ_4·d,     pool ∝ f^(w_f)·r^(w_r)·d'^(w_d)

f is the network (``network.py``), r its last layer refitted (``refit.py``), d the kernel estimate (``kernel.py``), d'
the same with the background of the pool; the exponents w and the shares λ are those of ``pool.py``. All are fitted on
out-of-fold predictions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Any, ClassVar, Self

import torch

from kcal.calibrators.base import CalibrationModel
from kcal.calibrators.blend.head import LinearHead
from kcal.calibrators.blend.kernel import counts_of, log_estimate, log_scale_of
from kcal.calibrators.blend.network import NetworkModel
from kcal.calibrators.blend.pool import pool_log_probs
from kcal.calibrators.kernel_model import MAX_SUMS, Buffers, KernelModel, as_embeddings
from kcal.calibrators.logits import required, to_log_probs
from kcal.calibrators.refit import RidgeModel
from kcal.kernels import ClassSums, SortedSupport
from kcal.validation import unchecked_logits

EXPERTS = ("network", "refit", "samples")
MASKED, MASK_FACTOR = -5000.0, 10.0
"""A class is masked out of the logits, not unlikely, if its log-probability is below the first, and below the second
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


class BlendModel(CalibrationModel):
    """The network, its refitted last layer and a kernel estimate over the calibration samples.

    Parameters
    ----------
    estimate, network, refit, head : dict
        Configurations of the parts; None for a head that is not given.
    metric : "unit" or "identity"
        What is compared: directions of embeddings, or the embeddings themselves.
    radius : float
        Of the ball around ``centre`` that holds the calibration points: the refit does not extrapolate beyond.
    background, pool_background : float
        β, and that of the pool.
    log_scale : float
        Makes numbers of samples of class sums.
    min_log_prob : float
        Lowest log-probability of the network for a class of a calibration sample.
    loss, network_loss : float
        Out-of-fold log-loss of the blend, and of the network alone.
    group_efficiency : float
        Information of a sample relative to an independent one.
    has_logits, has_prior : bool
        Whether it was fitted with logits, and whether class frequencies of deployment are given.
    representation : "logits" or "probabilities"
        What logits hold.
    """

    holds_samples = True
    max_block_entries: ClassVar[int] = MAX_SUMS
    exponents: torch.Tensor  # w, of network, refit and kernel estimate
    shares_of_parts: torch.Tensor  # λ, of the pool, network, refit and kernel estimate
    centre: torch.Tensor  # (d,), of the calibration points
    frequencies: torch.Tensor  # (n_classes,), class frequencies that the probabilities assume
    prior: torch.Tensor | None  # (n_classes,), of deployment

    def __init__(
        self,
        *,
        estimate: dict[str, Any],
        network: dict[str, Any],
        refit: dict[str, Any],
        head: dict[str, Any] | None = None,
        metric: str,
        radius: float,
        background: float,
        pool_background: float,
        log_scale: float,
        min_log_prob: float,
        loss: float,
        network_loss: float,
        group_efficiency: float = 1.0,
        has_logits: bool = True,
        has_prior: bool = False,
        representation: str = "logits",
    ) -> None:
        numbers = {"radius": radius, "background": background, "pool_background": pool_background}
        numbers |= {"log_scale": log_scale, "min_log_prob": min_log_prob}
        results = {"loss": loss, "network_loss": network_loss, "group_efficiency": group_efficiency}
        options = {"metric": metric, "has_logits": has_logits, "has_prior": has_prior, "representation": representation}
        super().__init__(estimate=estimate, network=network, refit=refit, head=head, **numbers, **results, **options)
        for name, value in {**numbers, **results}.items():
            setattr(self, name, value)
        self.metric, self.has_logits, self.representation = metric, has_logits, representation
        self.estimate, self.network, self.refit = KernelModel(**estimate), NetworkModel(**network), RidgeModel(**refit)
        self.head = None if head is None else LinearHead(**head)
        n_classes = self.estimate.n_classes
        self.declare(exponents=(3,), shares_of_parts=(4,), centre=(self.estimate.dimension,), frequencies=(n_classes,))
        self.declare_if(has_prior, prior=(n_classes,))
        self.masked_below = min(MASKED, MASK_FACTOR * min_log_prob)

    radius: float
    background: float
    pool_background: float
    log_scale: float
    min_log_prob: float
    loss: float
    network_loss: float
    group_efficiency: float

    def forward(self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return log-probabilities, (n, n_classes)."""
        rows = as_embeddings(embeddings)
        points = self.estimate.project(rows)
        return self.log_probs(self.experts(self.estimate.prepared.class_sums(points), points, rows, logits))

    def with_evidence(
        self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities, (n, n_classes), and evidence, (n,), from the same class sums."""
        rows = as_embeddings(embeddings)
        points = self.estimate.project(rows)
        sums = self.estimate.prepared.class_sums(points)
        return self.log_probs(self.experts(sums, points, rows, logits)), self.estimate.evidence(sums, rows)

    def evidence_of(self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return the evidence of each row, (n,), which does not depend on the logits."""
        rows = as_embeddings(embeddings)
        return self.estimate.evidence(self.estimate.class_sums(rows), rows)

    def experts(
        self, sums: ClassSums, points: torch.Tensor, rows: torch.Tensor, logits: torch.Tensor | None
    ) -> Experts:
        """Return the experts of class sums, points, embeddings and logits, which a head computes or are None."""
        counts = counts_of(sums, self.log_scale)[0]
        log_probs = torch.zeros_like(counts)
        if self.has_logits:
            scores = required(logits, "logits") if self.head is None else self.head(rows)
            log_probs = to_log_probs(unchecked_logits(scores, self.representation), self.representation).to(counts)
        # A linear map would carry a value far below all calibration samples over to other classes.
        bounded = log_probs.clamp_min(self.min_log_prob)
        network = self.network.probs(bounded).clamp_min(MIN_PROB)
        refit = self.refit.log_probs(self.inside(points.to(counts)), bounded).clamp_min(log(MIN_PROB))
        pooled = torch.stack([network.log(), refit, log_estimate(counts, network, self.pool_background)])
        estimate = log_estimate(counts, network, self.background)
        return Experts(pooled, estimate, counts, log_probs < self.masked_below)

    def inside(self, points: torch.Tensor) -> torch.Tensor:
        """Return points, (n, d), moved towards the centre into the ball of the calibration points."""
        offsets = points - self.centre.to(points)
        lengths: torch.Tensor = torch.linalg.vector_norm(offsets, dim=1, keepdim=True)
        lengths = lengths.clamp_min(torch.finfo(points.dtype).tiny)
        return self.centre.to(points) + offsets * (self.radius / lengths).clamp_max(1.0)

    def log_probs(self, experts: Experts) -> torch.Tensor:
        """Return log-probabilities, (n, n_classes), for the class frequencies of deployment."""
        log_probs = self.mixed(experts).masked_fill(experts.excluded, -torch.inf)
        if self.prior is not None:
            log_probs = log_probs + (self.prior / self.frequencies).log().to(log_probs)
        return torch.log_softmax(log_probs, dim=1)

    def mixed(self, experts: Experts) -> torch.Tensor:
        """Return the logarithm of the mixture, (n, n_classes)."""
        parts = torch.cat([pool_log_probs(self.exponents, experts.pooled)[None], experts.mixed])
        return torch.logsumexp(parts + self.shares_of_parts.log().to(parts)[:, None, None], dim=0)

    @property
    def weights(self) -> dict[str, float]:
        """Exponent of each expert in the pool, by name."""
        return dict(zip(EXPERTS, self.exponents.tolist(), strict=True))

    @property
    def shares(self) -> dict[str, float]:
        """Share of the pool and of each expert in the prediction, by name."""
        return dict(zip(("pool", *EXPERTS), self.shares_of_parts.tolist(), strict=True))

    @property
    def evidence_step(self) -> float:  # type: ignore[override]
        """Difference that one calibration sample more or less makes to the evidence, at most."""
        return self.estimate.evidence_step

    @classmethod
    def of(cls, tensors: Buffers, parts: Mapping[str, CalibrationModel | None], **config: Any) -> Self:
        """Return the model of its own buffers and of its parts, by name."""
        configs = {name: None if part is None else part.config for name, part in parts.items()}
        states = {name: {} if part is None else part.state_dict() for name, part in parts.items()}
        nested = {f"{name}.{key}": tensor for name, state in states.items() for key, tensor in state.items()}
        own = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        return cls.restore({**config, **configs}, own | nested)

    def with_estimate(self, estimate: KernelModel, **config: Any) -> Self:
        """Return the model with another kernel estimate."""
        own = {name: tensor for name, tensor in self.state_dict().items() if "." not in name}
        parts = {"estimate": estimate, "network": self.network, "refit": self.refit, "head": self.head}
        return self.of(own, parts, **{**self.config, **config})

    def with_support(self, support: SortedSupport) -> Self:
        """Return the model with other samples, without a reference of the evidence."""
        log_scale = log_scale_of(support, len(support)) if len(support) else 0.0
        return self.with_estimate(self.estimate.with_support(support), log_scale=log_scale)

    def entries_per_row(self) -> int:
        """Return the number of class sums of a row."""
        return self.estimate.entries_per_row()

    def prepare(self) -> None:
        """Compute what predictions share, before they are traced."""
        self.estimate.prepare()
