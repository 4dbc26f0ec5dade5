"""Measuring time side by side, and peak memory in a process of its own."""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def problem(n: int, n_features: int, n_classes: int, seed: int = 0) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Return embeddings, logits and labels of overlapping classes."""
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(n_classes).normal(size=(n_classes, n_features)) * 5 / np.sqrt(n_features)
    labels = generator.integers(n_classes, size=n)
    embeddings = centres[labels] + generator.normal(size=(n, n_features))
    logits = 1.5 * (embeddings @ centres.T - 0.5 * np.square(centres).sum(axis=1))
    return embeddings.astype(np.float32), logits.astype(np.float32), labels


def take_turns(contenders: dict[str, Callable[[], Any]], rounds: int = 9) -> dict[str, NDArray[np.float64]]:
    """Return each contender's seconds in every round, after one to warm up; a slow moment hits them alike."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds + 1):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: np.array(seconds[1:]) for name, seconds in times.items()}


def typical(values: NDArray[np.float64]) -> float:
    """Return the median over the rounds, of seconds or of ratios taken round by round."""
    return float(np.median(values))


@contextmanager
def busy_processes() -> Iterator[None]:
    """Keep every core busy with another process."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_burn, daemon=True) for _ in range(os.cpu_count() or 1)]
    for process in processes:
        process.start()
    time.sleep(1.0)
    try:
        yield
    finally:
        for process in processes:
            process.terminate()


def _burn() -> None:
    while True:
        sum(range(100_000))


def extra_memory(prepare: Callable[[], Any], run: Callable[[Any], Any]) -> int:
    """Return the bytes that ``run(prepare())`` needs at its peak beyond its inputs, in a fresh process."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure_memory, args=(prepare, run, sender))
    process.start()
    extra: int = receiver.recv()
    process.join()
    return extra


def _measure_memory(prepare: Callable[[], Any], run: Callable[[Any], Any], sender: Any) -> None:
    torch.mm(torch.ones(512, 512), torch.ones(512, 512)).exp_()  # libraries start their threads
    inputs = prepare()
    gc.collect()
    before = _resident_now()
    _forget_the_peak()
    run(inputs)
    sender.send(_peak() - before)


def _resident_now() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _forget_the_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
