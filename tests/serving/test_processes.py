"""Servers in processes of their own: killed under feedback, and stopped under requests."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from running_service import PATIENCE, wait_until

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
