"""What the commands read: outputs by the names that the user gives, in the order of a model's columns and classes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.calibrators import Calibrator
from kcal.cli.messages import OverlapError, check_options
from kcal.embeddings import FileOutputs, read_outputs
from kcal.embeddings.read import PARTS, TABLES, require_pyarrow, shorten
from kcal.errors import InvalidInputError

Options = Mapping[str, Any]
"""The options of a command by name; those of ``PARTS`` and "classes" say what to read."""


def read(
    path: Path, options: Options, takes: Collection[str], *, prefix: Sequence[str] = ("",), needs: Collection[str] = ()
) -> FileOutputs:
    """Read the parts of the data that a command takes; raise for options about others, and for needed parts."""
    check_unused(options, takes)
    given = {part: name for part in PARTS if (name := options.get(part)) is not None}
    wanted = {part: given.get(part, part) if part in takes else None for part in PARTS}
    outputs = read_outputs(path, **wanted, classes=parse_classes(options.get("classes")), prefix=prefix)
    for part in needs:
        if getattr(outputs, part) is None:
            problem = f"has no {part}; it has {shorten(outputs.available) or 'nothing with a name'}"
            raise InvalidInputError(str(path), problem, remedy=f"Name them with --{part}, in this file or another one.")
    return outputs


def check_unused(options: Options, takes: Collection[str]) -> None:
    """Raise for options about parts of the data that are not taken."""
    unused = ", ".join(f"--{part}" for part in PARTS if options.get(part) is not None and part not in takes)
    check_options((unused, f"{unused} would have no effect here. Leave it out."))


def parts_to_fit(calibrator: Calibrator) -> set[str]:
    """Return the parts of the calibration set that a method takes."""
    matrices = {"logits": {"logits"}, "embeddings": {"embeddings"}, "both": {"embeddings", "logits"}}
    return matrices[calibrator.inputs] | {"labels", "weights"} | ({"groups", "ids"} & calibrator.fit_options)


def read_training(
    calibrator: Calibrator,
    data: Path,
    calibration: FileOutputs,
    options: Options,
    train: Path | None,
    train_labels: str | None,
) -> FileOutputs | None:
    """Read the training set from ``--train`` or, under names that begin with ``train_``, from the npz file of DATA."""
    learns = calibrator.uses_training_set
    check_options(
        (train_labels is not None and not train, "--train-labels needs --train, the file that the labels belong to."),
        (
            train and not learns,
            f"--train has no effect: method {calibrator.method} learns no projection with these options.",
        ),
    )
    matrix = "logits" if calibrator.inputs == "logits" else "embeddings"
    if not learns or not (train or f"train_{options.get(matrix) or matrix}" in calibration.available):
        return None
    names = {part: name for part, name in options.items() if part in ("classes", "groups", "labels", matrix)}
    names = {part: None if _is_file(name) else name for part, name in names.items()}
    names |= {} if train_labels is None else {"labels": train_labels}
    names |= {matrix: calibration.columns[matrix]} if calibration.columns.get(matrix) else {}
    prefix = ("", "train_") if train else ("train_",)
    needs = (matrix, "labels") if "train_labels" in calibrator.fit_options else (matrix,)
    training = read(train or data, names, {matrix, "labels", "groups"}, prefix=prefix, needs=needs)
    first, second = calibration.classes, training.classes
    if first is not None and second is not None and first.tolist() != second.tolist():
        raise InvalidInputError(f"{data} and {train}", "must list the same classes in the same order")
    return training


def _is_file(name: Any) -> bool:
    return isinstance(name, str) and Path(name).suffix.lower() in (".npz", ".npy", *TABLES)


def with_names(outputs: FileOutputs) -> FileOutputs:
    """Return outputs whose embeddings and logits are tables, if their columns have names, for a model to find them."""
    tables = {}
    for part in ("embeddings", "logits"):
        names, matrix = outputs.columns.get(part, ()), getattr(outputs, part)
        if matrix is not None and len(names) == matrix.shape[1] > 0:
            tables[part] = require_pyarrow().table(list(matrix.T), names=list(names))
    return replace(outputs, **tables)


def parts_to_predict(model: Calibrator) -> dict[str, tuple[str, ...]]:
    """Return the parts of new data that a fitted model needs, each with the columns that it was fitted on."""
    parts = {"logits" if model.inputs == "logits" else "embeddings": "feature_names_in_"}
    parts |= {"logits": "logit_names_in_"} if model.inputs == "both" and model.needs_logits_ else {}
    return {part: tuple(map(str, vars(model).get(names, ()))) for part, names in parts.items()}


def read_for(
    model: Calibrator, path: Path, options: Options, more: Collection[str] = (), *, needs: Collection[str] = ()
) -> FileOutputs:
    """Read data for a fitted model: its columns by name, the logits in the order of its classes."""
    fitted = parts_to_predict(model)
    named = {part: names for part, names in fitted.items() if names and path.suffix.lower() in TABLES}
    named = {part: names for part, names in named.items() if not options.get(part)}
    prefix, takes = ("", "test_"), {*fitted, *more}
    outputs = read(path, {**options, **named}, takes, prefix=prefix, needs=(*fitted, *needs))
    for part, names in fitted.items():
        columns = outputs.columns.get(part, ())
        if columns != names and (order := positions(columns, names)):  # found by a pattern, in another order
            outputs = replace(outputs, **{part: getattr(outputs, part)[:, order]}, classes=None)
    return in_order_of(outputs, model.classes_) if "logits" in fitted else outputs


def positions(names: Sequence[Any], expected: Sequence[Any]) -> list[int] | None:
    """Return where the expected names are among others; None if these are not the same names in some order."""
    texts, wanted = [str(name) for name in names], [str(name) for name in expected]
    return [texts.index(name) for name in wanted] if sorted(texts) == sorted(wanted) else None


def align(matrix: NDArray[Any], classes: NDArray[Any], expected: NDArray[Any]) -> NDArray[Any]:
    """Return the columns of a matrix, one per class, in the order of the expected classes."""
    order = positions(classes.tolist(), expected.tolist())
    if order is None:
        problem = f"must be {shorten(expected.tolist())} in all files and methods"
        remedy = "List all classes with --classes."
        raise InvalidInputError("classes", problem, got=shorten(classes.tolist()), remedy=remedy)
    return matrix[:, order]


def in_order_of(outputs: FileOutputs, classes: NDArray[Any]) -> FileOutputs:
    """Return outputs whose columns of logits follow ``classes``; without names they are taken to do so."""
    if outputs.classes is None or outputs.logits.shape[1] != len(outputs.classes):
        return outputs
    return replace(outputs, logits=align(outputs.logits, outputs.classes, classes), classes=classes)


def check_overlap(model: Calibrator, outputs: FileOutputs, path: Path) -> None:
    """Raise if data contain rows that the model was fitted on."""
    known = model.was_fitted_on(outputs.matrix(model.inputs))
    if known.any():
        raise OverlapError(
            f"{known.sum():,} of the {len(known):,} rows of {path} are in the calibration set of this model: it would "
            "look better than it is. Evaluate on other data, or pass --allow-overlap."
        )


def parse_classes(text: str | None) -> list[str] | None:
    """Return the names of all classes, each once."""
    names = None if text is None else [name.strip() for name in text.split(",")]
    if names is not None and ("" in names or len(set(names)) < max(len(names), 2)):
        raise InvalidInputError(
            "--classes", "must list at least two classes, each once, such as cat,dog", got=repr(text)
        )
    return names


def n_rows(outputs: FileOutputs) -> int:
    """Return the number of samples."""
    return len(outputs.logits if outputs.embeddings is None else outputs.embeddings)


def check_same_rows(first: FileOutputs, second: FileOutputs, name: str) -> None:
    """Raise if two files are not about the same samples in the same order, as far as they have ids or labels."""
    if n_rows(first) != n_rows(second):
        raise InvalidInputError(name, f"must have {n_rows(first):,} rows", got=f"{n_rows(second):,}")
    for part in ("ids", "labels"):
        expected, values = getattr(first, part), getattr(second, part)
        if expected is not None and values is not None and expected.dtype.kind == values.dtype.kind:
            differ = np.flatnonzero(expected != values)
            if len(differ):
                row = differ[0]
                problem = f"must be in the same order as those of DATA; row {row} is {expected[row].item()!r} there"
                raise InvalidInputError(f"{name}: {part}", problem, got=repr(values[row].item()))
