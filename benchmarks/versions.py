"""Two checkouts of kcal side by side: the same work in turns, each in a process of its own.

This file is also the program of these processes. It uses the public names that versions share.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from rich.console import Console

ROUNDS = 7
SINGLE_ROWS = 200
WANTED = 1.1
"""Time of this checkout over that of the other, at most."""


class Worker:
    """A process that imports kcal from a checkout and measures what it is told."""

    def __init__(self, checkout: Path, threads: int) -> None:
        places = os.pathsep.join([str(checkout / "src"), str(Path(__file__).parents[1])])
        environment = {**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": str(threads)}
        command = [sys.executable, __file__, str(checkout)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self.process = subprocess.Popen(command, env=environment, **pipes)
        self.names: list[str] = json.loads(self._line())

    def seconds(self, name: str) -> float:
        """Return the seconds of one round."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{name}\n")
        return float(self._line())

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the process of a checkout ended; its errors are above")
        return line


def main(console: Console, other: Path, threads: int = 1) -> None:
    """Print the time of each piece of work over that in the other checkout, quiet and beside busy processes."""
    from rich.table import Table

    from benchmarks.measuring import busy_processes

    workers = [Worker(Path(__file__).parents[1], threads), Worker(other.resolve(), threads)]
    table = Table("", "here", "there", "here / there", "busy", title=f"Two checkouts, {threads} threads (≤ {WANTED})")
    ratios: dict[str, list[np.ndarray]] = {}
    for is_busy in (False, True):
        with ExitStack() as stack:
            if is_busy:
                stack.enter_context(busy_processes())
            for name in workers[0].names:
                for worker in workers:
                    worker.seconds(name)  # to warm up
                times = [[worker.seconds(name) for worker in workers] for _ in range(ROUNDS)]
                ratios.setdefault(name, []).append(np.array(times))
    for name, (quiet, busy) in ratios.items():
        here, there = np.median(quiet, axis=0)
        typical = [f"{np.median(times[:, 0] / times[:, 1]):.2f}" for times in (quiet, busy)]
        table.add_row(name, f"{1e3 * here:.2f} ms", f"{1e3 * there:.2f} ms", *typical)
    console.print(table)


# ---------------------------------------------------------------- in the process of a checkout


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def work(folder: Path) -> dict[str, Callable[[], Any]]:
    """Return what is measured, by name."""
    import torch

    import kcal
    from benchmarks.measuring import problem
    from kcal import calibrators, metrics

    pieces: dict[str, Callable[[], Any]] = {}
    for n, h, k in ((3_000, 64, 10), (5_000, 128, 100)):
        x, z, y = problem(n, h, k)
        new, logits, labels = problem(10_000, h, k, seed=1)
        methods = {
            "ts": calibrators.TemperatureScaling(),
            "sms": calibrators.StructuredMatrixScaling(),
            "isotonic": calibrators.IsotonicCalibration(),
            "dircal": calibrators.DirichletCalibration(),
        }
        for name, method in methods.items():
            if name in ("ts", "sms", "dircal"):
                pieces[f"{name} fit, K = {k}"] = lambda method=method, z=z, y=y: method.fit(z, y)
            fitted = type(method)().fit(z, y)
            pieces[f"{name} predict, K = {k}"] = lambda fitted=fitted, logits=logits: fitted.predict_proba(logits)
        learned = kcal.KCal(recipe=kcal.FastRecipe(steps=10))
        pieces[f"KCal fit, K = {k}"] = lambda learned=learned, x=x, y=y, new=new, labels=labels: learned.fit(
            x, y, train_embeddings=new, train_labels=labels
        )
        kde, blend = kcal.KCal(projection="unit").fit(x, y), kcal.KCalBlend().fit(x, y, logits=z)
        pieces[f"search of the bandwidth, K = {k}"] = lambda x=x, y=y: kcal.KCal(projection="unit").fit(x, y)
        pieces[f"blend fit, K = {k}"] = lambda x=x, y=y, z=z: kcal.KCalBlend().fit(x, y, logits=z)
        pieces[f"KCal predict, K = {k}"] = lambda kde=kde, new=new: kde.predict_proba(new)
        pieces[f"blend predict, K = {k}"] = lambda blend=blend, new=new, logits=logits: blend.predict_proba(
            new, logits=logits
        )
        pieces[f"KCal, {SINGLE_ROWS} single rows, K = {k}"] = lambda kde=kde, new=new: [
            kde.predict_proba(new[row : row + 1]) for row in range(SINGLE_ROWS)
        ]
        pieces[f"blend, {SINGLE_ROWS} single rows, K = {k}"] = lambda blend=blend, new=new, logits=logits: [
            blend.predict_proba(new[row : row + 1], logits=logits[row : row + 1]) for row in range(SINGLE_ROWS)
        ]
        modules, tensors = (
            (kde.as_module(), blend.as_module()),
            (torch.from_numpy(new[:64]), torch.from_numpy(logits[:64])),
        )
        pieces[f"KCal module, 64 rows, K = {k}"] = lambda modules=modules, tensors=tensors: modules[0](tensors[0])
        pieces[f"blend module, 64 rows, K = {k}"] = lambda modules=modules, tensors=tensors: modules[1](*tensors)
        path = folder / f"{k}.kcal"
        pieces[f"blend save and load, K = {k}"] = lambda blend=blend, path=path: (
            kcal.save(blend, path),
            kcal.load(path),
        )
    x, z, y = problem(5_001, 64, 10)
    pieces["search of the bandwidth, 5,001 points"] = lambda: kcal.KCal(projection="unit").fit(x, y)
    added, _, known = problem(1_000, 64, 10, seed=2)

    def update() -> None:
        grown = kcal.KCal(projection="unit", bandwidth=0.3).fit(x, y)
        for row in range(len(added)):
            grown.partial_fit(added[row : row + 1], known[row : row + 1])
        grown.predict_proba(added[:1])

    pieces["1,000 single updates"] = update
    generator = np.random.default_rng(0)
    probs = generator.dirichlet(np.ones(10), 200_000).astype(np.float32)
    classes = generator.integers(10, size=len(probs))
    pieces["ECE of 200,000 × 10"] = lambda: metrics.expected_calibration_error(probs, classes)
    return pieces


def serve() -> None:
    """Measure the pieces of work whose names are read from standard input."""
    answers, sys.stdout = sys.stdout, sys.stderr
    with tempfile.TemporaryDirectory() as folder, _quiet():
        pieces = work(Path(folder))
        print(json.dumps(list(pieces)), file=answers, flush=True)
        for line in sys.stdin:
            start = time.perf_counter()
            pieces[line.strip()]()
            print(time.perf_counter() - start, file=answers, flush=True)


if __name__ == "__main__":
    serve()
