"""Posteriors from kernel class sums, beside the broadcast form, cdist, and the bare product and exponential."""

from __future__ import annotations

from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.measuring import best_times, extra_memory
from benchmarks.plain import bare_exponential, bare_product, broadcast_posteriors, cdist_posteriors
from kcal.kernels import SortedSupport, class_posteriors, sort_support
from kcal.kernels.sums import QUERY_BLOCK, SUPPORT_BLOCK

SIZES = [(5_000, 10_000, 32, 10), (5_000, 10_000, 32, 100), (25_000, 5_000, 128, 1_000)]
MANY = (1_000_000, 1_000, 32, 10)
BROADCAST_QUERIES = 128
"""The broadcast form is timed on so many queries and scaled up: it is linear in them."""


def random_data(size: tuple[int, int, int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    n_support, n_query, dimension, n_classes = size
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(n_support, dimension, generator=generator)
    queries = torch.randn(n_query, dimension, generator=generator)
    codes = torch.arange(n_support) % n_classes
    return queries, points, codes


def contenders(size: tuple[int, int, int, int]) -> dict[str, Callable[[], object]]:
    queries, points, codes = random_data(size)
    support = sort_support(points, codes, size[3])
    one_hot = torch.nn.functional.one_hot(codes, size[3]).float()
    few, right = queries[:BROADCAST_QUERIES], queries.T.contiguous()
    block = -5 * torch.rand(SUPPORT_BLOCK, min(QUERY_BLOCK, size[1]))
    expected = cdist_posteriors(few, points, one_hot, 1.0)
    torch.testing.assert_close(class_posteriors(few, support, 1.0), expected, atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(broadcast_posteriors(few, points, one_hot, 1.0), expected, atol=1e-5, rtol=1e-3)
    return {
        "kcal": lambda: class_posteriors(queries, support, 1.0),
        "product": lambda: bare_product(points, right, SUPPORT_BLOCK, QUERY_BLOCK),
        "exponential": lambda: bare_exponential(block, size[0] * size[1]),
        "cdist": lambda: cdist_posteriors(queries, points, one_hot, 1.0),
        "broadcast": lambda: broadcast_posteriors(few, points, one_hot, 1.0),
    }


def many_points() -> tuple[torch.Tensor, SortedSupport]:
    queries, points, codes = random_data(MANY)
    return queries, sort_support(points, codes, MANY[3])


def run_many(inputs: tuple[torch.Tensor, SortedSupport]) -> torch.Tensor:
    return class_posteriors(*inputs, 1.0)


def main(console: Console) -> None:
    """Print the table of ratios and the extra memory."""
    table = Table("N", "M", "d", "K", "kcal", "broadcast / kcal", "cdist / kcal", "kcal / (GEMM + exp)")
    table.title = "Kernel class sums (wanted: ≥ 30, ≥ 2, ≤ 1.4)"
    for size in SIZES:
        times = best_times(contenders(size), rounds=4)
        broadcast = times["broadcast"] * size[1] / BROADCAST_QUERIES
        table.add_row(
            *(f"{number:,}" for number in size),
            f"{times['kcal']:.3f} s",
            f"{broadcast / times['kcal']:.0f}",
            f"{times['cdist'] / times['kcal']:.1f}",
            f"{times['kcal'] / (times['product'] + times['exponential']):.2f}",
        )
    console.print(table)
    extra = extra_memory(many_points, run_many)
    console.print(f"Extra memory at N = {MANY[0]:,}, M = {MANY[1]:,}: {extra / 1e6:.0f} MB (wanted: under 100)\n")
