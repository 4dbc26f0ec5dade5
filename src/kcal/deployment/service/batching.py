"""Micro-batching: requests that arrive together are predicted together, off the event loop, in the order they came."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from kcal.deployment.service.errors import RequestError, busy

logger = logging.getLogger("kcal.service")


Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(eq=False)
class _Waiting(Generic[Job]):
    """A job that waits for its batch."""

    job: Job
    n_rows: int
    key: Any
    future: asyncio.Future[Any]
    arrival: float = field(default_factory=time.monotonic)


class BatcherClosedError(RequestError):
    """Raise for a job that comes after the end: the model is being replaced, or the service stops."""

    def __init__(self) -> None:
        super().__init__(503, "the service stops, or the model is being replaced; try again", {"Retry-After": "1"})


class Batcher(Generic[Job]):
    """Collects jobs into batches and runs them in one thread.

    A batch begins when it has ``max_batch`` rows or its first job has waited ``max_wait`` seconds, and the batch before
    it is done; a job with more rows is a batch of its own.

    Parameters
    ----------
    run : callable
        Called in the thread with the jobs of a batch; returns a result, or an exception, for each.
    after : callable, optional
        Called in the thread with the jobs and results when the results have been handed out.
    max_batch : int
        Rows of a batch.
    max_wait : float
        Seconds that the first job of a batch waits for others.
    max_queue : int
        Jobs that may wait; more are refused with status 503.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Job]], Sequence[Any]],
        *,
        after: Callable[[Sequence[Job], Sequence[Any]], None] | None = None,
        max_batch: int,
        max_wait: float = 0.0,
        max_queue: int = 1024,
        name: str = "kcal-batches",
    ) -> None:
        self._run, self._after = run, after
        self.max_batch, self.max_wait, self.max_queue = max_batch, max_wait, max_queue
        self._waiting: deque[_Waiting[Job]] = deque()
        self._n_rows = 0
        self._executor = ThreadPoolExecutor(1, name)
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._is_closed = False

    async def submit(self, job: Job, n_rows: int, key: Any = None) -> Any:
        """Return the result of a job, or raise its exception; only jobs of the same key are run together."""
        if self._is_closed:
            raise BatcherClosedError
        if len(self._waiting) >= self.max_queue:
            raise busy(f"{len(self._waiting)} requests are waiting already; try again later")
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())
        waiting = _Waiting(job, n_rows, key, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._n_rows += n_rows
        self._changed.set()
        result = await waiting.future
        if isinstance(result, BaseException):
            raise result
        return result

    @property
    def n_waiting(self) -> int:
        """Number of jobs that wait."""
        return len(self._waiting)

    async def settled(self) -> None:
        """Wait until the thread has finished all that it has begun, the work after a batch included."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, lambda: None)
        except RuntimeError:  # it takes nothing more: wait for its end
            await asyncio.to_thread(self._executor.shutdown)

    async def close(self) -> None:
        """Finish the jobs that wait, and end the thread; later jobs are refused."""
        self._is_closed = True
        self._changed.set()
        if self._task is not None:
            await self._task
        await asyncio.to_thread(self._executor.shutdown)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._waiting:
                if self._is_closed:
                    return
                self._changed.clear()
                await self._changed.wait()
            await self._collect()
            batch = self._take()
            await loop.run_in_executor(self._executor, self._compute, batch, loop)

    async def _collect(self) -> None:
        """Wait for more jobs until the batch is full, or its first job has waited long enough."""
        deadline = self._waiting[0].arrival + self.max_wait
        while self._n_rows < self.max_batch and not self._is_closed:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._changed.clear()
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                return

    def _take(self) -> list[_Waiting[Job]]:
        """Remove the next batch from the queue: jobs in their order, of one key."""
        batch = [self._waiting.popleft()]
        n_rows = batch[0].n_rows
        while self._waiting and self._waiting[0].key == batch[0].key:
            n_rows += self._waiting[0].n_rows
            if n_rows > self.max_batch:
                break
            batch.append(self._waiting.popleft())
        self._n_rows -= sum(waiting.n_rows for waiting in batch)
        return batch

    def _compute(self, batch: list[_Waiting[Job]], loop: asyncio.AbstractEventLoop) -> None:
        """Run a batch in the thread; every job gets a result or an exception."""
        jobs = [waiting.job for waiting in batch]
        try:
            results = self._run(jobs)
        except Exception as error:  # given to each request, which answers with status 500
            results = [error] * len(jobs)
        loop.call_soon_threadsafe(_hand_out, batch, results)
        if self._after is not None:
            try:
                self._after(jobs, results)
            except Exception:  # the answers are given; later batches must go on
                logger.exception("the work after a batch failed")


def _hand_out(batch: Sequence[_Waiting[Any]], results: Sequence[Any]) -> None:
    for waiting, result in zip(batch, results, strict=True):
        if not waiting.future.done():  # a client that left has cancelled it
            waiting.future.set_result(result)


async def in_thread_if(takes_long: bool, function: Callable[..., Result], *arguments: Any) -> Result:
    """Return the result of a function, called in a thread if it takes so long that other requests would wait."""
    return await asyncio.to_thread(function, *arguments) if takes_long else function(*arguments)
