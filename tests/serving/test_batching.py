"""Micro-batching: order, sizes, keys, errors and a full queue."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass

import pytest
from fastapi import HTTPException
from hypothesis import given
from hypothesis import strategies as st
from running_service import until

from kcal.serving.service import Batcher


@dataclass(frozen=True)
class Job:
    name: int
    n_rows: int = 1
    key: int = 0


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 1)), min_size=1, max_size=30), st.integers(1, 10))
def test_every_job_gets_its_result_and_batches_keep_order_size_and_key(shapes, max_rows):
    batches: list[list[Job]] = []
    jobs = [Job(name, n_rows, key) for name, (n_rows, key) in enumerate(shapes)]

    def run(batch):
        batches.append(batch)
        return [job.name for job in batch]

    async def story():
        batcher = Batcher(run, max_rows, 0.0, 1024)
        return await asyncio.gather(*map(batcher.submit, jobs))

    assert asyncio.run(story()) == [job.name for job in jobs]
    assert [job for batch in batches for job in batch] == jobs
    for batch in batches:
        assert len({job.key for job in batch}) == 1
        assert sum(job.n_rows for job in batch) <= max_rows or len(batch) == 1


def test_full_batch_does_not_wait():
    async def story():
        batcher = Batcher(lambda batch: [len(batch)] * len(batch), 4, 3600.0, 1024)
        return await asyncio.gather(*(batcher.submit(Job(name)) for name in range(8)))

    assert asyncio.run(story()) == [4] * 8


def test_full_queue_is_refused_and_an_error_is_that_of_its_batch():
    gate, started = threading.Event(), threading.Event()

    def run(batch):
        started.set()
        gate.wait()
        if batch[0].name == 1:
            raise ZeroDivisionError
        return [job.name for job in batch]

    async def story():
        batcher = Batcher(run, 1, 0.0, 2)
        waiting = [asyncio.create_task(batcher.submit(Job(0)))]
        await until(started.is_set)  # a thread has taken the first
        waiting += [asyncio.create_task(batcher.submit(Job(name))) for name in (1, 2)]
        await asyncio.sleep(0)
        with pytest.raises(HTTPException) as error:
            await batcher.submit(Job(3))
        gate.set()
        return error.value, await asyncio.gather(*waiting, return_exceptions=True)

    error, (first, second, third) = asyncio.run(story())
    assert (error.status_code, error.headers) == (503, {"Retry-After": "1"})
    assert (first, type(second), third) == (0, ZeroDivisionError, 2)
