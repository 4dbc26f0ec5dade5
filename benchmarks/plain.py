"""Plain versions of what kcal does, to measure it against."""

from __future__ import annotations

import torch

from kcal.threads import map_blocks

BLOCK, PART = 1024, 32 * 1024
"""Queries and points of a block, and points that a thread sums."""


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


def bare_sums(queries: torch.Tensor, points: torch.Tensor, codes: torch.Tensor, n_classes: int) -> None:
    """Do only the product, the powers of 2 and the class sums, in blocks; threads share the queries or the points.

    The exponents are those of queries and points as they are given: small ones, for which no shift is needed.
    """
    right = queries.T.contiguous()

    def add(columns: torch.Tensor, rows: slice) -> torch.Tensor:
        sums, buffer = columns.new_zeros(n_classes, columns.shape[1]), columns.new_empty(BLOCK, columns.shape[1])
        for start in range(rows.start, rows.stop, BLOCK):
            left = points[start : min(start + BLOCK, rows.stop)]
            block = torch.mm(left, columns, out=buffer[: len(left)]).exp2_()
            sums.index_add_(0, codes[start : start + len(left)], block)
        return sums

    columns = torch.split(right, BLOCK, dim=1)
    parts = [slice(start, min(start + PART, len(points))) for start in range(0, len(points), PART)]
    if len(parts) > len(columns):
        for some in columns:
            map_blocks(lambda rows, some=some: add(some, rows), parts, right.device)
    else:
        map_blocks(lambda some: [add(some, rows) for rows in parts], columns, right.device)
