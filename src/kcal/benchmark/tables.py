"""The benchmark's tables, as data and as text for the terminal, Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import textwrap
from dataclasses import dataclass
from typing import NamedTuple

from rich import box
from rich.markup import escape
from rich.table import Table as RichTable

from kcal.benchmark.results import MEASURES, RANKED, Results
from kcal.metrics import ReshuffleSummary

ABSENT = "–"
INACCURATE = "†"
NOTE = (
    "Mean ± standard deviation over reshuffles. Bold: the best mean among methods that keep the accuracy, and what is "
    f"not significantly worse (pooled t-test, p = 0.01); {INACCURATE} significantly less accurate than uncalibrated; "
    f"underlined: the best mean of all, where it does not keep the accuracy; {ABSENT} did not take part or failed. "
    "Reshuffles share samples, and the pooled test takes them for independent: it is surer than it should be."
)
CORRECTED_NOTE = (
    "The best mean among the methods that keep the accuracy, first, and what is not significantly worse by the "
    "corrected test of Nadeau and Bengio (paired, p = 0.01). Reshuffles of one pool overlap: this test allows for it, "
    "the pooled one behind the bold numbers does not, so that more methods tend to tie here."
)
WIDEST_HEADING, WIDEST_NAME = 12, 20
"""Characters of headings and names in a terminal, beyond which they take several lines."""


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
        """Return the table for a terminal."""
        table = RichTable(title=self.title, box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
        for place, name in enumerate(self.heading):
            heading = escape(_broken(name, WIDEST_HEADING))
            table.add_column(heading, justify="left" if place == 0 else "right", no_wrap=True)
        for first, *others in self.rows:
            shown = [first._replace(text=_broken(first.text, WIDEST_NAME)), *others]
            table.add_row(*(_wrapped(entry, "[bold]", "[/bold]", "[underline]", "[/underline]") for entry in shown))
        return table

    def turned(self, corner: str = "method") -> Table:
        """Return the table with rows as columns: methods are more than tasks, and terminals are narrow."""
        names = [row[0].text for row in self.rows]
        columns = zip(*(row[1:] for row in self.rows), strict=True)
        rows = tuple((Entry(name), *entries) for name, entries in zip(self.heading[1:], columns, strict=True))
        return Table(self.name, self.title, (corner, *names), rows, self.note)

    def as_markdown(self) -> str:
        """Return the table as GitHub shows it."""
        lines = [f"| {' | '.join(self.heading)} |", f"|{'|'.join(['---'] + ['--:'] * (len(self.heading) - 1))}|"]
        for row in self.rows:
            cells = [_wrapped(entry, "**", "**", "<u>", "</u>").replace("|", "\\|") for entry in row]
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join([f"### {self.title}", "", *lines, ""])

    def as_csv(self) -> str:
        """Return the table for a spreadsheet; marks are left out."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(self.heading)
        writer.writerows([[entry.text for entry in row] for row in self.rows])
        return stream.getvalue()

    def as_latex(self) -> str:
        """Return the table for a paper; it needs the package booktabs."""
        rows = [
            " & ".join(
                _wrapped(entry._replace(text=_latex(entry.text)), r"\textbf{", "}", r"\underline{", "}")
                for entry in row
            )
            for row in self.rows
        ]
        heading = " & ".join(_latex(name) for name in self.heading)
        return "\n".join(
            [
                r"\begin{table}[ht]",
                rf"\caption{{{_latex(self.title)}}}",
                rf"\begin{{tabular}}{{l{'r' * (len(self.heading) - 1)}}}",
                r"\toprule",
                rf"{heading} \\",
                r"\midrule",
                *(rf"{row} \\" for row in rows),
                r"\bottomrule",
                r"\end{tabular}",
                r"\end{table}",
                "",
            ]
        )


def all_tables(results: Results) -> list[Table]:
    """Return a table a metric, the best by the corrected test, the ranks, the seconds and, if any, the failures."""
    tables = [metric_table(results, metric) for metric in MEASURES]
    if any(results.sizes(row) is not None for row in results.rows):
        tables.append(corrected_table(results))
    tables += [rank_table(results), time_table(results)]
    return [*tables, failure_table(results)] if results.failures else tables


def metric_table(results: Results, metric: str) -> Table:
    """Return one metric: tasks as rows, methods as columns."""
    title, better, scale = MEASURES[metric]
    rows = []
    for row in results.rows:
        comparison = results.comparison(row, metric)
        marks = comparison.pooled
        entries = [Entry(row.label)]
        for method in results.methods:
            summary = comparison.summaries.get(method)
            if summary is None:
                entries.append(Entry(ABSENT))
                continue
            mark = "" if method in marks.accuracy_preserving else INACCURATE
            text = f"{_scaled(summary, scale)}{mark}"
            entries.append(Entry(text, bold=method in marks.best, underlined=method == marks.underlined))
        rows.append(tuple(entries))
    arrow = "↑" if better == "higher" else "↓"
    unit = " × 10⁻²" if scale == 100 else ""
    return Table(metric, f"{title} {arrow}{unit}", ("task", *results.methods), tuple(rows), NOTE)


def corrected_table(results: Results) -> Table:
    """Return the methods that tie with the best under the corrected test: tasks as rows, metrics as columns."""
    shown = (*RANKED, "negative_log_likelihood")
    rows = []
    for row in results.rows:
        marks = [results.comparison(row, metric).corrected for metric in shown]
        entries = [Entry(ABSENT if each is None or not each.best else ", ".join(each.best)) for each in marks]
        rows.append((Entry(row.label), *entries))
    heading = ("task", *(MEASURES[metric].title for metric in shown))
    return Table("corrected", "Best by the corrected test", heading, tuple(rows), CORRECTED_NOTE)


def rank_table(results: Results) -> Table:
    """Return average ranks: metrics as rows, methods as columns, and an overall average."""
    rows = []
    for metric in (*RANKED, "negative_log_likelihood"):
        ranks = results.ranks(metric)
        entries = [
            Entry(
                str(ranks.ranks[method]).replace(" ± ", "±") if method in ranks.ranks else ABSENT,
                bold=method in ranks.best,
            )
            for method in results.methods
        ]
        rows.append((Entry(MEASURES[metric].title), *entries))
    overall = results.overall()
    best = min(overall.values())
    entries = [
        Entry(f"{overall[method]:.2f}" if method in overall else ABSENT, bold=overall.get(method) == best)
        for method in results.methods
    ]
    rows.append((Entry("overall, without NLL"), *entries))
    note = "Ranks over every reshuffle of every task, among the methods that are there; 1 is the best."
    return Table("ranks", "Average rank ↓", ("metric", *results.methods), tuple(rows), note)


def time_table(results: Results) -> Table:
    """Return median seconds to fit and to predict."""
    rows = []
    for row in results.rows:
        found = [results.seconds(row, method) for method in results.methods]
        entries = [Entry(ABSENT if each is None else f"{each[0]:.2f} + {each[1]:.2f}") for each in found]
        rows.append((Entry(row.label), *entries))
    note = "Median over reshuffles, on one processor. A projection is trained once a task, which is not counted here."
    return Table("seconds", "Seconds to fit + to predict", ("task", *results.methods), tuple(rows), note)


def failure_table(results: Results) -> Table:
    """Return what went wrong where."""
    rows = tuple(
        (
            Entry(outcome.cell.task),
            Entry(outcome.cell.method),
            Entry(str(outcome.cell.reshuffle)),
            Entry(str(outcome.error)),
        )
        for outcome in results.failures
    )
    return Table("failures", "Failed", ("task", "method", "reshuffle", "error"), rows)


def _scaled(summary: ReshuffleSummary, scale: float) -> str:
    digits = 2 if scale == 100 else 4
    mean, std = scale * summary.mean, scale * summary.std
    return f"{mean:.{digits}f}±{std:.{digits}f}" if summary.n_reshuffles > 1 else f"{mean:.{digits}f}"


def _broken(text: str, width: int) -> str:
    """Break a text into lines, between words alone."""
    return "\n".join(textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False))


def _wrapped(entry: Entry, bold: str, bold_end: str, underline: str, underline_end: str) -> str:
    text = escape(entry.text) if bold == "[bold]" else entry.text
    if entry.underlined:
        text = f"{underline}{text}{underline_end}"
    return f"{bold}{text}{bold_end}" if entry.bold else text


def _latex(text: str) -> str:
    for plain, written in (
        ("\\", r"\textbackslash{}"), ("&", r"\&"), ("%", r"\%"), ("_", r"\_"), ("#", r"\#"), ("±", r"$\pm$"),
        ("×", r"$\times$"), ("⁻²", "$^{-2}$"), ("↑", r"$\uparrow$"), ("↓", r"$\downarrow$"), ("†", r"$\dagger$"),
        ("–", "--"),
    ):  # fmt: skip
        text = text.replace(plain, written)
    return text
