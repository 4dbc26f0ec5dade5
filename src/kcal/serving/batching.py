"""Micro-batching: requests that arrive together are predicted together, off the event loop, in their order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from kcal.serving.protocol import busy


class Batcher:
    """Collects jobs into batches and runs one batch at a time in a thread.

    A job has ``n_rows`` and a ``key``; only jobs of the same key are run together.

    Parameters
    ----------
    run : callable
        Called in a thread with the jobs of a batch; returns a result, or an exception, for each.
    max_rows : int
        Rows of a batch; a job with more is a batch of its own.
    max_wait : float
        Seconds that the first job of a batch waits for others.
    max_queue : int
        Jobs that may wait; more are refused with status 503.
    """

    def __init__(
        self, run: Callable[[list[Any]], Sequence[Any]], max_rows: int, max_wait: float, max_queue: int
    ) -> None:
        self._run, self.max_rows, self.max_wait, self.max_queue = run, max_rows, max_wait, max_queue
        self.waiting: deque[tuple[Any, float, asyncio.Future[Any]]] = deque()
        self._n_rows = 0
        self._is_full = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def submit(self, job: Any) -> Any:
        """Return the result of a job, or raise its exception."""
        if len(self.waiting) >= self.max_queue:
            raise busy(f"{len(self.waiting)} requests are waiting already; try again later")
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self.waiting.append((job, loop.time(), future))
        self._n_rows += job.n_rows
        if self._n_rows >= self.max_rows:
            self._is_full.set()
        if self._task is None:
            self._task = loop.create_task(self._work(loop))
        return await future

    async def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while self.waiting:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self.waiting[0][1] + self.max_wait):
                    await self._is_full.wait()
            batch = self._take()
            try:
                results = await loop.run_in_executor(None, self._run, [job for job, _, _ in batch])
            except Exception as error:  # every request of the batch gets it
                results = [error] * len(batch)
            for (_, _, future), result in zip(batch, results, strict=True):
                if future.done():  # the client left
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)
        self._task = None

    def _take(self) -> list[tuple[Any, float, asyncio.Future[Any]]]:
        """Remove the next batch from the queue: jobs of one key, in their order."""
        batch = [self.waiting.popleft()]
        n_rows = batch[0][0].n_rows
        while self.waiting and self.waiting[0][0].key == batch[0][0].key:
            n_rows += self.waiting[0][0].n_rows
            if n_rows > self.max_rows:
                break
            batch.append(self.waiting.popleft())
        self._n_rows -= sum(job.n_rows for job, _, _ in batch)
        if self._n_rows < self.max_rows:
            self._is_full.clear()
        return batch
