"""KCal beside KCal without one of its parts."""

from __future__ import annotations

from experiments.output import metrics_table
from experiments.study import Measurements, Study, StudyOutput

METHODS = {
    "uncal": "uncalibrated",
    "kcal": "KCal",
    "kcal-linear": "KCal-Linear",
    "kcal-logits": "KCal-Logits",
    "kcal-untrained": "untrained",
}


def show(measured: Measurements) -> StudyOutput:
    return StudyOutput(
        tuple(metrics_table(f"{label}: variants of KCal", by_variant) for label, by_variant in measured.items())
    )


STUDY = Study(
    "variants",
    "KCal without its parts",
    lambda setting: {title: setting.variant(name) for name, title in METHODS.items()},
    show,
)
