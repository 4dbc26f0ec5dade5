"""The fitted KCal: its formula and everything the formula needs.

p_k(x) = Σ_{i: y_i = k} w_i·φ_b(Π(x_i) − Π(x)) / Σ_i w_i·φ_b(Π(x_i) − Π(x)), corrected for the prior, smoothed
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import nn

from kcal.calibrators.kcal.evidence import EvidenceReference, compared_lengths, evidence_reference
from kcal.calibrators.kcal.state import projection_state, read_projection, read_support, support_state
from kcal.calibrators.model_state import StoredModel, custom, nested, tensor
from kcal.calibrators.prior import apply_prior, smooth
from kcal.errors import InvalidInputError
from kcal.kernels import (
    PreparedSupport,
    SortedSupport,
    get_kernel,
    leave_out_posteriors,
    leave_out_rule,
    mean_log_loss,
    sort_support,
)
from kcal.projection import project
from kcal.samples import Samples
from kcal.validation import check_number

NO_REFERENCE = EvidenceReference(log_densities=torch.empty(0, dtype=torch.float64))
SCORED_ROWS = 1_000
"""Samples by which the leave-one-out accuracy is estimated, at most."""


def sorted_support(samples: Samples, points: torch.Tensor) -> SortedSupport:
    """Return projected points, one per sample, as support of the kernel sums."""
    codes = torch.as_tensor(samples.codes, device=points.device)
    weights = torch.as_tensor(samples.weights / samples.weights.max()).to(points)  # sums in single precision stay small
    return sort_support(points, codes, samples.n_classes, weights)


@dataclass(frozen=True, kw_only=True)
class Compression(StoredModel):
    """How a smaller support was made of the samples, and its loss."""

    method: str  # one of kcal.support.REDUCTIONS
    n_samples: int  # of positive weight, before
    fewest: int  # samples behind a point, at least: 1 if a point may be a single sample
    loss: float  # out-of-fold log-loss, at the bandwidth in use

    def __str__(self) -> str:
        return f"points for {self.n_samples:,} samples ({self.method}), each for {self.fewest} or more"


@dataclass(frozen=True, eq=False, kw_only=True)
class KernelEstimate(StoredModel):
    """A kernel density estimate over projected calibration samples."""

    projection: nn.Module = custom(projection_state, read_projection)  # Π, frozen
    support: SortedSupport = custom(support_state, read_support)  # the projected samples, with classes and weights
    bandwidth: float  # b
    kernel: str  # name of the mother kernel φ
    reference: EvidenceReference = nested(EvidenceReference, default=NO_REFERENCE)  # of the evidence, if it is measured
    compression: Compression | None = nested(Compression, default=None)  # None if every sample is a support point

    def __post_init__(self) -> None:
        check_number(self.bandwidth, "bandwidth", minimum=0, exclusive=True)
        get_kernel(self.kernel)

    @property
    def dimension(self) -> int:
        """Dimension of the projected space."""
        return self.support.dimension

    @property
    def middle(self) -> int:
        """Position of ``bandwidth`` among those of ``prepared``."""
        return 0

    @property
    def bandwidths(self) -> list[float]:
        """The bandwidths in use."""
        return [self.bandwidth]

    def project(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Return projected embeddings, (n, d), on the device and in the precision of the support."""
        points = self.support.points
        return project(self.projection, embeddings.to(device=points.device, dtype=points.dtype))

    @cached_property
    def prepared(self) -> PreparedSupport:
        """The support at the bandwidth, with all that does not depend on queries."""
        return PreparedSupport(self.support, self.bandwidths, get_kernel(self.kernel))

    def log_evidence(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Return the log density of the calibration set at each embedding, (n,)."""
        return self.prepared.log_densities(self.project(embeddings))[self.middle]

    def evidence(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Return the share of calibration samples with less evidence than each embedding, (n,)."""
        return self.reference.shares(self.log_evidence(embeddings), embeddings)

    def with_reference(self, embeddings: torch.Tensor, groups: torch.Tensor | None) -> Self:
        """Return the estimate with the evidence of its samples, given by their ``embeddings`` in the original order."""
        return self.with_reference_lengths(compared_lengths(self.support, self.projection, embeddings), groups)

    def with_reference_lengths(self, lengths: torch.Tensor | None, groups: torch.Tensor | None) -> Self:
        """Return the estimate with the evidence of its samples, given by the log lengths of embeddings, if compared."""
        return replace(self, reference=evidence_reference(self.prepared, self.middle, lengths, groups))

    def to(self, device: str | torch.device) -> Self:
        """Return the estimate on another device."""
        place = torch.device(device)
        return replace(self, projection=self.projection.to(place), support=self.support.to(device=place))


@dataclass(frozen=True, eq=False, kw_only=True)
class KCalModel(KernelEstimate):
    """Class probabilities from a kernel density estimate over projected calibration samples."""

    frequencies: torch.Tensor = tensor("classes")  # of the calibration set
    prior: torch.Tensor | None = tensor("classes", optional=True)  # class frequencies of deployment
    smoothing: float | None = None  # share spread evenly over the classes; None for 1/(n + 2)
    groups: torch.Tensor | None = tensor("support", dtype=torch.int64, optional=True)  # in the order of the fit

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.smoothing is not None:
            check_number(self.smoothing, "smoothing", minimum=0, maximum=1)

    @property
    def even_share(self) -> float:
        """Share of the probability that is spread evenly over the classes; by default 1/(n + 2) of n samples."""
        n_samples = len(self.support.counted) if self.compression is None else self.compression.n_samples
        return 1 / (n_samples + 2) if self.smoothing is None else self.smoothing

    def probs(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Return class probabilities, (n, n_classes)."""
        return self._corrected(self.prepared.posteriors(self.project(embeddings))[0])

    @cached_property
    def leave_one_out_probs(self) -> torch.Tensor:
        """Probabilities of each support sample given the others (other groups), in the order they were given."""
        kernel = get_kernel(self.kernel)
        return self._corrected(leave_out_posteriors(self.support, self.bandwidth, kernel=kernel, keys=self.groups))

    def leave_one_out_score(self) -> tuple[float, float]:
        """Return accuracy and log-loss of support samples given the others, of at most ``SCORED_ROWS`` of them."""
        support = self.support
        rows = support.counted[:: -(-len(support.counted) // SCORED_ROWS)].to(support.points.device)
        rule = leave_out_rule(support, self.groups).select(rows)
        probs = self._corrected(self.prepared.posteriors(support.points[rows], leave_out=rule)[0])
        codes = support.codes[rows]
        log_weights = torch.zeros(len(rows)) if support.log_weights is None else support.log_weights[rows]
        shares = torch.softmax(log_weights.cpu().double(), dim=0)
        correct = (probs.argmax(dim=1) == codes).cpu().double()
        own = probs.gather(1, codes[:, None]).squeeze(1)
        return float(shares @ correct), mean_log_loss(torch.log(own).cpu(), log_weights.cpu())

    def with_prior(self, prior: torch.Tensor | None) -> Self:
        """Return the model for other class frequencies of deployment."""
        return replace(self, prior=prior)

    def to(self, device: str | torch.device) -> Self:
        """Return the model on another device."""
        return replace(super().to(device), groups=None if self.groups is None else self.groups.to(device))

    def _corrected(self, posteriors: torch.Tensor) -> torch.Tensor:
        """Return posteriors corrected for the prior and smoothed."""
        if not bool(torch.isfinite(posteriors).all()):
            raise InvalidInputError(
                "bandwidth",
                "must be of the scale of the embeddings",
                got=f"{self.bandwidth:.3g}, at which probabilities are not finite",
                remedy="Scale the embeddings.",
            )
        return smooth(apply_prior(posteriors, self.prior, self.frequencies), self.even_share)
