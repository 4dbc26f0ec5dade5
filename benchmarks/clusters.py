"""Small Ray clusters on this machine, and processes of theirs to kill."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

STORE = 300 * 2**20
"""Bytes of the object store of a node."""


@contextmanager
def small_cluster(*, head_cpus: int, node_cpus: int | None = None) -> Iterator[Any]:
    """Yield a cluster of one or two nodes, connected; the second can be removed."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}
    import ray
    from ray.cluster_utils import Cluster

    arguments = {"num_cpus": head_cpus, "include_dashboard": False, "object_store_memory": STORE}
    cluster = Cluster(initialize_head=True, head_node_args=arguments)
    cluster.second = None
    if node_cpus is not None:
        cluster.second = cluster.add_node(num_cpus=node_cpus, object_store_memory=STORE)
    ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def worker_pids(cluster: Any, name: str) -> list[int]:
    """Return the processes of the cluster's actors whose class has such a name."""
    nodes = cluster.list_all_nodes()
    raylets = {info.process.pid for node in nodes for info in node.all_processes.get("raylet", ())}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent in raylets and (folder / "cmdline").read_text().startswith(f"ray::{name}"):
                found.append(int(folder.name))
    return found


def beside(action: Callable[[], None]) -> threading.Thread:
    """Start an action in a thread."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


def peak_memory(pids: list[int]) -> int:
    """Return the largest peak of resident memory of some processes, in bytes."""
    peaks = [0]
    for pid in pids:
        with suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            peaks += [int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM")]
    return max(peaks)


def processor_seconds(pids: list[int]) -> float:
    """Return the processor time that some processes have used, in all."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])  # in user and in system mode
    return ticks / os.sysconf("SC_CLK_TCK")
