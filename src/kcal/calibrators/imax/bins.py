"""Bins of log-odds that keep the most information about a binary label.

boundary         g_b = log[(sp(φ_{b+1}) − sp(φ_b)) / (sp(−φ_b) − sp(−φ_{b+1}))],   sp = softplus
representative   φ_b = logit of the mean of σ(λ) in the bin

The label is modelled by the network: 1 with probability σ(λ). Bins lose the mean of KL(σ(λ)‖σ(φ)) of the information
about it if every φ is the mean of its bin, and more otherwise. Each step minimises that mean exactly, given the other,
so that the mutual information of bin and label never decreases; the maximum that it reaches may be a local one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, xlogy

from kcal.calibrators.class_scores import Floats

MAX_STEPS = 200
CANDIDATES = 4
MAX_SEEDED = 2**16
"""Seeds are drawn from at most so many scores, at evenly spaced ranks."""
LARGEST_LOG_ODDS = 700.0  # σ of minus this is still above zero
SAME_SCORE = 1e-12  # distance below which scores are the same


@dataclass(frozen=True)
class InformationBins:
    """Boundaries between bins, ascending, and the mutual information (nats) after each step."""

    boundaries: Floats = field(repr=False)  # (n_bins − 1,)
    information: tuple[float, ...] = field(repr=False)


def place(boundaries: Floats, log_odds: Floats) -> NDArray[np.int64]:
    """Return the bin of every score; a score at a boundary belongs to the upper bin."""
    return np.searchsorted(boundaries, log_odds, side="right")


def find_bins(log_odds: Floats, weights: Floats, n_bins: int, generator: np.random.Generator) -> InformationBins:
    """Return bins of the scores (n,); fewer than ``n_bins`` if the scores have fewer values."""
    order = np.argsort(log_odds, kind="stable")
    scores = np.clip(log_odds[order], -LARGEST_LOG_ODDS, LARGEST_LOG_ODDS)
    weights = weights[order]
    positive, negative = weights * expit(scores), weights * expit(-scores)  # both exact in their own tail
    representatives = _seeds(scores, weights, n_bins, generator)
    boundaries = boundaries_between(representatives)
    history: list[float] = []
    for _ in range(MAX_STEPS):
        edges = np.concatenate([[0], np.searchsorted(scores, boundaries, side="left"), [len(scores)]])
        ones, zeros = _sums(positive, edges), _sums(negative, edges)
        history.append(mutual_information(ones, zeros))
        empty = (ones + zeros) == 0
        ones[empty], zeros[empty] = positive.sum(), negative.sum()
        moved = boundaries_between(np.sort(np.log(ones) - np.log(zeros)))
        if np.array_equal(moved, boundaries):
            break
        boundaries = moved
    return InformationBins(boundaries, tuple(history))


def boundaries_between(representatives: Floats) -> Floats:
    """Return the log-odds that are as far, in KL, from each representative as from the next, (n − 1,)."""
    low, high = representatives[:-1], representatives[1:]
    gap = high - low
    near = gap < 1  # there the difference of softplus is computed without cancellation
    grown = np.expm1(np.where(near, gap, 0.0))
    rise = np.where(near, np.log1p(expit(low) * grown), np.logaddexp(0, high) - np.logaddexp(0, low))
    fall = np.where(near, np.log1p(expit(-high) * grown), np.logaddexp(0, -low) - np.logaddexp(0, -high))
    with np.errstate(divide="ignore", invalid="ignore"):
        between = np.log(rise) - np.log(fall)
    between = np.where(gap > SAME_SCORE, between, low)
    result: Floats = np.maximum.accumulate(np.clip(between, low, high))
    return result


def mutual_information(ones: Floats, zeros: Floats) -> float:
    """Return the mutual information, in nats, of bin and label from the mass of each label in each bin."""
    total = ones.sum() + zeros.sum()
    joint = np.stack([ones, zeros]) / total
    product = joint.sum(axis=0) * joint.sum(axis=1, keepdims=True)
    safe = np.where(joint > 0, product, 1.0)
    return float((xlogy(joint, joint) - xlogy(joint, safe)).sum())


def seed_distance(scores: Floats, seeds: Floats) -> Floats:
    """Return ½KL(σ(a)‖σ(c)) + ½KL(σ(b)‖σ(c)), c = (a + b)/2, of every score and seed (broadcast)."""
    middle = (scores + seeds) / 2
    half = (scores - seeds) / 2
    drift = (expit(scores) - expit(seeds)) * half
    bend = 2 * np.logaddexp(0, middle) - np.logaddexp(0, scores) - np.logaddexp(0, seeds)
    distance: Floats = np.maximum(0.5 * (drift + bend), 0.0)
    return distance


def _seeds(scores: Floats, weights: Floats, n_bins: int, generator: np.random.Generator) -> Floats:
    """Return ascending first representatives: k-means++ under :func:`seed_distance`, the best of four per seed."""
    if len(scores) > MAX_SEEDED:
        kept = np.linspace(0, len(scores) - 1, MAX_SEEDED).round().astype(np.int64)
        scores, weights = scores[kept], weights[kept]
    seeds = [_draw(scores, weights, generator, 1)[0]]
    nearest = seed_distance(scores, seeds[0])
    while len(seeds) < n_bins:
        mass = np.where(nearest > SAME_SCORE, nearest * weights, 0.0)
        if not mass.any():
            break
        candidates = _draw(scores, mass, generator, CANDIDATES)
        remaining = np.minimum(nearest, seed_distance(scores, candidates[:, None]))  # (candidates, n)
        best = int(np.argmin(remaining @ weights))
        seeds.append(candidates[best])
        nearest = remaining[best]
    return np.sort(np.array(seeds))


def _draw(scores: Floats, mass: Floats, generator: np.random.Generator, count: int) -> Floats:
    """Return ``count`` scores drawn in proportion to their mass."""
    reached = np.cumsum(mass)
    places = np.searchsorted(reached, generator.random(count) * reached[-1], side="right")
    drawn: Floats = scores[np.minimum(places, len(scores) - 1)]
    return drawn


def _sums(values: Floats, edges: NDArray[np.int64]) -> Floats:
    """Return the sum of each run of values between edges; an empty run sums to 0."""
    starts = np.minimum(edges[:-1], len(values) - 1)
    return np.where(np.diff(edges) > 0, np.add.reduceat(values, starts), 0.0)
