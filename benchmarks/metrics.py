"""All metrics of an evaluation on a wide matrix, compared with one sort of it and a group-by in pandas."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.measuring import extra_memory, take_turns, typical
from kcal.metrics import evaluate

SIZES = [(10_000, 10), (10_000, 100), (50_000, 1_000)]
Problem = tuple[NDArray[np.float32], NDArray[np.int64]]


def problem(size: tuple[int, int]) -> Problem:
    """Return probabilities like those of a network, one large and many tiny ones per row, and labels."""
    generator = np.random.default_rng(0)
    labels = generator.integers(size[1], size=size[0])
    logits = 2.5 * generator.standard_normal(size, dtype=np.float32)
    logits[np.arange(size[0]), labels] += 6.0
    logits -= logits.max(axis=1, keepdims=True)
    probs = np.exp(logits)
    return probs / probs.sum(axis=1, keepdims=True), labels


def run(inputs: Problem) -> object:
    return evaluate(*inputs, protocol="paper")


def grouped_errors(probs: NDArray[np.float32], labels: NDArray[np.int64], bins: int = 20) -> list[float]:
    """Return the four calibration errors by cutting and grouping each class's rows in pandas."""
    top = probs.argmax(axis=1)
    columns = [(probs[np.arange(len(top)), top], top == labels, 0.0)]
    threshold = max(0.01, 1 / probs.shape[1])
    columns += [(probs[:, k], labels == k, threshold) for k in range(probs.shape[1])]
    errors = []
    for adaptive in (True, False):
        by_column = []
        for values, occurred, lowest in columns:
            frame = pd.DataFrame({"p": values.astype(np.float64), "y": occurred})
            frame = frame[frame["p"] >= lowest]
            if len(frame) == 0:
                continue
            if adaptive:
                frame["bin"] = pd.qcut(frame["p"].rank(method="first"), min(bins, len(frame)), labels=False)
            else:
                frame["bin"] = np.ceil(frame["p"] * bins).clip(1, bins)
            table = frame.groupby("bin").agg(p=("p", "mean"), y=("y", "mean"), n=("y", "size"))
            by_column.append(float((table["n"] * (table["p"] - table["y"]).abs()).sum() / len(frame)))
        errors += [by_column[0], float(np.mean(by_column[1:]))]
    return errors


def main(console: Console) -> None:
    """Print the ratios and the extra memory."""
    table = Table("n", "K", "kcal", "kcal / sort of all rows", "pandas / kcal", "extra memory / input")
    table.title = "All of the paper's metrics (wanted: ≤ 5 at 50,000 × 1,000, memory < 2)"
    for size in SIZES:
        probs, labels = problem(size)
        result = evaluate(probs, labels, protocol="paper")
        names = ("expected_calibration_error", "classwise_calibration_error")
        ours = [result.as_dict()[f"{kind}{name}"] for kind in ("", "static_") for name in names]
        rounds = 9 if size[1] <= 100 else 3
        contenders = {
            "kcal": partial(evaluate, probs, labels, protocol="paper"),
            "sort": partial(np.sort, probs, axis=1),
        }
        times = take_turns(contenders, rounds)
        pandas_times = take_turns({"pandas": partial(grouped_errors, probs, labels)}, rounds=1)
        np.testing.assert_allclose(grouped_errors(probs, labels), ours, atol=2e-3)
        memory = extra_memory(partial(problem, size), run) / probs.nbytes
        table.add_row(
            *(f"{number:,}" for number in size),
            f"{typical(times['kcal']):.3f} s",
            f"{typical(times['kcal'] / times['sort']):.2f}",
            f"{typical(pandas_times['pandas']) / typical(times['kcal']):.0f}",
            f"{memory:.2f}",
        )
    console.print(table)
