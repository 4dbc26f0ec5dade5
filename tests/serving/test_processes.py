"""Servers in processes of their own: killed under feedback, and stopped under requests."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from running_service import PATIENCE, wait_until

from kcal import KCal, save
from kcal.persistence import CalibrationStore
from kcal.serving.app import serve
from kcal.serving.service import Settings

CONTEXT = multiprocessing.get_context("forkserver")  # starts servers without importing everything again
CONTEXT.set_forkserver_preload(["kcal.serving.app", "test_processes"])


def run(settings: Settings, sender: Any) -> None:
    """Serve, and tell the address."""
    serve(settings, sender.send)


@contextmanager
def process_of(path: Path, **options: Any) -> Iterator[tuple[Any, str]]:
    """Run a server in a process; yield it and its address when it is ready."""
    receiver, sender = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=run, args=(Settings(path, port=0, **options), sender))
    process.start()
    try:
        url = receiver.recv()
        wait_until(lambda: httpx.get(f"{url}/readyz", timeout=PATIENCE).status_code == 200)
        yield process, url
    finally:
        process.kill()
        process.join()


def give_labels(url: str, name: str, acknowledged: list[str]) -> None:
    """Send labels until the server is gone."""
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:
        for count in range(10**6):
            record = {"id": f"{name}-{count}", "label": "owl", "embeddings": [0.01 * count] * 6}
            try:
                answer = client.post("/v2/models/animals/feedback", json=record)
            except httpx.TransportError:
                return
            if answer.status_code == 200:
                acknowledged.append(record["id"])


def test_no_acknowledged_label_is_lost_when_the_server_is_killed(path, tmp_path):
    store, acknowledged = tmp_path / "feedback.db", list[str]()
    for number in range(3):
        with process_of(path, store=store) as (process, url):
            clients = [
                threading.Thread(target=give_labels, args=(url, f"{number}-{k}", acknowledged)) for k in range(3)
            ]
            before = len(acknowledged)
            for client in clients:
                client.start()
            wait_until(lambda before=before: len(acknowledged) >= before + 6)
            os.kill(process.pid, signal.SIGKILL)
            for client in clients:
                client.join()
    with CalibrationStore(store) as opened:
        stored = set(opened.ids())
    assert len(acknowledged) >= 18
    assert not set(acknowledged) - stored
    with process_of(path, store=store) as (_, url):
        record = {"id": acknowledged[0], "label": "cat"}
        answer = httpx.post(f"{url}/v2/models/animals/feedback", json=record, timeout=PATIENCE)
        assert answer.json()["results"][0]["status"] == "corrected"


def test_signal_to_stop_lets_requests_in_flight_finish(path, problem, tmp_path):
    x = np.tile(problem.test_embeddings, (10, 1)).round(3)
    body = json.dumps({"embeddings": x.tolist()}).encode()
    with process_of(path, store=tmp_path / "feedback.db") as (process, url):
        answers: list[httpx.Response] = []
        asking = threading.Thread(
            target=lambda: answers.append(httpx.post(f"{url}/predict", content=body, timeout=PATIENCE))
        )
        asking.start()
        busy = 'kcal_batch_rows_count{model="animals"} 1.0'
        wait_until(lambda: answers or busy in httpx.get(f"{url}/metrics", timeout=PATIENCE).text)
        process.terminate()
        asking.join()
        process.join()
        assert process.exitcode == 0
        assert answers[0].status_code == 200
        assert len(answers[0].json()["probabilities"]) == len(x)
    assert (tmp_path / "feedback.db.monitor.json").exists()


ENDLESS_SEARCH = """
import sys
import time
import torch
from kcal import KCal
from kcal.cli import main

refresh = KCal.refresh

def search_for_ever(self, *, search=True):
    if search:
        print("searching", flush=True)
    while search:
        torch.linalg.svd(torch.ones(200, 200))
        time.sleep(0.05)
    return refresh(self, search=False)

KCal.refresh = search_for_ever
sys.argv = ["kcal", "serve", *sys.argv[1:]]
main()
"""


def test_signal_to_stop_ends_the_service_while_a_search_runs(problem, tmp_path):
    labels = [("cat", "dog", "owl")[label] for label in problem.labels]
    model = KCal(projection="identity").fit(problem.embeddings, labels)
    path, store = save(model, tmp_path / "animals.kcal"), tmp_path / "feedback.db"
    command = [sys.executable, "-c", ENDLESS_SEARCH, str(path), "--port", "0", "--store", str(store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(PATIENCE, process.kill)
        watchdog.start()
        try:
            url = process.stdout.readline().split()[-1]
            rows = [{"id": f"new-{k}", "label": "owl", "embeddings": [0.01 * k] * 6} for k in range(300)]
            httpx.post(f"{url}/predict", json={"ids": ["seen"], "embeddings": [[0.5] * 6]}, timeout=PATIENCE)
            given = [*rows, {"id": "seen", "label": "cat"}]
            answer = httpx.post(f"{url}/v2/models/animals/feedback", json=given, timeout=PATIENCE)
            assert answer.json()["accepted"] == 301
            assert process.stdout.readline() == "searching\n"
            start = time.monotonic()
            process.terminate()
            assert process.wait(PATIENCE) == 0
            assert time.monotonic() - start < 15
            assert not process.stderr.read()
        finally:
            watchdog.cancel()
            process.kill()
    with CalibrationStore(store) as opened:
        assert len(set(opened.ids())) == 301
    assert '"seen"' in (tmp_path / "feedback.db.monitor.json").read_text()


def test_request_that_comes_before_the_models_are_loaded_waits(path):
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    process = CONTEXT.Process(target=serve, args=(Settings(path, port=port),))
    process.start()
    try:

        def connected() -> socket.socket | None:
            try:
                return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
            except ConnectionRefusedError:
                return None

        while (early := connected()) is None:
            time.sleep(0.001)
        with early:
            early.sendall(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert early.recv(100).startswith(b"HTTP/1.1 200")
    finally:
        process.terminate()
        process.join()
    assert process.exitcode == 0
