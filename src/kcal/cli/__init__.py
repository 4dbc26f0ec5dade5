"""The command line: thin commands over the public API."""

from __future__ import annotations

import inspect
import io
import re
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from kcal.cli.bench import bench
from kcal.cli.demo import demo
from kcal.cli.evaluate import evaluate
from kcal.cli.fit import fit
from kcal.cli.messages import EXIT_CODES, ReadableGroup
from kcal.cli.predict import predict
from kcal.cli.task import task

app = typer.Typer(
    cls=ReadableGroup,
    rich_markup_mode="rich",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from kcal import __version__

        typer.echo(f"kcal {__version__}")
        raise typer.Exit


def kcal(
    version: Annotated[
        bool, typer.Option("--version", help="Say which kcal this is.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Calibrated probabilities for every class of a trained classifier.

    Start with [green]kcal demo[/]; then [green]kcal fit[/] on outputs of your own network, [green]kcal predict[/] and
    [green]kcal evaluate[/]. [green]kcal COMMAND --help[/] explains each.
    """


def _page(command: Callable[..., None]) -> str:
    """Return a command's docstring with each paragraph on one line, so that the terminal decides where lines end."""
    return re.sub(r"(?<=\S)\n(?=\S)", " ", inspect.getdoc(command) or "")


app.callback(help=_page(kcal), epilog=EXIT_CODES)(kcal)
for _command in (demo, fit, predict, evaluate, bench, task):
    app.command(help=_page(_command), epilog=EXIT_CODES)(_command)


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an arrow that a terminal cannot show is no reason to fail
    app()
