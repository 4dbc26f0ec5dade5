"""One small Ray cluster for the tests of this folder that need one."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_memory_monitor_refresh_ms": "0",  # kill no worker because other processes use the memory
    "RAY_health_check_period_ms": "1000",  # a node that is gone is noticed soon,
    "RAY_health_check_timeout_ms": "120000",  # one that is slow is no node that is gone
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_enable_worker_prestart": "0",  # no process that no test needs
    "RAY_prestart_worker_first_driver": "0",
}
"""Environment of the cluster: the tests run on machines that are busy with others."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A cluster of one node; tests may add another and remove it again."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        import ray
        from ray.cluster_utils import Cluster

        started = Cluster()
        unused = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
        started.add_node(
            wait=False, num_cpus=2, object_store_memory=80 * 2**20, dashboard_agent_listen_port=None, **unused
        )
        ray.init(address=started.address, logging_level=logging.ERROR, log_to_driver=False)
        yield started
        ray.shutdown()
        started.shutdown()
