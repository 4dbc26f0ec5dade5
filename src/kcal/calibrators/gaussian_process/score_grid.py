"""A grid of nodes over the scores, so that a smooth function of one score is evaluated at nodes, not at every score.

g(s) = (1 − a)·g(x_j) + a·g(x_{j+1}),   x_j ≤ s ≤ x_{j+1} = x_j + h,   wrong by at most h²/8·max|g″|
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

SPACING = 2.0**-9
"""h, in units of the score."""
FEW = 2**13
"""Up to so many distinct scores are their own nodes."""


@dataclass(frozen=True)
class ScoreGrid:
    """Nodes, and the places of the scores between them; only nodes next to a score exist."""

    scores: torch.Tensor = field(repr=False)  # (n, n_classes)
    nodes: torch.Tensor = field(repr=False)  # (n_nodes,), ascending
    below: torch.Tensor = field(repr=False)  # (n, n_classes): the node j at or below each score
    share: torch.Tensor | None = field(repr=False)  # (n, n_classes): a; None where every score is a node

    @property
    def exact(self) -> bool:
        """Whether every score is a node."""
        return self.share is None

    def interpolate(self, values: torch.Tensor, rows: slice) -> torch.Tensor:
        """Return a function, given by its values at the nodes, at the scores of some rows."""
        below, given = self.below[rows].numpy(), values.numpy()
        taken = torch.from_numpy(given.take(below))
        if self.share is None:
            return taken
        rises = np.diff(given, append=given[-1:])
        return taken.addcmul_(self.share[rows], torch.from_numpy(rises.take(below)))

    def add_slopes(self, slopes: torch.Tensor, parts: torch.Tensor, rows: slice) -> None:
        """Add the slopes at the scores of some rows to those at the nodes: the transpose of :meth:`interpolate`."""
        below = self.below[rows].numpy().ravel()
        upper = np.zeros(parts.numel()) if self.share is None else (parts * self.share[rows]).numpy().ravel()
        slopes += torch.from_numpy(np.bincount(below, parts.numpy().ravel() - upper, len(slopes)))
        if self.share is not None:
            slopes[1:] += torch.from_numpy(np.bincount(below, upper, len(slopes)))[:-1]


def make_grid(scores: torch.Tensor, spacing: float) -> ScoreGrid:
    """Return a grid of at most this spacing; the scores themselves if they are few or far apart."""
    distinct, places = np.unique(scores.numpy(), return_inverse=True)
    cells = np.floor(distinct / spacing)
    lows = np.unique(cells)
    is_beyond_grid = np.abs(cells).max() >= 2.0**52  # there neighbouring cells are the same number
    if len(distinct) <= max(FEW, 2 * len(lows)) or is_beyond_grid:
        return ScoreGrid(scores, torch.from_numpy(distinct), torch.from_numpy(places.reshape(scores.shape)), None)
    nodes = np.union1d(lows, lows + 1)
    below = np.searchsorted(nodes, cells)
    share = distinct / spacing - cells
    return ScoreGrid(
        scores,
        torch.from_numpy(nodes * spacing),
        torch.from_numpy(below[places].reshape(scores.shape)),
        torch.from_numpy(share[places].reshape(scores.shape)),
    )
