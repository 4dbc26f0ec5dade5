"""The published search for the bandwidth: golden section over h = 2b² in one fixed interval."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import numpy as np

from kcal.errors import BandwidthWarning, warn
from kcal.kernels.bandwidth import GOLDEN, INTERVAL, BandwidthCurve

TOLERANCE = 1e-4
"""Of h, as published."""
LEAST_PROB = 1e-10
"""Probabilities are clipped here in the published loss: the only member of a class costs 23.03 at every bandwidth."""


def search_published(
    loss: Callable[[float], float], *, after_each: Callable[[str], None] | None = None
) -> BandwidthCurve:
    """Minimise ``loss`` over h = 2b² in [0.1, 10] by golden section, until the bracket is narrower than 1e-4.

    The interval is never widened, and of several minima any may be found; at an end of the interval a
    BandwidthWarning is issued. ``after_each`` is called after every evaluation with a description of it.
    """
    seen: dict[float, float] = {}

    def loss_at(h: float) -> float:
        bandwidth = sqrt(h / 2.0)
        seen[bandwidth] = loss(bandwidth)
        if after_each is not None:
            after_each(f"b = {bandwidth:.3g}, loss {seen[bandwidth]:.4f}")
        return seen[bandwidth]

    low, high = (2.0 * bandwidth**2 for bandwidth in INTERVAL)
    ends = low + TOLERANCE, high - TOLERANCE
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    left_loss, right_loss = loss_at(left), loss_at(right)
    while high - low > TOLERANCE:
        if left_loss < right_loss:
            high, right, right_loss = right, left, left_loss
            left = high - GOLDEN * (high - low)
            left_loss = loss_at(left)
        else:
            low, left, left_loss = left, right, right_loss
            right = low + GOLDEN * (high - low)
            right_loss = loss_at(right)
    best = min(seen, key=seen.__getitem__)
    at_edge = not ends[0] < 2.0 * best**2 < ends[1]
    if at_edge:
        warn(
            f"The published search ended at b = {best:.3g}, the edge of its interval "
            f"[{INTERVAL[0]:.3g}, {INTERVAL[1]:.3g}]: the best bandwidth may lie beyond.",
            BandwidthWarning,
            remedy='Use bandwidth="cv", which widens the interval.',
        )
    order = sorted(seen)
    return BandwidthCurve(np.array(order), np.array([seen[b] for b in order]), best, seen[best], at_edge)
