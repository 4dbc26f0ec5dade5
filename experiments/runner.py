"""Measure the variants of a study on the same splits; every measurement is stored and used again."""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from experiments.lines import line_panels
from experiments.study import Measurements, Study, StudyOutput, Values
from kcal.benchmark import Task
from kcal.benchmark.store import code_fingerprint, versions
from kcal.errors import FileFormatError, InvalidInputError
from kcal.files import locked_folder, write_whole
from kcal.progress import Report
from kcal.threads import one_thread

COMPLETE = '{"complete": true}'
"""First line of the measurements of a complete run."""
Key = tuple[str, str, str, int]
"""Origin, label of the setting, variant and index of the split."""


def run_study(
    study: Study,
    tasks: Callable[[], Iterable[Task]],
    *,
    n_splits: int = 10,
    seed: int = 0,
    folder: Path | None = None,
    progress: Report = lambda *_: None,
) -> Measurements:
    """Measure what is not stored yet; with a folder, store measurements there and write tables and a figure.

    Stored measurements are used where data, seed, code and package versions are the same.
    """
    if folder is None:
        return _measure(study, tasks(), n_splits, seed, Store(None), progress)
    folder.mkdir(parents=True, exist_ok=True)
    with locked_folder(folder):
        store = Store(folder / f"{study.name}.jsonl")
        measured = _measure(study, tasks(), n_splits, seed, store, progress)
        store.finish()
        write_output(study, study.show(measured), n_splits_of(measured), folder)
    return measured


def _measure(
    study: Study, tasks: Iterable[Task], n_splits: int, seed: int, store: Store, progress: Report
) -> Measurements:
    measured: dict[str, dict[str, list[Values]]] = {}
    for setting in study.settings(tasks, seed):
        if setting.label in measured:
            raise InvalidInputError("tasks", "must have different names", got=f"{setting.label} twice")
        origin = origin_of(study, setting.fingerprint(), seed)
        variants = study.variants(setting)
        splits = setting.splits(min(n_splits, study.max_splits or n_splits))
        measured[setting.label] = {name: [] for name in variants}
        done, total = 0, len(variants) * len(splits)
        progress(setting.label, done, total)
        for name, variant in variants.items():
            for split in splits:
                key = (origin, setting.label, name, split.index)
                with one_thread(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # small parts miss classes, and a pool may hold a row twice
                    values = store.values(key) or store.add(key, variant(split))
                measured[setting.label][name].append(values)
                done += 1
                progress(setting.label, done, total)
    return as_arrays(measured)


def origin_of(study: Study, fingerprint: str, seed: int) -> str:
    """Return a short hash of all that a setting's measurements depend on."""
    home = Path(__file__).parent
    own = code_fingerprint(home, tuple(sorted(path.name for path in home.glob("*.py"))))
    text = repr((study.name, fingerprint, seed, code_fingerprint(), own, versions()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def as_arrays(measured: dict[str, dict[str, list[Values]]]) -> Measurements:
    """Return lists of measurements over splits as arrays."""
    return {
        label: {
            name: {measure: np.array([values[measure] for values in splits], dtype=float) for measure in splits[0]}
            for name, splits in variants.items()
        }
        for label, variants in measured.items()
    }


def n_splits_of(measured: Measurements) -> int:
    """Return the largest number of splits of any variant."""
    arrays = [array for variants in measured.values() for values in variants.values() for array in values.values()]
    return max((len(array) for array in arrays), default=0)


class Store:
    """The measurements in a file, one per line; after a whole run, those of that run under a line that says so."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.stored = {} if path is None else read_lines(path)[0]
        self.used: dict[Key, Values] = {}
        if path is not None:  # whole lines only, and not complete
            write_whole(path, "".join(_line(key, values) for key, values in self.stored.items()).encode())

    def values(self, key: Key) -> Values | None:
        """Return stored values, if there are any."""
        if key in self.stored:
            self.used[key] = self.stored[key]
        return self.stored.get(key)

    def add(self, key: Key, values: Values) -> Values:
        """Store values at once, so that a run that is stopped loses no others."""
        self.used[key] = values
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(_line(key, values))
        return values

    def finish(self) -> None:
        """Keep the measurements of this run alone, and note that they are complete."""
        assert self.path is not None
        lines = [f"{COMPLETE}\n", *(_line(key, values) for key, values in self.used.items())]
        write_whole(self.path, "".join(lines).encode())


def _line(key: Key, values: Values) -> str:
    return json.dumps({"key": key, "values": values}) + "\n"


def read_lines(path: Path) -> tuple[dict[Key, Values], bool]:
    """Return the measurements of a file, and whether they are those of a complete run."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    stored: dict[Key, Values] = {}
    complete = bool(lines) and lines[0] == COMPLETE
    for number, line in enumerate(lines[complete:]):
        try:
            content: Any = json.loads(line)
            stored[tuple(content["key"])] = content["values"]
        except (ValueError, KeyError, TypeError) as error:
            if number + 1 + complete < len(lines):
                raise FileFormatError(f"{path} has a line that is not a measurement. Remove the file.") from error
    return stored, complete


def read_measurements(study: Study, folder: Path) -> Measurements | None:
    """Return the measurements of a complete run in a folder; None if there is none."""
    stored, complete = read_lines(folder / f"{study.name}.jsonl")
    if not complete or not stored:
        return None
    measured: dict[str, dict[str, list[Values]]] = {}
    for (_, label, name, _), values in stored.items():
        measured.setdefault(label, {}).setdefault(name, []).append(values)
    return as_arrays(measured)


def write_output(study: Study, output: StudyOutput, n_splits: int, folder: Path) -> list[Path]:
    """Write STUDY.md and, if there is something to draw, STUDY.png; return the files."""
    files = []
    if output.panels:
        buffer = io.BytesIO()
        axes = line_panels(output.panels, columns=output.columns)
        axes.flat[0].get_figure(root=True).savefig(buffer, format="png", dpi=100)
        files.append(write_whole(folder / f"{study.name}.png", buffer.getvalue()))
    text = markdown(study, output, n_splits, files[0].name if files else None)
    return [write_whole(folder / f"{study.name}.md", text.encode()), *files]


def markdown(study: Study, output: StudyOutput, n_splits: int, picture: str | None) -> str:
    """Return a study as a page."""
    parts = [f"# {study.title}", f"{study.about} Number of splits: {n_splits}."]
    parts += [f"![{study.title}]({picture})"] if picture else []
    parts += [part for table in output.tables for part in (table.as_markdown(), table.note)]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"
