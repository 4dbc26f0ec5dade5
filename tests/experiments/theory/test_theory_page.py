"""The command writes the page and its pictures, the same for the same seed, and the page in docs is complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from experiments.theory import __main__ as command
from experiments.theory import consistency, tail
from experiments.theory.page import TEXTS, text_of
from experiments.theory.parts import PARTS

DOCS = Path(__file__).parents[3] / "docs"
CHEAP = (consistency.PART, tail.PART)


def test_the_command_writes_the_same_page_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PARTS", CHEAP)
    monkeypatch.setattr(consistency, "DIMENSIONS", (1,))
    pages = []
    for name in ("first", "second"):
        result = CliRunner().invoke(command.app, ["--quick", "--quiet", "--out", str(tmp_path / name)])
        assert result.exit_code == 0, result.output
        pages.append((tmp_path / name / "theory.md").read_text(encoding="utf-8"))
    assert pages[0] == pages[1]
    for part in CHEAP:
        assert f"## {part.title}\n" in pages[0]
        link = f"pictures/theory-{part.name}.png"
        assert f"]({link})" in pages[0]
        with Image.open(tmp_path / "first" / link) as picture:
            assert picture.width > 800
    assert pages[0].count("\n### ") == 2


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PARTS", (tail.PART,))
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(command.app, ["--quiet", "--out", str(tmp_path / "file")])
    assert result.exit_code != 0
    assert "Traceback" not in result.output


def test_numbers_are_filled_in() -> None:
    assert "<<" not in text_of("pointwise", {"kcal_difference": "1e-9", "draws": "4"})
    with pytest.raises(KeyError):
        text_of("pointwise", {})


def test_the_page_in_docs_has_every_part() -> None:
    page = (DOCS / "theory.md").read_text(encoding="utf-8")
    assert "<<" not in page
    for part in PARTS:
        assert f"## {part.title}\n" in page
        assert (DOCS / f"pictures/theory-{part.name}.png").is_file()
    assert len(re.findall(r"^## ", page, re.M)) >= len(PARTS)
    assert {path.stem for path in TEXTS.glob("*.md")} == {part.name for part in PARTS} | {"introduction", "conclusion"}
