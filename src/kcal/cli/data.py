"""What the commands read: outputs by the names that the user gives, in the order of a model's columns and classes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kcal
from kcal.cli.messages import OverlapError, check_options
from kcal.cli.options import PARTS
from kcal.errors import InvalidInputError

if TYPE_CHECKING:
    from kcal.calibrators import Calibrator
    from kcal.embeddings import FileOutputs

Options = Mapping[str, Any]
"""The options of a command by name; those of ``PARTS`` and "classes" say what to read."""
TABLES = (".parquet", ".csv")


def shorten(names: Sequence[Any], limit: int = 8) -> str:
    """Return the first few names, for a message."""
    return kcal.validation.shorten(names, limit)


def read(
    path: Path, options: Options, takes: Collection[str], *, needs: Collection[str] = (), prefix: str = "", by: str = ""
) -> FileOutputs:
    """Read the parts of the data that a command takes; raise for options about others, and for needed parts.

    ``by`` is the method that takes them, for the message.
    """
    check_unused(options, takes, by)
    given = {part: name for part in PARTS if (name := options.get(part)) is not None}
    wanted = {part: given.get(part, part) if part in takes else None for part in PARTS}
    outputs = kcal.read_outputs(path, **wanted, classes=parse_classes(options.get("classes")), prefix=prefix)
    require(outputs, needs, path)
    return outputs


def require(outputs: FileOutputs, needs: Collection[str], path: Path) -> None:
    """Raise if a file has none of a part that is needed, and say what it has."""
    for part in needs:
        if getattr(outputs, part) is None:
            raise _lacking(outputs, path, part)


def require_matrix(outputs: FileOutputs, path: Path) -> None:
    """Raise if a file has neither embeddings nor logits."""
    if outputs.embeddings is None and outputs.logits is None:
        raise _lacking(outputs, path, "embeddings", "logits")


def _lacking(outputs: FileOutputs, path: Path, *parts: str) -> InvalidInputError:
    problem = f"has no {' or '.join(parts)}; it has {shorten(outputs.available) or 'nothing with a name'}"
    named = " or ".join(f"--{part}" for part in parts)
    return InvalidInputError(str(path), problem, remedy=f"Name them with {named}: an array, columns or a file.")


def needs_to_fit(calibrator: Calibrator) -> tuple[str, ...]:
    """Return the parts of the calibration set without which a method cannot be fitted."""
    matrices = ("embeddings", "logits") if calibrator.inputs == "both" else (calibrator.inputs,)
    return ("labels", *(part for part in matrices if part != "logits" or calibrator.tags.needs_logits))


def check_unused(options: Options, takes: Collection[str], by: str = "") -> None:
    """Raise for options about parts of the data that are not taken, by a method or by the command."""
    for part in PARTS:
        unused = options.get(part) is not None and part not in takes
        user = f"method {by} does not use {part}" if by else f"this command does not use {part} here"
        check_options((unused, f"--{part} would have no effect: {user}. Leave it out."))


def parse_classes(text: str | None) -> list[str] | None:
    """Return the names of all classes, each once."""
    names = None if text is None else [name.strip() for name in text.split(",")]
    if names is not None and ("" in names or len(set(names)) < max(len(names), 2)):
        expected = "must list at least two classes, each once, such as cat,dog"
        raise InvalidInputError("--classes", expected, got=repr(text))
    return names


def parts_to_fit(calibrator: Calibrator) -> set[str]:
    """Return the parts of the calibration set that a method takes."""
    matrices = {"both": {"embeddings", "logits"}}.get(calibrator.inputs, {calibrator.inputs})
    return matrices | {"labels", "weights"} | ({"groups", "ids"} & calibrator.tags.fit_options)


def read_training(
    calibrator: Calibrator,
    data: Path,
    calibration: FileOutputs,
    options: Options,
    train: Path | None,
    train_labels: str | None,
) -> FileOutputs | None:
    """Read the training set from ``--train`` or, under names that begin with ``train_``, from the npz file of DATA."""
    learns, method = calibrator.tags.uses_training_set, calibrator.method
    check_options(
        (train_labels is not None and not train, "--train-labels needs --train, the file that the labels belong to."),
        (train and not learns, f"--train has no effect: method {method} learns no projection with these options."),
    )
    matrix = "logits" if calibrator.inputs == "logits" else "embeddings"
    if not learns or not (train or f"train_{options.get(matrix) or matrix}" in calibration.available):
        return None
    of_calibration = kcal.embeddings.read.other_file  # files that options name belong to the calibration set
    named = {part: options.get(part) for part in ("classes", "groups", "labels", matrix)}
    names = {part: name for part, name in named.items() if not of_calibration(name)}
    names |= {} if train_labels is None else {"labels": train_labels}
    names |= {matrix: calibration.columns[matrix]} if calibration.columns.get(matrix) else {}
    needs = (matrix, "labels") if "train_labels" in calibrator.tags.fit_options else (matrix,)
    prefix = "" if train else "train_"
    training = read(train or data, names, {matrix, "labels", "groups"}, needs=needs, prefix=prefix)
    first, second = calibration.classes, training.classes
    if first is not None and second is not None and first.tolist() != second.tolist():
        raise InvalidInputError(f"{data} and {train}", "must list the same classes in the same order")
    return training


def read_for(
    model: Calibrator, path: Path, options: Options, more: Collection[str] = (), *, needs: Collection[str] = ()
) -> FileOutputs:
    """Read data for a fitted model: its columns by name, the logits in the order of its classes."""
    fitted = kcal.calibrators.columns_of_fit(model)
    is_table = path.suffix.lower() in TABLES
    named = {part: names for part, names in fitted.items() if names and is_table and not options.get(part)}
    outputs = read(path, {**options, **named}, {*fitted, *more}, needs=(*fitted, *needs), by=model.method)
    return kcal.calibrators.in_order_of_fit(model, outputs)


def check_overlap(model: Calibrator, outputs: FileOutputs, path: Path) -> None:
    """Raise if data contain rows that the model was fitted on."""
    known = kcal.calibrators.was_fitted_on(model, outputs.matrix(model.inputs))
    if known.any():
        raise OverlapError(
            f"{known.sum():,} of the {len(known):,} rows of {path} are in the calibration set of this model: it would "
            "look better than it is. Evaluate on other data, or pass --allow-overlap."
        )


def n_rows(outputs: FileOutputs) -> int:
    """Return the number of samples."""
    return len(outputs.logits if outputs.embeddings is None else outputs.embeddings)


def check_same_rows(first: FileOutputs, second: FileOutputs, name: str) -> None:
    """Raise if two files are not about the same samples in the same order, as far as they have ids or labels."""
    if n_rows(first) != n_rows(second):
        raise InvalidInputError(name, f"must have {n_rows(first):,} rows", got=f"{n_rows(second):,}")
    for part in ("ids", "labels"):
        expected, values = getattr(first, part), getattr(second, part)
        comparable = expected is not None and values is not None and expected.dtype.kind == values.dtype.kind
        if comparable and (differs := expected != values).any():
            row = differs.argmax()
            problem = f"must be in the same order as those of DATA; row {row} is {expected[row].item()!r} there"
            raise InvalidInputError(f"{name}: {part}", problem, got=repr(values[row].item()))
