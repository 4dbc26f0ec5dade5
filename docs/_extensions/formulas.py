"""Formulas as SVG within the page, drawn by matplotlib: no script, no fonts, no network."""

from __future__ import annotations

import html
import re
from typing import Any

import numpy as np
from docutils import nodes
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import text_to_path
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.writers.html5 import HTML5Translator

UNITS = 100
"""Units of the figure per font size."""
FONT = FontProperties(size=UNITS, math_fontfamily="stix")
SCALE = 1.12
"""Size of a formula relative to the text around it, whose lower-case letters are taller."""
SEGMENTS = {
    Path.MOVETO: "M",
    Path.LINETO: "L",
    Path.CURVE3: "Q",
    Path.CURVE4: "C",
    Path.CLOSEPOLY: "Z",
}
SYNONYMS = {
    r"\le": r"\leq",
    r"\ge": r"\geq",
    r"\lVert": r"\Vert",
    r"\rVert": r"\Vert",
    r"\lvert": "|",
    r"\rvert": "|",
}


def in_dialect(formula: str, *, block: bool) -> str:
    r"""Return a formula of LaTeX in matplotlib's dialect, where ``\big(`` is ``\left(``."""
    text = " ".join(formula.split())
    text = re.sub(
        r"\\(?:lVert|rVert|lvert|rvert|le|ge)(?![a-zA-Z])",
        lambda match: SYNONYMS[match[0]],
        text,
    )
    text = re.sub(r"\\sqrt\s*([^{\s\\])", r"\\sqrt{\1}", text)
    text = text.replace(r"\frac", r"\dfrac" if block else r"\frac")
    text = re.sub(r"\\tfrac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}", text)
    opened: list[str] = []

    def sided(match: re.Match[str]) -> str:
        closes = match[1] in ")]" or (match[1] == "|" and "|" in opened)
        if closes:
            opened.pop()
            return rf"\right{match[1]}"
        opened.append(match[1])
        return rf"\left{match[1]}"

    return re.sub(r"\\[bB]igg?\s*([()\[\]|])", sided, text)


def to_svg(formula: str, *, block: bool = False) -> str:
    """Return a formula of LaTeX as SVG, on the line and in the colour of the text."""
    text = f"${in_dialect(formula, block=block)}$"
    try:
        vertices, codes = text_to_path.get_text_path(FONT, text, ismath=True)
        width, height, depth = text_to_path.get_text_width_height_descent(
            text, FONT, ismath=True
        )
    except ValueError as error:
        raise ExtensionError(f"the formula {formula!r} cannot be drawn: {error}") from error
    outline = Path(
        np.asarray(vertices) * [1, -1], codes
    )  # the vertical axis of SVG points down
    label = html.escape(" ".join(formula.split()))
    size = [f"{SCALE * length / UNITS:.3f}em" for length in (width, height, -depth)]
    return (
        f'<svg class="formula" role="img" aria-label="{label}" '
        f'viewBox="0 {depth - height:.1f} {width:.1f} {height:.1f}" '
        f'style="width: {size[0]}; height: {size[1]}; vertical-align: {size[2]}">'
        f'<path d="{path_data(outline)}"/></svg>'
    )


def path_data(outline: Path) -> str:
    """Return the segments of a path as SVG writes them."""
    text = ""
    for points, code in outline.iter_segments(simplify=False):
        numbers = [] if code == Path.CLOSEPOLY else [f"{number:.1f}" for number in points]
        text += SEGMENTS[code] + " ".join(number.removesuffix(".0") for number in numbers)
    return text


def visit_math(translator: HTML5Translator, node: nodes.math) -> None:
    """Write a formula within a line."""
    translator.body.append(to_svg(node.astext()))
    raise nodes.SkipNode


def visit_math_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula of its own; a wide one scrolls."""
    translator.body.append(f'<div class="formula">{to_svg(node.astext(), block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer."""
    app.add_html_math_renderer("svg", (visit_math, None), (visit_math_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
