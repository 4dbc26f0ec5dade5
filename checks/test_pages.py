"""Links of the pages lead somewhere, and the commands that they mention exist."""

from __future__ import annotations

import re
from typing import Any

import pytest
from typer.main import get_command

from commands_not_run import NOT_RUN
from kcal.cli import app
from page_code import PAGES, ROOT, blocks_of, commands_of


def test_every_reason_not_to_run_a_command_is_needed():
    commands = [command for page in PAGES for block in blocks_of(page) for command in commands_of(block)]
    assert all(any(command.startswith(start) for command in commands) for start in NOT_RUN)


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])  # which names earlier options
def test_commands_in_running_text_and_their_options_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    for words in re.findall(r"`kcal ([a-z]+[^`]*)`", text):
        name, *others = words.split()
        command = commands[name]
        if hasattr(command, "commands"):  # a group, such as kcal token
            command = command.commands[others[0]]
        options = {name for item in command.params for name in (*item.opts, *item.secondary_opts)}
        assert {word for word in others if word.startswith("--")} <= {*options, "--help"}, words


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page):
    folder = (ROOT / page).parent
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", (ROOT / page).read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = folder / name if name else ROOT / page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}, link
