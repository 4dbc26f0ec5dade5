"""Errors and warnings as one line on standard error, with exit codes for scripts."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import typer

from kcal import errors
from kcal.errors import InvalidInputError, KcalError, KcalWarning, printable

BAD_DATA, USAGE, OVERLAP, STOPPED = 1, 2, 3, 130

EXIT_CODES = (
    "[bold]Exit codes:[/bold] 0 success; 1 the data or the model cannot be used, or a file cannot be read or written; "
    "2 the command or an option is wrong; 3 evaluate refused rows that the model was fitted on; 130 stopped by Ctrl-C."
)

OPTIONS = (
    "bandwidth", "bandwidth_reference", "confidence", "dimension", "folds", "kernel", "max_loss_increase", "prior",
    "projection", "recipe", "representation", "resamples", "seed", "size", "smoothing",
)  # fmt: skip
"""Parameters of the library that are options of the same name."""

DATA_NAMES = {
    "X": "the array", "y": "labels", "sample_weight": "weights", "folder": "TASKS",
    "address": "--address", "data": "DATA", "out": "--out",
    "train_embeddings": "training embeddings", "train_labels": "training labels",
} | {name: name for name in (
    "classes", "embeddings", "groups", "ids", "labels", "logits", "probabilities", "weights"
)}  # fmt: skip
"""What arguments of the library are called on the command line and in files."""

NO_TRAINING_SET = "Pass --train FILE, or --projection identity with method kcal or kcal-logits."

ERROR_REMEDIES = {
    "bandwidth": "Pass a number with --bandwidth.",
    "classes": "List all classes with --classes.",
    "prior": "Pass a share for each class, such as cat=0.2,dog=0.8.",
    "projection": NO_TRAINING_SET,
    "train_embeddings": NO_TRAINING_SET,
    "y": "List the class of every column, in order, with --classes.",
}
"""What to do about a parameter on the command line, in place of the library's remedy in Python."""

WARNING_REMEDIES: dict[type[KcalWarning], str] = {
    errors.BandwidthWarning: "Pass a number with --bandwidth.",
    errors.HeldOutWarning: NO_TRAINING_SET,
    errors.LeakageWarning: "Or use the leave-one-out log-loss that kcal fit prints.",
    errors.RepresentationWarning: "Pass --representation probabilities if it is.",
}
"""The same for warnings."""

MISSING_CLASS_REMEDIES = {
    "smoothing": "Or pass --smoothing 1e-3 to give them some probability.",
    "logits": "Or give logits too, with --logits FILE or --logit-columns.",
}
"""The same for classes without a sample, by the parameter of the method that helps."""

_UsageError: Any = typer.BadParameter.__base__
"""The base class of all errors of typer about options and commands, for which it exports no name."""


class OverlapError(KcalError):
    """Raise for data to evaluate on that contain rows of the calibration set."""


def check_options(*problems: tuple[Any, str]) -> None:
    """Raise a usage error with the message of the first problem that is there."""
    for is_there, message in problems:
        if is_there:
            raise typer.BadParameter(message)


def option_name(parameter: str) -> str:
    """Return the option of a parameter."""
    return f"--{parameter.replace('_', '-')}"


@contextmanager
def readable_messages() -> Iterator[None]:
    """Turn errors of kcal and of the file system into one line and an exit code; show warnings as lines.

    So does Ctrl-C; the text of the KeyboardInterrupt says what was kept.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", KcalWarning)
            # The columns of tables are matched by name before a calibrator gets them as an array.
            warnings.filterwarnings("ignore", "X does not have valid feature names", UserWarning)
            warnings.showwarning = _show_warning
            yield
    except _UsageError as error:
        raise _stop(error.format_message() if getattr(error, "param", None) else error.message, USAGE) from error
    except OverlapError as error:
        raise _stop(str(error), OVERLAP) from error
    except KcalError as error:
        name = error.parameter if isinstance(error, InvalidInputError) else ""
        is_option = name in OPTIONS or name.startswith(("--", "NAME"))
        raise _stop(error_text(error), USAGE if is_option else BAD_DATA) from error
    except KeyboardInterrupt as stop:
        raise _stop(str(stop) or "nothing was written.", STOPPED, "stopped") from stop
    except BrokenPipeError:
        raise  # the reader of the output left; typer ends quietly
    except OSError as error:
        file = f"{error.filename}: " if error.filename else ""
        raise _stop(f"{file}{error.strerror or error}.", BAD_DATA) from error


@contextmanager
def remedies_for(parameters: Collection[str]) -> Iterator[None]:
    """Show remedies that a method accepts with its warnings; ``parameters`` are its own and those of its ``fit``."""
    missing = next((remedy for name, remedy in MISSING_CLASS_REMEDIES.items() if name in parameters), None)
    remedies = WARNING_REMEDIES | ({} if missing is None else {errors.MissingClassWarning: missing})
    with warnings.catch_warnings():
        warnings.showwarning = partial(_show_warning, remedies=remedies)
        yield


@contextmanager
def errors_about(file: str, parameters: Collection[str] = ()) -> Iterator[None]:
    """Put the name of a file before errors about its data, and ``--set`` before parameters that are no options."""
    try:
        yield
    except InvalidInputError as error:
        name = error.parameter
        if name in parameters and name not in OPTIONS:
            raise InvalidInputError(f"--set {name}", error.expected, got=error.got, remedy=error.remedy) from error
        if name not in DATA_NAMES:
            raise
        raise KcalError(f"{file}: {error_text(error)}") from error


def error_text(error: KcalError) -> str:
    """Return an error's message with options and names of data in place of the library's arguments."""
    if not isinstance(error, InvalidInputError) or not error.expected:
        return str(error)
    name = error.parameter
    shown = option_name(name) if name in OPTIONS else DATA_NAMES.get(name, name)
    remedy = error.remedy and ERROR_REMEDIES.get(name, error.remedy)
    return str(InvalidInputError(shown, error.expected, got=error.got, remedy=remedy))


@contextmanager
def stop_says_what_is_kept(outputs: Collection[Path]) -> Iterator[None]:
    """On Ctrl-C, name the files that were written; ``outputs`` are files and folders that a command may write."""
    before = _stamps(outputs)
    try:
        yield
    except KeyboardInterrupt as stop:
        if str(stop):
            raise
        written = [path for path, stamp in _stamps(outputs).items() if before.get(path) != stamp]
        text = f"complete and kept: {', '.join(map(str, written))}." if written else "nothing was written."
        raise KeyboardInterrupt(text) from stop


def _stamps(outputs: Collection[Path]) -> dict[Path, tuple[int, int]]:
    """Return the identity and the time of every file among the outputs and in their folders."""
    files = [file for path in outputs for file in (sorted(path.iterdir()) if path.is_dir() else (path,))]
    return {file: (file.stat().st_ino, file.stat().st_mtime_ns) for file in files if file.is_file()}


def _stop(message: str, code: int, kind: str = "error") -> typer.Exit:
    typer.secho(f"{kind}: ", err=True, nl=False, bold=True, fg="red" if kind == "error" else "yellow")
    typer.echo(printable(message), err=True)
    return typer.Exit(code)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: Any = None,
    *,
    remedies: Mapping[type[KcalWarning], str] = WARNING_REMEDIES,
) -> None:
    text = str(message)
    if isinstance(message, KcalWarning) and message.remedy:
        text = f"{message.description} {remedies.get(type(message), message.remedy)}"
    elif not issubclass(category, KcalWarning):
        text = f"{text} ({Path(filename).name}, line {lineno})"
    typer.secho("warning: ", err=True, nl=False, bold=True, fg="yellow")
    typer.echo(printable(text), err=True)
