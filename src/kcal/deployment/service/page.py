"""The page that shows served models to the people who run them: HTML and SVG, without scripts."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from typing import Any

from kcal.calibrators.explanation import Explanation
from kcal.deployment.service.snapshot import ServiceSnapshot
from kcal.errors import MissingExtraError

REFRESH_SECONDS = (5, 15, 60)


@dataclass(frozen=True)
class Traffic:
    """Requests that a model has answered since it was loaded; None for what is not known."""

    requests: int
    errors: int = 0
    per_second: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None


@dataclass(frozen=True, eq=False)
class ModelView:
    """What the page shows of one model.

    Attributes
    ----------
    state : str
        "ready", "loading" or "failed", or any other text.
    snapshot : ServiceSnapshot or None
        None if the model has no record.
    explanations : sequence of Explanation or None
        Of ``snapshot.latest``, in its order, one row each; see :func:`explain_latest`. May be shorter.
    facts : mapping of str to str
        Further lines of the heading, such as ``calibrator.summary()``.
    """

    name: str
    version: str
    state: str = "ready"
    snapshot: ServiceSnapshot | None = None
    explanations: Sequence[Explanation | None] = ()
    traffic: Traffic | None = None
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Name and version, as ``selected`` names a model."""
        return f"{self.name}/{self.version}"


def render_page(
    models: Sequence[ModelView],
    *,
    selected: str | None = None,
    class_column: str | None = None,
    refresh: str | None = None,
) -> str:
    """Return the page as HTML.

    Parameters
    ----------
    models
        All models that are served.
    selected, class_column, refresh
        The values of ``model``, ``class`` and ``refresh`` in the query of the request, as they are: the key or the name
        of a model, the column of a class, and seconds. Values that mean nothing are ignored.
    """
    environment = _environment()
    return environment.get_template("page.html").render(models=models, selected=selected)


def content_security_policy() -> str:
    """Return the policy that the page needs: nothing but its own style sheet, pictures within it, and its forms."""
    digest = b64encode(sha256(_style().encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


@cache
def _environment() -> Any:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ModuleNotFoundError as error:
        raise MissingExtraError("The page needs Jinja2. Run: pip install 'kcal[serve]'") from error
    loader = PackageLoader("kcal.deployment.service", "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


@cache
def _style() -> str:
    source: str = _environment().loader.get_source(_environment(), "style.css")[0]
    return source
