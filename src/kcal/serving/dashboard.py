"""The dashboard for the people who run the service: HTML without scripts, in the layout of the reports."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from math import log
from typing import Any

import numpy as np

from kcal.calibrators import Explanation
from kcal.errors import without_warnings
from kcal.report.html import percent, render
from kcal.serving.predictor import Predictor
from kcal.serving.record import LOW_EVIDENCE, Summary
from kcal.serving.service import ServedModel, Service

REFRESH_SECONDS = (5, 15, 60)
N_ROWS = 12
"""Classes and groups of a table: those closest to an alarm, or that differ most."""
N_SAMPLES = 5
"""Calibration samples of an explanation."""


def verdict_of(summary: Summary) -> tuple[str, str, str]:
    """Return whether the probabilities are still calibrated: "good", "notice" or "alarm", a word and a sentence."""
    part, n_labels = summary.monitor.overall, len(summary.codes)
    means = f"mean confidence {percent(part.predicted, 1)}, accuracy {percent(part.observed, 1)}"
    counted = f"on {part.n_samples:,} labels: {means}"
    parts = [*summary.monitor.alarmed_classes, *summary.monitor.alarmed_groups]
    if summary.monitor.alarm:
        return "alarm", "No", f"The probabilities are no longer calibrated {counted}."
    if parts:
        names = ", ".join(str(name) for name in parts[:3])
        return "alarm", "Not everywhere", f"The probabilities are not calibrated for {names}; {counted}."
    if any(alarm.kind == "inputs" for alarm in summary.alarms):
        sentence = "The inputs are no longer like the calibration set. Label some of the latest predictions."
        return "alarm", "Doubtful", sentence
    if not n_labels:
        return "notice", "Not known", "Only labels can show it: send them as feedback."
    if not part.n_samples:
        return "notice", "Not known", "The monitors were reset, and no label has come since."
    return "good", "Yes", f"There is no evidence against it {counted}."


def render_dashboard(service: Service, selected: str | None, label: str | None, refresh: str | None) -> str:
    """Return the dashboard of a model.

    Parameters
    ----------
    service : Service
        Whose models are shown.
    selected, label, refresh : str or None
        Values of the query as they came: a model, the column of a class, and seconds. What is not known is ignored.
    """
    names = sorted({*service.models, *service.errors})
    name = selected if selected in names else next(iter(names), "")
    with without_warnings():
        summaries = {key: model.summary() for key, model in list(service.models.items())}
        model, summary = service.models.get(name), summaries.get(name)
        contents = {"summary": None} if model is None or summary is None else _contents(model, summary, label)
    n_alarms = {key: sum(alarm.severity == "alarm" for alarm in each.alarms) for key, each in summaries.items()}
    count = f"({n_alarms[name]}) " if n_alarms.get(name) else ""
    return render(
        "dashboard.html",
        package="kcal.serving",
        title=f"{count}{name or 'No model'} · kcal",
        model_name=name,
        names=names,
        n_alarms=n_alarms,
        error=service.errors.get(name),
        refresh=next((seconds for seconds in REFRESH_SECONDS if str(seconds) == refresh), None),
        refresh_choices=REFRESH_SECONDS,
        **contents,
    )


def style_policy(html: str) -> str:
    """Return the content security policy of HTML: nothing but its own style sheet and forms."""
    match = re.search("<style>(.*?)</style>", html, re.DOTALL)
    digest = b64encode(sha256(match[1].encode() if match else b"").digest()).decode()
    allowed = f"style-src 'sha256-{digest}'; form-action 'self'"
    return f"default-src 'none'; {allowed}; base-uri 'none'; frame-ancestors 'none'"


def _contents(model: ServedModel, summary: Summary, label: str | None) -> dict[str, Any]:
    """Return what the template shows of a model, besides its summary."""
    predictor, learner = model.predictor, model.learner
    columns = {str(column): column for column in range(len(summary.classes))}
    worst = int(np.argmax([part.log_wealth for part in summary.monitor.classes]))
    facts = dict(predictor.summary())
    if learner is not None:
        facts["feedback"] = ", ".join(f"{n:,} {status}" for status, n in learner.counts.items() if n) or "none yet"
        if learner.n_other_versions:
            facts["samples of other networks in the store"] = f"{learner.n_other_versions:,}; not followed"
    calibrator: Any = predictor.calibrator
    expected: Any = calibrator.prior_ if calibrator.tags.has_prior else None
    differing: Any = [] if summary.frequencies is None else np.argsort(-np.abs(summary.frequencies.prior - expected))
    counts = np.histogram(summary.evidence, bins=10, range=(0.0, 1.0))[0]
    return {
        "summary": summary,
        "clock": lambda seconds, form: datetime.fromtimestamp(seconds, UTC).strftime(form),
        "verdict": dict(zip(("level", "word", "sentence"), verdict_of(summary), strict=True)),
        "column": columns.get(label or "", worst),
        "expected": expected,
        "differing": differing[:N_ROWS],
        "evidence_shares": counts / max(len(summary.evidence), 1),
        "low_evidence": LOW_EVIDENCE,
        "alarm_at": -log(summary.monitor.alpha),
        "classes": _closest_to_alarm(summary.monitor.classes),
        "groups": _closest_to_alarm(summary.monitor.groups),
        "takes_feedback": learner is not None,
        "not_following": learner and (learner.reason or learner.error),
        "predictions": list(zip(summary.latest, _explain(predictor, summary), strict=True)),
        "facts": facts,
    }


def _closest_to_alarm(parts: Sequence[Any]) -> list[tuple[int, Any]]:
    return sorted(enumerate(parts), key=lambda pair: -pair[1].log_wealth)[:N_ROWS]


def _explain(predictor: Predictor, summary: Summary) -> list[Explanation | None]:
    """Return an explanation of each prediction by the calibrator of now; None if its inputs do not fit it."""
    names, width = predictor.taken, predictor.calibrator.n_features_in_
    found: list[Explanation | None] = [None] * len(summary.latest)
    if not predictor.calibrator.tags.has_explanations or len(summary.classes) != len(predictor.classes):
        return found
    fitting = [place for place, one in enumerate(summary.latest) if set(one.rows) == set(names)]
    fitting = [place for place in fitting if len(summary.latest[place].rows[names[0]]) == width]
    rows = {name: np.array([summary.latest[place].rows[name] for place in fitting]) for name in names}
    for place, explanation in zip(fitting, predictor.explain(rows, N_SAMPLES) if fitting else (), strict=True):
        found[place] = explanation
    return found
