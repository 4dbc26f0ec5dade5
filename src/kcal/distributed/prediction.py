"""Predictions for more rows than one process should hold: parquet files in, partitioned parquet out.

A part of an input file is scored by one call and written as one file, under a temporary name and then renamed: it is
there as a whole or not at all. Its name has a hash of the input file, the model and the settings: a part that is there
needs no other check. A manifest of all parts is written at the end.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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
    matrix_of,
    prediction_columns,
)
from kcal.embeddings import ClassifierOutputs
from kcal.embeddings.networks import checksum
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
MANIFEST, LOCK, SPOOLED = "_manifest.json", "_run.lock", "_rows"
"""Manifest, lock and folder for the rows of a Dataset: readers of partitioned parquet skip a leading underscore."""
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

    def needs(self, ray: Any, model: Model, *, free_cpus: float = 0.0) -> tuple[int, dict[str, float]]:
        """Return how many workers there are beside ``free_cpus`` cores, and the needs of each."""
        resources = ray.cluster_resources()
        num_cpus = min(self.num_cpus, max(resources.get("CPU", 0.0) - free_cpus, 0.0))
        num_gpus = self.num_gpus
        if num_gpus is None:
            num_gpus = float(isinstance(model, CalibratedClassifier) and resources.get("GPU", 0) >= 1)
        room = count_workers(ray, num_cpus=num_cpus, num_gpus=num_gpus, free_cpus=free_cpus)
        return self.count or room, {"num_cpus": num_cpus, "num_gpus": num_gpus}


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
    logits: Sequence[str] = (),
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
    ``predict_proba`` for the whole file, to the bit, on any number of machines.

    Parameters
    ----------
    data : path, pattern, folder, sequence of them, or ray.data.Dataset
        Parquet files, in a file system that all machines share. The rows of a Dataset are first written to the output
        folder and removed at the end; without ``out``, a lazy Dataset of predictions is returned, whose last bits may
        depend on Ray's batches.
    model : Calibrator, CalibratedClassifier or path
        A fitted model, or the file of a calibrator.
    out : path, optional
        Folder of the predictions.
    columns : Columns, optional
        What the model takes. By default the columns that it was fitted on or, if it was fitted on arrays, all columns
        except ``logits``, label, group, weight and id.
    logits : sequence of str
        Columns of logits beside embeddings, in the order of the classes, where ``columns`` is left out.
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
    fitted = _check_model(model)
    calibrator = _calibrator_of(fitted)
    if evidence and not calibrator.tags.has_evidence:
        raise InvalidInputError("evidence", f"needs a kcal model; this one is of method {calibrator.method}")
    default_rows = NETWORK_ROWS if isinstance(fitted, CalibratedClassifier) else BLOCK_ROWS
    rows = default_rows if rows_at_once is None else rows_at_once
    check_integer(rows, "rows_at_once", minimum=1, maximum=10**9)
    check_integer(part_rows, "part_rows", minimum=1, maximum=10**9)

    def scorer_for(names: Sequence[str]) -> Scorer:
        known = [str(name) for name in vars(calibrator).get("feature_names_in_", ())]
        return Scorer(fitted, columns or default_columns(names, known, logits), rows, evidence)

    is_dataset = hasattr(data, "map_batches")
    if is_dataset and out is None:
        return _lazy_predictions(data, scorer_for(data.schema().names), workers)
    folder = None if out is None else check_path(out, "out").resolve()
    if folder is None or (folder.exists() and not folder.is_dir()):
        raise InvalidInputError("out", "must be a folder, new or of a run that was stopped", got=str(out))
    if engine == "ray":
        connect(workers.address)  # before anything is written
    files = [InputFile.read(path) for path in find_files(_spool(data, folder) if is_dataset else data)]
    scorer = scorer_for(list(files[0].columns))
    for file in files:
        scorer.columns.check(list(file.columns), file.path)
        ids = scorer.columns.ids
        if ids is not None and file.columns[ids] != files[0].columns[ids]:
            expected = f"must have ids of the type of those in {files[0].path}, {files[0].columns[ids]}"
            raise InvalidInputError(file.path, expected, got=file.columns[ids])
    settings = hashlib.sha256(repr((_digest(fitted), scorer.columns, evidence, rows, part_rows)).encode())
    parts = [part for file in files for part in file.parts(part_rows, rows, settings.hexdigest()[:8])]
    folder.mkdir(parents=True, exist_ok=True)
    with locked_folder(folder, LOCK):
        _check_folder(folder, parts)
        _remove_leftovers(folder)
        missing = _missing(folder, parts)
        run = _on_ray if engine == "ray" else _in_this_process
        _collect(run(missing, scorer, folder, workers) if missing else (), len(missing), progress)
        if lost := _missing(folder, parts):
            problem = f"{folder / lost[0].name} was written, but is not there"
            raise FileFormatError(f"{problem}: all machines must share the folder, and nobody may remove its files.")
        _remove_leftovers(folder)
        listed = [{"file": part.path, "first_row": part.start, "rows": len(part), "name": part.name} for part in parts]
        content = {"rows": sum(map(len, parts)), "parts": listed}
        write_whole(folder / MANIFEST, json.dumps(content, indent=1).encode())
    shutil.rmtree(folder / SPOOLED, ignore_errors=True)
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


def _check_model(model: Any) -> Model:
    """Return a fitted calibrator or a classifier with one; a path is that of a saved calibrator."""
    if isinstance(model, CalibratedClassifier | Calibrator):
        _ = model.classes_  # raises if it is not fitted
        return model
    if isinstance(model, str | Path):
        return load_calibrator(model)
    raise InvalidInputError("model", "must be a calibrator, a CalibratedClassifier or a file", got=shown(model))


def _calibrator_of(model: Model) -> Calibrator:
    if isinstance(model, CalibratedClassifier):
        assert model.calibrator is not None
        return model.calibrator
    return model


def _digest(model: Model) -> str:
    """Return a hash of everything that predictions depend on."""
    digest = hashlib.sha256(to_bytes(_calibrator_of(model)))
    if isinstance(model, CalibratedClassifier):
        digest.update(checksum(model.network).encode())
    return digest.hexdigest()[:16]


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
    columns: Columns
    rows: int = BLOCK_ROWS
    evidence: bool = False

    def to(self, device: str) -> None:
        """Move the model to a device, where it can run on one."""
        if hasattr(self.model, "to"):
            self.model.to(device)

    def table(self, rows: Any) -> Any:
        """Return the predictions for the rows of a table, of pyarrow."""
        import pyarrow

        outputs = self._outputs(rows)
        calibrator = _calibrator_of(self.model)
        probs = np.asarray(predict_on(calibrator, outputs))
        evidence = np.asarray(calibrator.evidence(outputs.matrix(calibrator.inputs))) if self.evidence else None
        ids = None if self.columns.ids is None else rows.column(self.columns.ids)
        id_column = self.columns.id_name
        columns = prediction_columns(probs, self.model.classes_, ids=ids, id_column=id_column, evidence=evidence)
        return pyarrow.table(columns)

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

        writer = None
        try:
            for block in part.blocks(self.columns.names, self.rows):
                scored = self.table(block)
                writer = writer or ParquetWriter(path, scored.schema)
                writer.write_table(scored)
        finally:
            if writer is not None:
                writer.close()

    def _outputs(self, rows: Any) -> ClassifierOutputs:
        features = matrix_of(rows, self.columns.features)
        if isinstance(self.model, CalibratedClassifier):
            like = next(self.model.network.parameters(), torch.empty(0))
            inputs = torch.as_tensor(features, device=like.device)
            return self.model.outputs(inputs.to(like.dtype) if features.dtype.kind == "f" else inputs, labelled=False)
        if self.model.inputs == "logits":
            return ClassifierOutputs(logits=features)
        return ClassifierOutputs(features, matrix_of(rows, self.columns.logits) if self.columns.logits else None)


def _in_this_process(parts: Sequence[Part], scorer: Scorer, folder: Path, workers: Workers) -> Iterator[Any]:
    return (scorer.write(part, folder) for part in parts)


def _on_ray(parts: Sequence[Part], scorer: Scorer, folder: Path, workers: Workers) -> Iterator[Any]:
    """Yield the warnings of parts as tasks finish them."""
    ray = connect(workers.address)
    count, needs = workers.needs(ray, scorer.model)
    model, on_gpu = ray.put(scorer), needs["num_gpus"] > 0
    return run_tasks(ray, write_part, ((model, part, folder, on_gpu) for part in parts), at_once=count, **needs)


def write_part(scorer: Scorer, part: Part, folder: Path, on_gpu: bool) -> Any:
    """Write the predictions of a part in a worker."""
    if on_gpu:
        scorer.to("cuda")
    return scorer.write(part, folder)


def _lazy_predictions(dataset: Any, scorer: Scorer, workers: Workers) -> Any:
    """Return the lazy data set of predictions; one core stays free for the tasks before, which Ray must start too."""
    ray = connect(workers.address)
    count, needs = workers.needs(ray, scorer.model, free_cpus=1.0)
    return dataset.map_batches(
        BatchWorker,
        batch_size=scorer.rows,
        batch_format="pyarrow",
        fn_constructor_args=(ray.put(scorer), needs["num_gpus"] > 0),
        concurrency=(1, count),
        num_cpus=needs["num_cpus"],
        num_gpus=needs["num_gpus"] or None,
    )


class BatchWorker:
    """An actor that holds a model and returns the predictions of the rows that it is given."""

    def __init__(self, scorer: Any, on_gpu: bool) -> None:
        import ray

        self.scorer: Scorer = ray.get(scorer)
        if on_gpu:
            self.scorer.to("cuda")

    def __call__(self, batch: Any) -> Any:
        """Return the predictions for a table."""
        return self.scorer.table(batch)


def _spool(dataset: Any, folder: Path) -> Path:
    """Write the rows of a data set below the output folder, unless an earlier run has; return where."""
    spooled = folder / SPOOLED
    if not spooled.exists():
        unfinished = folder / f"{SPOOLED}_unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        dataset.write_parquet(str(unfinished))
        unfinished.rename(spooled)
    return spooled
