"""The page that shows served models to the people who run them: HTML and SVG, without scripts."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

from kcal.calibrators import Explanation
from kcal.deployment.service.formats import name_of, timestamp
from kcal.deployment.service.prediction_rows import prediction_rows
from kcal.deployment.service.snapshot import ServiceSnapshot
from kcal.deployment.service.tallies import Traffic
from kcal.deployment.service.view import (
    default_column,
    evidence_panel,
    frequency_rows,
    monitor_rows,
    overall_rows,
    reliability_panel,
    status_of,
    tiles,
    traffic_tiles,
)

REFRESH_SECONDS = (5, 15, 60)


@dataclass(frozen=True, eq=False)
class ModelView:
    """What the page shows of one model.

    Attributes
    ----------
    state : str
        "ready", "loading" or "failed", or any other text.
    snapshot : ServiceSnapshot or None
        None if the model is not ready.
    explanations : sequence of Explanation or None
        Of ``snapshot.latest``, in its order, one row each; see :func:`explain_latest`. May be shorter.
    feedback_obstacle : str
        Why the model takes no feedback, and what to do; empty if it does.
    facts : mapping of str to str
        Further lines of the heading, such as ``calibrator.summary()``.
    """

    name: str
    version: str
    state: str = "ready"
    snapshot: ServiceSnapshot | None = None
    explanations: Sequence[Explanation | None] = ()
    traffic: Traffic | None = None
    feedback_obstacle: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Name and version, as ``selected`` names a model."""
        return f"{self.name}/{self.version}"

    @property
    def link(self) -> str:
        """The address of the page with this model."""
        return f"?{urlencode({'model': self.key})}"

    @property
    def n_alarms(self) -> int:
        """Number of alarms that are on; notices do not count."""
        return 0 if self.snapshot is None else sum(alarm.severity == "alarm" for alarm in self.snapshot.alarms)


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
    model = select(models, selected)
    page: str = (
        _environment()
        .get_template("page.html")
        .render(
            models=models,
            model=model,
            alarmed=[other for other in models if other is not model and other.n_alarms],
            snapshot=None if model is None else model.snapshot,
            refresh=_refresh(refresh),
            refresh_choices=REFRESH_SECONDS,
            style=_style(),
            **_contents(model, class_column, _refresh(refresh)),
        )
    )
    return page


def select(models: Sequence[Any], selected: str | None) -> Any:
    """Return the model of this key, or the first of this name; the first of all if there is none."""
    keyed = [model for model in models if model.key == selected]
    named = [model for model in models if model.name == selected]
    return next(iter([*keyed, *named, *models]), None)


def _refresh(seconds: str | None) -> int | None:
    return next((choice for choice in REFRESH_SECONDS if str(choice) == str(seconds)), None)


def _contents(model: ModelView | None, class_column: str | None, refresh: int | None) -> dict[str, Any]:
    """Return what the templates show of a model."""
    snapshot = None if model is None else model.snapshot
    heading = {
        "time": "" if snapshot is None else timestamp(snapshot.time),
        "first_time": "" if snapshot is None or snapshot.first_time is None else timestamp(snapshot.first_time),
        "status": None,
    }
    if model is None or snapshot is None or snapshot.is_empty:
        return heading
    column = _column(class_column, snapshot)
    curves = [reliability_panel(snapshot, of) for of in ("confidence", column)] if snapshot.labelled else []

    def link(place: int) -> str:
        query = {"model": model.key, "class": place} | ({} if refresh is None else {"refresh": refresh})
        return f"?{urlencode(query)}#reliability"

    classes, groups = (monitor_rows(snapshot, kind) for kind in ("classes", "groups"))
    return heading | {
        "status": status_of(snapshot),
        "name_of": name_of,
        "tiles": [*tiles(snapshot, takes_feedback=not model.feedback_obstacle), *traffic_tiles(model.traffic)],
        "class_names": [name_of(label) for label in snapshot.classes.tolist()],
        "column": column,
        "curves": curves,
        "link": link,
        "frequency_rows": frequency_rows(snapshot),
        "frequencies_estimated": snapshot.frequencies is not None and snapshot.frequencies.identifiable,
        "evidence": evidence_panel(snapshot),
        "alarm_at": f"{1 / snapshot.monitor.alpha:g}",
        "monitors": overall_rows(snapshot),
        "class_rows": classes,
        "group_rows": groups,
        "class_alarms": bool(snapshot.monitor.alarmed_classes),
        "group_alarms": bool(snapshot.monitor.alarmed_groups),
        "predictions": list(prediction_rows(snapshot, model.explanations)),
    }


def _column(text: str | None, snapshot: ServiceSnapshot) -> int:
    """Return the column of a class; that of the class closest to an alarm if the text is no column."""
    if text is not None and text.isascii() and text.isdigit() and len(text) < 10 and int(text) < len(snapshot.classes):
        return int(text)
    return default_column(snapshot)


def content_security_policy() -> str:
    """Return the policy that the page needs: nothing but its own style sheet, pictures within it, and its forms."""
    digest = b64encode(sha256(_style().encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


@cache
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("kcal.deployment.service", "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


@cache
def _style() -> str:
    source: str = _environment().loader.get_source(_environment(), "style.css")[0]
    return source
