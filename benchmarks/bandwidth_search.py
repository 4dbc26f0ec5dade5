"""The bandwidth search, beside one evaluation of its loss and the published search by folds."""

from __future__ import annotations

import time

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.measuring import best_times
from benchmarks.plain import cdist_posteriors
from kcal.kernels import LeaveOutLoss, search_bandwidth, sort_support

N_SUPPORT, DIMENSION, N_CLASSES, N_FOLDS = 5_000, 32, 10, 20
GOLDEN = (5**0.5 - 1) / 2


def clustered_data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    codes = torch.arange(N_SUPPORT) % N_CLASSES
    centres = torch.randn(N_CLASSES, DIMENSION, generator=generator)
    return 0.6 * centres[codes] + torch.randn(N_SUPPORT, DIMENSION, generator=generator), codes


def search_by_folds(points: torch.Tensor, codes: torch.Tensor) -> float:
    """Golden section on h in [0.1, 10] to 1e-4 over 20 folds, distances computed again at every step."""
    folds = torch.randperm(N_SUPPORT, generator=torch.Generator().manual_seed(1)).chunk(N_FOLDS)
    one_hot = torch.nn.functional.one_hot(codes, N_CLASSES).float()

    def loss(h: float) -> float:
        total = 0.0
        for fold in folds:
            keep = torch.ones(N_SUPPORT, dtype=torch.bool)
            keep[fold] = False
            posteriors = cdist_posteriors(points[fold], points[keep], one_hot[keep], (h / 2) ** 0.5)
            own = posteriors.gather(1, codes[fold, None]).clamp_min(1e-10)
            total -= float(own.log().sum())
        return total / N_SUPPORT

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
    return float(((low + high) / 4) ** 0.5)


def main(console: Console) -> None:
    """Print the ratios."""
    points, codes = clustered_data()
    support = sort_support(points, codes, N_CLASSES)
    found = search_bandwidth(LeaveOutLoss(support))
    times = best_times(
        {
            "search": lambda: search_bandwidth(LeaveOutLoss(support)),
            "evaluation": lambda: LeaveOutLoss(support, memory_budget=0)(found.bandwidth),
        },
        rounds=4,
    )
    start = time.perf_counter()
    by_folds = search_by_folds(points, codes)
    seconds = time.perf_counter() - start
    table = Table("N", "d", "K", "search", "evaluations", "search / one evaluation", "by folds / search")
    table.title = "Bandwidth search, leave-one-out (wanted: ≤ 15, ≥ 10)"
    table.add_row(
        f"{N_SUPPORT:,}",
        str(DIMENSION),
        str(N_CLASSES),
        f"{times['search']:.2f} s",
        str(len(found.losses)),
        f"{times['search'] / times['evaluation']:.1f}",
        f"{seconds / times['search']:.0f}",
    )
    console.print(table)
    console.print(f"b = {found.bandwidth:.4f} by leave-one-out, {by_folds:.4f} by folds\n")
