"""Ray, imported when it is used, and the connection to a cluster."""

from __future__ import annotations

import logging
import os
import re
import socket
import warnings
from typing import Any

from kcal.errors import InvalidInputError, MissingExtraError

CONNECT_SECONDS = 5.0
"""Time in which the head of a cluster must answer."""
LOCAL_ADDRESSES = ("auto", "local")
"""Addresses without a host: of the cluster that runs on this machine, and of a new one."""


def require_ray() -> Any:
    """Return ray; raise with the command that installs it if it is missing."""
    try:
        import pyarrow  # noqa: F401
        import ray
        import ray.data
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "Work on several machines runs on Ray, which is not installed. Run: pip install 'kcal[ray]'."
        ) from error
    return ray


def connect(address: str | None = None, **options: Any) -> Any:
    """Return ray, connected to a cluster.

    A connection that is open is used. Otherwise ``address`` says where the head of the cluster is: "host:port",
    "ray://host:port" or "auto" for a cluster that runs on this machine; "local" starts one in this machine's
    processes. By default it is the environment's RAY_ADDRESS, or else a cluster that runs here, or else a new one.
    ``options`` are those of ``ray.init``.

    Raises
    ------
    MissingExtraError
        If Ray is not installed.
    InvalidInputError
        If no cluster answers at the address.
    """
    ray = require_ray()
    _quieten(ray)
    if ray.is_initialized():
        return ray
    place = address or os.environ.get("RAY_ADDRESS")
    check_address(place)
    settings = {"include_dashboard": False} if place in (None, "local") else {}
    try:
        ray.init(address=place, logging_level=logging.ERROR, log_to_driver=False, **settings | options)
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
        raise _unreachable(place, str(error).strip().splitlines()[0] if str(error) else type(error).__name__) from error
    return ray


def _quieten(ray: Any) -> None:
    """Let Ray Data neither log its plans nor show bars: kcal shows its own."""
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of its own settings
        ray.data.DataContext.get_current().enable_progress_bars = False


def check_address(address: str | None) -> None:
    """Raise if nothing listens at the host and port of an address; Ray itself would wait for minutes."""
    if address is None or address in LOCAL_ADDRESSES:
        return
    match = re.fullmatch(r"(?:ray://)?\[?([^/\[\]]+)\]?:(\d+)", address)
    if match is None:
        expected = 'must be "host:port", "ray://host:port", "auto" or "local"'
        raise InvalidInputError("address", expected, got=repr(address))
    try:
        socket.create_connection((match[1], int(match[2])), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, str(error)) from error


def _unreachable(address: str | None, reason: str) -> InvalidInputError:
    return InvalidInputError(
        "address",
        "must be that of a Ray cluster that runs",
        got=f"{address or 'none'} ({reason.rstrip('.')})",
        remedy="Start one with: ray start --head. Or leave the address out: Ray then runs on this machine.",
    )


def count_workers(ray: Any, *, num_cpus: float, num_gpus: float = 0.0, free_cpus: float = 0.0) -> int:
    """Return how many workers of such needs the cluster has room for beside ``free_cpus`` cores, at least one."""
    resources = ray.cluster_resources()
    available = {"CPU": resources.get("CPU", 0.0) - free_cpus, "GPU": resources.get("GPU", 0.0)}
    needs = {"CPU": num_cpus, "GPU": num_gpus}
    counts = [int(available[kind] / need) for kind, need in needs.items() if need > 0]
    return max(min(counts, default=1), 1)
