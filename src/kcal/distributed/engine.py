"""Ray, imported when it is used, and the connection to a cluster."""

from __future__ import annotations

import logging
import os
import re
import socket
import warnings
from pathlib import Path
from typing import Any

from kcal.errors import InvalidInputError, MissingExtraError

CONNECT_SECONDS = 5.0
"""Time in which the head of a cluster must answer."""
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""First bytes of a client of HTTP/2, which Ray speaks; a server answers with a frame of its settings, of type 4."""

logger = logging.getLogger("kcal.distributed")


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
        If no cluster answers at the address.
    """
    ray = require_ray()
    _quieten(ray)
    if ray.is_initialized():
        return ray
    place = find_cluster(address)
    settings = {"include_dashboard": False} if place == "local" else {}
    try:
        ray.init(address=place, logging_level=logging.ERROR, log_to_driver=False, **settings | options)
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
        raise _unreachable(place, _reason(error)) from error
    logger.info("%s", describe_cluster(ray))
    return ray


def describe_cluster(ray: Any) -> str:
    """Return the address, the nodes and the cores of the cluster that ray is connected to."""
    resources, n_nodes = ray.cluster_resources(), sum(node["Alive"] for node in ray.nodes())
    counts = {"node": n_nodes, "CPU": resources.get("CPU", 0), "GPU": resources.get("GPU", 0)}
    texts = [f"{count:,g} {name}{'' if count == 1 else 's'}" for name, count in counts.items() if count]
    return f"Ray cluster at {ray.get_runtime_context().gcs_address}: {', '.join(texts)}"


def _quieten(ray: Any) -> None:
    """Let Ray Data neither log its plans nor show bars: kcal shows its own."""
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of its own settings
        ray.data.DataContext.get_current().enable_progress_bars = False


def find_cluster(address: str | None) -> str:
    """Return the address of a cluster that answers, or "local" for a new one; ``address`` as in :func:`connect`.

    Ray itself would wait for minutes for a cluster that does not answer.
    """
    place = address or os.environ.get("RAY_ADDRESS")
    if place == "local":
        return place
    if place in (None, "auto"):
        recorded = _recorded_address()
        reason = _why_unreachable(recorded) if recorded else "ray start has begun none here"
        if reason and place == "auto":
            raise _unreachable("auto", f"{recorded}: {reason}" if recorded else reason)
        return "local" if reason or recorded is None else recorded
    if reason := _why_unreachable(place):
        raise _unreachable(place, reason)
    return place


def _recorded_address() -> str | None:
    """Return the address that the last ``ray start`` on this machine wrote down; it stays after a crash."""
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    try:
        return (Path(folder) / "ray" / "ray_current_cluster").read_text().strip() or None
    except OSError:
        return None


def _why_unreachable(address: str) -> str:
    """Return why Ray cannot answer at "host:port" or "ray://host:port"; empty text if it can."""
    match = re.fullmatch(r"(?:ray://)?\[?([^/\[\]]+)\]?:(\d+)", address)
    if match is None:
        expected = 'must be "host:port", "ray://host:port", "auto" or "local"'
        raise InvalidInputError("address", expected, got=repr(address))
    try:
        with socket.create_connection((match[1], int(match[2])), timeout=CONNECT_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return ""  # the greeting would have to be encrypted
            connection.sendall(GREETING)
            return "" if connection.recv(9)[3:4] == b"\x04" else "what answers there is not Ray"
    except (OSError, OverflowError) as error:
        return str(error)


def _reason(error: BaseException) -> str:
    """Return the line of an error of Ray that says what is wrong: of its cause, a traceback as text, the last."""
    if error.__cause__ is None:
        return next(iter(str(error).strip().splitlines()), type(error).__name__)
    return next(iter(str(error.__cause__).strip().splitlines()[::-1]), type(error.__cause__).__name__)


def _unreachable(address: str | None, reason: str) -> InvalidInputError:
    return InvalidInputError(
        "address",
        "must be that of a Ray cluster that runs",
        got=f"{address or 'none'} ({reason.rstrip('.')})",
        remedy='Start one with: ray start --head. Or pass "local": Ray then runs in processes of this machine.',
    )


def count_workers(ray: Any, *, num_cpus: float, num_gpus: float = 0.0, free_cpus: float = 0.0) -> int:
    """Return how many workers of such needs the cluster has room for beside ``free_cpus`` cores, at least one."""
    resources = ray.cluster_resources()
    available = {"CPU": resources.get("CPU", 0.0) - free_cpus, "GPU": resources.get("GPU", 0.0)}
    needs = {"CPU": num_cpus, "GPU": num_gpus}
    counts = [int(available[kind] / need) for kind, need in needs.items() if need > 0]
    return max(min(counts, default=1), 1)
