"""Ray, imported when it is used: the connection to a cluster, and calls that run on it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from kcal.errors import InvalidInputError, MissingExtraError

logger = logging.getLogger("kcal.distributed")


def require_ray() -> Any:
    """Return ray; raise with the command that installs it if it is missing."""
    os.environ.setdefault("RAY_py_gcs_connect_timeout_s", "10")  # for an address that does not respond; Ray has 30
    try:
        import pyarrow  # noqa: F401
        import ray
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "Work on several machines runs on Ray, which is not installed. Run: pip install 'kcal[ray]'."
        ) from error
    return ray


def connect(address: str | None = None, **options: Any) -> Any:
    """Return ray, connected to a cluster.

    A connection that is open is used. Otherwise ``address`` says where the head of the cluster is, as in ``ray.init``:
    "host:port", "ray://host:port", "auto" for the cluster that ``ray start`` began on this machine, or "local" for a
    new one in this machine's processes, which ends with this process. By default it is the environment's RAY_ADDRESS,
    or else a cluster that runs on this machine, or else a new one. ``options`` are those of ``ray.init``.

    The logger "kcal.distributed" says at level INFO which cluster it is.

    Raises
    ------
    MissingExtraError
        If Ray is not installed.
    InvalidInputError
        If Ray cannot connect. A cluster that does not respond is given up after some 20 seconds, or 40 if ray was
        imported before.
    """
    ray = require_ray()
    if ray.is_initialized():
        return ray
    settings: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address in (None, "local"):
        settings["include_dashboard"] = False  # of a cluster that starts here
    else:
        os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "1")  # one attempt to connect in place of 20
    try:
        ray.init(address=address, **settings | options)
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
        raise InvalidInputError(
            "address",
            "must be that of a running Ray cluster",
            got=f"{address} ({error})",
            remedy='Start one with: ray start --head. Or pass "local": Ray then runs in processes of this machine.',
        ) from error
    resources, n_nodes = ray.cluster_resources(), sum(node["Alive"] for node in ray.nodes())
    counts = {"node": n_nodes, "CPU": resources.get("CPU", 0), "GPU": resources.get("GPU", 0)}
    texts = [f"{count:,g} {name}{'' if count == 1 else 's'}" for name, count in counts.items() if count]
    logger.info("Ray cluster at %s: %s", ray.get_runtime_context().gcs_address, ", ".join(texts))
    return ray


def count_workers(ray: Any, *, num_cpus: float, num_gpus: float = 0.0) -> int:
    """Return how many workers of such needs the cluster has room for, at least one."""
    resources, needs = ray.cluster_resources(), {"CPU": num_cpus, "GPU": num_gpus}
    return max(1, min((int(resources.get(kind, 0.0) / need) for kind, need in needs.items() if need), default=1))


def run_tasks(
    ray: Any, function: Callable[..., Any], calls: Iterable[tuple[Any, ...]], *, at_once: int, **needs: Any
) -> Iterator[Any]:
    """Yield the results of calls as they finish; a call that is lost with its worker or machine is repeated."""
    remote = ray.remote(max_retries=-1, **needs)(function)
    waiting = iter(calls)
    running = [remote.remote(*call) for call in islice(waiting, at_once)]
    try:
        while running:
            (finished,), running = ray.wait(running)
            try:
                result = ray.get(finished)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None  # as the function raised it
            running += [remote.remote(*call) for call in islice(waiting, 1)]
            yield result
    finally:
        for reference in running:
            ray.cancel(reference)


def in_parallel(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], *, jobs: int) -> Iterator[Any]:
    """Yield the results of calls as they finish, ``jobs`` of them at a time, each on one core of the cluster.

    Pass it to :func:`kcal.benchmark.run` as ``parallel``.
    """
    from kcal.benchmark.running import call_on_one_thread

    ray = connect()
    stored = {id(argument): ray.put(argument) for call in calls for argument in call}  # a task is sent once
    shared = [(function, *(stored[id(argument)] for argument in call)) for call in calls]
    yield from run_tasks(ray, call_on_one_thread, shared, at_once=jobs, num_cpus=1.0)
