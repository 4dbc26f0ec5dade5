"""The bandwidth search, beside one evaluation of its loss and the published search by folds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.measuring import take_turns, typical
from benchmarks.plain import broadcast_posteriors, cdist_posteriors
from kcal.kernels import LeaveOutLoss, search_bandwidth, sort_support

N_SUPPORT, DIMENSION, N_CLASSES, N_FOLDS = 5_000, 32, 10, 20
GOLDEN = (5**0.5 - 1) / 2
Posteriors = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]


def clustered_data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    codes = torch.arange(N_SUPPORT) % N_CLASSES
    centres = torch.randn(N_CLASSES, DIMENSION, generator=generator)
    return 0.6 * centres[codes] + torch.randn(N_SUPPORT, DIMENSION, generator=generator), codes


def fold_loss(points: torch.Tensor, codes: torch.Tensor, form: Posteriors, h: float) -> float:
    """Log-loss over 20 folds at h = 2b², distances computed anew."""
    folds = torch.randperm(N_SUPPORT, generator=torch.Generator().manual_seed(1)).chunk(N_FOLDS)
    one_hot = torch.nn.functional.one_hot(codes, N_CLASSES).float()
    total = 0.0
    for fold in folds:
        keep = torch.ones(N_SUPPORT, dtype=torch.bool)
        keep[fold] = False
        posteriors = form(points[fold], points[keep], one_hot[keep], (h / 2) ** 0.5)
        own = posteriors.gather(1, codes[fold, None]).clamp_min(1e-10)
        total -= float(own.log().sum())
    return total / N_SUPPORT


def search_by_folds(points: torch.Tensor, codes: torch.Tensor) -> tuple[float, int]:
    """Golden section on h in [0.1, 10] to 1e-4; returns b and how many times the loss was computed."""
    seen = 0

    def loss(h: float) -> float:
        nonlocal seen
        seen += 1
        return fold_loss(points, codes, cdist_posteriors, h)

    low, high = 0.1, 10.0
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    loss_left, loss_right = loss(left), loss(right)
    while high - low > 1e-4:
        if loss_left < loss_right:
            high, right, loss_right = right, left, loss_left
            left = high - GOLDEN * (high - low)
            loss_left = loss(left)
        else:
            low, left, loss_left = left, right, loss_right
            right = low + GOLDEN * (high - low)
            loss_right = loss(right)
    return float(((low + high) / 4) ** 0.5), seen


def main(console: Console) -> None:
    """Print the ratios."""
    points, codes = clustered_data()
    support = sort_support(points, codes, N_CLASSES)
    curve = search_bandwidth(LeaveOutLoss(support).at)
    by_folds, steps = search_by_folds(points, codes)
    times = take_turns(
        {
            "search": lambda: search_bandwidth(LeaveOutLoss(support).at),
            "evaluation": lambda: LeaveOutLoss(support, memory_budget=0)(curve.bandwidth),
            "folds, cdist": lambda: fold_loss(points, codes, cdist_posteriors, 1.0),
            "folds, broadcast": lambda: fold_loss(points, codes, broadcast_posteriors, 1.0),
        },
    )
    table = Table(
        "search", "evaluations", "search / one evaluation", "by folds, cdist / search", "by folds, broadcast / search"
    )
    table.title = f"Bandwidth search, N = {N_SUPPORT:,}, d = {DIMENSION}, K = {N_CLASSES} (wanted: ≤ 15, ≥ 10)"
    table.add_row(
        f"{typical(times['search']):.2f} s",
        str(len(curve.losses)),
        f"{typical(times['search'] / times['evaluation']):.1f}",
        f"{typical(steps * times['folds, cdist'] / times['search']):.1f}",
        f"{typical(steps * times['folds, broadcast'] / times['search']):.0f}",
    )
    console.print(table)
    console.print(f"b = {curve.bandwidth:.4f} by leave-one-out, {by_folds:.4f} by folds; {steps} steps by folds\n")
