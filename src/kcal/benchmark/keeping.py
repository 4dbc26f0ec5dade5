"""What a run keeps and finds again: ``cells.jsonl``, every outcome with all that it depends on.

The first line holds the settings, every other one an outcome. A line that was cut short by the end of a run is left
out. An outcome is found again where data, the method's parameters, kcal's code and the packages are the same ones;
others stay in the file, unused, and serve whoever goes back to what they were measured with.
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
from typing import Any, TextIO

import numpy as np

import kcal
from kcal.benchmark.cells import Cell, Origin, Outcome
from kcal.benchmark.tasks import Task
from kcal.errors import FileFormatError, InvalidInputError

CELLS = "cells.jsonl"
PACKAGES = ("kcal", "torch", "numpy", "scipy", "scikit-learn")
"""What computes for every method."""
PACKAGES_OF = {"gp": ("gpytorch",)}
"""And for some alone."""
COMPUTING = (
    "arrays.py",
    "calibrators",
    "kernels",
    "metrics",
    "projection",
    "benchmark/cells.py",
    "benchmark/entrants.py",
    "benchmark/reshuffles.py",
)
"""What of kcal a cell's numbers depend on."""
Kept = Mapping[Cell, list[Outcome]]
"""What was stored of each cell, oldest first."""


def versions() -> dict[str, str]:
    """Return the versions of what computes."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in (*PACKAGES, *(name for names in PACKAGES_OF.values() for name in names)):
        try:
            found[name] = version(name)
        except ModuleNotFoundError:
            continue
    return found


@cache
def code_fingerprint(parts: tuple[str, ...] = COMPUTING) -> str:
    """Return a short hash of kcal's modules as the interpreter reads them: without comments and docstrings."""
    home, found = Path(kcal.__file__).parent, hashlib.sha256()
    for part in parts:
        path = home / part
        for module in [path] if path.is_file() else sorted(path.rglob("*.py")):
            tree = ast.parse(module.read_bytes())
            for node in ast.walk(tree):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    node.body = [line for line in node.body if not _is_text(line)]
            found.update(f"{module.relative_to(home)}\n{ast.dump(tree)}\n".encode())
    return found.hexdigest()[:12]


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)


def task_fingerprint(task: Task) -> str:
    """Return a number that changes when anything that a task holds does."""
    found = zlib.crc32(repr((task.calibration_share, task.classes)).encode())
    for part in (task.train, task.pool):
        for values in (part.embeddings, part.logits, part.labels, part.groups):
            if values is not None:
                found = zlib.crc32(np.ascontiguousarray(values).view(np.uint8).tobytes(), found)
    if task.out_of_scope is not None:
        for values in (task.out_of_scope.embeddings, task.out_of_scope.logits):
            found = zlib.crc32(np.ascontiguousarray(values).view(np.uint8).tobytes(), found)
    for name, logits in sorted(task.companions.items()):
        found = zlib.crc32(np.ascontiguousarray(logits).view(np.uint8).tobytes() + name.encode(), found)
    return f"{found:08x}"


def study_origin(name: str, tasks: Iterable[Task], *, reshuffles: int, seed: int) -> str:
    """Return a short hash of all that a study's numbers depend on."""
    code = code_fingerprint((*COMPUTING, "benchmark/studies", "benchmark/results.py", "benchmark/tables.py"))
    described = (name, [(task.name, task_fingerprint(task)) for task in tasks], reshuffles, seed, code, versions())
    return hashlib.sha256(repr(described).encode()).hexdigest()[:12]


def difference(method: str, stored: Origin | None, now: Origin) -> str | None:
    """Return in words what keeps a stored outcome of a method from being used; None if nothing does."""
    if stored is None:
        return "without a note of what they were measured with"
    if stored.fingerprint != now.fingerprint:
        return "of other data"
    if stored.parameters != now.parameters:
        return f"with other parameters of {method}"
    if stored.code != now.code:
        return "with other code of kcal"
    names = (*PACKAGES, *PACKAGES_OF.get(method, ()))
    others = [name for name in names if stored.versions.get(name) != now.versions.get(name)]
    if not others:
        return None
    told = (f"{name} {stored.versions.get(name, '(none)')}, now {now.versions.get(name, '(none)')}" for name in others)
    return f"with {'; '.join(told)}"


def find_again(kept: Kept, cells: Iterable[Cell], origins: Mapping[str, Origin]) -> tuple[dict[Cell, Outcome], str]:
    """Return the stored outcomes that can be used, without failures, and in words why others cannot ("" if none)."""
    found: dict[Cell, Outcome] = {}
    reasons: Counter[str] = Counter()
    for cell in cells:
        stored = kept.get(cell, [])
        differences = [difference(cell.method, outcome.origin, origins[cell.method]) for outcome in stored]
        usable = [outcome for outcome, reason in zip(stored, differences, strict=True) if reason is None]
        if usable and usable[-1].error is None:
            found[cell] = usable[-1]
        elif not usable and differences:
            reasons[str(differences[-1])] += 1
    return found, ", ".join(f"{count} {reason}" for reason, count in reasons.items())


def read_cells(path: Path, seed: int) -> dict[Cell, list[Outcome]]:
    """Return what a file holds, the last outcome of each cell and origin; nothing if there is no file."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    if not lines:
        return {}
    settings = (_parsed(lines[0]) or {}).get("settings")
    if not isinstance(settings, dict) or "seed" not in settings:
        raise FileFormatError(
            f"{path} does not begin with a run's settings. Choose another folder, or remove the file."
        )
    if settings["seed"] != seed:
        raise InvalidInputError(
            f"{path} holds a run with other settings, seed {settings['seed']}; this one has seed {seed}. "
            "Choose another folder, or remove the file."
        )
    kept: dict[Cell, dict[str, Outcome]] = {}
    for line in lines[1:]:
        stored = _parsed(line)
        if stored is None:
            continue  # cut short when the run was stopped
        try:
            outcome = Outcome.from_json(stored)
        except (KeyError, TypeError, AttributeError) as error:
            raise FileFormatError(f"{path} holds a line that is no outcome of this benchmark ({error}).") from error
        kept.setdefault(outcome.cell, {})[repr(outcome.origin)] = outcome
    return {cell: list(outcomes.values()) for cell, outcomes in kept.items()}


@contextmanager
def appending(path: Path, seed: int, kept: Kept) -> Iterator[Callable[[Outcome], None]]:
    """Yield a function that keeps an outcome for good: it is on disk before the next one begins."""
    fresh = path.with_suffix(".part")
    with fresh.open("w", encoding="utf-8") as stream:  # whole lines only
        _write_line(stream, {"settings": {"seed": seed}})
        for outcomes in kept.values():
            for outcome in outcomes:
                _write_line(stream, outcome.as_json(), on_disk=False)
        os.fsync(stream.fileno())
    fresh.replace(path)
    with path.open("a", encoding="utf-8") as stream:
        yield lambda outcome: _write_line(stream, outcome.as_json())


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _write_line(stream: TextIO, content: Mapping[str, Any], *, on_disk: bool = True) -> None:
    stream.write(json.dumps(content, allow_nan=False) + "\n")
    stream.flush()
    if on_disk:
        os.fsync(stream.fileno())
