"""Predictions for several parquet files, part by part: columns chosen by the first file, one call of the library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from glob import has_magic
from pathlib import Path
from typing import Any

from kcal.calibrators import Calibrator
from kcal.cli.data import Source
from kcal.cli.files import require_pyarrow
from kcal.cli.messages import check_options
from kcal.cli.output import console, shown, shown_log
from kcal.cli.samples import load_to_predict
from kcal.distributed import Columns, Workers, predict
from kcal.distributed.engine import require_ray
from kcal.distributed.prediction import ENGINES
from kcal.distributed.tables import InputFile, find_files
from kcal.embeddings.folder import RECORD
from kcal.persistence import load_calibrator

__all__ = ["ENGINES", "names_several", "predict_files"]

HEAD_ROWS = 1_000
"""Rows of the first file by which its columns are chosen."""


def names_several(data: Path) -> bool:
    """Return whether a path is a pattern or a folder of tables, not a file or a folder of ``kcal.extract``."""
    if data.is_dir():
        return not (data / RECORD).exists()
    return has_magic(str(data)) and not data.exists()


def predict_files(options: Mapping[str, Any]) -> None:
    """Run ``kcal predict`` on several files, with the options of the command by name."""
    check_options(
        (options["logits"], "--logits has no effect on several files: name columns with --logit-columns."),
        (options["ids"], "--ids has no effect on several files: name their column with --id-column."),
    )
    if options["engine"] == "ray":
        require_ray()
    else:
        require_pyarrow()
    calibrator = load_calibrator(options["model"])
    files = find_files(options["data"])
    first = next((file for file in files if InputFile.read(file).rows), files[0])
    with shown_log("kcal.distributed", options["quiet"]):
        result = predict(
            files,
            calibrator,
            options["out"],
            columns=choose_columns(calibrator, first, options),
            evidence=options["evidence"],
            engine=options["engine"],
            workers=Workers(options["workers"], address=options["address"]),
            progress=False if options["quiet"] else None,
        )
    if not options["quiet"]:
        console().print(shown(result), soft_wrap=True)


def choose_columns(calibrator: Calibrator, path: Path, options: Mapping[str, Any]) -> Columns:
    """Return the columns that the command would read of one file, from its first rows; or a column of lists."""
    types = InputFile.read(path).columns
    logits = options["logit_columns"]
    lists = [name for name, kind in types.items() if "list<" in kind and name != logits]
    named = options["feature_columns"]
    if len(lists) == 1 and named in (None, lists[0]) and logits in (None, *types):
        ids = options["id_column"] or "id"
        absent = f"{path} has no column called {ids!r}; it has {', '.join(types)}."
        check_options((options["id_column"] and ids not in types, absent))
        label = options["label_column"]
        check_options((label not in (None, *types), f"{path} has no column called {label!r}."))
        return Columns((lists[0],), () if logits is None else (logits,), ids if ids in types else None, ids)
    source = replace(Source.from_options(path, options, prefixes=("",)), max_rows=HEAD_ROWS)
    head = load_to_predict(calibrator, source, keys=("ids",))
    source.check_used()
    return Columns(
        head.feature_columns, head.logit_columns, dict(head.value_columns).get("ids"), options["id_column"] or "id"
    )
