"""The page of the theory: for each part its claim, a figure and tables."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path

from experiments.lines import line_panels
from experiments.page import with_few_colours
from experiments.theory.output import Part, PartOutput
from kcal.files import write_whole

TEXTS = Path(__file__).parent / "texts"
PICTURES = "pictures"
"""Folder of the figures, beside the page."""


def write_page(folder: Path, outputs: Mapping[Part, PartOutput]) -> list[Path]:
    """Write theory.md and pictures/theory-NAME.png to a folder; return the files."""
    (folder / PICTURES).mkdir(parents=True, exist_ok=True)
    facts = {name: value for output in outputs.values() for name, value in output.facts.items()}
    sections, written = [text_of("introduction", facts)], []
    for part, output in outputs.items():
        name = f"{PICTURES}/theory-{part.name}.png"
        written.append(write_whole(folder / name, picture(output)))
        sections += [f"## {part.title}", text_of(part.name, facts), f"![{part.title}]({name})"]
        for table in output.tables:
            sections += [table.as_markdown().strip(), *([table.note] if table.note else [])]
    sections.append(text_of("conclusion", facts))
    return [write_whole(folder / "theory.md", ("\n\n".join(sections) + "\n").encode()), *written]


def picture(output: PartOutput) -> bytes:
    """Return the figure of a part as a small PNG."""
    buffer = io.BytesIO()
    axes = line_panels(output.panels, columns=output.columns)
    axes.flat[0].get_figure(root=True).savefig(buffer, format="png", dpi=100)
    buffer.seek(0)
    return with_few_colours(buffer)


def text_of(name: str, facts: Mapping[str, str]) -> str:
    """Return the text NAME.md with every <<fact>> replaced by its number."""
    text = (TEXTS / f"{name}.md").read_text(encoding="utf-8").strip()
    return re.sub(r"<<(\w+)>>", lambda match: facts[match[1]], text)
