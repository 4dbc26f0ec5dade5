"""Batches: rows that arrive together are predicted together, in order, and a full queue refuses."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcal.deployment.service.batching import Batcher, BatcherClosedError
from kcal.deployment.service.errors import RequestError


@dataclass(frozen=True)
class Job:
    name: int
    n_rows: int = 1
    key: int = 0


def submit(batcher, job):
    return batcher.submit(job, job.n_rows, job.key)


def recorder(batches):
    def run(jobs):
        batches.append(list(jobs))
        return [job.name for job in jobs]

    return run


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 1)), min_size=1, max_size=30), st.integers(1, 10))
def test_every_job_gets_its_result_and_batches_keep_order_size_and_key(shapes, max_batch):
    jobs = [Job(name, n_rows, key) for name, (n_rows, key) in enumerate(shapes)]
    batches: list[list[Job]] = []

    async def story():
        batcher = Batcher(recorder(batches), max_batch=max_batch)
        results = await asyncio.gather(*(submit(batcher, job) for job in jobs))
        await batcher.close()
        return results

    assert asyncio.run(story()) == [job.name for job in jobs]
    assert [job for batch in batches for job in batch] == jobs
    for batch in batches:
        assert len({job.key for job in batch}) == 1
        assert sum(job.n_rows for job in batch) <= max_batch or len(batch) == 1


def test_a_batch_waits_for_others_only_until_it_is_full():
    batches: list[list[Job]] = []

    async def story():
        batcher = Batcher(recorder(batches), max_batch=4, max_wait=3600.0)
        results = await asyncio.gather(*(submit(batcher, Job(name)) for name in range(8)))
        await batcher.close()
        return results

    assert asyncio.run(story()) == list(range(8))
    assert [len(batch) for batch in batches] == [4, 4]


def test_a_full_queue_refuses_and_says_when_to_come_again():
    gate = threading.Event()

    def run(jobs):
        gate.wait()
        return [job.name for job in jobs]

    async def story():
        batcher = Batcher(run, max_batch=1, max_queue=2)
        waiting = [asyncio.create_task(submit(batcher, Job(0)))]
        while not batcher.n_waiting:
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)  # the thread has taken the first
        waiting += [asyncio.create_task(submit(batcher, Job(name))) for name in (1, 2)]
        await asyncio.sleep(0)
        with pytest.raises(RequestError) as error:
            await submit(batcher, Job(3))
        gate.set()
        results = await asyncio.gather(*waiting)
        await batcher.close()
        return error.value, results

    error, results = asyncio.run(story())
    assert (error.status, error.headers) == (503, {"Retry-After": "1"})
    assert results == [0, 1, 2]


def test_an_error_reaches_every_job_of_its_batch_and_no_other():
    def run(jobs):
        if jobs[0].name == 0:
            raise ZeroDivisionError
        return [job.name for job in jobs]

    async def story():
        batcher = Batcher(run, max_batch=2)
        results = await asyncio.gather(*(submit(batcher, Job(name)) for name in range(4)), return_exceptions=True)
        await batcher.close()
        return results

    first, second, *others = asyncio.run(story())
    assert isinstance(first, ZeroDivisionError)
    assert isinstance(second, ZeroDivisionError)
    assert others == [2, 3]


def test_closing_answers_what_waits_and_refuses_what_comes():
    batches: list[list[Job]] = []

    async def story():
        batcher = Batcher(recorder(batches), max_batch=1)
        waiting = [asyncio.create_task(submit(batcher, Job(name))) for name in range(5)]
        await asyncio.sleep(0)
        await batcher.close()
        with pytest.raises(BatcherClosedError):
            await submit(batcher, Job(5))
        return await asyncio.gather(*waiting)

    assert asyncio.run(story()) == list(range(5))
