"""The latest predictions and their explanations as rows of the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kcal.calibrators import Explanation
from kcal.deployment.service.charts import share_bar
from kcal.deployment.service.formats import clock, name_of, percent
from kcal.deployment.service.snapshot import LOW_EVIDENCE, ObservedPrediction, ServiceSnapshot

N_TOP = 3


@dataclass(frozen=True)
class PredictionRow:
    """One of the latest predictions."""

    id: str
    time: str
    prediction: str
    probability: str
    bar: str
    evidence: str
    has_little_evidence: bool
    group: str | None
    label: str | None
    is_right: bool
    top: tuple[tuple[str, str, str], ...]  # name, probability and bar of the most probable classes
    explanation: ExplanationTable | None


@dataclass(frozen=True)
class ExplanationTable:
    """The calibration samples that carry a prediction."""

    heading: tuple[str, ...]
    samples: tuple[tuple[str, ...], ...]
    others: tuple[tuple[str, str], ...]  # name and share of the probability of other sources
    log_odds: tuple[tuple[str, str], ...]
    log_odds_title: str


def prediction_rows(snapshot: ServiceSnapshot, explanations: Sequence[Explanation | None]) -> Iterator[PredictionRow]:
    """Yield the latest predictions, newest first, with their explanations."""
    padded = [*explanations, *[None] * len(snapshot.latest)]
    for prediction, explanation in zip(snapshot.latest, padded, strict=False):
        yield _prediction_row(snapshot, prediction, explanation)


def _prediction_row(
    snapshot: ServiceSnapshot, prediction: ObservedPrediction, explanation: Explanation | None
) -> PredictionRow:
    probs = prediction.probs
    order = np.argsort(-probs, kind="stable")[:N_TOP]
    names = [name_of(snapshot.classes[code]) for code in order]
    top = tuple((name, percent(probs[code]), share_bar(probs[code])) for name, code in zip(names, order, strict=True))
    evidence = prediction.evidence
    return PredictionRow(
        id="without id" if prediction.id is None else name_of(prediction.id),
        time=clock(prediction.time),
        prediction=names[0],
        probability=percent(probs[order[0]]),
        bar=share_bar(probs[order[0]]),
        evidence="–" if evidence is None else f"{evidence:.3f}",
        has_little_evidence=evidence is not None and evidence < LOW_EVIDENCE,
        group=None if prediction.group is None else name_of(prediction.group),
        label=None if prediction.label is None else name_of(prediction.label),
        is_right=prediction.label is not None and str(prediction.label) == str(snapshot.classes[order[0]]),
        top=top,
        explanation=None if explanation is None else explanation_table(explanation),
    )


def explanation_table(explanation: Explanation) -> ExplanationTable:
    """Return the explanation of one prediction as text; shares are of all probability, which is 1."""
    one = explanation[0]
    samples = tuple(
        (
            name_of(one.ids[0, place]),
            name_of(one.labels[0, place]),
            percent(one.shares[0, place]),
            f"{one.distances[0, place]:.3g}",
        )
        for place in range(one.codes.shape[1])
    )
    sums = {"all other samples": one.rest, **one.parts}
    odds = one.log_odds_cells(0)
    return ExplanationTable(
        heading=("Sample", "Label", "Share", "Distance"),
        samples=samples,
        others=tuple((name, percent(float(part[0].sum()))) for name, part in sums.items() if part[0].any()),
        log_odds=tuple((name, value) for name, value in odds[1:]),
        log_odds_title=odds[0][0] if odds else "",
    )
