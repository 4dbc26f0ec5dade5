"""The most probable class of each row: its score, whether it is right, and how the rest shares what it leaves."""

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
