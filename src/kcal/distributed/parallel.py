"""Calls in parallel on the machines of a Ray cluster, by joblib's Ray backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import joblib

from kcal.benchmark.processes import on_one_thread
from kcal.distributed.engine import connect

ROUND = 4
"""Calls per worker after which results are handed over: the backend returns those of a round together."""


def in_parallel(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], *, jobs: int) -> Iterator[Any]:
    """Yield the results of calls, round by round; a worker that dies is replaced, and its call is repeated.

    Pass it to :func:`kcal.benchmark.run` as ``parallel``. A run that is stopped loses only the calls of one round.
    """
    ray = connect()
    from ray.util.joblib import register_ray

    register_ray()  # type: ignore[no-untyped-call]
    n_jobs = max(min(jobs, len(calls)), 2)  # with one, joblib would not use the cluster
    size = ROUND * n_jobs
    options = {"num_cpus": 1, "max_restarts": -1, "max_task_retries": -1}
    stored = {id(argument): ray.put(argument) for call in calls for argument in call}  # a task is sent once
    shared = [tuple(stored[id(argument)] for argument in call) for call in calls]
    for start in range(0, len(calls), size):
        with joblib.parallel_config("ray", ray_remote_args=options):
            parallel = joblib.Parallel(n_jobs=n_jobs, batch_size=1)
            yield from parallel(joblib.delayed(_received)(function, call) for call in shared[start : start + size])


def _received(function: Callable[..., Any], references: tuple[Any, ...]) -> Any:
    """Return the result of a call whose arguments are in the cluster's store."""
    import ray

    return on_one_thread(function, tuple(ray.get(list(references))))
