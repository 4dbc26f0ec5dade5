"""The page of the theory: for each part its claim and a figure; all tables in one CSV file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from experiments.lines import line_panels
from experiments.output import small_png, tables_csv
from experiments.theory.output import Part, PartOutput
from kcal.files import write_whole

TEXTS = Path(__file__).parent / "texts"
FIGURES, RESULTS = "figures", "results"
"""Folders of figures and tables, beside the page."""


def write_page(folder: Path, outputs: Mapping[Part, PartOutput]) -> list[Path]:
    """Write theory.md, figures/theory-NAME.png and results/theory.csv to a folder; return the files."""
    for name in (FIGURES, RESULTS):
        (folder / name).mkdir(parents=True, exist_ok=True)
    facts = {name: value for output in outputs.values() for name, value in output.facts.items()}
    sections, written = [text_of("introduction", facts)], []
    for part, output in outputs.items():
        name = f"{FIGURES}/theory-{part.name}.png"
        written.append(write_whole(folder / name, figure(output)))
        sections += [f"## {part.title}", text_of(part.name, facts), f"![{part.title}]({name})"]
    sections.append(text_of("conclusion", facts))
    tables = [table for output in outputs.values() for table in output.tables]
    written.append(write_whole(folder / RESULTS / "theory.csv", tables_csv(tables)))
    return [write_whole(folder / "theory.md", ("\n\n".join(sections) + "\n").encode()), *written]


def figure(output: PartOutput) -> bytes:
    """Return the figure of a part as a small PNG."""
    return small_png(line_panels(output.panels, columns=output.columns).flat[0].get_figure(root=True))


def text_of(name: str, facts: Mapping[str, str]) -> str:
    """Return the text NAME.md with every <<fact>> replaced by its number."""
    text = (TEXTS / f"{name}.md").read_text(encoding="utf-8").strip()
    return re.sub(r"<<(\w+)>>", lambda match: facts[match[1]], text)
