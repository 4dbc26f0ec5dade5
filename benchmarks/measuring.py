"""Measuring time side by side, and peak memory in a process of its own."""

from __future__ import annotations

import gc
import multiprocessing
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


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
