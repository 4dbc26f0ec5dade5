"""The service beside the same predictions in this process: throughput, latency, memory, and kills under load.

Clients run in a process of their own, on the same machine: they take processor time from the server.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.measuring import problem, typical
from kcal import ClassifierOutputs, KCal, KCalBlend, load, save
from kcal.persistence import CalibrationStore

CLIENTS = 32
SECONDS = 4.0
ROUNDS = 3
BATCHES = (1, 16, 64, 256, 1024)
MEMORY_REQUESTS = 100_000
KILLS = 50
LABELS = 20_000
"""Labels in the store when the server is first killed."""


def make_models(folder: Path) -> dict[str, Path]:
    """Fit and save models on 3,000 × 64 embeddings of 10 classes."""
    x, z, y = problem(3_000, 64, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = {
            "kcal": KCal(projection="identity").fit(x, y, ids=[f"cal-{row}" for row in range(len(x))]),
            "blend": KCalBlend().fit(x, y, logits=z),
        }
    return {name: save(model, folder / f"{name}.kcal") for name, model in models.items()}


@contextmanager
def served(path: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run ``kcal serve`` in a process; yield it and its port when it is ready."""
    process, port = start(path, *options)
    try:
        yield process, port
    finally:
        process.terminate()
        process.wait()


def start(path: Path, *options: str) -> tuple[subprocess.Popen[str], int]:
    """Start ``kcal serve`` and wait until it is ready; after the first time with bytecode, as where it is installed."""
    command = [sys.executable, "-m", "kcal", "serve", str(path), "--port", "0", *options]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    match = re.search(r":(\d+)\s*$", process.stdout.readline())
    assert match is not None
    port = int(match[1])
    while asyncio.run(_get(port, "/readyz")) != 200:
        time.sleep(0.01)
    return process, port


async def _get(port: int, path: str) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])


def binary_request(name: str, tensors: dict[str, np.ndarray[Any, Any]]) -> bytes:
    """Return an inference request with binary tensors that asks for probabilities as binary data."""
    inputs = [
        {"name": key, "shape": list(rows.shape), "datatype": "FP32", "parameters": {"binary_data_size": rows.nbytes}}
        for key, rows in tensors.items()
    ]
    content = {"inputs": inputs, "outputs": [{"name": "probabilities", "parameters": {"binary_data": True}}]}
    text = json.dumps(content).encode()
    body = b"".join([text, *(rows.tobytes() for rows in tensors.values())])
    head = f"POST /v2/models/{name}/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Inference-Header-Content-Length: {len(text)}\r\n\r\n".encode() + body


def load_server(port: int, requests: list[bytes], seconds: float, n_requests: int, sender: Any) -> None:
    """Send requests from all clients for some time, or a number of them; send the seconds that each took."""
    sender.send(asyncio.run(_load(port, requests, seconds, n_requests)))


async def _load(port: int, requests: list[bytes], seconds: float, n_requests: int) -> tuple[list[float], float]:
    times: list[float] = []
    start = time.perf_counter()

    async def client(place: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
        request = requests[place % len(requests)]
        while time.perf_counter() - start < seconds and len(times) < n_requests:
            begin = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            length = re.search(rb"\r\ncontent-length: (\d+)", head, re.I)
            assert length is not None
            await reader.readexactly(int(length[1]))
            times.append(time.perf_counter() - begin)
        writer.close()

    await asyncio.gather(*(client(place) for place in range(CLIENTS)))
    return times, time.perf_counter() - start


def under_load(port: int, requests: list[bytes], seconds: float, n_requests: int = 10**9) -> tuple[list[float], float]:
    """Return the seconds of each request, and of all, with clients in another process."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=load_server, args=(port, requests, seconds, n_requests, sender))
    process.start()
    result: tuple[list[float], float] = receiver.recv()
    process.join()
    return result


def throughput(console: Console, folder: Path, models: dict[str, Path]) -> None:
    """Print rows per second over HTTP and in this process, turn by turn, and the latency of requests."""
    table = Table(
        "model", "rows per request", "in process, rows/s", "served, rows/s", "served / in process",
        "rows per processor second, served / in process", "p50, ms", "p99, ms",
        title=f"{CLIENTS} clients, binary tensors, probabilities",
    )  # fmt: skip
    x, z, _ = problem(CLIENTS * max(BATCHES), 64, 10, seed=1)
    for name, path in models.items():
        calibrator = load(path)
        with served(path, "--max-batch", "1024") as (process, port):
            for size in BATCHES:
                parts = [slice(start, start + size) for start in range(0, CLIENTS * size, size)]
                tensors = [
                    {"embeddings": x[part], **({"logits": z[part]} if name == "blend" else {})} for part in parts
                ]
                requests = [binary_request(name, one) for one in tensors]
                rates = [_rates(calibrator, tensors, (process.pid, port), requests, size) for _ in range(ROUNDS)]
                plain, http, plain_work, work = (np.array([rate[place] for rate in rates]) for place in range(4))
                times = np.concatenate([rate[4] for rate in rates])
                table.add_row(
                    name,
                    f"{size:,}",
                    f"{typical(plain):,.0f}",
                    f"{typical(http):,.0f}",
                    f"{typical(http / plain):.2f}",
                    f"{typical(work / plain_work):.2f}",
                    f"{1e3 * np.median(times):.1f}",
                    f"{1e3 * np.quantile(times, 0.99):.1f}",
                )
    console.print(table)


def _rates(
    calibrator: Any, tensors: list[dict[str, Any]], server: tuple[int, int], requests: list[bytes], size: int
) -> tuple[float, float, float, float, Any]:
    """Return rows per second in process and served, the same per processor second, and the seconds of requests."""
    count, start, work = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < SECONDS / 2:
        one = tensors[count % len(tensors)]
        calibrator.predict_proba(one["embeddings"], **{key: rows for key, rows in one.items() if key == "logits"})
        count += 1
    plain, plain_work = (count * size / spent for spent in (time.perf_counter() - start, time.process_time() - work))
    pid, port = server
    before = _processor_seconds(pid)
    times, seconds = under_load(port, requests, SECONDS)
    n_rows = len(times) * size
    return plain, n_rows / seconds, plain_work, n_rows / (_processor_seconds(pid) - before), np.array(times)


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(console: Console, path: Path) -> None:
    """Print the server's memory during many requests."""
    table = Table("requests", "resident memory, MB", title="Memory under load, one row per request")
    x, _, _ = problem(CLIENTS, 64, 10, seed=1)
    requests = [binary_request("kcal", {"embeddings": x[row : row + 1]}) for row in range(CLIENTS)]
    with served(path) as (process, port):
        done = 0
        for part in track((1_000, 9_000, *[(MEMORY_REQUESTS - 10_000) // 3] * 3), "Requests", console=console):
            times, _ = under_load(port, requests, 3600.0, part)
            done += len(times)
            table.add_row(f"{done:,}", f"{_resident(process.pid) / 2**20:.1f}")
    console.print(table)


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def restarts(console: Console) -> None:
    """Print how long killed servers take to be ready again."""
    with TemporaryDirectory() as name:
        kills(console, Path(name), make_models(Path(name)))


def kills(console: Console, folder: Path, models: dict[str, Path], n_kills: int = KILLS) -> None:
    """Kill servers at random moments under feedback; count labels that were acknowledged and then lost."""
    table = Table(
        "model", "labels", "kills", "acknowledged", "lost", "to ready, median s", "longest s",
        "processor time to ready, median s", title="SIGKILL",
    )  # fmt: skip
    for name, path in models.items():
        store = folder / f"{name}.db"
        fill(store, has_logits=name == "blend")
        with served(path, "--store", str(store)):
            pass
        acknowledged, ready, work = _killed(console, path, store, n_kills)
        with CalibrationStore(store) as opened:
            stored = set(opened.ids())
        table.add_row(
            name, f"{LABELS:,} to {len(stored):,}", f"{n_kills}", f"{len(acknowledged):,}",
            f"{len(acknowledged - stored):,}", f"{np.median(ready):.2f}", f"{max(ready):.2f}", f"{np.median(work):.2f}",
        )  # fmt: skip
    console.print(table)


def fill(path: Path, *, has_logits: bool) -> None:
    """Write labels to a store."""
    x, z, y = problem(LABELS, 64, 10, seed=2)
    with CalibrationStore(path) as store:
        ids = np.array([f"label-{row}" for row in range(LABELS)])
        store.append(ClassifierOutputs(embeddings=x, logits=z if has_logits else None, labels=y, ids=ids))


def _killed(console: Console, path: Path, store: Path, n_kills: int) -> tuple[set[str], list[float], list[float]]:
    """Return the ids that servers acknowledged until they were killed, and wall and processor seconds to ready."""
    generator, acknowledged = np.random.default_rng(0), set[str]()
    ready, work = [], []
    for number in track(range(n_kills), f"Kills of {path.stem}", console=console):
        begin = time.perf_counter()
        process, port = start(path, "--store", str(store))
        ready.append(time.perf_counter() - begin)
        work.append(_processor_seconds(process.pid))
        seconds = generator.uniform(0.05, 1.0)
        acknowledged |= asyncio.run(_feedback_until_killed(process, port, path.stem, number, seconds))
        process.wait()
    return acknowledged, ready, work


async def _feedback_until_killed(
    process: subprocess.Popen[str], port: int, model: str, number: int, seconds: float
) -> set[str]:
    """Send labels from eight clients until the server is killed; return the ids that it acknowledged."""
    acknowledged: set[str] = set()

    async def client(place: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        generator = np.random.default_rng((number, place))
        for count in range(10**6):
            name = f"kill{number}-{place}-{count}"
            record = {"id": name, "label": int(generator.integers(10))}
            record["embeddings"] = generator.normal(size=64).round(3).tolist()
            if model == "blend":
                record["logits"] = generator.normal(size=10).round(3).tolist()
            body = json.dumps(record)
            head = f"POST /v2/models/{model}/feedback HTTP/1.1\r\nHost: 127.0.0.1"
            writer.write(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            try:
                answer = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"\r\ncontent-length: (\d+)", answer, re.I)
                await reader.readexactly(int(length[1]) if length else 0)
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            if answer.startswith(b"HTTP/1.1 200"):
                acknowledged.add(name)

    async def kill() -> None:
        await asyncio.sleep(seconds)
        process.send_signal(signal.SIGKILL)

    await asyncio.gather(kill(), *(client(place) for place in range(8)))
    return acknowledged


def main(console: Console) -> None:
    """Print all tables."""
    console.print(f"{os.cpu_count()} cores, {torch.get_num_threads()} threads of torch in process")
    with TemporaryDirectory() as name:
        folder = Path(name)
        models = make_models(folder)
        throughput(console, folder, models)
        memory(console, models["kcal"])
        kills(console, folder, models)
