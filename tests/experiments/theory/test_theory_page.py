"""The command writes the page and its pictures, the same for the same seed; the page in docs is complete."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from experiments.output import tables_csv
from experiments.theory import __main__ as command
from experiments.theory import consistency, tail

DOCS = Path(__file__).parents[3] / "docs"
CHEAP = (consistency.PART, tail.PART)


def test_the_command_writes_the_page_and_its_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PARTS", CHEAP)
    monkeypatch.setattr(consistency, "DIMENSIONS", (1,))
    result = CliRunner().invoke(command.app, ["--quick", "--quiet", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    page = (tmp_path / "theory.md").read_text(encoding="utf-8")
    for part in CHEAP:
        assert f"## {part.title}\n" in page
        link = f"pictures/theory-{part.name}.png"
        assert f"]({link})" in page
        with Image.open(tmp_path / link) as picture:
            assert picture.width >= 400
    tables = consistency.run(0, True, lambda _: None).tables
    written = (tmp_path / "results" / "theory.csv").read_bytes()
    assert tables_csv(tables).splitlines()[1] in written  # the same for the same seed
    assert consistency.run(1, True, lambda _: None).tables != tables
