"""A table for the terminal, Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rich import box
from rich.markup import escape
from rich.table import Table as RichTable

from kcal.errors import printable
from kcal.files import with_mark

MAX_HEADING, MAX_NAME, MAX_ENTRY = 12, 20, 24
"""Characters of headings, names and other entries in a terminal, beyond which they take several lines."""
SPACING, MARGIN = 3, 2
"""Characters between two columns in a terminal, and at both ends of a line."""

LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "<": r"\textless{}",
        ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$", "×": r"$\times$", "−": "$-$", "–": "--",
        "⁻": r"\textsuperscript{$-$}", "²": r"\textsuperscript{2}", "↑": r"$\uparrow$", "↓": r"$\downarrow$",
        "†": r"$\dagger$", "✗": r"$\times$", "[": "{[}", "…": r"\dots{}", "\n": " ",
    }
)  # fmt: skip
"""Escapes, applied character by character, so that no replacement is replaced again."""


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

    def as_rich(self) -> RichTable:
        """Return the table for a terminal; long entries take several lines."""
        table = RichTable(
            title=escape(printable(self.title)), box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left"
        )
        for column, name in enumerate(self.heading):
            is_text = column > 0 and self._is_text(column)
            table.add_column(
                escape(_wrap(printable(name), MAX_HEADING)),
                justify="left" if column == 0 or is_text else "right",
                no_wrap=not is_text,
                overflow="fold",
            )
        for first, *others in self.rows:
            texts = [_wrap(printable(first.text), MAX_NAME), *(printable(entry.text) for entry in others)]
            entries = [entry._replace(text=escape(text)) for entry, text in zip((first, *others), texts, strict=True)]
            table.add_row(*(_mark(entry, "[bold]", "[/bold]", "[underline]", "[/underline]") for entry in entries))
        return table

    def _is_text(self, column: int) -> bool:
        return any(len(row[column].text) > MAX_ENTRY for row in self.rows)

    def _width(self, column: int) -> int:
        """Return how many characters a column needs in a terminal."""
        entries = [printable(row[column].text) for row in self.rows]
        if column == 0:
            entries = [line for text in entries for line in _wrap(text, MAX_NAME).split("\n")]
        elif self._is_text(column):
            entries = [word for text in entries for word in text.split()[:MAX_ENTRY]] + ["x" * MAX_ENTRY]
        heading = _wrap(printable(self.heading[column]), MAX_HEADING).split("\n")
        return max(len(text) for text in (*entries, *heading))

    def transposed(self, corner: str = "method") -> Table:
        """Return the table with rows as columns: there are more methods than tasks, and terminals are narrow."""
        names = [row[0].text for row in self.rows]
        columns = zip(*(row[1:] for row in self.rows), strict=True)
        rows = tuple((Entry(name), *entries) for name, entries in zip(self.heading[1:], columns, strict=True))
        return replace(self, heading=(corner, *names), rows=rows)

    def fitting(self, width: int) -> list[Table]:
        """Return the table in as many parts of equal size as a terminal of this width needs to show everything."""
        room = width - MARGIN - self._width(0)
        needed = [SPACING + self._width(column) for column in range(1, len(self.heading))]
        if sum(needed) <= room or len(needed) < 2:
            return [self]
        for n_parts in range(2, len(needed) + 1):
            size = -(-len(needed) // n_parts)
            starts = range(0, len(needed), size)
            if all(sum(needed[start : start + size]) <= room for start in starts):
                break
        parts = []
        for number, start in enumerate(starts, 1):
            heading = (self.heading[0], *self.heading[start + 1 : start + 1 + size])
            rows = tuple((row[0], *row[start + 1 : start + 1 + size]) for row in self.rows)
            parts.append(replace(self, title=f"{self.title} ({number} of {len(starts)})", heading=heading, rows=rows))
        return parts

    def as_markdown(self) -> str:
        """Return the table as GitHub shows it, without the note."""
        heading = [_markdown(name) for name in self.heading]
        lines = [f"| {' | '.join(heading)} |", f"|{'|'.join(['---'] + ['--:'] * (len(self.heading) - 1))}|"]
        for row in self.rows:
            entries = [_mark(entry._replace(text=_markdown(entry.text)), "**", "**", "<u>", "</u>") for entry in row]
            lines.append(f"| {' | '.join(entries)} |")
        return "\n".join([f"### {self.title}", "", *lines, ""])

    def as_csv(self) -> str:
        """Return the table for a spreadsheet, with the texts that it shows."""
        return comma_separated(self.heading, [[entry.text for entry in row] for row in self.rows])

    def as_latex(self) -> str:
        """Return the table for a paper, the note below it; it needs the package booktabs."""
        rows = [
            " & ".join(
                _mark(entry._replace(text=latex(entry.text)), r"\textbf{", "}", r"\underline{", "}") for entry in row
            )
            for row in self.rows
        ]
        heading = " & ".join(latex(name) for name in self.heading)
        return "\n".join(
            [
                r"\begin{table}[ht]",
                rf"\caption{{{latex(self.title)}}}",
                rf"\begin{{tabular}}{{l{'r' * (len(self.heading) - 1)}}}",
                r"\toprule",
                rf"{heading} \\",
                r"\midrule",
                *(rf"{row} \\" for row in rows),
                r"\bottomrule",
                r"\end{tabular}",
                *([rf"\par\smallskip{{\footnotesize {latex(self.note)}\par}}"] if self.note else []),
                r"\end{table}",
                "",
            ]
        )


def comma_separated(heading: Sequence[str], rows: Iterable[Sequence[str | float | int]]) -> str:
    """Return rows for a spreadsheet; text that a spreadsheet program would run as a formula begins with a quote."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    for row in (heading, *rows):
        writer.writerow([_as_text(cell) if isinstance(cell, str) else f"{cell:.6g}" for cell in row])
    return stream.getvalue()


def _as_text(cell: str) -> str:
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


def _mark(entry: Entry, bold: str, bold_end: str, underline: str, underline_end: str) -> str:
    text = f"{underline}{entry.text}{underline_end}" if entry.underlined else entry.text
    return f"{bold}{text}{bold_end}" if entry.bold else text
