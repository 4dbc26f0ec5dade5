"""Errors and warnings as one line on standard error, with exit codes for scripts."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from kcal.cli.options import PARTS
from kcal.errors import InvalidInputError, KcalError, KcalWarning, printable

BAD_DATA, USAGE, OVERLAP, STOPPED = 1, 2, 3, 130

EXIT_CODES = (
    "[bold]Exit codes:[/bold] 0 success; 1 the data or the model cannot be used, or a file cannot be read or written; "
    "2 the command, an option or a path is wrong; 3 rows to evaluate on are those that the model was fitted on; 130 "
    "stopped by Ctrl-C."
)

CONTENT = (*PARTS, "classes", "probabilities")
"""Parameters whose errors are about what a file holds, not about the options that name it."""

NAMES_IN_FILES = {"y": "labels"}
"""What a file calls the arguments of the library's ``fit``."""

_UsageError: Any = typer.BadParameter.__base__
"""The base class of all errors of typer about options and commands, for which it exports no name."""


class OverlapError(KcalError):
    """Raise for data to evaluate on that contain rows of the calibration set."""


def check_options(*problems: tuple[Any, str]) -> None:
    """Raise a usage error with the message of the first problem that is there."""
    for is_there, message in problems:
        if is_there:
            raise typer.BadParameter(message)


@contextmanager
def readable_messages(options: Mapping[str, str] = {}) -> Iterator[None]:
    """Turn errors of kcal and of the file system into one line and an exit code; show warnings as lines.

    ``options`` maps parameters of the library to the options that stand for them.
    """

    def show_warning(message: Any, category: Any, filename: str, lineno: int, *_: Any, **__: Any) -> None:
        origin = "" if issubclass(category, KcalWarning) else f" ({Path(filename).name}, line {lineno})"
        _say("warning", f"{message}{origin}")

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", KcalWarning)
            # The columns of tables are matched by name before a calibrator gets them as an array.
            warnings.filterwarnings("ignore", "X does not have valid feature names", UserWarning)
            warnings.showwarning = show_warning
            yield
    except _UsageError as error:
        raise _stop(error.format_message() if getattr(error, "param", None) else error.message, USAGE) from error
    except OverlapError as error:
        raise _stop(str(error), OVERLAP) from error
    except KcalError as error:
        text, is_option = error_text(error, options)
        raise _stop(text, USAGE if is_option else BAD_DATA) from error
    except KeyboardInterrupt as stop:
        _say("stopped", str(stop) or "every file that was written is complete.")
        raise typer.Exit(STOPPED) from stop
    except BrokenPipeError:
        raise  # the reader of the output left; typer ends quietly
    except OSError as error:
        file = f"{error.filename}: " if error.filename else ""
        raise _stop(f"{file}{error.strerror or error}.", BAD_DATA) from error


def error_text(error: KcalError, options: Mapping[str, str]) -> tuple[str, bool]:
    """Return an error's message with the option in place of its parameter, and whether it is about an option."""
    if not isinstance(error, InvalidInputError) or not error.expected:
        return str(error), False
    name = NAMES_IN_FILES.get(error.parameter, error.parameter)
    name = name if name in CONTENT else options.get(name, name)
    return str(InvalidInputError(name, error.expected, got=error.got, remedy=error.remedy)), name.startswith("--")


def _say(kind: str, message: str) -> None:
    typer.secho(f"{kind}: ", err=True, nl=False, bold=True, fg="red" if kind == "error" else "yellow")
    typer.echo(printable(message), err=True)


def _stop(message: str, code: int) -> typer.Exit:
    _say("error", message)
    return typer.Exit(code)
