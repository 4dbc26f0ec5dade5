"""The dashboard for the people who run the service: HTML without scripts, in the layout of the reports."""

from __future__ import annotations

import re
from base64 import b64encode
from collections import namedtuple
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from math import exp, log
from typing import Any

import numpy as np

from kcal.errors import without_warnings
from kcal.metrics import ReliabilityBins
from kcal.report.html import percent, render
from kcal.serving.predictor import Predictor
from kcal.serving.record import LOW_EVIDENCE, Prediction, Summary
from kcal.serving.service import ServedModel, Service

REFRESH_SECONDS = (5, 15, 60)
N_ROWS = 12
"""Classes and groups of a table: those closest to an alarm, or that differ most."""
N_TOP = 3
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Verdict:
    """The answer to whether the probabilities are still calibrated."""

    level: str  # "good", "notice" or "alarm"
    word: str
    sentence: str


def verdict_of(summary: Summary) -> Verdict:
    """Return whether the probabilities are still calibrated, as far as labels and inputs show."""
    part, n_labels = summary.monitor.overall, len(summary.codes)
    means = f"mean confidence {percent(part.predicted, 1)}, accuracy {percent(part.observed, 1)}"
    counted = f"on {part.n_samples:,} labels: {means}"
    parts = [*summary.monitor.alarmed_classes, *summary.monitor.alarmed_groups]
    if summary.monitor.alarm:
        return Verdict("alarm", "No", f"The probabilities are no longer calibrated {counted}.")
    if parts:
        names = ", ".join(str(name) for name in parts[:3])
        return Verdict("alarm", "Not everywhere", f"The probabilities are not calibrated for {names}; {counted}.")
    if any(alarm.kind == "inputs" for alarm in summary.alarms):
        sentence = "The inputs are no longer like the calibration set. Label some of the latest predictions."
        return Verdict("alarm", "Doubtful", sentence)
    if not n_labels:
        return Verdict("notice", "Not known", "Only labels can show it: send them as feedback.")
    if not part.n_samples:
        return Verdict("notice", "Not known", "The monitors were reset, and no label has come since.")
    return Verdict("good", "Yes", f"There is no evidence against it {counted}.")


Bin = namedtuple("Bin", "low_edge high_edge n_labels height mean observed low high")
"""A bin of a reliability curve, as the chart shows it."""


def _curve(title: str, curve: ReliabilityBins) -> dict[str, Any]:
    lows, highs = curve.frequency_bands(CONFIDENCE)
    heights = curve.counts / max(int(curve.counts.max()), 1)
    means = (curve.mean_prediction, curve.observed_frequency)
    columns = (curve.edges[:-1], curve.edges[1:], curve.counts, heights, *means, lows, highs)
    bins = [Bin(*row) for row in zip(*(values.tolist() for values in columns), strict=True)]
    return {"title": title, "error": curve.calibration_error, "bins": [one for one in bins if one.n_labels]}


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
    with without_warnings():
        summaries = {name: model.summary() for name, model in list(service.models.items())}
        name = selected if selected in names else next(iter(names), None)
        model, summary = service.models.get(name or ""), summaries.get(name or "")
        contents: dict[str, Any] = {"summary": None}
        if model is not None and summary is not None:
            contents = _contents(model, summary, label)
    n_alarms = {key: sum(alarm.severity == "alarm" for alarm in each.alarms) for key, each in summaries.items()}
    count = f"({n_alarms[name]}) " if name is not None and n_alarms.get(name) else ""
    return render(
        "dashboard.html",
        package="kcal.serving",
        title=f"{count}{name or 'No model'} · kcal",
        model_name=name,
        names=names,
        n_alarms=n_alarms,
        error=service.errors.get(name or ""),
        refresh=next((seconds for seconds in REFRESH_SECONDS if str(seconds) == refresh), None),
        refresh_choices=REFRESH_SECONDS,
        **contents,
    )


def style_policy(page: str) -> str:
    """Return the content security policy of a page: nothing but its own style sheet and forms."""
    match = re.search("<style>(.*?)</style>", page, re.DOTALL)
    digest = b64encode(sha256(match[1].encode() if match else b"").digest()).decode()
    allowed = f"style-src 'sha256-{digest}'; form-action 'self'"
    return f"default-src 'none'; {allowed}; base-uri 'none'; frame-ancestors 'none'"


def _contents(model: ServedModel, summary: Summary, label: str | None) -> dict[str, Any]:
    """Return what the template shows of a model."""
    column = int(np.argmax([part.log_wealth for part in summary.monitor.classes]))
    if label is not None and label.isascii() and label.isdigit() and len(label) < 10:
        column = min(int(label), len(summary.classes) - 1)
    curves = []
    if len(summary.codes):
        title = f"Class {summary.classes[column]}"
        curves = [_curve("Top class", summary.reliability()), _curve(title, summary.reliability(column))]
    learner, facts = model.learner, dict(model.predictor.summary())
    if learner is not None:
        facts["feedback"] = ", ".join(f"{n:,} {status}" for status, n in learner.counts.items() if n) or "none yet"
        if learner.n_other_versions:
            facts["samples of other networks in the store"] = f"{learner.n_other_versions:,}; not followed"
    return {
        "summary": summary,
        "time": _clock(summary.time, "%Y-%m-%d %H:%M:%S UTC"),
        "verdict": verdict_of(summary),
        "tiles": _tiles(summary),
        "curves": curves,
        "column": column,
        "class_names": [str(name) for name in summary.classes.tolist()],
        "frequencies": _frequencies(model.predictor, summary),
        "evidence": _evidence(summary),
        "monitors": [_monitor_rows(parts, summary) for parts in (summary.monitor.classes, summary.monitor.groups)],
        "takes_feedback": learner is not None,
        "not_following": learner.error if learner is not None else "",
        "predictions": _predictions(model.predictor, summary),
        "facts": facts,
    }


def _tiles(summary: Summary) -> dict[str, tuple[str, str]]:
    """Return numbers with their notes, by title."""
    tiles = {}
    if len(summary.codes):
        value, low, high = summary.accuracy
        note = f"{percent(low, 1)} to {percent(high, 1)}, on the latest {len(summary.codes):,} labels"
        tiles["Measured accuracy"] = percent(value, 1), note
        error = summary.reliability().calibration_error
        tiles["Calibration error"] = percent(error, 1), "of the probability of the top class"
    if summary.performance is not None:
        value, low, high = summary.performance.accuracy
        note = f"{percent(low, 1)} to {percent(high, 1)}, from the latest {len(summary.recent):,} predictions alone"
        note += "; they are not calibrated: do not rely on it" if summary.monitor.alarm else ""
        tiles["Estimated accuracy"] = percent(value, 1), note
    if len(summary.evidence):
        share = float((summary.evidence < LOW_EVIDENCE).mean())
        tiles["Low evidence"] = percent(share, 1), f"of predictions have less than {LOW_EVIDENCE:g}; 5 % are expected"
    return tiles


def _frequencies(predictor: Predictor, summary: Summary) -> list[dict[str, Any]]:
    """Return expected and estimated frequencies of the classes that differ most; none if these are not known."""
    found, expected = summary.frequencies, getattr(predictor.calibrator, "prior_", None)
    if found is None or expected is None:
        return []
    order = np.argsort(-np.abs(found.prior - expected), kind="stable")[:N_ROWS]
    scale = 1.05 * max(float(found.high.max()), float(expected.max()))
    columns = {"expected": expected, "value": found.prior, "low": found.low, "high": found.high}
    return [
        {"name": str(summary.classes[code]), "column": code, "scale": scale}
        | {name: float(values[code]) for name, values in columns.items()}
        for code in order.tolist()
    ]


def _evidence(summary: Summary) -> list[float]:
    """Return the shares of predictions in tenths of the evidence: a tenth each if they are like the calibration set."""
    counts = np.histogram(summary.evidence, bins=10, range=(0.0, 1.0))[0]
    shares: list[float] = (counts / max(len(summary.evidence), 1)).tolist()
    return shares


def _monitor_rows(parts: Any, summary: Summary) -> list[dict[str, Any]]:
    """Return the classes or groups that are closest to an alarm, with the way that is left to it."""
    ordered = sorted(enumerate(parts), key=lambda pair: -pair[1].log_wealth)[:N_ROWS]
    return [
        {
            "part": part,
            "column": column,
            "reached": 1.0 if part.alarm else min(max(part.log_wealth, 0.0) / -log(summary.monitor.alpha), 1.0),
            "wealth": exp(min(part.log_wealth, 700.0)),
        }
        for column, part in ordered
    ]


def _predictions(predictor: Predictor, summary: Summary) -> list[dict[str, Any]]:
    """Return the latest predictions, explained by the calibrator as it is now."""
    explanations = _explain(predictor, summary.latest)
    rows = []
    for one in summary.latest:
        order = np.argsort(-one.probs, kind="stable")[:N_TOP]
        top = [(str(summary.classes[code]), float(one.probs[code])) for code in order]
        label = None if one.code < 0 else str(summary.classes[one.code])
        rows.append(
            {
                "id": one.id or "without id",
                "time": _clock(one.time, "%H:%M:%S"),
                "top": top,
                "evidence": one.evidence,
                "is_low": one.evidence is not None and one.evidence < LOW_EVIDENCE,
                "label": label,
                "is_right": label == top[0][0],
                "group": one.group,
                "explanation": explanations.get(id(one)),
            }
        )
    return rows


def _explain(predictor: Predictor, latest: tuple[Prediction, ...]) -> dict[int, Any]:
    """Return explanations of predictions whose inputs are known and fit the calibrator of now."""
    calibrator = predictor.calibrator
    first = predictor.taken[0]
    known = [
        one
        for one in latest
        if set(one.rows) == set(predictor.taken)
        and len(one.rows[first]) == calibrator.n_features_in_
        and len(one.probs) == len(predictor.classes)
    ]
    if not known or not calibrator.has_explanations:
        return {}
    rows = {name: np.stack([one.rows[name] for one in known]) for name in predictor.taken}
    explanation = predictor.explain(rows, 5)
    return {id(one): _explanation_table(each) for one, each in zip(known, explanation, strict=True)}


def _explanation_table(one: Any) -> dict[str, Any]:
    """Return the most influential samples of one prediction; shares are of all probability, which is 1."""
    samples = [
        (
            str(one.ids[0, place]),
            str(one.labels[0, place]),
            float(one.shares[0, place]),
            float(one.distances[0, place]),
        )
        for place in range(one.ids.shape[1])
    ]
    sums = {"all other samples": one.rest, **one.parts}
    return {
        "samples": samples,
        "others": [(name, float(part[0].sum())) for name, part in sums.items() if part[0].any()],
        "log_odds": one.log_odds_cells(0),
    }


def _clock(seconds: float, form: str) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(form)
