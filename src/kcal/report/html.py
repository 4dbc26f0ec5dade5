"""HTML from jinja2 templates: one layout and style sheet (``templates/``) and the filters that all templates share.

Another package extends the layout with templates of its own folder ``templates``::

    {% extends "layout.html" %}
    {% from "macros.html" import facts %}
    {% block content %}{{ facts({"samples": n_samples | count}) }}{% endblock %}

    render("dashboard.html", package="kcal.somewhere", title="Dashboard", n_samples=1200)
"""

import unicodedata
from functools import cache
from math import isfinite
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

__all__ = ["Markup", "count", "name", "number", "percent", "points", "readable", "render"]

MAX_NAME_LENGTH = 120
"""Longer names are cut; the tooltip shows them in full."""
UNDEFINED = "–"


def render(template: str, /, *, package: str = "kcal.report", **context: Any) -> str:
    """Render a template of a package as HTML; text in ``context`` is escaped.

    Parameters
    ----------
    template : str
        Name of a file in the folder ``templates`` of the package. It may extend "layout.html", whose blocks are
        ``head``, ``style``, ``header`` and ``content``, and which shows ``title``.
    package : str, default "kcal.report"
        Name of the package. Templates that it does not have are those of ``kcal.report``.
    **context
        What the template shows. A variable that is missing raises ``jinja2.UndefinedError``.

    Notes
    -----
    Filters, besides those of jinja2: ``percent`` ("12.34 %"), ``points`` ("12.34", for a column in %), ``count``
    ("1,234"), ``number`` (4 significant digits), ``name`` (isolated from the writing direction around it, and cut).
    Values that are not finite, or None, are shown as a dash.
    """
    return _environment(package).get_template(template).render(context)


@cache
def _environment(package: str) -> Environment:
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("kcal.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: readable(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "points": points, "count": count, "number": number, "name": name}
    return environment


def readable(text: object) -> str:
    """Return text that HTML can hold: control characters and lone surrogates become �."""
    valid = str(text).encode("utf-8", "replace").decode("utf-8")
    return "".join("\ufffd" if unicodedata.category(sign) == "Cc" and sign not in "\t\n" else sign for sign in valid)


def name(text: object) -> Markup:
    """Return a name as HTML, isolated from the writing direction of the text around it."""
    whole = readable(text)
    if len(whole) <= MAX_NAME_LENGTH:
        return Markup("<bdi>{}</bdi>").format(whole or "(no name)")
    return Markup('<bdi title="{}">{}…</bdi>').format(whole, whole[:MAX_NAME_LENGTH])


def points(value: float | None, digits: int = 2) -> str:
    """Return a fraction times 100."""
    return f"{100 * value:.{digits}f}" if value is not None and isfinite(value) else UNDEFINED


def percent(value: float | None, digits: int = 2) -> str:
    """Return a fraction as a percentage."""
    text = points(value, digits)
    return text if text == UNDEFINED else f"{text}\N{NO-BREAK SPACE}%"


def count(value: int) -> str:
    """Return a whole number with separators of thousands."""
    return f"{value:,}"


def number(value: float | None) -> str:
    """Return a number with 4 significant digits."""
    return f"{value:.4g}" if value is not None and isfinite(value) else UNDEFINED
