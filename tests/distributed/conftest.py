"""One small Ray cluster for the tests of this folder that need one."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Two nodes of this machine, of which tests may remove the second and add it again."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_DEDUP_LOGS": "0"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray
        from ray.cluster_utils import Cluster

        memory = {"object_store_memory": 150 * 2**20}
        started = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False, **memory})
        ray.init(address=started.address, logging_level=logging.ERROR, log_to_driver=False)
    yield started
    ray.shutdown()
    started.shutdown()
