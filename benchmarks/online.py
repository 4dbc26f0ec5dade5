"""Single updates of a KCal that lives on, the prediction after one, and predictions of several threads meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from kcal import KCal, Updates
from kcal.threads import one_thread

N_UPDATES, FEATURES, DIMENSION, CLASSES = 100_000, 512, 32, 10
N_FITTED, N_PREDICTIONS = 1_000, 50
WINDOW = 20_000
N_READERS, N_OPERATIONS = 8, 100_000


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
        for updates in (Updates(window=WINDOW), Updates(max_per_class=WINDOW // CLASSES)):
            calibrator = KCal(projection="identity", bandwidth=1.0, progress=False, updates=updates)
            calibrator.fit(rows[:WINDOW, :DIMENSION], labels[:WINDOW])
            start = (time.perf_counter(), time.process_time())
            for row in range(WINDOW, 2 * WINDOW):
                calibrator.partial_fit(rows[row : row + 1, :DIMENSION], labels[row : row + 1])
            limit = "a window" if updates.window else "caps of classes"
            add_times(table, f"{WINDOW:,} of them with {limit}, {WINDOW:,} samples", start)
        start = (time.perf_counter(), time.process_time())
        n_predictions = check_threads()
        add_times(table, f"{N_OPERATIONS:,} operations of 9 threads, {n_predictions:,} of them predictions", start)
    console.print(table)


def check_threads() -> int:
    """Predict from several threads while another updates; raise unless every prediction is that of some state."""
    generator = np.random.default_rng(0)
    rows, labels, queries = generator.normal(size=(34, 2)), np.arange(34) % 3, generator.normal(size=(3, 2))
    live = KCal(projection="identity", bandwidth=0.5, progress=False).fit(rows[:30], labels[:30])
    schedule: list[Callable[[], Any]] = [
        lambda: live.partial_fit(rows[30:34], labels[30:34], ids=range(30, 34)),
        lambda: live.correct([30, 0], [2, 2]),
        lambda: live.correct([0], [0]),
        lambda: live.forget([30, 31, 32, 33]),
    ]
    states = []
    for step in schedule:
        step()
        states.append(live.predict_proba(queries))
    known, errors, counts, stop = np.array(states), [], [0] * N_READERS, threading.Event()

    def read(place: int) -> None:
        torch.set_num_threads(1)
        try:
            while not stop.is_set():
                if not (np.abs(known - live.predict_proba(queries)).max(axis=(1, 2)) < 1e-12).any():
                    raise AssertionError("a prediction is that of no state")
                counts[place] += 1
        except BaseException as error:
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=read, args=(place,)) for place in range(N_READERS)]
    for thread in threads:
        thread.start()
    n_updates = 0
    while n_updates + sum(counts) < N_OPERATIONS and not stop.is_set():
        schedule[n_updates % len(schedule)]()
        n_updates += 1
    stop.set()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sum(counts)


def add_times(table: Table, name: str, start: tuple[float, float], times: int = 1) -> None:
    """Add the time since ``start``, by the clock and of the processor, divided by the number of ``times``."""
    spent = (time.perf_counter() - start[0], time.process_time() - start[1])
    table.add_row(
        name, *(f"{seconds / times:.2f} s" if times == 1 else f"{1e3 * seconds / times:.1f} ms" for seconds in spent)
    )
