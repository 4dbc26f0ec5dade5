"""A table for the terminal, Markdown, CSV and LaTeX."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pandas
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from kcal.errors import printable
from kcal.files import with_mark

MAX_HEADING, MAX_NAME, MAX_ENTRY = 12, 20, 24
"""Characters of headings, names and other entries in a terminal, beyond which they take several lines."""
LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "<": r"\textless{}",
        ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$", "×": r"$\times$", "−": "$-$", "–": "--",
        "⁻": r"\textsuperscript{$-$}", "²": r"\textsuperscript{2}", "↑": r"$\uparrow$", "↓": r"$\downarrow$",
        "†": r"$\dagger$", "✗": r"$\times$", "[": "{[}", "…": r"\dots{}", "\n": " ",
    }
)  # fmt: skip
"""Escapes, applied character by character: no replacement is replaced again."""


class Entry(NamedTuple):
    """The content of one place of a table."""

    text: str
    bold: bool = False
    underlined: bool = False


@dataclass(frozen=True)
class Table:
    """A title, a heading for each column, and rows whose first entry is a name."""

    name: str
    title: str
    heading: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    note: str = ""

    @property
    def frame(self) -> pandas.DataFrame:
        """The texts of the table."""
        return pandas.DataFrame([[entry.text for entry in row] for row in self.rows], columns=list(self.heading))

    def as_rich(self) -> RichTable:
        """Return the table for a terminal; long entries take several lines."""
        title = escape(printable(self.title))
        table = RichTable(title=title, box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
        for column, name in enumerate(self.heading):
            is_text = column > 0 and any(len(row[column].text) > MAX_ENTRY for row in self.rows)
            table.add_column(
                escape(_wrap(printable(name), MAX_HEADING)),
                justify="left" if column == 0 or is_text else "right",
                no_wrap=not is_text,
                overflow="fold",
                min_width=MAX_ENTRY if is_text else None,
            )
        for first, *others in self.rows:
            texts = [_wrap(printable(first.text), MAX_NAME), *(printable(entry.text) for entry in others)]
            entries = [entry._replace(text=escape(text)) for entry, text in zip((first, *others), texts, strict=True)]
            table.add_row(*(_mark(entry, "[bold]", "[/bold]", "[underline]", "[/underline]") for entry in entries))
        return table

    def transposed(self, corner: str = "method") -> Table:
        """Return the table with rows as columns: there are more methods than tasks, and terminals are narrow."""
        names = [row[0].text for row in self.rows]
        columns = zip(*(row[1:] for row in self.rows), strict=True)
        rows = tuple((Entry(name), *entries) for name, entries in zip(self.heading[1:], columns, strict=True))
        return replace(self, heading=(corner, *names), rows=rows)

    def fitting(self, width: int) -> list[Table]:
        """Return the table in as few parts of equal size as a terminal of this width needs to show everything."""
        console, n_columns = Console(width=10_000), len(self.heading) - 1
        for size in range(n_columns, 0, -1):
            parts = [self._columns(start, start + size) for start in range(1, n_columns + 1, size)]
            if all(console.measure(part.as_rich()).minimum <= width for part in parts):
                break
        if len(parts) == 1:
            return parts
        titles = [f"{self.title} ({number} of {len(parts)})" for number in range(1, len(parts) + 1)]
        return [replace(part, title=title) for part, title in zip(parts, titles, strict=True)]

    def _columns(self, start: int, stop: int) -> Table:
        """Return the names with some of the columns."""
        rows = tuple((row[0], *row[start:stop]) for row in self.rows)
        return replace(self, heading=(self.heading[0], *self.heading[start:stop]), rows=rows)

    def as_markdown(self) -> str:
        """Return the table as GitHub shows it, without the note."""
        marked = [[_mark(entry, "**", "**", "<u>", "</u>", _markdown) for entry in row] for row in self.rows]
        lines = [[_markdown(name) for name in self.heading], ["---", *["--:"] * (len(self.heading) - 1)], *marked]
        texts = [f"| {' | '.join(line)} |" for line in lines]
        return "\n".join([f"### {self.title}", "", *texts, ""])

    def as_csv(self) -> str:
        """Return the table for a spreadsheet, with the texts that it shows."""
        return spreadsheet(self.frame)

    def as_latex(self) -> str:
        """Return the table for a paper, the note below it; it needs the package booktabs."""
        marked = [[_mark(entry, r"\textbf{", "}", r"\underline{", "}", latex) for entry in row] for row in self.rows]
        text: str = pandas.DataFrame(marked, columns=[latex(name) for name in self.heading]).to_latex(
            index=False,
            escape=False,
            caption=latex(self.title),
            position="ht",
            column_format="l" + "r" * (len(self.heading) - 1),
        )
        note = rf"\par\smallskip{{\footnotesize {latex(self.note)}\par}}" + "\n" if self.note else ""
        return text.replace(r"\end{table}", rf"{note}\end{{table}}")


def spreadsheet(frame: pandas.DataFrame) -> str:
    """Return a table as comma-separated values; text that a program would run as a formula begins with a quote."""
    text: str = frame.map(_safe).rename(columns=_safe).to_csv(index=False, float_format="%.6g", lineterminator="\n")
    return text


def _safe(cell: Any) -> Any:
    try:
        float(cell)
    except ValueError:
        return with_mark(cell)
    return cell


def latex(text: str) -> str:
    """Return text with everything escaped that has a meaning in LaTeX."""
    return text.translate(LATEX)


def _wrap(text: str, width: int) -> str:
    """Break a text into lines between words."""
    return "\n".join(textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False))


def _markdown(text: str) -> str:
    """Return text that ends neither a cell of a Markdown table nor its line."""
    return printable(" ".join(text.split())).replace("\\|", "\\\\|").replace("|", "\\|").replace("<", "&lt;")


def _mark(entry: Entry, bold: str, bold_end: str, underline: str, underline_end: str, escaped: Any = str) -> str:
    text = escaped(entry.text)
    text = f"{underline}{text}{underline_end}" if entry.underlined else text
    return f"{bold}{text}{bold_end}" if entry.bold else text
