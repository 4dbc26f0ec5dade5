"""Calls in parallel on the machines of a Ray cluster, by joblib's Ray backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import joblib

from kcal.benchmark.processes import on_one_thread
from kcal.distributed.engine import connect, count_workers
from kcal.errors import KcalError

ROUND = 4
"""Calls per worker after which results are handed over: the backend returns those of a round together."""
ATTEMPTS = 10
"""Times that a round is begun, because a worker or a machine was lost."""
RESOURCES = {"num_cpus": 1.0}
RESOURCES_OF_REPEATED_ROUNDS = {"num_cpus": 0.0, "scheduling_strategy": "SPREAD"}
"""Of a worker. For some seconds Ray counts the cores of a machine that is lost, and a worker that asks for one of
them waits forever: those of a repeated round ask for none."""


def in_parallel(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], *, jobs: int) -> Iterator[Any]:
    """Yield the results of calls, round by round; a round that loses a worker is repeated with those that are left.

    Pass it to :func:`kcal.benchmark.run` as ``parallel``. A run that is stopped loses only the calls of one round.
    """
    ray = connect()
    stored = {id(argument): ray.put(argument) for call in calls for argument in call}  # a task is sent once
    shared = [tuple(stored[id(argument)] for argument in call) for call in calls]
    size = ROUND * max(min(jobs, len(calls)), 1)
    for start in range(0, len(calls), size):
        yield from _round(ray, function, shared[start : start + size], jobs)


def _round(ray: Any, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], jobs: int) -> list[Any]:
    """Return the results of a round."""
    from ray.util.joblib import register_ray

    register_ray()  # type: ignore[no-untyped-call]
    for resources in (RESOURCES, *[RESOURCES_OF_REPEATED_ROUNDS] * (ATTEMPTS - 1)):
        room = count_workers(ray, num_cpus=1.0)
        try:
            with joblib.parallel_config("ray", ray_remote_args=resources):
                results: list[Any] = joblib.Parallel(n_jobs=min(jobs, room), batch_size=1)(  # one is this process
                    joblib.delayed(_received)(function, call) for call in calls
                )
        except (ray.exceptions.RayActorError, ray.exceptions.NodeDiedError):
            continue
        except ValueError:  # the pool's, of a machine that was lost after its cores were counted
            if count_workers(ray, num_cpus=1.0) >= room:
                raise
            continue
        return results
    raise KcalError(f"Workers of the Ray cluster were lost {ATTEMPTS} times in a row; finished results are kept.")


def _received(function: Callable[..., Any], references: tuple[Any, ...]) -> Any:
    """Return the result of a call whose arguments are in the cluster's store."""
    import ray

    return on_one_thread(function, tuple(ray.get(list(references))))
