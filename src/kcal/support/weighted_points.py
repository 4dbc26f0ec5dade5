"""Points with a class and a weight each: the samples of a support, or a smaller set that stands for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.kernels import SortedSupport, sort_support

Index = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class WeightedPoints:
    """Points with a class and a positive weight each."""

    points: torch.Tensor  # (n, d)
    codes: Index  # (n,)
    weights: Floats  # (n,)
    n_classes: int

    def __len__(self) -> int:
        return len(self.codes)

    @classmethod
    def of(cls, support: SortedSupport) -> WeightedPoints:
        """Return the points of positive weight of a support, in its order."""
        index = support.counted
        weights = torch.ones(len(index), dtype=torch.float64)
        if support.log_weights is not None:
            weights = support.log_weights.cpu()[index].double().exp()
        points = support.points[index.to(support.points.device)]
        return cls(points, support.codes.cpu()[index].numpy(), weights.numpy(), support.n_classes)

    @property
    def class_counts(self) -> Index:
        """Number of points of each class, (n_classes,)."""
        return np.bincount(self.codes, minlength=self.n_classes)

    @property
    def n_present(self) -> int:
        """Number of classes with points."""
        return int(np.count_nonzero(self.class_counts))

    @property
    def class_weights(self) -> Floats:
        """Total weight of each class, (n_classes,)."""
        return np.bincount(self.codes, weights=self.weights, minlength=self.n_classes).astype(np.float64)

    def rows(self, index: Index) -> WeightedPoints:
        """Return some of the points."""
        place = torch.from_numpy(index).to(self.points.device)
        return WeightedPoints(self.points[place], self.codes[index], self.weights[index], self.n_classes)

    def support(self) -> SortedSupport:
        """Return the points sorted by class, for kernel sums."""
        codes = torch.from_numpy(self.codes).to(self.points.device)
        return sort_support(self.points, codes, self.n_classes, torch.from_numpy(self.weights))


@dataclass(frozen=True, eq=False)
class ReducedPoints(WeightedPoints):
    """Points that stand for more samples than they are; ``members`` is the number of samples behind each, (m,)."""

    members: Index
