"""A folder has one run at a time, and the workers of a killed run end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kcal.errors import InvalidInputError
from kcal.files import LOCK_FILE, locked_folder

PARENT = """
import os, sys, time
from collections.abc import Callable
from pathlib import Path
from kcal.benchmark.running import in_parallel
from kcal.files import locked_folder

def work(folder, seconds):
    (Path(folder) / f"{os.getpid()}.worker").touch()
    time.sleep(seconds)

with locked_folder(Path(sys.argv[1])):
    list(in_parallel(work, [(sys.argv[1], 600.0), (sys.argv[1], 600.0)], jobs=2))
"""


def wait_for(condition: Callable[[], bool], seconds: float = 300.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the state of processes from /proc")
def test_a_killed_run_takes_its_workers_along_and_frees_its_folder(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)])
    try:
        assert wait_for(lambda: len(list(tmp_path.glob("*.worker"))) == 2)
        workers = [int(path.stem) for path in tmp_path.glob("*.worker")]
        assert all(is_running(worker) for worker in workers)
        with (
            pytest.raises(InvalidInputError, match=f"{tmp_path}, in use by process {parent.pid}. Wait until"),
            locked_folder(tmp_path),
        ):
            pass
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    with locked_folder(tmp_path):
        assert int((tmp_path / LOCK_FILE).read_text()) == os.getpid()
    assert wait_for(lambda: not any(is_running(worker) for worker in workers), 30.0)
