"""Text as HTML: escaped and shortened names, tables, and the frame of a page."""

import html
import math
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from kcal.report.style import STYLE

LONGEST_NAME = 120
"""Longer names are cut; the tooltip shows them in full."""


class Column(NamedTuple):
    """A column of a table: its heading, as text, and whether its cells are numbers."""

    heading: str
    number: bool = True


def readable(name: object) -> str:
    """Return a name that a page can hold: control characters and lone surrogates become �."""
    text = str(name).encode("utf-8", "replace").decode("utf-8")
    return "".join("\ufffd" if unicodedata.category(sign) == "Cc" and sign not in "\t\n" else sign for sign in text)


def escaped(text: object) -> str:
    """Return text escaped for HTML content and attributes."""
    return html.escape(readable(text), quote=True)


def named(name: object) -> str:
    """Return a name as HTML, isolated from the writing direction of the text around it."""
    text = readable(name)
    if len(text) <= LONGEST_NAME:
        return f"<bdi>{escaped(text) or '(no name)'}</bdi>"
    return f'<bdi title="{escaped(text)}">{escaped(text[:LONGEST_NAME])}…</bdi>'


def percent(value: float) -> str:
    """Return a fraction as a percentage without the sign; a dash if it is undefined."""
    return f"{100 * value:.2f}" if math.isfinite(value) else "–"


def signed_text(signed_error: float) -> str:
    """Return in words by how many percentage points predictions are too high or too low on average."""
    if not math.isfinite(signed_error):
        return "–"
    points = f"{100 * abs(signed_error):.2f}"
    if float(points) == 0:
        return "right on average"
    return f"too {'high' if signed_error < 0 else 'low'} by {points} points"


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, label: str) -> str:
    """Return a table of HTML cells; the first of each row is its heading.

    A table that is too wide scrolls; on a narrow screen each row becomes a list of its cells with their headings.
    """
    heads = "".join(f'<th scope="col"{_kind(column)}>{escaped(column.heading)}</th>' for column in columns)
    body = "\n".join(f"<tr>{_row(columns, row)}</tr>" for row in rows)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escaped(label)}">\n<table>\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Return a list of terms (text) and their descriptions (HTML)."""
    return "<dl>\n" + "\n".join(f"<dt>{escaped(term)}</dt><dd>{text}</dd>" for term, text in pairs) + "\n</dl>"


def section(identity: str, heading: str, *parts: str) -> str:
    """Return a section of the page; ``identity`` is its anchor."""
    inside = "\n".join(part for part in parts if part)
    return f'<section id="{escaped(identity)}">\n<h2>{escaped(heading)}</h2>\n{inside}\n</section>'


def page(title: str, lead: str, sections: Sequence[str]) -> str:
    """Return a complete HTML5 page; its policy forbids it to load anything."""
    inside = "\n".join(sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>{escaped(title)}</title>
<style>
{STYLE}</style>
</head>
<body>
<main>
<h1>{named(title)}</h1>
<p class="lead">{lead}</p>
{inside}
</main>
</body>
</html>
"""


def _row(columns: Sequence[Column], cells: Sequence[str]) -> str:
    first = f'<th scope="row">{cells[0]}</th>'
    rest = zip(columns[1:], cells[1:], strict=True)
    return first + "".join(
        f'<td{_kind(column)} data-label="{escaped(column.heading)}">{cell}</td>' for column, cell in rest
    )


def _kind(column: Column) -> str:
    return ' class="number"' if column.number else ""
