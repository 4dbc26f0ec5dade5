"""Scores of single classes: log-odds against the rest, top classes and ranks with ties, and functions of a score.

A function of a score has steps or is linear between knots: one function per column of scores, or one for all columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad

from kcal.samples import Floats, Index

FitMap = Callable[[Floats, Any, Floats], dict[str, Floats]]
"""Fit a function of scores (n,) to targets (n,), with weights (n,), and return the arrays that describe it, by name."""

TIE_TOLERANCE = 1e-9
"""Log-probabilities that differ by no more are tied, so that rounding decides nothing."""
LOG_ODDS_DECIMALS = 9
"""Log-odds are rounded to so many decimals: rounding errors of a shifted row neither make nor break a tie."""
MIN_LOG_PROB = -1e5
"""Scores of masked classes are clipped here: beside greater numbers the gaps of the others would be rounded away."""
PADDING = 1e18
"""A bound above all scores, at the ends of shorter rows of a table: files hold no infinities."""


def log_odds(log_probs: torch.Tensor) -> torch.Tensor:
    """Return log p − log(1 − p), (n, n_classes), of log-probabilities, accurate where p rounds to 1."""
    top = log_probs.argmax(dim=1, keepdim=True)
    others = log_probs.scatter(1, top, -torch.inf)
    second = others.amax(dim=1, keepdim=True)
    shares = torch.exp(others - second).sum(dim=1, keepdim=True)  # logsumexp underflows in ONNX graphs
    complement_of_top = second + torch.log(shares)  # log(1 − p) of the top class
    complements = torch.log1p(-torch.exp(others))  # no other class is above one half
    return log_probs - complements.scatter(1, top, complement_of_top)


def rounded_log_odds(log_probs: torch.Tensor) -> torch.Tensor:
    """Return the log-odds, (n, n_classes), rounded so that a row plus a constant has the same."""
    scale, scores = 10.0**LOG_ODDS_DECIMALS, log_odds(log_probs)
    return torch.round(scores.detach() * scale) / scale + (scores - scores.detach())  # gradients pass


def tied_tops(log_probs: torch.Tensor) -> torch.Tensor:
    """Return for each entry, (n, n_classes), whether it is the largest of its row or tied with it."""
    return log_probs >= log_probs.amax(dim=1, keepdim=True) - TIE_TOLERANCE


def top_accuracy(log_probs: torch.Tensor, codes: Index) -> Floats:
    """Return whether the top class is the label, (n,): 1 or 0, or a fraction if several classes tie."""
    tops = tied_tops(log_probs)
    own = tops.gather(1, torch.from_numpy(codes)[:, None])[:, 0]
    fractions: Floats = (own / tops.sum(dim=1)).double().numpy()
    return fractions


def replace_top(log_probs: torch.Tensor, log_top: torch.Tensor, log_rest: torch.Tensor) -> torch.Tensor:
    """Return log-probabilities with a new one for the top class; the others share the rest in proportion.

    If m classes tie, the result is the mean over the m cases in which one of them is the top.
    """
    tops = tied_tops(log_probs)
    count = tops.sum(dim=1, keepdim=True)
    first = log_probs.argmax(dim=1, keepdim=True)
    others = torch.logsumexp(log_probs.scatter(1, first, -torch.inf), dim=1, keepdim=True)
    below = log_probs - others + log_rest[:, None]
    in_other_cases = torch.log((count - 1).double()) + below
    at_top = torch.logaddexp(log_top[:, None].expand_as(log_probs), in_other_cases) - torch.log(count.double())
    return torch.log_softmax(torch.where(tops, at_top, below), dim=1)


def sort_classes(log_probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities in descending order and the class of each, both (n, n_classes)."""
    return torch.sort(log_probs, dim=1, descending=True)


def unsort_classes(values: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Return values of sorted classes in the order of the classes; ``order`` is that of :func:`sort_classes`."""
    return torch.empty_like(values).scatter_(1, order, values)


def rank_of_label(order: torch.Tensor, codes: Index) -> torch.Tensor:
    """Return the rank of each row's label, (n,), in the ``order`` of :func:`sort_classes`."""
    return (order == torch.from_numpy(codes)[:, None]).int().argmax(dim=1)


def average_ties(values: torch.Tensor, descending: torch.Tensor, *, tolerance: float = TIE_TOLERANCE) -> torch.Tensor:
    """Replace the values of tied ranks by their mean; both (n, n_classes), scores in descending order."""
    breaks = descending[:, :-1] - descending[:, 1:] > tolerance
    group = pad(breaks, (1, 0)).long().cumsum(dim=1)  # (n, n_classes): index of the run of ties
    zeros = torch.zeros_like(values)
    sums = zeros.scatter_add(1, group, values)
    counts = zeros.scatter_add(1, group, torch.ones_like(values))
    return (sums / counts.clamp_min(1)).gather(1, group)


def is_exporting() -> bool:
    """Return whether the computation is being exported; torch before 2.7 knows whether it is traced only."""
    known: bool = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)()
    return known


def places(bounds: torch.Tensor, scores: torch.Tensor, *, or_equal: bool = False) -> torch.Tensor:
    """Return how many of the bounds are below (or equal to) each score, (n, k).

    ``bounds`` are ascending and may end with ``PADDING``: one row for each of the k columns, (k, m), or one for all,
    (m,) or (1, m). Exporters lack torch's search: they get a binary search of a fixed number of steps.
    """
    width, n_rows = bounds.shape[-1], len(bounds) if bounds.ndim == 2 else 1
    scores = scores.clamp_max(PADDING / 2)
    if not is_exporting():
        if n_rows == 1:
            return torch.searchsorted(bounds.reshape(-1), scores.contiguous(), right=or_equal)
        return torch.searchsorted(bounds, scores.T.contiguous(), right=or_equal).T
    flat, starts = bounds.reshape(-1), width * torch.arange(n_rows, device=bounds.device)
    position, remaining = starts.expand(scores.shape), width
    while remaining > 0:
        half = (remaining + 1) // 2
        bound = flat[position + (half - 1)]
        position = torch.where(bound <= scores if or_equal else bound < scores, position + half, position)
        remaining -= half
    return position - starts


def pick(table: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return entries of the rows of a table, (k, m) or (1, m), at positions (n, k): column j picks from row j."""
    return table[0][positions] if len(table) == 1 else table.gather(1, positions.T).T


def interpolate(knots: torch.Tensor, values: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Return values between knots, (n, k), linear between them and constant outside; tables as in :func:`pick`."""
    low = (places(knots, scores, or_equal=True) - 1).clamp_min(0)
    widths = knots.diff()
    slopes = pad(values.diff() / torch.where(widths == 0, 1.0, widths), (0, 1))
    return pick(slopes, low) * (scores - pick(knots, low)).clamp_min(0.0) + pick(values, low)


def fit_maps(
    fit_map: FitMap, scores: Floats, targets: Any, weights: Floats, *, shared: bool = False
) -> dict[str, torch.Tensor]:
    """Return the tables of a function fitted to each column of scores (n, k) and targets (n, k), or to all together.

    A table has a row per function. Shorter rows are padded: by ``PADDING`` in the first table, by their last entries in
    the others.
    """
    if shared:
        weights = np.repeat(weights, scores.shape[1])
        scores, targets = scores.reshape(-1, 1), targets.reshape(-1, 1)
    fitted = [fit_map(column, target, weights) for column, target in zip(scores.T, targets.T, strict=True)]
    first, *others = fitted[0]
    tables = {first: _padded([arrays[first] for arrays in fitted], PADDING)}
    return tables | {name: _padded([arrays[name] for arrays in fitted]) for name in others}


def _padded(rows: Sequence[Floats], filler: float | None = None) -> torch.Tensor:
    """Return a table of arrays of several lengths, (k, m), padded by a number or by their last entries."""
    width = max(map(len, rows))
    ends = [row[-1:].sum() if filler is None else filler for row in rows]
    table = [np.pad(row, (0, width - len(row)), constant_values=end) for row, end in zip(rows, ends, strict=True)]
    return torch.from_numpy(np.stack(table))


def fitted_maps(name: str) -> Any:
    """Declare a fitted attribute that is a table of ``model_``, as a list of arrays, one per function."""

    def read(calibrator: Any) -> list[Floats]:
        model = calibrator.model_
        n_padded = (next(model.buffers()) >= PADDING).sum(dim=1).tolist()
        rows = zip(model.get_buffer(name), n_padded, strict=True)
        return [row[: len(row) - n].cpu().numpy() for row, n in rows]

    return property(read)
