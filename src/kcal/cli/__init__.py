"""The command line: each command reads options and files, makes one call of the library, and writes its output.

The modules of the commands import what they need when they run: help does not wait for numpy or torch.
"""

from __future__ import annotations

import inspect
import io
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from kcal.cli.bench import bench, task
from kcal.cli.demonstration import demo
from kcal.cli.evaluate import compare, evaluate
from kcal.cli.messages import EXIT_CODES, readable_messages
from kcal.cli.models import compress, export, fit, methods
from kcal.cli.output import Result, check_distinct, check_writable, finish
from kcal.cli.predict import explain, predict
from kcal.cli.serve import serve, token_create, token_list, token_revoke

COMMANDS = {
    "Start": (demo, methods),
    "Calibrate": (fit, predict, explain),
    "Evaluate": (evaluate, compare, bench, task),
    "Deploy": (compress, export, serve),
}
"""The commands by the panel of the help in which they are listed."""


class _WithoutTypeOfFlags:
    """Show no type for options that take no value in the help."""

    def get_params(self, ctx: Any) -> Any:
        """Return the options."""
        parameters: Any = super().get_params(ctx)  # type: ignore[misc]
        for item in parameters:
            if getattr(item, "is_flag", False):
                item.metavar = ""
        return parameters


class CommandGroup(_WithoutTypeOfFlags, TyperGroup):
    """Commands whose errors and warnings are single lines."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Read the options before the command; without arguments, help is shown."""
        with readable_messages() if args else nullcontext():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with readable_messages():
            return super().invoke(ctx)


def is_path(annotation: Any) -> bool:
    """Return whether an option or argument is a path."""
    kind = annotation.__origin__
    return kind is Path or Path in get_args(kind)


class Command(_WithoutTypeOfFlags, TyperCommand):
    """A command that shows its result, and whose errors name its options in place of the library's parameters."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        options = {item.name: max(item.opts, key=len) for item in self.params if item.param_type_name == "option"}
        options |= {item.name: str(item.metavar) for item in self.params if item.param_type_name == "argument"}
        settings = [text.partition("=")[0].strip() for text in ctx.params.get("settings") or ()]
        json_file, quiet = ctx.params.get("json_file"), ctx.params.get("quiet", False)
        callback: Any = self.callback
        declared = inspect.signature(callback).parameters
        files = {name: Path(text) for name, text in ctx.params.items() if text and is_path(declared[name].annotation)}
        with readable_messages(options | {name: f"--set {name}" for name in settings}):
            check_distinct(ctx.params | files, options)
            check_writable(json_file, option="--json")
            result = super().invoke(ctx)
            if isinstance(result, Result):
                finish(result, quiet=quiet, json_file=json_file)


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
for _panel, _commands in COMMANDS.items():
    for _command in _commands:
        app.command(cls=Command, rich_help_panel=_panel, **_help(_command))(_command)
token = typer.Typer(cls=CommandGroup, rich_markup_mode="rich", help="Make, list and revoke the tokens of a service.")
for _command in (token_create, token_list, token_revoke):
    token.command(_command.__name__.removeprefix("token_"), cls=Command, **_help(_command))(_command)
app.add_typer(token, name="token", rich_help_panel="Deploy")


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # for terminals that cannot show an arrow
    app()
