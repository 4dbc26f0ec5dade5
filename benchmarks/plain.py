"""Plain versions of what kcal does, to measure it against."""

from __future__ import annotations

import torch


def broadcast_posteriors(
    queries: torch.Tensor, points: torch.Tensor, one_hot: torch.Tensor, bandwidth: float, batch: int = 64
) -> torch.Tensor:
    """Return posteriors in the published code's form: all differences of a batch of queries, then a one-hot product."""
    parts = []
    for rows in queries.split(batch):
        squares = (rows[:, None, :] - points[None, :, :]).square().mean(dim=2)
        sums = torch.exp(-squares / (2 * bandwidth**2)) @ one_hot
        parts.append(sums / sums.sum(dim=1, keepdim=True))
    return torch.cat(parts)


def cdist_posteriors(
    queries: torch.Tensor, points: torch.Tensor, one_hot: torch.Tensor, bandwidth: float
) -> torch.Tensor:
    """Return posteriors from all distances at once by torch.cdist, then one exponential and a one-hot product."""
    distances = torch.cdist(queries, points)
    sums = torch.exp(-distances.square() / (2 * points.shape[1] * bandwidth**2)) @ one_hot
    return sums / sums.sum(dim=1, keepdim=True)


def bare_product(left: torch.Tensor, right: torch.Tensor, support_block: int, query_block: int) -> None:
    """Do only the matrix products of the kernel sums, block by block into one buffer."""
    buffer = left.new_empty(support_block * query_block)
    for rows in left.split(support_block):
        for start in range(0, right.shape[1], query_block):
            columns = right[:, start : start + query_block]
            block = buffer[: rows.shape[0] * columns.shape[1]].view(rows.shape[0], columns.shape[1])
            torch.mm(rows, columns, out=block)


def bare_exponential(exponents: torch.Tensor, n_elements: int) -> None:
    """Do only the exponentials, over as many elements, from one block into another."""
    buffer = torch.empty_like(exponents)
    for _ in range(-(-n_elements // exponents.numel())):
        torch.exp(exponents, out=buffer)
