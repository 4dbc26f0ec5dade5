"""The command line: each command reads options and files, makes one call of the library, and writes its output.

A command's module is imported only when the command runs, so that ``kcal --help`` does not wait for torch.
"""

from __future__ import annotations

import inspect
import io
import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from kcal.cli.messages import EXIT_CODES, readable_messages

COMMANDS = {
    "demo": "Calibrate a small network that comes with kcal, and show what changed.",
    "fit": "Fit a calibrator and write it to a file.",
    "predict": "Write calibrated probabilities for new data.",
    "evaluate": "Measure a model, several methods, or probabilities on labelled data.",
    "bench": "Compare methods on a folder of tasks, as the paper does.",
    "task": "Make or check a task for kcal bench.",
}
"""Commands with their line in ``kcal --help``; each is the function of that name in the module of that name."""

_SETTINGS: dict[str, Any] = {
    "rich_markup_mode": "rich",
    "context_settings": {"help_option_names": ["-h", "--help"]},
    "pretty_exceptions_show_locals": False,
}


class CommandGroup(TyperGroup):
    """Commands that are imported when they run, with errors and warnings as readable lines."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a placeholder with the name and the line of help, or None for an unknown name."""
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command to run, imported now, and its arguments."""
        name, placeholder, rest = super().resolve_command(ctx, args)
        return name, placeholder if name is None else _load_command(name), rest

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with readable_messages():
            return super().invoke(ctx)


app = typer.Typer(cls=CommandGroup, no_args_is_help=True, **_SETTINGS)


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


def _help_text(command: Callable[..., None]) -> str:
    """Return a command's docstring with each paragraph on one line; the terminal decides where lines end."""
    return re.sub(r"(?<=\S)\n(?=\S)", " ", inspect.getdoc(command) or "")


def _load_command(name: str) -> Any:
    """Import a command's module and return its command."""
    function = getattr(import_module(f"kcal.cli.{name}"), name)
    alone = typer.Typer(add_completion=False, **_SETTINGS)
    alone.command(name, help=_help_text(function), epilog=EXIT_CODES)(function)
    return typer.main.get_command(alone)


app.callback(help=_help_text(kcal), epilog=EXIT_CODES)(kcal)


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # for terminals that cannot show an arrow
    app()
