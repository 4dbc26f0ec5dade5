"""What goes wrong, told in a readable line on standard error, with an exit code that scripts can use."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import typer
from typer.core import TyperGroup

from kcal.cli.wording import in_typed_words
from kcal.errors import KcalError, KcalWarning

BAD_DATA = 1
OVERLAP = 3
"""2 is typer's own, for commands and options that do not exist or do not fit."""

EXIT_CODES = (
    "[bold]Exit codes:[/bold] 0 all went well; 1 the data or the model cannot be used, or a file cannot be "
    "read or written; 2 the command was typed wrongly; 3 evaluate refused rows that the model was fitted on."
)


class OverlapError(KcalError):
    """Data to evaluate on holds rows that the calibrator was fitted on."""


class ReadableGroup(TyperGroup):
    """Commands whose errors and warnings are lines to read, not tracebacks."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        with readable_messages():
            return super().invoke(ctx)


@contextmanager
def readable_messages() -> Iterator[None]:
    """Turn errors of kcal and of the file system into one message and an exit code; show warnings as lines."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", KcalWarning)
            # Columns of tables are matched by name before a calibrator sees them as an array.
            warnings.filterwarnings("ignore", "X does not have valid feature names", UserWarning)
            warnings.showwarning = _show_warning
            yield
    except OverlapError as error:
        raise _stop(str(error), OVERLAP) from error
    except KcalError as error:
        raise _stop(str(error), BAD_DATA) from error
    except BrokenPipeError:
        raise  # the reader of the output left; typer ends quietly
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise _stop(f"{where}{error.strerror or error}.", BAD_DATA) from error


def _stop(message: str, code: int) -> typer.Exit:
    typer.secho("error: ", err=True, nl=False, bold=True, fg="red")
    typer.echo(in_typed_words(message), err=True)
    return typer.Exit(code)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    place = "" if issubclass(category, KcalWarning) else f" ({Path(filename).name}, line {lineno})"
    typer.secho("warning: ", err=True, nl=False, bold=True, fg="yellow")
    typer.echo(f"{in_typed_words(str(message))}{place}", file=file or sys.stderr)
