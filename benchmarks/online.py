"""Single updates of a KCal that lives on, and the prediction after one."""

from __future__ import annotations

import time

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from kcal import KCal
from kcal.threads import one_thread

N_UPDATES, FEATURES, DIMENSION, CLASSES = 100_000, 512, 32, 10
N_FITTED, N_PREDICTIONS = 1_000, 50


def main(console: Console) -> None:
    """Print the time of many single updates, by the clock and of the processor, and of what follows them."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, CLASSES, N_FITTED + N_UPDATES)
    centres = generator.normal(size=(CLASSES, FEATURES)).astype(np.float32)
    rows = generator.normal(size=(len(labels), FEATURES)).astype(np.float32) + centres[labels]
    torch.manual_seed(0)
    projection = nn.Linear(FEATURES, DIMENSION).requires_grad_(False)
    table = Table("", "clock", "processor", title=f"{N_UPDATES:,} single updates, {FEATURES} → {DIMENSION}")
    with one_thread():
        calibrator = KCal(projection=projection, progress=False).fit(rows[:N_FITTED], labels[:N_FITTED])
        start = (time.perf_counter(), time.process_time())
        for row in range(N_FITTED, len(labels)):
            calibrator.partial_fit(rows[row : row + 1], labels[row : row + 1])
        add_times(table, "all updates", start)
        start = (time.perf_counter(), time.process_time())
        calibrator.predict_proba(rows[:1] + 1.0)
        add_times(table, f"the next prediction, with a search over {len(labels):,} samples", start)
        start = (time.perf_counter(), time.process_time())
        for place in range(N_PREDICTIONS):
            calibrator.partial_fit(rows[place : place + 1] + 1.0, labels[place : place + 1])
            calibrator.predict_proba(rows[place : place + 1] + 2.0)
        add_times(table, "one update and one prediction", start, N_PREDICTIONS)
        start = (time.perf_counter(), time.process_time())
        for place in range(N_PREDICTIONS):
            calibrator.predict_proba(rows[place : place + 1] + 2.0)
        add_times(table, "one prediction without an update", start, N_PREDICTIONS)
    console.print(table)


def add_times(table: Table, name: str, start: tuple[float, float], times: int = 1) -> None:
    """Add the time since ``start``, by the clock and of the processor, divided by the number of ``times``."""
    spent = (time.perf_counter() - start[0], time.process_time() - start[1])
    table.add_row(
        name, *(f"{seconds / times:.2f} s" if times == 1 else f"{1e3 * seconds / times:.1f} ms" for seconds in spent)
    )
