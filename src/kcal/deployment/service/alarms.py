"""Alarms and notices, as the page shows them."""

from __future__ import annotations

from collections.abc import Iterator

from kcal.deployment.service.formats import percent
from kcal.deployment.service.snapshot import LOW_EVIDENCE, Alarm, ClassFrequencies, EvidenceSummary
from kcal.monitoring import MonitorReport

NOTED_LOW_EVIDENCE = 2 * LOW_EVIDENCE
"""A notice is given if the interval of the share of predictions with low evidence lies above this."""
UPDATE = "Add labelled predictions to the calibration set, or fit the calibrator again."


def find_alarms(
    monitor: MonitorReport,
    drift_at: int | None,
    frequencies: ClassFrequencies | None,
    evidence: EvidenceSummary | None,
) -> tuple[Alarm, ...]:
    """Return alarms first, then notices; ``drift_at`` is the row at which the monitor of inputs raised its alarm."""
    alarms = list(_of_labels(monitor))
    if drift_at is not None:
        message = "The inputs are no longer like the calibration set."
        remedy = "Check the source of the data, and label some of the latest predictions."
        alarms.append(Alarm("inputs", "alarm", None, message, remedy, drift_at))
    return (*alarms, *_notices(frequencies, evidence))


def _of_labels(monitor: MonitorReport) -> Iterator[Alarm]:
    if monitor.alarm:
        part = monitor.overall
        means = f"mean confidence {percent(part.predicted)}, accuracy {percent(part.observed)}"
        message = f"The probabilities are not calibrated: {means}."
        yield Alarm("calibration", "alarm", None, message, UPDATE, part.alarm_at)
    for part in monitor.classes:
        if part.alarm:
            message = f"predicted in {percent(part.predicted)} of cases, observed in {percent(part.observed)}."
            remedy = "Look at the reliability curve of this class, and label more of it."
            yield Alarm("class", "alarm", part.name, message, remedy, part.alarm_at)
    for part in monitor.groups:
        if part.alarm:
            message = f"mean confidence {percent(part.predicted)}, accuracy {percent(part.observed)}."
            remedy = "Find out what is different there, and add its labelled samples to the calibration set."
            yield Alarm("group", "alarm", part.name, message, remedy, part.alarm_at)


def _notices(frequencies: ClassFrequencies | None, evidence: EvidenceSummary | None) -> Iterator[Alarm]:
    if frequencies is not None and frequencies.has_changed:
        message = "Class frequencies are not those that the probabilities assume."
        remedy = "If only the frequencies have changed, correct the probabilities for the estimated ones (with_prior)."
        yield Alarm("frequencies", "notice", None, message, remedy)
    if evidence is not None and evidence.low_interval.low > NOTED_LOW_EVIDENCE:
        message = f"{percent(evidence.low_share)} of the latest predictions have an evidence below {LOW_EVIDENCE:g}."
        remedy = (
            f"About {percent(LOW_EVIDENCE, 0)} are expected. Do not trust predictions with little evidence: label them."
        )
        yield Alarm("evidence", "notice", None, message, remedy)
