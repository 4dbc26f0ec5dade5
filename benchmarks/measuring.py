"""Measuring time side by side, and peak memory in a process of its own."""

from __future__ import annotations

import gc
import multiprocessing
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def best_times(contenders: dict[str, Callable[[], Any]], rounds: int = 5) -> dict[str, float]:
    """Return each contender's least seconds; they take turns, so that a slow moment hits them alike."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds + 1):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


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
