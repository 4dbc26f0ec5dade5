"""Classes by their rank in a row, ties and all: the top one, whether it is right, what it leaves to the rest."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

TIED = 1e-9
"""Log-probabilities that differ by no more are the same, so that rounding decides nothing."""


def tied_tops(logs: torch.Tensor) -> torch.Tensor:
    """Say of each entry of log-probabilities (n, n_classes) whether it is, or ties with, the largest of its row."""
    return logs >= logs.amax(dim=1, keepdim=True) - TIED


def rightness(logs: torch.Tensor, codes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return how right the top class is, (n,): 1 or 0, or a share where several classes tie."""
    tops = tied_tops(logs)
    own = tops.gather(1, torch.from_numpy(codes)[:, None])[:, 0]
    shares: NDArray[np.float64] = (own / tops.sum(dim=1)).double().numpy()
    return shares


def spread_top(logs: torch.Tensor, log_top: torch.Tensor, log_rest: torch.Tensor) -> torch.Tensor:
    """Return log-probabilities whose top class has the given one; the others share the rest as they did before.

    Where m classes tie, each is the top in one of m equal cases.
    """
    tops = tied_tops(logs)
    count = tops.sum(dim=1, keepdim=True)
    first = logs.argmax(dim=1, keepdim=True)
    others = torch.logsumexp(logs.scatter(1, first, -torch.inf), dim=1, keepdim=True)
    below = logs - others + log_rest[:, None]
    in_other_cases = torch.log((count - 1).double()) + below
    at_top = torch.logaddexp(log_top[:, None].expand_as(logs), in_other_cases) - torch.log(count.double())
    return torch.log_softmax(torch.where(tops, at_top, below), dim=1)


def by_rank(logs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities (n, n_classes) in descending order, and the class that each belongs to."""
    descending, order = torch.sort(logs, dim=1, descending=True, stable=True)
    return descending, order


def share_between_ties(values: torch.Tensor, descending: torch.Tensor) -> torch.Tensor:
    """Give the ranks whose log-probabilities tie, given in descending order, the mean of their values."""
    breaks = descending[:, :-1] - descending[:, 1:] > TIED
    group = torch.nn.functional.pad(breaks, (1, 0)).long().cumsum(dim=1)  # (n, n_classes): which run of ties
    zeros = torch.zeros_like(values)
    sums = zeros.scatter_add(1, group, values)
    counts = zeros.scatter_add(1, group, torch.ones_like(values))
    return (sums / counts.clamp_min(1)).gather(1, group)
