"""Formulas as MathML, which browsers draw themselves: no script, no fonts, no network."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.writers.html5 import HTML5Translator

SIZED_DELIMITER = re.compile(r"\\([bB]igg?)(?![a-zA-Z])\s*(?=(.))", re.S)


def to_mathml(formula: str, *, block: bool = False) -> str:
    r"""Return a formula of LaTeX as MathML; ``\big(`` is read as ``\bigl(``, and before a closing one as ``\bigr``."""
    sided = SIZED_DELIMITER.sub(lambda match: f"\\{match[1]}{'l' if match[2] in '([{|' else 'r'}", formula)
    try:
        return tex2mathml(sided, as_block=block)
    except MathError as error:
        raise ExtensionError(f"the formula {formula!r} cannot be written as MathML: {error}") from error


def visit_math(translator: HTML5Translator, node: nodes.math) -> None:
    """Write a formula within a line."""
    translator.body.append(to_mathml(node.astext()))
    raise nodes.SkipNode


def visit_math_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula of its own; a wide one scrolls."""
    translator.body.append(f'<div class="formula">{to_mathml(node.astext(), block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
