"""Threads: small work runs on one, large work in blocks of its own on as many as the caller allows.

Numerical libraries split an operation over threads and wait for all of them at its end. On a busy machine one of these
threads is often not running, so that a fit of ten thousand small operations waits ten thousand times. Here each thread
computes whole blocks, and they wait for each other once.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, TypeVar

import torch
from threadpoolctl import ThreadpoolController

Block = TypeVar("Block")
Result = TypeVar("Result")

LARGE_OPERATION = 1e9
"""Multiplications from which one operation is split over threads: it takes longer than a thread waits to be run."""

_allowed: ContextVar[int | None] = ContextVar("allowed", default=None)
"""Threads that blocks may use while operations are limited to one; None without such a limit."""


def allowed_threads() -> int:
    """Return the number of threads that blocks may use: torch's, as the caller of the library has set it."""
    return _allowed.get() or torch.get_num_threads()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit everything in the calling thread to one thread."""
    with _limited(1), _one_blas_thread():
        yield


@contextmanager
def threads_for(multiplications: float) -> Iterator[None]:
    """Limit operations of torch, numpy and scipy to one thread each, if the largest has too few multiplications.

    Blocks of :func:`map_blocks` still use all threads. Entering takes a millisecond after an import, and some
    50 microseconds otherwise.
    """
    if multiplications >= LARGE_OPERATION:
        yield
        return
    with small_operations(), _one_blas_thread():
        yield


@contextmanager
def small_operations() -> Iterator[None]:
    """Limit operations of torch to one thread each, as a prediction consists of small ones; it takes a microsecond.

    Blocks of :func:`map_blocks` still use all threads.
    """
    with _limited(allowed_threads()):
        yield


@contextmanager
def openmp_threads_for(multiplications: float) -> Iterator[None]:
    """Limit the loops of scikit-learn to one thread if they have too few multiplications, else to those allowed."""
    n_threads = 1 if multiplications < LARGE_OPERATION else allowed_threads()
    with _libraries("openmp", len(sys.modules)).limit(limits=n_threads):
        yield


class _BlasLimit:
    """The limit of BLAS, which all threads of the process share: the last that leaves it restores what was before."""

    def __init__(self) -> None:
        self.lock, self.n_users = threading.Lock(), 0
        self.libraries: Any = None
        self.limiter: Any = None

    def enter(self) -> None:
        with self.lock:
            if self.n_users == 0:
                self.libraries = _libraries("blas", len(sys.modules))
                _release_control(self.libraries)
                self.limiter = self.libraries.limit(limits=1)
            self.n_users += 1

    def leave(self) -> None:
        with self.lock:
            self.n_users -= 1
            if self.n_users == 0:
                _release_control(self.libraries)
                self.limiter.restore_original_limits()
                _release_control(self.libraries)


def _release_control(libraries: ThreadpoolController) -> None:
    """Let any thread set the next limit: since threadpoolctl 3.8, OpenBLAS heeds only the first thread that set one."""
    for library in libraries.lib_controllers:
        if hasattr(library, "clear_controlling_thread"):
            library.clear_controlling_thread(force=True)


_blas_limit = _BlasLimit()


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    _blas_limit.enter()
    try:
        yield
    finally:
        _blas_limit.leave()


@lru_cache(maxsize=2)
def _libraries(kind: str, n_modules: int) -> ThreadpoolController:
    """Return the libraries of a kind in this process: imports load them, so they are sought again after one."""
    return ThreadpoolController().select(user_api=kind)


@contextmanager
def _limited(allowed: int) -> Iterator[None]:
    """Limit torch's operations to one thread, and blocks to ``allowed``."""
    before, token = torch.get_num_threads(), _allowed.set(allowed)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _allowed.reset(token)


def map_blocks(function: Callable[[Block], Result], blocks: Sequence[Block], device: torch.device) -> list[Result]:
    """Return ``function`` of every block, in order; on the CPU as many at a time as threads are allowed."""
    n_threads = min(allowed_threads(), len(blocks)) if device.type == "cpu" else 1
    if n_threads <= 1:
        with _limited(1):
            return [function(block) for block in blocks]
    grad_enabled, is_inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def compute(block: Block) -> Result:
        with torch.inference_mode(is_inference), torch.set_grad_enabled(grad_enabled):
            return function(block)

    futures = [_pool(n_threads).submit(compute, block) for block in blocks]
    try:
        return [future.result() for future in futures]
    finally:  # after an error or an interruption, blocks that have not begun are dropped
        for future in futures:
            future.cancel()
        wait(futures)


@lru_cache(maxsize=4)
def _pool(n_threads: int) -> ThreadPoolExecutor:
    """Return the threads that compute blocks; they stay, and keep their buffers."""
    return ThreadPoolExecutor(n_threads, "kcal", initializer=_limit_new_thread)


def _limit_new_thread() -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # or else the first operation would take the number that another thread sets meanwhile


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a child process has none of its parent's threads
