"""A table as text, Markdown, CSV and LaTeX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pandas

from kcal.errors import printable
from kcal.files import with_mark

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
        return self._marked("{}", "{}", str)

    def _marked(self, bold: str, underlined: str, escape: Callable[[str], str]) -> pandas.DataFrame:
        """Return the texts, with the templates of marked entries filled in."""

        def text(entry: Entry) -> str:
            content = escape(entry.text)
            content = underlined.format(content) if entry.underlined else content
            return bold.format(content) if entry.bold else content

        return pandas.DataFrame([map(text, row) for row in self.rows], columns=[escape(name) for name in self.heading])

    def transposed(self, corner: str = "method") -> Table:
        """Return the table with rows as columns: there are more methods than tasks, and terminals are narrow."""
        names = [row[0].text for row in self.rows]
        columns = zip(*(row[1:] for row in self.rows), strict=True)
        rows = tuple((Entry(name), *entries) for name, entries in zip(self.heading[1:], columns, strict=True))
        return replace(self, heading=(corner, *names), rows=rows)

    def as_text(self, width: int) -> str:
        """Return the table for a terminal, in parts of its columns where it is wider; * is bold, _ underlined."""
        marked = self._marked("*{}", "_{}", printable)
        body = marked.iloc[:, 1:].set_axis(marked.iloc[:, 0]).rename_axis(index=None, columns=marked.columns[0])
        return f"{printable(self.title)}\n\n{body.to_string(line_width=width)}\n"

    def as_markdown(self) -> str:
        """Return the table as GitHub shows it, without the note."""
        marked = self._marked("**{}**", "<u>{}</u>", _markdown)
        lines = [list(marked.columns), ["---", *["--:"] * (len(self.heading) - 1)], *marked.to_numpy().tolist()]
        return "\n".join([f"### {self.title}", "", *(f"| {' | '.join(line)} |" for line in lines), ""])

    def as_csv(self) -> str:
        """Return the table for a spreadsheet, with the texts that it shows."""
        return spreadsheet(self.frame)

    def as_latex(self) -> str:
        """Return the table for a paper, the note below it; it needs the package booktabs."""
        text: str = self._marked(r"\textbf{{{}}}", r"\underline{{{}}}", latex).to_latex(
            index=False,
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


def _markdown(text: str) -> str:
    """Return text that ends neither a cell of a Markdown table nor its line."""
    return printable(" ".join(text.split())).replace("\\|", "\\\\|").replace("|", "\\|").replace("<", "&lt;")
