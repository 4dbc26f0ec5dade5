"""One row at a time, and everything beside other work: on a busy machine nothing may take much longer."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.measuring import busy_processes, problem, take_turns, typical
from kcal import FastRecipe, KCal, KCalBlend, TemperatureScaling
from kcal.kernels import class_posteriors, sort_support

ROWS = 300
"""Single rows that are predicted."""


def single_rows(console: Console) -> None:
    """Print the milliseconds of one row: 3,000 × 64 support, 10 classes, one thread."""
    x, z, y = problem(3_000, 64, 10)
    queries, logits, labels = problem(10_000, 64, 10, seed=1)
    points, one_hot = torch.from_numpy(x), torch.nn.functional.one_hot(torch.from_numpy(y), 10).float()

    def bare(rows: slice) -> torch.Tensor:
        squares = torch.cdist(torch.from_numpy(queries[rows]), points).square()
        return torch.softmax(-squares / 64, dim=1) @ one_hot

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ts = TemperatureScaling().fit(z, y)
        kcal = KCal(projection="identity").fit(x, y)
        learned = KCal(recipe=FastRecipe(steps=10)).fit(x, y, train_embeddings=queries + 0.1, train_labels=labels)
        blend = KCalBlend().fit(x, y, logits=z)
    predict: dict[str, tuple[Callable[[slice], Any], str]] = {
        "bare torch": (bare, ""),
        "ts": (lambda rows: ts.predict_proba(logits[rows]), "0.1"),
        "kcal, identity": (lambda rows: kcal.predict_proba(queries[rows]), "0.6"),
        "kcal, learned": (lambda rows: learned.predict_proba(queries[rows]), "0.6"),
        "blend": (lambda rows: blend.predict_proba(queries[rows], logits=logits[rows]), "1.2"),
    }
    table = Table("", "one row, ms", "wanted", "10,000 rows, s", title="Prediction, one thread")
    for name, (function, wanted) in predict.items():
        times = [_seconds(lambda row=row, run=function: run(slice(row, row + 1))) for row in range(ROWS)]
        whole = typical(take_turns({"": lambda run=function: run(slice(0, 10_000))}, rounds=5)[""])
        table.add_row(name, f"{1e3 * float(np.median(times)):.2f}", wanted, f"{whole:.3f}")
    console.print(table)


def busy(console: Console) -> None:
    """Print the time of fits, sums and single rows beside one busy process per core, over the quiet time."""
    few, _, few_labels = problem(200, 10, 10)
    many, many_logits, many_labels = problem(500, 64, 100)
    x, z, y = problem(3_000, 64, 10)
    large, _, classes = problem(25_000, 128, 100)
    support = sort_support(torch.from_numpy(large), torch.from_numpy(classes), 100)
    queries = torch.from_numpy(problem(5_000, 128, 100, seed=1)[0])
    table = Table("", "quiet, s", "busy, s", "busy / quiet (wanted ≤ 2.5)", title="Beside one busy process per core")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        blend = KCalBlend().fit(x, y, logits=z)
        work: dict[str, Callable[[], Any]] = {
            "KCal().fit, 200 × 10": lambda: KCal().fit(few, few_labels),
            "KCalBlend().fit, 500 × 64, 100 classes": lambda: KCalBlend().fit(many, many_labels, logits=many_logits),
            "class sums, 25,000 × 128, 5,000 queries": lambda: class_posteriors(queries, support, 1.0),
            "500 single rows of a blend": lambda: [
                blend.predict_proba(x[row : row + 1] + 0.1, logits=z[row : row + 1]) for row in range(500)
            ],
        }
        for name, run in work.items():
            quiet = typical(take_turns({"": run}, rounds=3)[""])
            with busy_processes():
                loaded = typical(take_turns({"": run}, rounds=3)[""])
            table.add_row(name, f"{quiet:.2f}", f"{loaded:.2f}", f"{loaded / quiet:.2f}")
    console.print(table)


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main(console: Console) -> None:
    """Print both tables."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    single_rows(console)
    torch.set_num_threads(threads)
    busy(console)
