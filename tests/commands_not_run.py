"""Commands of the documents that no test can run, each with the reason; their words are checked instead."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

import experiments.paper.__main__
import kcal.cli

ROOT = Path(__file__).parents[1]


def check_extras(words: list[str]) -> None:
    """Raise if pip is to install extras that the project does not have."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extras in re.findall(r"(?:\.|kcal)\[([\w,]+)\]", " ".join(words)):
        assert set(extras.split(",")) <= project["optional-dependencies"].keys(), extras


def check_targets(words: list[str]) -> None:
    """Raise if the Makefile has no such target."""
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert set(words[1:]) <= set(targets), words


def check_module(words: list[str]) -> None:
    """Raise if there is no such module to run."""
    assert find_spec(words[2]) is not None, words


def check_files(words: list[str]) -> None:
    """Raise if a file that a command names is not in the repository."""
    files = [word for word in words if "/" in word]
    assert files, words
    for file in files:
        assert (ROOT / file).exists(), file


def check_options(app: Any, words: list[str]) -> None:
    """Raise if a command of kcal or of the experiments has no such argument or option."""
    group: Any = get_command(app)
    command = group.commands[words[0]]
    try:
        command.make_context(words[0], list(words[1:]), resilient_parsing=False)
    except typer.BadParameter as error:
        if not str(error).endswith("does not exist."):  # files of the reader
            raise


def check_kcal(words: list[str]) -> None:
    check_options(kcal.cli.app, words[1:])


def check_paper(words: list[str]) -> None:
    check_options(experiments.paper.__main__.app, words[3:])


def check_experiment(words: list[str]) -> None:
    """Raise if a module of the experiments has no such command, argument or option."""
    app = typer.Typer()
    app.command()(import_module(words[2]).main)
    get_command(app).make_context(words[2], list(words[3:]), resilient_parsing=False)


MEASURES_TASKS = ("reads tasks that are not in the repository", check_experiment)
NOT_RUN: dict[str, tuple[str, Callable[[list[str]], None]]] = {
    "pip install": ("changes the environment", check_extras),
    "make": ("makes an environment of its own", check_targets),
    "python -m build": ("fetches what it builds with; scripts/distribution.py does it", check_module),
    "podman": ("needs a container engine and images from outside", check_files),
    "python -m experiments.paper": (
        "reads data sets that are not in the repository, and trains for hours",
        check_paper,
    ),
    "python -m experiments.sizes": MEASURES_TASKS,
    "python -m experiments.subset": MEASURES_TASKS,
    "python -m experiments.blend_parts": MEASURES_TASKS,
    "python -m experiments.many_classes": ("it takes minutes", check_experiment),
    "kcal bench tasks": ("takes hours; tests/cli and tests/distributed run small tasks", check_kcal),
}
"""Why commands that begin with these words are not run, and what is checked."""


def reason_not_to_run(command: str) -> str | None:
    """Return why a command is not run, or None if it is."""
    return next((reason for words, (reason, _) in NOT_RUN.items() if f"{command} ".startswith(f"{words} ")), None)


def check_without_running(command: str) -> None:
    """Raise if the words of a command that is not run are wrong."""
    words = shlex.split(command)
    check = next(check for start, (_, check) in NOT_RUN.items() if f"{command} ".startswith(f"{start} "))
    check(words)
