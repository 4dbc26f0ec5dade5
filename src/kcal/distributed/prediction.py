"""Predictions for more rows than one process should hold: parquet files in, partitioned parquet out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kcal import errors
from kcal.deployment import CalibratedClassifier
from kcal.distributed.engine import connect, count_workers, find_cluster, require_ray
from kcal.distributed.manifest import LOCK, Plan
from kcal.distributed.parts import PART_ROWS, InputFile, Part, find_files
from kcal.distributed.scoring import (
    BLOCK_ROWS,
    NETWORK_ROWS,
    Done,
    Model,
    Scorer,
    calibrator_of,
    get_model,
    model_digest,
)
from kcal.distributed.tables import Columns, default_columns
from kcal.errors import InvalidInputError, KcalError, warn
from kcal.files import check_path, locked_folder
from kcal.progress import progress_bar
from kcal.validation import check_choice, check_integer, check_number, checked_parameters, parameter

ENGINES = ("ray", "local")
SPOOLED = "_rows"
"""Folder below the output for the rows of a Dataset, while they are scored."""


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

    def options(self, ray: Any, model: Model, n_tasks: int | None = None) -> dict[str, Any]:
        """Return the arguments of ``map_batches`` for these workers, on ``n_tasks`` parts or on rows that Ray reads.

        One core stays free for reading: a task that Ray could not start beside the workers would be waited for forever.
        """
        resources, num_cpus, num_gpus = ray.cluster_resources(), self.num_cpus, self.num_gpus
        if num_gpus is None:
            has_gpus = resources.get("GPU", 0) >= 1
            num_gpus = 1.0 if has_gpus and isinstance(model, CalibratedClassifier) else 0.0
        free_cpus = 1.0 if n_tasks is None else 0.0
        if n_tasks is None:
            num_cpus = min(num_cpus, max(resources.get("CPU", 0.0) - free_cpus, 0.0))
        room = count_workers(ray, num_cpus=num_cpus, num_gpus=num_gpus, free_cpus=free_cpus)
        count = min(self.count or room, n_tasks or room)
        pool = ray.data.ActorPoolStrategy(min_size=1, max_size=count, initial_size=1 if n_tasks is None else count)
        return {"compute": pool, "num_cpus": num_cpus, "num_gpus": num_gpus or None}


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
    fitted = get_model(model)
    if evidence and not calibrator_of(fitted).has_evidence:
        raise InvalidInputError("evidence", f"needs a kcal model; this one is of method {calibrator_of(fitted).method}")
    default_rows = NETWORK_ROWS if isinstance(fitted, CalibratedClassifier) else BLOCK_ROWS
    rows = default_rows if rows_at_once is None else rows_at_once
    check_integer(rows, "rows_at_once", minimum=1, maximum=10**9)
    check_integer(part_rows, "part_rows", minimum=1, maximum=10**9)

    def scorer_for(names: Sequence[str]) -> Scorer:
        known = [str(name) for name in vars(calibrator_of(fitted)).get("feature_names_in_", ())]
        chosen = columns or default_columns(names, known, logits)
        return Scorer(fitted, chosen, rows, evidence)

    is_dataset = hasattr(data, "map_batches")
    if is_dataset and out is None:
        return _scored(data, scorer_for(data.schema().names), workers)
    folder = _output_folder(out)
    if is_dataset:
        data = _spooled(data, folder)
    if engine == "ray" and (not require_ray().is_initialized() or workers.address):
        find_cluster(workers.address)  # before anything is written
    files = [InputFile.read(path) for path in find_files(data)]
    scorer = scorer_for(list(files[0].columns))
    for file in files:
        scorer.columns.check(list(file.columns), file.path)
        ids = scorer.columns.ids
        if ids is not None and file.columns[ids] != files[0].columns[ids]:
            expected = f"must have ids of the type of those in {files[0].path}, {files[0].columns[ids]}"
            raise InvalidInputError(file.path, expected, got=file.columns[ids])
    parts = [part for file in files for part in file.parts(part_rows, rows)]
    settings = {"model": model_digest(fitted), "columns": json.loads(json.dumps(asdict(scorer.columns)))}
    settings |= {"evidence": evidence, "rows_at_once": rows, "part_rows": part_rows}
    return _run(Plan(folder, settings, parts), scorer, engine, workers, progress)


def _output_folder(out: Any) -> Path:
    """Return the folder of the predictions; raise if there is a file of that name."""
    expected = "must be a folder, new or of a run that was stopped, for predictions part by part"
    if out is None:
        raise InvalidInputError("out", expected, got="None")
    folder = check_path(out, "out").resolve()
    if folder.exists() and not folder.is_dir():
        raise InvalidInputError("out", expected, got=f"the file {out}", remedy="Choose another name.")
    return folder


def _run(plan: Plan, scorer: Scorer, engine: str, workers: Workers, progress: bool | None) -> Predictions:
    """Score the parts of a plan that are missing."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    with locked_folder(plan.folder, LOCK):
        plan.begin()
        missing = plan.missing()
        run = _on_ray if engine == "ray" else _in_this_process
        issued: set[tuple[str, str]] = set()
        with progress_bar("Scoring", len(missing), show=progress) as advance:
            for done in run(missing, scorer, plan.folder, workers) if missing else ():
                if done.error:
                    raise KcalError(done.error)
                for name, text in sorted(set(done.warnings) - issued):
                    warn(text, getattr(errors, name))
                issued |= set(done.warnings)
                advance(done.name)
        plan.end()
    shutil.rmtree(plan.folder / SPOOLED, ignore_errors=True)
    return Predictions(plan.folder, plan.n_rows, len(plan.parts), len(missing))


def _in_this_process(parts: Sequence[Part], scorer: Scorer, folder: Path, workers: Workers) -> Iterator[Done]:
    return (scorer.write(part, folder) for part in parts)


def _on_ray(parts: Sequence[Part], scorer: Scorer, folder: Path, workers: Workers) -> Iterator[Done]:
    """Yield what workers report of parts; a worker that dies is replaced, and its part is scored again."""
    ray = connect(workers.address)
    options = workers.options(ray, scorer.model, len(parts))
    items = ray.data.from_items([json.dumps(asdict(part)) for part in parts], override_num_blocks=len(parts))
    arguments = {"scorer": ray.put(scorer), "folder": str(folder), "on_gpu": bool(options["num_gpus"])}
    records = items.map_batches(PartWorker, batch_size=1, fn_constructor_kwargs=arguments, **options)
    for record in records.iter_rows():
        content = json.loads(record["done"])
        yield Done(**content | {"warnings": tuple(map(tuple, content["warnings"]))})


def _scored(dataset: Any, scorer: Scorer, workers: Workers) -> Any:
    """Return the lazy data set of predictions."""
    ray = connect(workers.address)
    options = workers.options(ray, scorer.model)
    arguments = {"scorer": ray.put(scorer), "on_gpu": bool(options["num_gpus"])}
    return dataset.map_batches(
        BatchWorker, batch_size=scorer.rows, batch_format="pyarrow", fn_constructor_kwargs=arguments, **options
    )


def _spooled(dataset: Any, folder: Path) -> Path:
    """Write the rows of a data set below the output folder, unless an earlier run has; return where."""
    spooled = folder / SPOOLED
    if not spooled.exists():
        unfinished = folder / f"{SPOOLED}_unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        dataset.write_parquet(str(unfinished))
        unfinished.rename(spooled)
    return spooled


class PartWorker:
    """An actor that holds a model and writes the predictions of the parts that it is given."""

    def __init__(self, scorer: Any, folder: str, on_gpu: bool) -> None:
        self.scorer, self.folder = _received(scorer, on_gpu), Path(folder)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Write parts; return what became of them."""
        done = [self.scorer.write(Part(**json.loads(str(item))), self.folder) for item in batch["item"]]
        return {"done": [json.dumps(asdict(entry)) for entry in done]}


class BatchWorker:
    """An actor that holds a model and returns the predictions of the rows that it is given."""

    def __init__(self, scorer: Any, on_gpu: bool) -> None:
        self.scorer = _received(scorer, on_gpu)

    def __call__(self, batch: Any) -> Any:
        """Return the predictions for a table."""
        return self.scorer.table(batch)


def _received(reference: Any, on_gpu: bool) -> Scorer:
    """Return the scorer of a reference, on the GPU of this worker."""
    import ray

    scorer: Scorer = ray.get(reference)
    if on_gpu:
        scorer.to("cuda")
    return scorer
