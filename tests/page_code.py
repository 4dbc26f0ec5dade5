"""The code of the documents: every block of a page runs from the first to the last, in one folder."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import matplotlib.pyplot as plt
from typer.testing import CliRunner

import kcal.datasets
from commands_not_run import check_without_running, reason_not_to_run
from kcal.cli import app
from kcal.serving import app as server
from kcal.serving.service import Settings
from serving.running_service import running

ROOT = Path(__file__).parents[1]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "src/kcal/datasets/README.md",
    *sorted(
        str(page.relative_to(ROOT))
        for page in ROOT.glob("docs/**/*.md")
        if "generated" not in page.relative_to(ROOT).parts
    ),
]
FILE_COMMANDS = ("mkdir", "cp", "chmod")
DEMO = "kcal demo"
"""A block that begins with this command needs no other files than its own."""
FENCE = re.compile(r"^(?P<fence>`{3,}|~{3,})(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=fence)$", re.M | re.S)
DIRECTIVES = {"{toctree}", "{eval-rst}", "{include} ../CHANGELOG.md"}
"""Blocks that are for Sphinx, not for a reader."""


@dataclass(frozen=True)
class Block:
    """A block of code of a page."""

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of code of a page, without directives of Sphinx."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = [
        Block(page, text.count("\n", 0, match.start()) + 1, match["language"].strip(), match["text"])
        for match in FENCE.finditer(text)
    ]
    return [block for block in blocks if block.language not in DIRECTIVES]


def load_small_example() -> kcal.datasets.Example:
    """Return the first rows of every part of the example."""
    example = kcal.datasets.load_example()
    arrays = ("embeddings", "logits", "labels", "rows")
    parts = {name: getattr(example, name) for name in ("train", "calibration", "test")}
    cut = {name: replace(part, **{a: getattr(part, a)[:600] for a in arrays}) for name, part in parts.items()}
    return replace(example, **cut)


class SharedFolders:
    """What blocks that begin with ``kcal demo`` write: the first commands that several pages have run once."""

    def __init__(self, parent: Path) -> None:
        self.parent = parent
        self.folders: dict[tuple[str, ...], Path] = {(): parent / "empty"}
        self.folders[()].mkdir()
        self.outputs: dict[tuple[str, ...], str] = {(): ""}

    def after(self, commands: tuple[str, ...], run: Callable[[str], str]) -> Path:
        """Return the folder in which commands have run."""
        if commands not in self.folders:
            *others, last = commands
            before = self.after(tuple(others), run)
            folder = self.parent / str(len(self.folders))
            shutil.copytree(before, folder)
            with contextlib.chdir(folder):
                self.outputs[commands] = self.outputs[tuple(others)] + run(last)
            self.folders[commands] = folder
        return self.folders[commands]


@dataclass
class PageRun:
    """A page that is run: what its code has defined and printed so far."""

    folder: Path
    names: dict[str, Any] = field(default_factory=dict)
    output: str = ""
    shared: SharedFolders | None = None
    addresses: dict[str, str] = field(default_factory=dict)  # where the services of the page listen, by what it says
    services: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def run(self, block: Block) -> None:
        """Run a block; raise if it is neither run nor listed in commands_not_run.py."""
        runners: dict[str, Callable[[Block], None]] = {
            "python": self.run_python,
            "sh": self.run_commands,
            "console": self.run_session,
            "bash": self.run_script,
            "text": check_is_no_code,
        }
        assert block.language in runners, f"{block.place}: tag the block as one of {', '.join(runners)}"
        runners[block.language](block)

    def run_python(self, block: Block) -> None:
        code = compile(self.with_addresses(block.text), block.place, "exec")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, self.names)
        self.output += printed.getvalue()

    def run_commands(self, block: Block) -> None:
        """Run a block with a command in every line."""
        commands = tuple(commands_of(block))
        if self.shared is not None and commands[0] == DEMO:
            folder = self.shared.after(commands, lambda command: self.run_command(command, block))
            shutil.copytree(folder, self.folder, dirs_exist_ok=True)
            self.output += self.shared.outputs[commands]
        else:
            self.output += "".join(self.run_command(command, block) for command in commands)

    def run_session(self, block: Block) -> None:
        """Run a block of commands after a prompt, and compare their output with the page's; … stands for anything."""
        for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
            command, _, expected = part.partition("\n")
            printed = self.run_command(command, block)
            self.output += printed
            pattern = ".*".join(re.escape(text) for text in expected.strip().split("…"))
            assert not expected or re.fullmatch(pattern, printed.strip(), re.S), f"{block.place}: {printed}"

    def run_script(self, block: Block) -> None:
        """Run a block as one script of bash."""
        script = ["bash", "-euc", self.with_addresses(block.text)]
        self.output += subprocess.run(script, capture_output=True, check=True, text=True, timeout=60).stdout

    def run_command(self, command: str, block: Block) -> str:
        """Run a command of a shell, or check its words if it is listed as one that cannot run in a test."""
        if reason_not_to_run(command):
            check_without_running(command)
            return ""
        program, *words = shlex.split(command)
        if program in FILE_COMMANDS:
            return subprocess.run([program, *words], capture_output=True, check=True, text=True).stdout
        words += ["--jobs", "1"] if words[:1] == ["bench"] else []  # workers would import everything again
        assert program == "kcal", f"{block.place}: “{command}” is neither run nor listed in commands_not_run.py"
        result = CliRunner(env={"COLUMNS": "200"}).invoke(app, words)
        assert result.exit_code == 0, f"{block.place}: “{command}” printed {result.output}\n{result.exception!r}"
        return result.output

    def serve(self, options: Settings, on_started: Callable[[str], None]) -> None:
        """Serve in a thread, at a port that is free, until the page ends."""
        settings = {item.name: getattr(options, item.name) for item in fields(options) if item.name != "port"}
        service = self.services.enter_context(running(**settings))
        written = f"{options.host}:{options.port}"
        self.addresses[written] = service.address
        on_started(f"http://{written}")

    def with_addresses(self, text: str) -> str:
        for written, address in self.addresses.items():
            text = text.replace(written, address)
        return text


def commands_of(block: Block) -> list[str]:
    """Return the commands of a block of a shell, continued lines as one."""
    prompt = "$ " if block.language == "console" else ""
    lines = block.text.replace("\\\n", " ").splitlines() if block.language in ("sh", "console") else []
    commands = [line.removeprefix(prompt) for line in lines if line.startswith(prompt)]
    return [shlex.join(words) for words in (shlex.split(command, comments=True) for command in commands) if words]


def check_is_no_code(block: Block) -> None:
    """Raise if a block of text has a command."""
    command = re.search(
        r"^(?:\$|>>>|import |(?:kcal|pip|python|make|podman|docker|curl|git) +[a-z-])", block.text, re.M
    )
    assert command is None, f"{block.place}: tag the block as sh, console, bash or python"


def run_page(
    page: str, folder: Path, *, names: dict[str, Any] | None = None, shared: SharedFolders | None = None
) -> PageRun:
    """Run the blocks of a page in a folder, with the small example in place of the whole one."""
    run = PageRun(folder, dict(names or {}), shared=shared)
    services = patch.object(server, "serve", run.serve)
    with contextlib.chdir(folder), run.services, small_example(), services, warnings.catch_warnings():
        warnings.simplefilter("ignore", kcal.IdentifiabilityWarning)  # of 600 rows
        warnings.simplefilter("ignore", kcal.FewSamplesWarning)  # of those of the page about few
        for block in blocks_of(page):
            run.run(block)
    plt.close("all")
    return run


@contextlib.contextmanager
def small_example() -> Iterator[None]:
    """Let the package use the first rows of its example."""
    with contextlib.ExitStack() as stack:
        for place in ("kcal", "kcal.benchmark.tasks"):
            stack.enter_context(patch(f"{place}.load_example", load_small_example))
        yield
