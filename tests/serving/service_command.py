"""The service as users start it: ``kcal serve`` in a process of its own, known by its address alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from running_service import PATIENCE, wait_until

COMMAND = (sys.executable, "-m", "kcal")


@contextmanager
def served(model: Path, *words: str) -> Iterator[httpx.Client]:
    """Serve a model or a folder with options of the command line; yield a client when all models are ready."""
    environment = {**os.environ, "COLUMNS": "500", "OMP_NUM_THREADS": "1"}
    command = [*COMMAND, "serve", str(model), "--port", "0", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().rpartition(" at ")[2].strip()
            with httpx.Client(base_url=url, timeout=PATIENCE) as client:
                wait_until(lambda: client.get("/readyz").status_code == 200)
                yield client
        finally:
            process.terminate()
