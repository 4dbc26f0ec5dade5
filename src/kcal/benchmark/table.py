"""A table: a title, headings and entries; as text for the terminal, Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from rich import box
from rich.markup import escape
from rich.table import Table as RichTable

WIDEST_HEADING, WIDEST_NAME, WIDEST_ENTRY = 12, 20, 24
"""Characters of headings, names and other entries in a terminal, beyond which they take several lines."""
BETWEEN, AROUND = 3, 2
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
"""Character by character, so that what one becomes is not replaced once more."""


class Entry(NamedTuple):
    """What stands in one place of a table."""

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
        table = RichTable(title=escape(self.title), box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
        for place, name in enumerate(self.heading):
            words = place > 0 and self._holds_words(place)
            table.add_column(
                escape(_broken(name, WIDEST_HEADING)),
                justify="left" if place == 0 or words else "right",
                no_wrap=not words,
                overflow="fold",
            )
        for first, *others in self.rows:
            shown = [first._replace(text=_broken(first.text, WIDEST_NAME)), *others]
            table.add_row(*(_wrapped(entry, "[bold]", "[/bold]", "[underline]", "[/underline]") for entry in shown))
        return table

    def _holds_words(self, place: int) -> bool:
        return any(len(row[place].text) > WIDEST_ENTRY for row in self.rows)

    def _width(self, place: int) -> int:
        """Return how many characters a column needs in a terminal."""
        entries = [row[place].text for row in self.rows]
        if place == 0:
            entries = [line for text in entries for line in _broken(text, WIDEST_NAME).split("\n")]
        elif self._holds_words(place):
            entries = [word for text in entries for word in text.split()[:WIDEST_ENTRY]] + ["x" * WIDEST_ENTRY]
        return max(len(text) for text in (*entries, *_broken(self.heading[place], WIDEST_HEADING).split("\n")))

    def turned(self, corner: str = "method") -> Table:
        """Return the table with rows as columns: methods are more than tasks, and terminals are narrow."""
        names = [row[0].text for row in self.rows]
        columns = zip(*(row[1:] for row in self.rows), strict=True)
        rows = tuple((Entry(name), *entries) for name, entries in zip(self.heading[1:], columns, strict=True))
        return Table(self.name, self.title, (corner, *names), rows, self.note)

    def fitting(self, width: int) -> list[Table]:
        """Return the table in as many parts, side by side, as a terminal of this width needs to cut nothing off."""
        room = width - AROUND - self._width(0)
        needed = [BETWEEN + self._width(place) for place in range(1, len(self.heading))]
        starts, used = [0], 0
        for place, each in enumerate(needed):
            if place > starts[-1] and used + each > room:
                starts.append(place)
                used = 0
            used += each
        if len(starts) < 2:
            return [self]
        even = -(-len(needed) // len(starts))
        if all(sum(needed[start : start + even]) <= room for start in range(0, len(needed), even)):
            starts = list(range(0, len(needed), even))
        ends = [*starts[1:], len(needed)]
        return [
            self._part(range(start + 1, end + 1), f"{self.title} ({number} of {len(starts)})")
            for number, (start, end) in enumerate(zip(starts, ends, strict=True), 1)
        ]

    def _part(self, places: Iterable[int], title: str) -> Table:
        chosen = (0, *places)
        rows = tuple(tuple(row[place] for place in chosen) for row in self.rows)
        return Table(self.name, title, tuple(self.heading[place] for place in chosen), rows, self.note)

    def as_markdown(self) -> str:
        """Return the table as GitHub shows it, without the note."""
        heading = [_in_one_cell(name) for name in self.heading]
        lines = [f"| {' | '.join(heading)} |", f"|{'|'.join(['---'] + ['--:'] * (len(self.heading) - 1))}|"]
        for row in self.rows:
            cells = [
                _wrapped(entry._replace(text=_in_one_cell(entry.text)), "**", "**", "<u>", "</u>") for entry in row
            ]
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join([f"### {self.title}", "", *lines, ""])

    def as_csv(self) -> str:
        """Return the table for a spreadsheet, as it reads."""
        return comma_separated(self.heading, [[entry.text for entry in row] for row in self.rows])

    def as_latex(self) -> str:
        """Return the table for a paper, the note below it; it needs the package booktabs."""
        rows = [
            " & ".join(
                _wrapped(entry._replace(text=latex(entry.text)), r"\textbf{", "}", r"\underline{", "}") for entry in row
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


def comma_separated(heading: tuple[str, ...], rows: list[list[str]]) -> str:
    """Return rows for a spreadsheet."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(heading)
    writer.writerows(rows)
    return stream.getvalue()


def latex(text: str) -> str:
    """Return text as LaTeX sets it: what has a meaning there is escaped."""
    return text.translate(LATEX)


def _broken(text: str, width: int) -> str:
    """Break a text into lines, between words alone."""
    return "\n".join(textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False))


def _in_one_cell(text: str) -> str:
    """Return text that neither ends a cell of a Markdown table nor its line."""
    return " ".join(text.split()).replace("\\|", "\\\\|").replace("|", "\\|").replace("<", "&lt;")


def _wrapped(entry: Entry, bold: str, bold_end: str, underline: str, underline_end: str) -> str:
    text = escape(entry.text) if bold == "[bold]" else entry.text
    if entry.underlined:
        text = f"{underline}{text}{underline_end}"
    return f"{bold}{text}{bold_end}" if entry.bold else text
