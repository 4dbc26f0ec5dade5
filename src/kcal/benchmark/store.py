"""What a run keeps in its folder: results, one per line, and the projections that take an hour to train.

``results.jsonl``: the first line holds the settings, every other line one result with its origin. A stored result is
used again where data, the method's parameters, kcal's code and the package versions are the same; others stay in the
file and serve a run that returns to what they were measured with. A line that was cut short is skipped.

``projections/TASK-row-KEY.kcal`` or ``-group-``: KEY is a checksum of all that the training depends on: the data, the
recipe, the seed, the code that trains, and the versions of torch and numpy. The code that measures plays no part:
results can be measured again without another training.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from kcal.benchmark.methods import BENCHMARK_METHODS, parameters_hash, projection_key, train_for
from kcal.benchmark.results import Result, ResultKey
from kcal.benchmark.tasks import Task
from kcal.calibrators.registry import SLOW
from kcal.errors import FileFormatError, InvalidInputError, KcalError
from kcal.files import write_whole
from kcal.persistence import load, save
from kcal.projection import TrainedProjection

RESULTS_FILE = "results.jsonl"
PROJECTIONS = "projections"
PACKAGES = ("kcal", "torch", "numpy", "scipy", "scikit-learn")
"""Packages that the results of every method depend on."""
COMPUTING_CODE = (
    "samples.py", "validation.py", "calibrators", "kernels", "metrics", "projection",
    "benchmark/methods.py", "benchmark/tasks.py",
)  # fmt: skip
"""Parts of kcal that results depend on."""
TRAINING_CODE = ("validation.py", "projection")
"""Parts of kcal that trained projections depend on."""
Stored = dict[ResultKey, dict[str, Result]]
"""Stored results by key and origin."""


def versions() -> dict[str, str]:
    """Return the versions of Python, the machine and every package that results depend on."""
    extra = [name for method in BENCHMARK_METHODS.values() for name in method.packages]
    installed = {"python": platform.python_version(), "machine": platform.machine()}
    for name in dict.fromkeys((*PACKAGES, *extra)):
        with suppress(PackageNotFoundError):
            installed[name] = version(name)
    return installed


@cache
def code_fingerprint(home: Path = Path(__file__).parent.parent, parts: tuple[str, ...] = COMPUTING_CODE) -> str:
    """Return a short hash of modules as the interpreter reads them: without comments and docstrings."""
    digest = hashlib.sha256()
    for part in parts:
        path = home / part
        for module in [path] if path.is_file() else sorted(path.rglob("*.py")):
            tree = ast.parse(module.read_bytes())
            for node in ast.walk(tree):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    node.body = [line for line in node.body if not _is_text(line)]
            digest.update(f"{module.relative_to(home)}\n{ast.dump(tree)}\n".encode())
    return digest.hexdigest()[:12]


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)


def task_fingerprint(task: Task) -> str:
    """Return a checksum of everything that a task holds except its name."""
    checksum = zlib.crc32(repr((task.calibration_share, task.group_calibration_share, task.classes)).encode())
    arrays = [
        getattr(part, kind)
        for part in (task.train, task.pool, task.out_of_scope)
        for kind in ("embeddings", "logits", "labels", "groups")
        if part is not None
    ]
    for name, logits in sorted(task.companions.items()):
        checksum = zlib.crc32(name.encode(), checksum)
        arrays.append(logits)
    for values in arrays:
        if values is not None:
            checksum = zlib.crc32(np.ascontiguousarray(values).view(np.uint8).tobytes(), checksum)
    return f"{checksum:08x}"


def origins_of(task: Task, methods: Iterable[str], seed: int) -> dict[str, str]:
    """Return a hash of what results of each method on a task depend on now."""
    data, code, installed = task_fingerprint(task), code_fingerprint(), versions()
    origins = {}
    for name in methods:
        packages = [installed.get(package) for package in (*PACKAGES, *BENCHMARK_METHODS[name].packages)]
        origins[name] = _hash(data, code, packages, parameters_hash(name, seed=seed))
    return origins


def _hash(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def usable_results(
    stored: Stored, keys: Iterable[ResultKey], origins: Mapping[str, str]
) -> tuple[dict[ResultKey, Result], int]:
    """Return stored results that can be used, without failures, and the number of keys with others only."""
    usable: dict[ResultKey, Result] = {}
    n_others = 0
    for key in keys:
        result = stored.get(key, {}).get(origins[key.method])
        n_others += result is None and key in stored
        if result is not None and result.error is None:
            usable[key] = result
    return usable, n_others


def read_results(path: Path, seed: int) -> Stored:
    """Return the results of a file, the last of each key and origin; empty if there is no file."""
    contents: list[Any] = []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    for line in lines:
        with suppress(json.JSONDecodeError):  # cut short when the run was stopped
            contents.append(json.loads(line))
    stored: Stored = {}
    if not lines:
        return stored
    remedy = "Choose another folder, or remove the file."
    try:
        stored_seed = contents[0]["settings"]["seed"]
        for result in map(Result.from_json, contents[1:]):
            stored.setdefault(result.key, {})[str(result.origin)] = result
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        problem = f"{path} does not hold the settings and results of a run ({error!r})"
        raise FileFormatError(f"{problem}. {remedy}") from error
    if stored_seed != seed:
        expected = f"must be that of the results in {path}, {stored_seed}"
        raise InvalidInputError("seed", expected, got=str(seed), remedy=remedy)
    return stored


@contextmanager
def appending(path: Path, seed: int, stored: Stored) -> Iterator[Callable[[Result], None]]:
    """Yield a function that stores a result; it is on disk when the function returns."""
    lines = [{"settings": {"seed": seed}}, *(result.as_json() for each in stored.values() for result in each.values())]
    write_whole(path, "".join(_line(content) for content in lines).encode())  # whole lines only
    with path.open("a", encoding="utf-8") as stream:

        def append(result: Result) -> None:
            stream.write(_line(result.as_json()))
            stream.flush()
            os.fsync(stream.fileno())

        yield append


def _line(content: Mapping[str, Any]) -> str:
    return json.dumps(content, allow_nan=False) + "\n"


def train(name: str, task: Task, *, seed: int, by_group: bool, folder: Path) -> tuple[TrainedProjection, float]:
    """Return the projection of a method and the seconds of its training; a slow one is kept in the folder."""
    path = training_path(name, task, seed=seed, by_group=by_group, folder=folder)
    is_slow = BENCHMARK_METHODS[name].cost >= SLOW
    if is_slow:
        with suppress(KcalError, OSError, ValueError, KeyError, TypeError):  # there is none, or it is damaged
            projection, seconds = load(path), float(json.loads(path.with_suffix(".json").read_text())["seconds"])
            if isinstance(projection, TrainedProjection):
                return projection, seconds
    start = time.perf_counter()
    trained = train_for(name, task, seed=seed, by_group=by_group)
    assert trained is not None
    seconds = time.perf_counter() - start
    if is_slow:
        path.parent.mkdir(parents=True, exist_ok=True)
        save(trained, path)
        write_whole(path.with_suffix(".json"), json.dumps({"seconds": seconds}).encode())
    return trained, seconds


def training_path(name: str, task: Task, *, seed: int, by_group: bool, folder: Path) -> Path:
    """Return the file of a training."""
    packages = {package: versions()[package] for package in ("torch", "numpy")}
    data = task_fingerprint(Task(task.name, task.train, task.train, 0.5, task.classes))  # of the training data alone
    code = code_fingerprint(parts=TRAINING_CODE)
    key = _hash(data, projection_key(name, seed=seed), seed, by_group, packages, code)
    return folder / PROJECTIONS / f"{task.name}-{'group' if by_group else 'row'}-{key}.kcal"
