"""Predictions for more rows than one process should hold: parquet files in, partitioned parquet out.

A part of an input file is scored by one call and written as one file, under a temporary name and then renamed: it is
there as a whole or not at all. Its name has a hash of the input file, the model and the settings: a part that is there
needs no other check. A manifest of all parts is written at the end.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kcal import errors
from kcal.calibrators import Calibrator, predict_on
from kcal.deployment import CalibratedClassifier
from kcal.distributed.engine import connect, count_workers, run_tasks
from kcal.distributed.tables import (
    PART_ROWS,
    Columns,
    InputFile,
    Part,
    default_columns,
    find_files,
    prediction_columns,
)
from kcal.embeddings import ClassifierOutputs
from kcal.embeddings.networks import checksum
from kcal.embeddings.read import matrix_of
from kcal.errors import FileFormatError, InvalidInputError, KcalError, KcalWarning, warn
from kcal.files import atomic_path, check_path, locked_folder, write_whole
from kcal.persistence import load_calibrator, to_bytes
from kcal.progress import progress_bar
from kcal.threads import one_thread
from kcal.validation import check_choice, check_integer, check_number, checked_parameters, parameter, shown

Model = Calibrator | CalibratedClassifier
ENGINES = ("ray", "local")
BLOCK_ROWS = 16_384
"""Rows that a calibrator gets at once: a multiple of the blocks in which projections and kernel sums are computed."""
NETWORK_ROWS = 256
"""Rows that a network gets at once."""
MANIFEST, LOCK = "_manifest.json", "_run.lock"
"""Manifest and lock of a folder: readers of partitioned parquet skip a leading underscore."""
TEMPORARY = f".{'[0-9a-f]' * 16}.parquet"
"""Names of parts that are being written, as :func:`kcal.files.atomic_path` makes them."""


@dataclass(frozen=True)
class Workers:
    """Processes that score on Ray.

    ``count`` is as many as the cluster has room for by default. ``num_gpus`` of each is by default 1 for a network on
    a cluster with GPUs, else 0. ``address`` is that of :func:`kcal.distributed.connect`.
    """

    count: int | None = parameter(None, check_integer, minimum=1, maximum=1_000_000)
    num_cpus: float = parameter(1.0, check_number, minimum=0)
    num_gpus: float | None = parameter(None, check_number, minimum=0)
    address: str | None = None

    def __post_init__(self) -> None:
        checked_parameters(self)

    def needs(self, ray: Any, model: Model) -> dict[str, float]:
        """Return what each process needs."""
        resources, num_gpus = ray.cluster_resources(), self.num_gpus
        if num_gpus is None:
            num_gpus = float(isinstance(model, CalibratedClassifier) and resources.get("GPU", 0) >= 1)
        return {"num_cpus": min(self.num_cpus, resources.get("CPU", 0.0)), "num_gpus": num_gpus}


@dataclass(frozen=True)
class Predictions:
    """Predictions in a folder: rows in all, parts in all, and parts that this run computed."""

    folder: Path
    n_rows: int
    n_parts: int
    n_computed: int

    def __str__(self) -> str:
        computed = "" if self.n_computed == self.n_parts else f", {self.n_computed:,} of them computed in this run"
        parts = f"{self.n_parts:,} part{'' if self.n_parts == 1 else 's'}"
        return f"{self.folder}: {self.n_rows:,} rows in {parts}{computed}"


def predict(
    data: Any,
    model: Any,
    out: Any = None,
    *,
    columns: Columns | None = None,
    evidence: bool = False,
    engine: str = "ray",
    workers: Workers = Workers(),  # noqa: B008 (frozen)
    rows_at_once: int | None = None,
    part_rows: int = PART_ROWS,
    progress: bool | None = None,
) -> Any:
    """Write a model's predictions for the rows of parquet files, or add them to a Ray pipeline.

    The output is a folder of parquet files, one per part of an input file, in the order of its rows, with the columns
    of ``kcal predict``: the id, ``prediction``, ``p_CLASS`` for every class and ``evidence``. A run that was stopped
    continues where it was: the same call scores only parts that are missing. The numbers of a row are those of
    ``predict_proba`` for the whole file, to the bit, on any number of machines; with another
    ``rows_at_once``, up to the last bits.

    Parameters
    ----------
    data : path, pattern, folder, sequence of them, or ray.data.Dataset
        Parquet files, in a file system that all machines share. Of a Dataset, without ``out``, a lazy Dataset of
        predictions is returned, whose last bits may depend on Ray's batches.
    model : Calibrator, CalibratedClassifier or path
        A fitted model, or the file of a calibrator.
    out : path, optional
        Folder of the predictions for files.
    columns : Columns, optional
        What the model takes. By default the columns that it was fitted on or, if it was fitted on arrays, all columns
        except label, group, weight and id.
    evidence : bool
        Add the column ``evidence`` (methods with evidence).
    engine : "ray" or "local"
        Where to compute: on a Ray cluster, or in this process, with the same parts and the same numbers.
    workers : Workers
        Number and needs of the processes on Ray.
    rows_at_once : int, optional
        Rows that the model gets at once; by default 16,384, and 256 for a network.
    part_rows : int
        Rows of an output file; more where a row group of the input has more.
    progress : bool, optional
        A progress bar; by default only in a terminal.

    Returns
    -------
    Predictions or ray.data.Dataset
    """
    check_choice(engine, "engine", ENGINES)
    check_integer(part_rows, "part_rows", minimum=1, maximum=10**9)
    scorer = Scorer.of(model, columns, rows_at_once, evidence)
    if hasattr(data, "map_batches"):
        if out is not None:
            remedy = "Write its rows with data.write_parquet(folder), and pass that folder as data."
            raise InvalidInputError("out", "must be left out for a ray.data.Dataset", got=str(out), remedy=remedy)
        return _lazy_predictions(data, scorer.for_table(data.schema().names), workers)
    folder = None if out is None else check_path(out, "out").resolve()
    if folder is None or (folder.exists() and not folder.is_dir()):
        raise InvalidInputError("out", "must be a folder, new or of a run that was stopped", got=str(out))
    if engine == "ray":
        connect(workers.address)  # before anything is written
    files = [InputFile.read(path) for path in find_files(data)]
    scorer = scorer.for_table(list(files[0].columns))
    for file in files:
        scorer.columns.check(file.columns, file.path, like=files[0].columns)
    parts = [part for file in files for part in file.parts(part_rows, scorer.rows, scorer.digest(part_rows))]
    folder.mkdir(parents=True, exist_ok=True)
    with locked_folder(folder, LOCK):
        _check_folder(folder, parts)
        _remove_leftovers(folder)
        missing = _missing(folder, parts)
        if engine == "ray" and missing:
            _collect(_on_ray(missing, scorer, folder, workers), len(missing), progress)
        else:
            _collect((scorer.write(part, folder) for part in missing), len(missing), progress)
        if lost := _missing(folder, parts):
            problem = f"{folder / lost[0].name} was written, but is not there"
            raise FileFormatError(f"{problem}: all machines must share the folder, and nobody may remove its files.")
        _remove_leftovers(folder)
        listed = [{"file": part.path, "first_row": part.start, "rows": len(part), "name": part.name} for part in parts]
        content = {"rows": sum(map(len, parts)), "parts": listed}
        write_whole(folder / MANIFEST, json.dumps(content, indent=1).encode())
    return Predictions(folder, sum(map(len, parts)), len(parts), len(missing))


def _collect(finished: Iterable[frozenset[tuple[str, str]]], total: int, progress: bool | None) -> None:
    """Wait for all parts, and issue every warning, by its class and text, once."""
    issued: set[tuple[str, str]] = set()
    with progress_bar("Scoring", total, show=progress) as advance:
        for warned in finished:
            for name, text in sorted(warned - issued):
                warn(text, getattr(errors, name))
            issued |= warned
            advance("")


def _check_folder(folder: Path, parts: Sequence[Part]) -> None:
    """Raise if a folder holds other files than these parts."""
    others = sorted({file.name for file in folder.glob("[!.]*.parquet")} - {part.name for part in parts})
    if others:
        expected = "must be empty or hold predictions of the same model and settings, for these files as they are now"
        remedy = "Choose another folder, or remove this one."
        raise InvalidInputError("out", expected, got=str(folder / others[0]), remedy=remedy)


def _remove_leftovers(folder: Path) -> None:
    """Remove what processes that were killed left half-written."""
    for leftover in folder.glob(TEMPORARY):
        leftover.unlink(missing_ok=True)


def _missing(folder: Path, parts: Sequence[Part]) -> list[Part]:
    """Return the parts that are not written yet."""
    written = {path.name for path in folder.glob("*.parquet")}
    return [part for part in parts if part.name not in written]


@dataclass(frozen=True, eq=False)
class Scorer:
    """A model with the columns that it takes; ``rows`` are those that it gets at once."""

    model: Model
    columns: Any  # Columns, or None before a table is known
    rows: int
    evidence: bool

    @classmethod
    def of(cls, model: Any, columns: Columns | None, rows: int | None, evidence: bool) -> Scorer:
        """Return the scorer of a fitted model, or of a calibrator's file."""
        fitted = load_calibrator(model) if isinstance(model, str | Path) else model
        if not isinstance(fitted, CalibratedClassifier | Calibrator):
            raise InvalidInputError("model", "must be a calibrator, a CalibratedClassifier or a file", got=shown(model))
        _ = fitted.classes_  # raises if it is not fitted
        if rows is None:
            rows = NETWORK_ROWS if isinstance(fitted, CalibratedClassifier) else BLOCK_ROWS
        check_integer(rows, "rows_at_once", minimum=1, maximum=10**9)
        scorer = cls(fitted, columns, rows, evidence)
        if evidence and not scorer.calibrator.tags.has_evidence:
            problem = f"needs a kcal model; this one is of method {scorer.calibrator.method}"
            raise InvalidInputError("evidence", problem)
        return scorer

    @property
    def calibrator(self) -> Any:
        """The model itself, or the calibrator of a classifier."""
        return self.model.calibrator if isinstance(self.model, CalibratedClassifier) else self.model

    def for_table(self, names: Sequence[str]) -> Scorer:
        """Return the scorer with the columns of tables of these names."""
        fitted = [str(name) for name in vars(self.calibrator).get("feature_names_in_", ())]
        return replace(self, columns=self.columns or default_columns(names, fitted))

    def digest(self, part_rows: int) -> str:
        """Return a short hash of everything that predictions and their parts depend on."""
        digest = hashlib.sha256(to_bytes(self.calibrator))
        if isinstance(self.model, CalibratedClassifier):
            digest.update(checksum(self.model.network).encode())
        digest.update(repr((self.columns, self.evidence, self.rows, part_rows)).encode())
        return digest.hexdigest()[:16]

    def table(self, rows: Any) -> Any:
        """Return the predictions for the rows of a table, of pyarrow."""
        import pyarrow

        outputs, calibrator = self._outputs(rows), self.calibrator
        probs = np.asarray(predict_on(calibrator, outputs))
        evidence = np.asarray(calibrator.evidence(outputs.matrix(calibrator.inputs))) if self.evidence else None
        ids, name = None if self.columns.ids is None else rows.column(self.columns.ids), self.columns.id_name
        return pyarrow.table(prediction_columns(probs, self.model.classes_, ids=ids, id_column=name, evidence=evidence))

    def write(self, part: Part, folder: Path) -> frozenset[tuple[str, str]]:
        """Write the predictions of a part, unless they are there; return the warnings, each by its class and text."""
        target = folder / part.name
        if target.exists():
            return frozenset()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", KcalWarning)
            try:
                with one_thread(), atomic_path(target) as temporary:
                    self._write_blocks(part, temporary)
            except (KcalError, OSError) as error:
                raise KcalError(f"{part.path}, rows {part.start:,} to {part.stop:,}: {error}") from error
        return frozenset((entry.category.__name__, str(entry.message)) for entry in caught)

    def _write_blocks(self, part: Part, path: Path) -> None:
        from pyarrow.parquet import ParquetWriter

        tables = map(self.table, part.blocks(self.columns.names, self.rows))
        first = next(tables)
        with ParquetWriter(path, first.schema) as writer:
            for table in chain([first], tables):
                writer.write_table(table)

    def _outputs(self, rows: Any) -> ClassifierOutputs:
        features = matrix_of(rows, self.columns.features)
        if isinstance(self.model, CalibratedClassifier):
            like = next(self.model.network.parameters(), torch.empty(0))
            inputs = torch.as_tensor(features, device=like.device)
            return self.model.outputs(inputs.to(like.dtype) if features.dtype.kind == "f" else inputs, labelled=False)
        if self.model.inputs == "logits":
            return ClassifierOutputs(logits=features)
        return ClassifierOutputs(features, matrix_of(rows, self.columns.logits) if self.columns.logits else None)


def _on_ray(parts: Sequence[Part], scorer: Scorer, folder: Path, workers: Workers) -> Iterator[Any]:
    """Return the warnings of parts as tasks finish them."""
    ray = connect(workers.address)
    needs, reference = workers.needs(ray, scorer.model), ray.put(scorer)
    calls = (([reference], needs["num_gpus"] > 0, part, folder) for part in parts)
    return run_tasks(ray, write_part, calls, at_once=workers.count or count_workers(ray, **needs), **needs)


def _lazy_predictions(dataset: Any, scorer: Scorer, workers: Workers) -> Any:
    """Return the lazy data set of predictions."""
    ray = connect(workers.address)
    needs = workers.needs(ray, scorer.model)
    return dataset.map_batches(
        score_batch,
        batch_size=scorer.rows,
        batch_format="pyarrow",
        fn_args=([ray.put(scorer)], needs["num_gpus"] > 0),
        concurrency=workers.count,
        num_cpus=needs["num_cpus"],
        num_gpus=needs["num_gpus"] or None,
    )


def write_part(reference: Sequence[Any], on_gpu: bool, part: Part, folder: Path) -> Any:
    """Write the predictions of a part, in a task."""
    return _in_worker(reference[0], on_gpu).write(part, folder)


def score_batch(rows: Any, reference: Sequence[Any], on_gpu: bool) -> Any:
    """Return the predictions for the rows of a Dataset, in a task."""
    return _in_worker(reference[0], on_gpu).table(rows)


@lru_cache(maxsize=1)
def _in_worker(reference: Any, on_gpu: bool) -> Scorer:
    """Return the scorer in a process of Ray, which loads it once, and moves its model to the GPU of the process."""
    import ray

    scorer: Scorer = ray.get(reference)
    if on_gpu and (isinstance(scorer.model, CalibratedClassifier) or scorer.model.tags.has_support):
        scorer.model.to("cuda")
    return scorer
