"""The command line: each command reads options and files, makes one call of the library, and writes its output.

The modules of the commands import what they need when they run, so that help does not wait for torch.
"""

from __future__ import annotations

import inspect
import io
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from kcal.cli.bench import bench, task
from kcal.cli.compress import compress
from kcal.cli.demo import demo
from kcal.cli.evaluate import evaluate
from kcal.cli.explain import explain
from kcal.cli.export import export
from kcal.cli.fit import fit
from kcal.cli.messages import EXIT_CODES, readable_messages, stop_says_what_is_kept
from kcal.cli.predict import predict
from kcal.cli.serve import serve, token


class CommandGroup(TyperGroup):
    """Commands whose errors and warnings are single lines."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Read the options before the command; without arguments, help is shown."""
        with readable_messages() if args else nullcontext():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with readable_messages():
            return super().invoke(ctx)


class Command(TyperCommand):
    """A command that says on Ctrl-C which of its files are written."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        outputs = [ctx.params.get(name) for name in ("out", "json_file", "report", "path", "csv", "plot")]
        with stop_says_what_is_kept([Path(path) for path in outputs if path not in (None, "-")]):
            return super().invoke(ctx)


app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,
)


def _show_version(requested: bool) -> None:
    if requested:
        from kcal import __version__

        typer.echo(f"kcal {__version__}")
        raise typer.Exit


def kcal(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Calibrated probabilities for every class of a trained classifier.

    Start with [green]kcal demo[/]; then run [green]kcal fit[/] on outputs of your own network, [green]kcal predict[/]
    and [green]kcal evaluate[/]. [green]kcal COMMAND --help[/] explains each command.
    """


def _help(command: Any) -> dict[str, Any]:
    """Return a command's help: its docstring with each paragraph on one line, as the terminal decides where to wrap."""
    return {"help": re.sub(r"(?<=\S)\n(?=\S)", " ", inspect.getdoc(command) or ""), "epilog": EXIT_CODES}


app.callback(**_help(kcal))(kcal)
for _command in (demo, fit, predict, evaluate, explain, export, compress, bench, task, serve):
    app.command(cls=Command, **_help(_command))(_command)
app.add_typer(token, name="token")


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # for terminals that cannot show an arrow
    app()
