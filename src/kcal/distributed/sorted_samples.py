"""Labels, weights and groups of the samples of a sharded support, sorted by class: what the calling process holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from kcal.calibrators.kernel_model import reference_rows
from kcal.distributed.shards import Hidden, Index, Range, ShardContent
from kcal.kernels import LeaveOut, SortedSupport, sort_support


@dataclass(frozen=True, eq=False)
class References:
    """Samples whose evidence queries are compared with, each given the others (other groups)."""

    positions: Index  # ascending, in the sorted support
    hidden: Hidden
    log_visible_weights: torch.Tensor  # (n_references,), of the samples that each sees
    log_weight: torch.Tensor  # of all samples


@dataclass(frozen=True, eq=False)
class SortedSamples:
    """Samples in the order of the shards."""

    support: SortedSupport  # its points have no coordinates: shards hold them
    keys: Mapping[str, torch.Tensor]  # "group" and "fold" of each sample, where there are some

    @classmethod
    def sort(cls, codes: Index, weights: Any, keys: Mapping[str, Index], n_classes: int) -> SortedSamples:
        """Sort samples by class; their largest weight becomes 1, so that sums in single precision stay small."""
        scaled = None if weights is None else torch.from_numpy(weights / weights.max())
        nothing = torch.empty(len(codes), 0, dtype=torch.float64)
        support = sort_support(nothing, torch.from_numpy(codes), n_classes, scaled)
        return cls(support, {kind: torch.from_numpy(values)[support.order] for kind, values in keys.items()})

    def content(
        self,
        place: Range,
        loader: Callable[[Index], Callable[[], torch.Tensor]],
        projection: nn.Module,
        *,
        keeps_lengths: bool,
    ) -> ShardContent:
        """Return what the actor of a range needs; ``loader`` maps rows to a function that loads their embeddings."""
        part = slice(place.start, place.stop)
        weights = None if self.support.log_weights is None else self.support.log_weights[part].clone()
        keys = {kind: values[part].clone() for kind, values in self.keys.items()}  # a view would be sent as the whole
        load = loader(self.support.order[part].numpy())
        codes = self.support.codes[part].clone()
        return ShardContent(load, codes, weights, keys, place, projection, keeps_lengths)

    def hidden(self, kind: str, positions: torch.Tensor) -> Hidden:
        """Return what samples must not see: themselves, their group or their fold."""
        return Hidden(kind, positions if kind == "sample" else self.keys[kind][positions])

    def references(self) -> References:
        """Return the samples that a KCal would compare queries with."""
        positions = reference_rows(self.support).sort().values
        kind = "group" if len(torch.unique(self.keys.get("group", torch.empty(0)))) > 1 else "sample"
        hidden = self.hidden(kind, positions)
        rule = LeaveOut(hidden.keys, self.keys.get(kind, torch.arange(len(self.support))), grouped=kind == "group")
        log_weight = torch.tensor(self.support.log_total_weight, dtype=torch.float64)
        return References(positions.numpy(), hidden, rule.log_visible_weights(self.support), log_weight)
