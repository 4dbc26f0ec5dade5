"""One row in production: ``predict_proba``, the module and onnxruntime, beside the network; memory of extraction."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.measuring import problem
from kcal import KCal, KCalBlend
from kcal.datasets import SmallCNN
from kcal.deployment import HeadPredictor, metadata_of, write_onnx

ROWS = 300
"""Single rows that are predicted."""
EXTRACTED = """
import re, sys, torch, kcal
torch.set_num_threads(1)
network = torch.nn.Sequential(torch.nn.Linear(8, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
n_rows, folder = int(sys.argv[1]), sys.argv[2]
def batches():
    for start in range(0, n_rows, 1000):
        yield torch.randn(1000, 8), torch.arange(1000) % 10
kcal.extract(network, batches(), to=folder)
print(int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) // 1024)
"""


def main(console: Console) -> None:
    """Print both tables."""
    torch.set_num_threads(1)
    single_rows(console)
    extraction_memory(console)


def single_rows(console: Console) -> None:
    """Print the milliseconds of one row: 3,000 × 64 support, 10 classes, one thread."""
    x, z, y = problem(3_000, 64, 10)
    queries, logits, _ = problem(1_000, 64, 10, seed=1)
    network, image = SmallCNN().eval(), torch.rand(1, 1, 28, 28)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calibrators = {
            "kcal": KCal(projection="identity").fit(x, y),
            "blend": KCalBlend().fit(x, y, logits=z),
        }
    table = Table("", "predict_proba, ms", "module, ms", "onnxruntime, ms", "module / onnxruntime (wanted ≤ 1.5)")
    table.title = "One row, one thread"
    with torch.inference_mode():
        table.add_row("the network, SmallCNN", "", f"{_milliseconds(lambda _: network(image)):.2f}", "", "")
        for name, calibrator in calibrators.items():
            times = compare(calibrator, queries, logits)
            table.add_row(name, *(f"{time:.2f}" for time in times), f"{times[1] / times[2]:.2f}")
    console.print(table)


def compare(calibrator: Any, queries: Any, logits: Any) -> tuple[float, float, float]:
    """Return milliseconds per row through the calibrator, its module and onnxruntime."""
    import onnxruntime

    predictor, module, blended = HeadPredictor(calibrator), calibrator.as_module(), calibrator.tags.needs_logits
    rows = {"embeddings": torch.from_numpy(queries), "logits": torch.from_numpy(logits)}
    example = [rows[name] for name in predictor.names]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    with TemporaryDirectory() as folder:
        path = write_onnx(predictor, example, Path(folder) / "head.onnx", metadata=metadata_of(calibrator))
        session = onnxruntime.InferenceSession(path, options)

    def through_calibrator(row: slice) -> Any:
        return calibrator.predict_proba(queries[row], **({"logits": logits[row]} if blended else {}))

    def through_module(row: slice) -> Any:
        return module(*(part[row] for part in example))

    def through_runtime(row: slice) -> Any:
        return session.run(["probabilities"], {name: rows[name][row].numpy() for name in predictor.names})

    for run in (through_module, through_runtime):
        result = run(slice(0, 5))
        result = result[0] if isinstance(result, list) else result.numpy()
        np.testing.assert_allclose(result, through_calibrator(slice(0, 5)), atol=1e-6)
    return _milliseconds(through_calibrator), _milliseconds(through_module), _milliseconds(through_runtime)


def _milliseconds(run: Callable[[slice], Any]) -> float:
    times = []
    for row in range(ROWS):
        start = perf_counter()
        run(slice(row, row + 1))
        times.append(perf_counter() - start)
    return 1e3 * float(np.median(times))


def extraction_memory(console: Console) -> None:
    """Print the peak memory of extraction to a folder, for more and more rows of 512 numbers."""
    table = Table("rows", "embeddings on disk, MB", "peak memory, MB", title="extract(network, loader, to=folder)")
    for n_rows in (1_000, 20_000, 200_000):
        with TemporaryDirectory() as folder:
            command = [sys.executable, "-c", EXTRACTED, str(n_rows), folder]
            peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
            size = (Path(folder) / "embeddings.npy").stat().st_size / 1e6
        table.add_row(f"{n_rows:,}", f"{size:,.0f}", peak)
    console.print(table)
