"""Support points sorted by class, the form in which the kernel sums read them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

ROWS_AT_ONCE = 8_192


@dataclass(frozen=True)
class SortedSupport:
    """Support points, sorted by class; ``order`` leads back to the rows as they came."""

    points: torch.Tensor  # (n_support, d)
    codes: torch.Tensor  # (n_support,) class of each point, ascending
    log_weights: torch.Tensor | None  # (n_support,); −inf for a point that counts for nothing
    order: torch.Tensor  # (n_support,) sorted position -> row as it came
    n_classes: int

    @property
    def dimension(self) -> int:
        """Number of coordinates of a point."""
        return self.points.shape[1]

    def __len__(self) -> int:
        return self.points.shape[0]

    @cached_property
    def class_starts(self) -> list[int]:
        """Position at which each class starts, and the end: n_classes + 1 numbers."""
        wanted = torch.arange(self.n_classes + 1, device=self.codes.device)
        return [int(start) for start in torch.searchsorted(self.codes, wanted)]

    @cached_property
    def class_counts(self) -> torch.Tensor:
        """Number of points of each class, (n_classes,)."""
        return torch.bincount(self.codes, minlength=self.n_classes)

    @cached_property
    def centre(self) -> torch.Tensor:
        """Mean of the points, (d,): distances from it are small, and so are the rounding errors."""
        return self.points.mean(dim=0)

    @cached_property
    def extent(self) -> float:
        """Largest coordinate of a point as seen from the centre."""
        return max(float((rows - self.centre).abs().max()) for rows in torch.split(self.points, ROWS_AT_ONCE))

    @cached_property
    def radius(self) -> float:
        """Largest distance of a point from the centre."""
        unit = self.extent or 1.0  # whose square may overflow
        parts = torch.split(self.points, ROWS_AT_ONCE)
        return unit * max(float(((rows - self.centre) / unit).norm(dim=1).max()) for rows in parts)

    @cached_property
    def mean_square(self) -> float:
        """Mean squared distance of two points, averaged over the dimensions."""
        parts = [(rows - self.centre).double().square().sum() for rows in torch.split(self.points, ROWS_AT_ONCE)]
        return 2.0 * float(sum(parts)) / self.points.numel()

    def to(self, *, device: torch.device | None = None, dtype: torch.dtype | None = None) -> SortedSupport:
        """Return the same support elsewhere or in another precision."""
        return SortedSupport(
            self.points.to(device=device, dtype=dtype),
            self.codes.to(device=device),
            None if self.log_weights is None else self.log_weights.to(device=device, dtype=dtype),
            self.order.to(device=device),
            self.n_classes,
        )

    def as_it_came(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows``, one a sorted support point, in the order in which the support came."""
        result = torch.empty_like(rows)
        result[self.order] = rows
        return result


def sort_support(
    points: torch.Tensor, codes: torch.Tensor, n_classes: int, weights: torch.Tensor | None = None
) -> SortedSupport:
    """Sort ``points`` (n, d) by their class ``codes`` (n,), stably; ``weights`` (n,) default to 1."""
    order = torch.argsort(codes, stable=True)
    log_weights = None
    if weights is not None and not bool((weights == 1).all()):
        log_weights = torch.log(weights.cpu().double()).to(points)[order]
    return SortedSupport(points[order], codes[order], log_weights, order, n_classes)
