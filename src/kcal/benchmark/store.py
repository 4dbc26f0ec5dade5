"""The stored results of a run, ``results.jsonl``.

The first line holds the settings, every other line one result with its origin. A stored result is used again where
data, the method's parameters, kcal's code and the package versions are the same; others stay in the file and serve
a run that returns to what they were measured with. A line that was cut short by the end of a run is skipped.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from kcal.benchmark.methods import BENCHMARK_METHODS, parameters_hash
from kcal.benchmark.results import Origin, Result, ResultKey
from kcal.benchmark.tasks import Task
from kcal.errors import FileFormatError, InvalidInputError
from kcal.files import write_whole

RESULTS_FILE = "results.jsonl"
PACKAGES = ("kcal", "torch", "numpy", "scipy", "scikit-learn")
"""Packages that the results of every method depend on."""
COMPUTING_CODE = (
    "validation.py", "calibrators", "kernels", "metrics", "projection",
    "benchmark/measuring.py", "benchmark/methods.py", "benchmark/tasks.py",
)  # fmt: skip
"""Parts of kcal that results depend on."""
Stored = Mapping[ResultKey, list[Result]]
"""Stored results by key, the oldest first."""


def versions() -> dict[str, str]:
    """Return the versions of Python, the machine and every package that results depend on."""
    extra = [name for method in BENCHMARK_METHODS.values() for name in method.packages]
    installed = {"python": platform.python_version(), "machine": platform.machine()}
    for name in dict.fromkeys((*PACKAGES, *extra)):
        try:
            installed[name] = version(name)
        except ModuleNotFoundError:
            continue
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


def origins_of(task: Task, methods: Iterable[str], seed: int) -> dict[str, Origin]:
    """Return what results of each method on a task depend on now."""
    fingerprint, packages, code = task_fingerprint(task), versions(), code_fingerprint()
    return {name: Origin(fingerprint, parameters_hash(name, seed=seed), packages, code) for name in methods}


def difference(method: str, stored: Origin | None, now: Origin) -> str | None:
    """Return why a stored result of a method cannot be used, in words; None if it can."""
    if stored is None:
        return "of unknown origin"
    if stored.fingerprint != now.fingerprint:
        return "of other data"
    if stored.parameters != now.parameters:
        return f"with other parameters of {method}"
    if stored.code != now.code:
        return "with other code of kcal"
    names = (*PACKAGES, *BENCHMARK_METHODS[method].packages)
    changes = [
        f"{name} {stored.versions.get(name, '(none)')}, now {now.versions.get(name, '(none)')}"
        for name in names
        if stored.versions.get(name) != now.versions.get(name)
    ]
    return f"with {'; '.join(changes)}" if changes else None


def usable_results(
    stored: Stored, keys: Iterable[ResultKey], origins: Mapping[str, Origin]
) -> tuple[dict[ResultKey, Result], str]:
    """Return stored results that can be used, without failures, and in words why others cannot ("" if none)."""
    usable: dict[ResultKey, Result] = {}
    reasons: Counter[str] = Counter()
    for key in keys:
        results = stored.get(key, [])
        differences = [difference(key.method, result.origin, origins[key.method]) for result in results]
        same = [result for result, reason in zip(results, differences, strict=True) if reason is None]
        if same and same[-1].error is None:
            usable[key] = same[-1]
        elif not same and differences:
            reasons[str(differences[-1])] += 1
    return usable, ", ".join(f"{count} {reason}" for reason, count in reasons.items())


def read_results(path: Path, seed: int) -> dict[ResultKey, list[Result]]:
    """Return the results of a file, the last of each key and origin; empty if there is no file."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    contents = [content for content in map(_parse, lines) if content is not None]
    if not lines:
        return {}
    remedy = "Choose another folder, or remove the file."
    try:
        stored_seed = contents[0]["settings"]["seed"]
    except (IndexError, KeyError, TypeError) as error:
        raise FileFormatError(f"{path} does not begin with the settings of a run. {remedy}") from error
    if stored_seed != seed:
        expected = f"must be that of the results in {path}, {stored_seed}"
        raise InvalidInputError("seed", expected, got=str(seed), remedy=remedy)
    stored: dict[ResultKey, dict[str, Result]] = {}
    for content in contents[1:]:
        try:
            result = Result.from_json(content)
        except (KeyError, TypeError, AttributeError) as error:
            raise FileFormatError(f"{path} has a line that is not a result of this benchmark ({error!r}).") from error
        stored.setdefault(result.key, {})[repr(result.origin)] = result
    return {key: list(results.values()) for key, results in stored.items()}


@contextmanager
def appending(path: Path, seed: int, stored: Stored) -> Iterator[Callable[[Result], None]]:
    """Yield a function that stores a result; it is on disk when the function returns."""
    lines = [{"settings": {"seed": seed}}, *(result.as_json() for results in stored.values() for result in results)]
    write_whole(path, "".join(_line(content) for content in lines).encode())  # whole lines only
    with path.open("a", encoding="utf-8") as stream:

        def append(result: Result) -> None:
            stream.write(_line(result.as_json()))
            stream.flush()
            os.fsync(stream.fileno())

        yield append


def _parse(line: str) -> Any:
    """Return the content of a line; None if it was cut short when the run was stopped."""
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None


def _line(content: Mapping[str, Any]) -> str:
    return json.dumps(content, allow_nan=False) + "\n"
