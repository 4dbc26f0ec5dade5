"""The reference of the command line, from the commands themselves, without torch."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

from sphinx.application import Sphinx
from typer.main import get_command

from kcal.cli import app as commands
from kcal.cli.messages import EXIT_CODES

PLACE = "<!-- commands -->"
CODE = re.compile(r"\[(?:cyan|green)\](.+?)\[/\]|(--[a-z][a-z-]*)")
EXAMPLES = re.compile(r"(?:^\[green\].+\[/\]\n*)+", re.M)


def in_markdown(text: str) -> str:
    """Return text with rich's markup in Markdown, lines of commands as a block."""
    text = EXAMPLES.sub(code_block, text)
    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    return "".join(part if part.startswith("```") else in_line(part) for part in parts)


def code_block(match: re.Match[str]) -> str:
    """Return lines of commands as one block."""
    return "\n".join(["```sh", *re.findall(r"^\[green\](.+)\[/\]$", match[0], re.M), "```"])


def in_line(text: str) -> str:
    """Return running text in Markdown."""
    text = re.sub(r"(?<!\\)([*<])", r"\\\1", text)
    text = CODE.sub(lambda match: f"`{(match[1] or match[2])}`".replace("\\", ""), text)
    return re.sub(r"\[bold\](.+?)\[/(?:bold)?\]", r"**\1**", text)


def in_cell(text: str) -> str:
    """Return text of a cell of a table."""
    return text.replace("|", r"\|")


def option_row(parameter: Any) -> str:
    """Return an argument or an option as a row of a table."""
    if parameter.param_type_name == "argument":
        return f"| `{parameter.metavar}` | {in_cell(in_line(parameter.help))} |"
    names = [f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts)]
    value = "" if parameter.is_flag or not parameter.metavar else f" `{parameter.metavar}`"
    required = " Required." if parameter.required else ""
    left, right = ", ".join(names) + value, in_line(parameter.help) + required
    return f"| {in_cell(left)} | {in_cell(right)} |"


def panel_of(parameter: Any) -> str:
    """Return the panel of the help page that an argument or option is in."""
    return parameter.rich_help_panel or "Arguments and options"


def section(name: str, command: Any) -> str:
    """Return what a command does, and its arguments and options by panel."""
    arguments = [item for item in command.params if item.param_type_name == "argument"]
    usage = " ".join(["kcal", name, *(argument.metavar for argument in arguments), "[OPTIONS]"])
    lines = [f"## kcal {name}", "```text", usage, "```", "", in_markdown(command.help), ""]
    for panel, group in groupby(sorted(command.params, key=panel_of), key=panel_of):
        lines += ["{.options}", f"| {panel} | |", "|---|---|", *map(option_row, group), ""]
    return "\n".join(lines)


def reference() -> str:
    """Return the sections of all commands, and the exit codes."""
    group: Any = get_command(commands)
    sections = []
    for name, command in group.commands.items():
        if parts := getattr(command, "commands", None):  # a group of commands
            sections += [section(f"{name} {part}", each) for part, each in parts.items()]
        else:
            sections.append(section(name, command))
    return "\n".join([*sections, "## Exit codes", in_line(EXIT_CODES).partition("** ")[2]])


def write_reference(_app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the reference in the place that its page has for it."""
    if docname == "commands":
        source[0] = source[0].replace(PLACE, reference())


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the page."""
    app.connect("source-read", write_reference)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
