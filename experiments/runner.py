"""Measure the variants of a study on the same splits; every measurement is stored and used again."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from experiments.fingerprint import code_fingerprint
from experiments.lines import line_panels
from experiments.output import small_png, tables_csv
from experiments.study import Measurements, Study, StudyOutput, Values
from kcal.benchmark import Task
from kcal.benchmark.store import versions
from kcal.errors import FileFormatError, InvalidInputError
from kcal.files import locked_folder, write_whole
from kcal.progress import Report
from kcal.threads import one_thread

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
        write_output(study, study.show(measured), folder)
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
    """The measurements in a file, one per line."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.stored = {} if path is None else read_lines(path)
        if path is not None:  # whole lines only
            write_whole(path, "".join(_line(key, values) for key, values in self.stored.items()).encode())

    def values(self, key: Key) -> Values | None:
        """Return stored values, if there are any."""
        return self.stored.get(key)

    def add(self, key: Key, values: Values) -> Values:
        """Store values at once, so that a run that is stopped loses no others."""
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(_line(key, values))
        return values


def _line(key: Key, values: Values) -> str:
    return json.dumps({"key": key, "values": values}) + "\n"


def read_lines(path: Path) -> dict[Key, Values]:
    """Return the measurements of a file; the last line may have been cut off."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    stored: dict[Key, Values] = {}
    for number, line in enumerate(lines):
        try:
            content: Any = json.loads(line)
            stored[tuple(content["key"])] = content["values"]
        except (ValueError, KeyError, TypeError) as error:
            if number + 1 < len(lines):
                raise FileFormatError(f"{path} has a line that is not a measurement. Remove the file.") from error
    return stored


def write_output(study: Study, output: StudyOutput, folder: Path) -> list[Path]:
    """Write STUDY.csv and, if there is something to draw, STUDY.png; return the files."""
    files = [write_whole(folder / f"{study.name}.csv", tables_csv(output.tables))]
    if output.panels:
        figure = line_panels(output.panels, columns=output.columns).flat[0].get_figure(root=True)
        files.append(write_whole(folder / f"{study.name}.png", small_png(figure)))
    return files
