"""Posteriors from kernel class sums, beside the broadcast form, cdist, and the bare product, exp2 and class sums."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.measuring import extra_memory, take_turns, typical
from benchmarks.plain import bare_sums, broadcast_posteriors, cdist_posteriors
from kcal.kernels import SortedSupport, class_posteriors, sort_support

SIZES = [(5_000, 10_000, 32, 10), (5_000, 10_000, 32, 100), (25_000, 5_000, 128, 1_000)]
MANY = [(1_000_000, 1_000, 32, 10), (1_000, 1_000_000, 32, 10), (10_000, 100_000, 32, 1_000)]
NARROW = 0.3
"""A bandwidth at which exponents are large."""
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
    few, small = queries[:BROADCAST_QUERIES], sort_support(0.1 * points, codes, size[3])
    expected = cdist_posteriors(few, points, one_hot, 1.0)
    torch.testing.assert_close(class_posteriors(few, support, 1.0), expected, atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(broadcast_posteriors(few, points, one_hot, 1.0), expected, atol=1e-5, rtol=1e-3)
    return {
        "kcal": lambda: class_posteriors(queries, support, 1.0),
        "narrow": lambda: class_posteriors(queries, support, NARROW),
        "bare": lambda: bare_sums(0.1 * queries, small.points, small.codes, size[3]),
        "cdist": lambda: cdist_posteriors(queries, points, one_hot, 1.0),
        "broadcast": lambda: broadcast_posteriors(few, points, one_hot, 1.0),
    }


def inputs_of(size: tuple[int, int, int, int]) -> tuple[torch.Tensor, SortedSupport]:
    queries, points, codes = random_data(size)
    return queries, sort_support(points, codes, size[3])


def run(inputs: tuple[torch.Tensor, SortedSupport]) -> torch.Tensor:
    return class_posteriors(*inputs, 1.0)


def memory_beside_the_answer(size: tuple[int, int, int, int]) -> float:
    """Return the megabytes held at the peak beyond the inputs and the (n_query, n_classes) answer."""
    return (extra_memory(partial(inputs_of, size), run) - 4 * size[1] * size[3]) / 1e6


def main(console: Console) -> None:
    """Print the table of ratios and the extra memory."""
    table = Table(
        *("N", "M", "d", "K", "kcal"),
        "broadcast / kcal",
        "cdist / kcal",
        "kcal / (GEMM + exp2 + sums)",
        "at b = 0.3",
        "extra memory",
    )
    table.title = "Kernel class sums (wanted: ≥ 30, ≥ 2, ≤ 1.25, < 100 MB)"
    for size in SIZES:
        times = take_turns(contenders(size))
        broadcast = times["broadcast"] * size[1] / BROADCAST_QUERIES
        table.add_row(
            *(f"{number:,}" for number in size),
            f"{typical(times['kcal']):.3f} s",
            f"{typical(broadcast / times['kcal']):.0f}",
            f"{typical(times['cdist'] / times['kcal']):.1f}",
            f"{typical(times['kcal'] / times['bare']):.2f}",
            f"{typical(times['narrow'] / times['bare']):.2f}",
            f"{memory_beside_the_answer(size):.0f} MB",
        )
    for size in MANY:
        some = contenders(size)
        times = take_turns({name: some[name] for name in ("kcal", "narrow", "bare")}, rounds=3)
        ratios = [f"{typical(times[name] / times['bare']):.2f}" for name in ("kcal", "narrow")]
        seconds, memory = f"{typical(times['kcal']):.3f} s", f"{memory_beside_the_answer(size):.0f} MB"
        table.add_row(*(f"{number:,}" for number in size), seconds, "", "", *ratios, memory)
    console.print(table)
    console.print("Extra memory: at the peak, beyond the inputs and the answer.\n")
