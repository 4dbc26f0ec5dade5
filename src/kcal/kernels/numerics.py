"""The numerical policy of the kernel sums, with every constant that it needs.

Exponents
    The one matrix product of the engine gives −½‖z − q‖², of centred points. Rounding disturbs the squared distance in
    units of the bandwidth, t = ‖z − q‖²/(d·b²), by about ε·R·(R + r)/(d·b²), with R the radius of the support and r the
    distance of the query from its centre. A query is computed in the first of these that keeps this below
    ``RESOLUTION``: its own precision (log-linear kernels only, other profiles need float64); float64; the limit b → 0,
    in which only the points nearest to the query count, each with its weight.
Range
    A shift for each query, the largest exponent over ``PILOT_POINTS`` support points, keeps its largest sum at the
    weight of a pilot or above. Queries whose sums grow beyond ``ROOM`` of the largest number are computed again with
    the exact maximum. Exponents are raised to ``lowest_exponent``, because exponentials that are not normal numbers are
    many times slower; what that adds is subtracted from the sums, so that "too far to count" is exactly 0.
Accumulation
    Kernel values are summed in the working precision over up to ``MOST_SUPPORT_BLOCKS`` blocks of support points; over
    more of them, or where the sums are added to those of other supports, block sums are added in float64. Weights
    multiply kernel values, never exponents.
"""

from __future__ import annotations

from math import ceil, log

import torch

RESOLUTION = 1e-4
"""Largest rounding error of an exponent: log odds of two classes are off by no more than about twice this."""
ROOM = 1e-8
"""Share of the largest number up to which sums may grow, so that products with them do not overflow."""
PILOT_POINTS = 128
"""Support points that give the shift: enough to come close to the maximum, few enough to cost nothing."""
LEAST_MASS = 1e-17
"""Mass, in units of the largest weight, below which a leave-out sum without a shift is computed again with one."""
SEARCH_DETAIL = 1 / 7
"""Share of the root-mean-square distance of support points down to which a search resolves the bandwidth."""
MOST_SQUARES = 6
"""Squares in a row from which a narrower kernel is made of a wider one: each doubles its relative error."""

SUPPORT_BLOCK = 1024
QUERY_BLOCK = 1024
"""Support points × queries of a block: a few MB, which stay in the cache."""
MOST_SUPPORT_BLOCKS = 32
"""Support blocks that are joined into one where queries are few, and over which sums stay in the working precision."""
PREPARED_NUMBERS = 4_000_000
"""Numbers of a scaled support up to which it is kept; a larger one is scaled again block by block."""


def lowest_exponent(dtype: torch.dtype) -> float:
    """Return the lowest integer exponent whose exponential is a normal number."""
    return ceil(log(torch.finfo(dtype).tiny))


def in_double(values: torch.Tensor) -> torch.Tensor:
    """Return ``values`` in float64, on the CPU if their device has no such precision."""
    return (values.cpu() if values.device.type == "mps" else values).double()


def widest_dtype(device: torch.device) -> torch.dtype:
    """Return the widest floating-point type of a device."""
    return torch.float32 if device.type == "mps" else torch.float64


def accumulator_dtype(like: torch.Tensor, n_support: int) -> torch.dtype:
    """Return the type of sums over ``n_support`` values of the type of ``like``."""
    return like.dtype if n_support <= MOST_SUPPORT_BLOCKS * SUPPORT_BLOCK else widest_dtype(like.device)
