"""The contents of the page, as text and charts: tiles, panels and rows of tables, from the snapshot of a model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kcal.deployment.service.charts import evidence_chart, range_bar, reliability_chart, wealth_bar
from kcal.deployment.service.formats import interval, name_of, percent, wealth
from kcal.deployment.service.snapshot import CONFIDENCE, LOW_EVIDENCE, ServiceSnapshot
from kcal.deployment.service.tallies import Traffic
from kcal.metrics.predictions import Event
from kcal.monitoring import Part

N_FREQUENCIES = 12
"""Classes whose frequencies are shown at once: those that differ most."""
NOTED_ERRORS = 0.01
"""Share of requests with errors that is noted."""
N_PARTS = 12
"""Classes and groups of the monitor that are shown at once: those closest to an alarm."""
N_MORE = 100
"""Rows that a table shows on request."""


@dataclass(frozen=True)
class Tile:
    """A number at the head of the page."""

    title: str
    value: str
    note: str
    level: str = ""  # "alarm", "notice" or none


@dataclass(frozen=True)
class Chart:
    """A chart, the same as a table, and a summary."""

    title: str
    svg: str
    summary: str
    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class BarRow:
    """A row of a table with a bar."""

    name: str
    bar: str
    cells: tuple[str, ...]
    column: int | None = None  # of a class
    level: str = ""  # "alarm", "notice" or none


def tiles(snapshot: ServiceSnapshot, *, takes_feedback: bool = True) -> list[Tile]:
    """Return accuracy estimated and measured, calibration and evidence of the latest predictions."""
    shown = []
    if snapshot.performance is not None:
        value, low, high = snapshot.performance.accuracy
        note = f"{interval(low, high)}, from the probabilities of the latest {snapshot.n_recent:,} predictions"
        note += ", which are not calibrated: do not rely on it" if snapshot.monitor.alarm else ""
        shown.append(Tile("Estimated accuracy", percent(value), note))
    else:
        shown.append(Tile("Estimated accuracy", "–", "no predictions since the service started"))
    if snapshot.labelled is None:
        note = "no labels yet: send them as feedback" if takes_feedback else "no labels: this model takes no feedback"
        shown.append(Tile("Measured accuracy", "–", note))
    else:
        labelled = snapshot.labelled
        level = "alarm" if snapshot.monitor.alarm else ""
        note = f"{interval(*labelled.accuracy_interval)}, on the latest {len(labelled):,} labels"
        shown.append(Tile("Measured accuracy", percent(labelled.accuracy), note, level))
        error, confidence = labelled.reliability().calibration_error, labelled.mean_confidence
        note = f"of the top class; its mean probability is {percent(confidence)}"
        shown.append(Tile("Calibration error", percent(error), note, level))
    if snapshot.evidence is not None:
        evidence = snapshot.evidence
        noted = any(alarm.kind == "evidence" for alarm in snapshot.alarms)
        note = f"{interval(*evidence.low_interval)} of predictions below {LOW_EVIDENCE:g}; 5 % are expected"
        shown.append(Tile("Little evidence", percent(evidence.low_share), note, "notice" if noted else ""))
    return shown


def traffic_tiles(traffic: Traffic | None) -> list[Tile]:
    """Return requests and latency, as far as they are known."""
    if traffic is None:
        return []
    level = "notice" if traffic.errors > NOTED_ERRORS * traffic.requests else ""
    shown = [
        Tile(
            "Requests",
            f"{traffic.requests:,}",
            f"{traffic.per_second:.3g} per second, {traffic.errors:,} with errors",
            level,
        )
    ]
    if traffic.p50_ms is not None:
        shown.append(Tile("Latency", f"{traffic.p50_ms:.3g} ms", f"median; 99 % within {traffic.p99_ms:.3g} ms"))
    return shown


@dataclass(frozen=True)
class Status:
    """The head of the page: what needs attention."""

    level: str
    title: str
    note: str


def status_of(snapshot: ServiceSnapshot) -> Status:
    """Return what needs attention, alarms first."""
    n_alarms = sum(alarm.severity == "alarm" for alarm in snapshot.alarms)
    n_notices = len(snapshot.alarms) - n_alarms
    watched = f"{snapshot.monitor.n_samples:,} labels and {snapshot.n_watched:,} inputs were watched"
    counts = [f"{n} {word}{'s' if n > 1 else ''}" for n, word in ((n_alarms, "alarm"), (n_notices, "notice")) if n]
    if not counts:
        note = "" if snapshot.monitor.n_samples else " Only labels can show whether the probabilities are calibrated."
        return Status("good", "No alarms", f"{watched}.{note}")
    return Status("alarm" if n_alarms else "notice", " and ".join(counts), f"{watched}.")


def reliability_panel(snapshot: ServiceSnapshot, of: Event) -> Chart | None:
    """Return the reliability curve of the top class or of a class; None without labels."""
    if snapshot.labelled is None:
        return None
    curve = snapshot.labelled.reliability(of)
    title = "Top class" if of == "confidence" else name_of(snapshot.classes[of])
    lows, highs = curve.frequency_bands(CONFIDENCE)
    rows = tuple(
        (
            f"{curve.edges[b]:.2f} to {curve.edges[b + 1]:.2f}",
            f"{curve.counts[b]:,}",
            percent(curve.mean_prediction[b]),
            percent(curve.observed_frequency[b]),
            interval(lows[b], highs[b]),
        )
        for b in np.flatnonzero(curve.counts)
    )
    summary = f"calibration error {percent(curve.calibration_error)}, {curve.total:,} labels"
    svg = reliability_chart(curve, CONFIDENCE, label=f"Reliability of {title}: {summary}")
    return Chart(title, svg, summary, ("Probability", "Labels", "Mean", "Observed", "95 % interval"), rows)


def evidence_panel(snapshot: ServiceSnapshot) -> Chart | None:
    """Return the distribution of the evidence; None without any."""
    evidence = snapshot.evidence
    if evidence is None:
        return None
    tenths = [f"{b / 10:.1f} to {(b + 1) / 10:.1f}" for b in range(10)]
    rows = tuple((tenth, percent(share), "10.0 %") for tenth, share in zip(tenths, evidence.shares, strict=True))
    summary = f"median {evidence.median:.2f} of {evidence.n_samples:,} predictions; 0.50 in the calibration set"
    is_low = any(alarm.kind == "evidence" for alarm in snapshot.alarms)
    svg = evidence_chart(evidence.shares, label=f"Evidence: {summary}", mark_lowest=is_low)
    return Chart("Evidence", svg, summary, ("Evidence", "Predictions", "Calibration set"), rows)


def default_column(snapshot: ServiceSnapshot) -> int:
    """Return the column of the class that is closest to an alarm."""
    return int(np.argmax([part.log_wealth for part in snapshot.monitor.classes]))


def frequency_rows(snapshot: ServiceSnapshot) -> tuple[list[BarRow], list[BarRow]]:
    """Return the classes whose frequencies differ most from the expected ones, and the next."""
    frequencies = snapshot.frequencies
    if frequencies is None:
        return [], []
    estimate = frequencies.estimate if frequencies.identifiable else None
    values = frequencies.predicted if estimate is None else estimate.prior
    lows, highs = (values, values) if estimate is None else (estimate.low, estimate.high)
    expected = frequencies.expected
    highest = 1.05 * max(float(highs.max()), 0.0 if expected is None else float(expected.max()))
    order = np.argsort(-np.abs(values - (0.0 if expected is None else expected)), kind="stable")
    rows = []
    for code in order[: N_FREQUENCIES + N_MORE].tolist():
        assumed = None if expected is None else float(expected[code])
        bar = range_bar(assumed, values[code], lows[code], highs[code], highest=highest)
        ends = () if estimate is None else (interval(lows[code], highs[code]),)
        cells = ("–" if assumed is None else percent(assumed), percent(values[code]), *ends)
        is_far = assumed is not None and estimate is not None and not lows[code] <= assumed <= highs[code]
        level = "notice" if is_far and frequencies.has_changed else ""
        rows.append(BarRow(name_of(snapshot.classes[code]), bar, cells, code, level))
    return rows[:N_FREQUENCIES], rows[N_FREQUENCIES:]


def monitor_rows(snapshot: ServiceSnapshot, kind: str) -> tuple[list[BarRow], list[BarRow]]:
    """Return the "classes" or "groups" of the monitor that are closest to an alarm, and the next."""
    parts: tuple[Part, ...] = getattr(snapshot.monitor, kind)
    order = sorted(range(len(parts)), key=lambda place: -parts[place].log_wealth)[: N_PARTS + N_MORE]
    rows = [monitor_row(snapshot, parts[place], place if kind == "classes" else None) for place in order]
    return rows[:N_PARTS], rows[N_PARTS:]


def overall_rows(snapshot: ServiceSnapshot) -> list[BarRow]:
    """Return the monitors of the calibration of all predictions, and of the inputs."""
    rows = []
    part = snapshot.monitor.overall
    if part.n_samples:
        row = monitor_row(snapshot, part)
        rows.append(BarRow("Calibration", row.bar, row.cells, None, row.level))
    if snapshot.drift_log_wealth is not None:
        raised = any(alarm.kind == "inputs" for alarm in snapshot.alarms)
        bar = wealth_bar(snapshot.drift_log_wealth, snapshot.monitor.alpha, is_alarm=raised)
        cells = (f"{snapshot.n_watched:,}", "", "", wealth(snapshot.drift_log_wealth))
        rows.append(BarRow("Inputs", bar, cells, None, "alarm" if raised else ""))
    return rows


def monitor_row(snapshot: ServiceSnapshot, part: Part, column: int | None = None) -> BarRow:
    """Return how far a class, a group or all predictions are from an alarm."""
    cells = (f"{part.n_samples:,}", percent(part.predicted), percent(part.observed), wealth(part.log_wealth))
    bar = wealth_bar(part.log_wealth, snapshot.monitor.alpha, is_alarm=part.alarm)
    return BarRow(name_of(part.name), bar, cells, column, "alarm" if part.alarm else "")
