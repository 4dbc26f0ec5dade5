"""The evidence for a query: how ordinary it is among the calibration samples.

evidence(x) = share of calibration samples whose log density, from the other samples, is at most that of x

A projection that divides embeddings by their length cannot see how long they are. There the two-sided share of the
length, 2·min(F, 1 − F), is combined with that of the density: the smaller of the two, s, becomes 1 − (1 − s)². For new
samples of the distribution of the calibration set the evidence is roughly uniform: uniform but for the finite sample,
if density and length are independent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from kcal.calibrators.model_state import StoredModel, tensor
from kcal.calibrators.piecewise import places
from kcal.kernels import PreparedSupport, SortedSupport, leave_out_rule
from kcal.projection import ignores_length, log_lengths

MAX_REFERENCES = 1_000
"""Calibration samples that queries are compared with: a random choice, if there are more."""
COMPARED_ROWS = 100
"""Rows by which a projection is found to divide by the length."""
SAME = 1e-3
"""Relative difference up to which lengths or densities are the same: rounding must not decide."""


@dataclass(frozen=True, eq=False, kw_only=True)
class EvidenceReference(StoredModel):
    """Calibration samples that queries are compared with."""

    log_densities: torch.Tensor = tensor("references")  # of each sample from the others, ascending
    log_lengths: torch.Tensor | None = tensor("references", optional=True)  # ascending; if the projection ignores them

    def shares(self, log_densities: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        """Return the evidence for queries, (n,), from their log densities, (n,), and embeddings, (n, h)."""
        references = self.log_densities
        denser = _share_below(references, log_densities.to(references) + SAME, or_equal=True)
        if self.log_lengths is None:
            return denser
        lengths = log_lengths(embeddings.to(references))
        no_longer = _share_below(self.log_lengths, lengths + SAME, or_equal=True)
        no_shorter = 1.0 - _share_below(self.log_lengths, lengths - SAME)
        smallest = torch.minimum(denser, 2.0 * torch.minimum(no_longer, no_shorter)).clamp_max(1.0)
        return 1.0 - (1.0 - smallest).square()


def _share_below(ascending: torch.Tensor, values: torch.Tensor, *, or_equal: bool = False) -> torch.Tensor:
    """Return the share of numbers that are less than (or equal to) each value, in float64."""
    counts = places((ascending,), values[:, None], or_equal=or_equal)[:, 0]
    return counts.to(ascending.dtype) / max(len(ascending), 1)


def reference_rows(support: SortedSupport) -> torch.Tensor:
    """Return the positions of the support points that queries are compared with."""
    shuffled = torch.randperm(len(support.counted), generator=torch.Generator().manual_seed(0))
    return support.counted[shuffled[:MAX_REFERENCES]].to(support.points.device)


def evidence_reference(
    prepared: PreparedSupport, place: int, lengths: torch.Tensor | None, groups: torch.Tensor | None
) -> EvidenceReference:
    """Return the reference of a support at one of its bandwidths: its samples given the others (other groups).

    ``lengths``, if they are compared, are the log lengths of the embeddings, and like ``groups`` in the original order.
    """
    support = prepared.support
    chosen = reference_rows(support)
    if groups is not None and len(torch.unique(groups)) < 2:
        groups = None  # no other group is left
    rule = leave_out_rule(support, groups).select(chosen)
    densities = prepared.log_densities(support.points[chosen], leave_out=rule)[place].cpu().double().sort().values
    if lengths is not None:
        lengths = lengths[support.order[chosen].to(lengths.device)].cpu().sort().values
    return EvidenceReference(log_densities=densities, log_lengths=lengths)


def compared_lengths(support: SortedSupport, module: nn.Module, embeddings: torch.Tensor) -> torch.Tensor | None:
    """Return the log lengths of embeddings, in their order, if the projection ignores them; otherwise None."""
    some = support.order[reference_rows(support)[:COMPARED_ROWS]].to(embeddings.device)
    return log_lengths(embeddings) if ignores_length(module, embeddings[some]) else None
