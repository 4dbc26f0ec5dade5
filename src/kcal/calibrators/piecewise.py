"""Step functions and piecewise linear functions of scores, one per column or one for all columns.

A binary search of a fixed number of steps finds the place of a score, without a branch and without an operation that
compilers and exporters of torch modules lack.
"""

from __future__ import annotations

from itertools import accumulate
from math import ceil, log2

import torch
from torch.nn.functional import pad

from kcal.calibrators.class_scores import Tensors


def places(bounds: Tensors, scores: torch.Tensor, *, or_equal: bool = False) -> torch.Tensor:
    """Return how many of the bounds are below (or equal to) each score, (n, k).

    ``bounds`` are ascending: a tensor for each of the k columns, or one for all of them.
    """
    flat, starts = _joined(bounds, scores)
    first, ends = starts[:-1], starts[1:]
    n_steps = ceil(log2(1 + max(len(part) for part in bounds)))
    before = pad(flat, (1, 2**n_steps))  # the bound before each position
    position = first.expand(scores.shape)
    for step in reversed(range(n_steps)):
        further = position + 2**step
        bound = before[further]
        is_below = bound <= scores if or_equal else bound < scores
        position = torch.where(is_below & (further <= ends), further, position)
    return position - first


def step_values(bounds: Tensors, values: Tensors, scores: torch.Tensor, *, or_equal: bool = False) -> torch.Tensor:
    """Return the value of the step of each score, (n, k); there is one value more than bounds."""
    flat, starts = _joined(values, scores)
    return flat[starts[:-1] + places(bounds, scores, or_equal=or_equal)]


def interpolate(knots: Tensors, values: Tensors, scores: torch.Tensor) -> torch.Tensor:
    """Return values between knots, (n, k), linear between them and constant outside."""
    positions, starts = _joined(knots, scores)
    heights, _ = _joined(values, scores)
    widths = positions.diff()
    slopes = pad(heights.diff() / torch.where(widths == 0, 1.0, widths), (0, 1))
    slopes = slopes.index_fill(0, starts[1:] - 1, 0.0)  # after the last knot of each column
    low = torch.maximum(starts[:-1] + places(knots, scores, or_equal=True) - 1, starts[:-1])
    return slopes[low] * (scores - positions[low]).clamp_min(0.0) + heights[low]


def _joined(parts: Tensors, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all parts in one tensor, on the device of ``like``, and where each starts, with the end."""
    flat, starts = torch.cat(parts).to(like.device), [0, *accumulate(len(part) for part in parts)]
    if torch.compiler.is_compiling():  # not a constant tensor: torch 2.4 cannot export it
        return flat, torch.cat([torch.full((1,), start, device=like.device) for start in starts])
    return flat, torch.tensor(starts, device=like.device)
