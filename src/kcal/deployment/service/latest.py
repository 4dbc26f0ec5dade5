"""Explanations of the latest predictions, by the calibrator as it is now."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.calibrators import Explanation
from kcal.deployment.service.snapshot import ObservedPrediction, ServiceSnapshot
from kcal.errors import without_warnings

N_SAMPLES = 5


def explain_latest(calibrator: Any, snapshot: ServiceSnapshot) -> tuple[Explanation | None, ...]:
    """Return an explanation of each of ``snapshot.latest``, None where the inputs of the prediction are not known.

    The calibrator explains as it is now: if it has learnt since, the probabilities may differ from those predicted.
    """
    results: list[Explanation | None] = [None] * len(snapshot.latest)
    if not calibrator.has_explanations:
        return tuple(results)
    takes_logits = calibrator.inputs == "both" and calibrator.needs_logits_
    rows = {place: row for place, each in enumerate(snapshot.latest) if (row := _row(calibrator, each)) is not None}
    known = [place for place in rows if not takes_logits or snapshot.latest[place].logits is not None]
    if known:
        logits = {"logits": np.array([snapshot.latest[place].logits for place in known])} if takes_logits else {}
        with without_warnings():  # of rows that the calibrator has learnt since
            explanation = calibrator.explain(np.stack([rows[place] for place in known]), N_SAMPLES, **logits)
        for place, each in zip(known, explanation, strict=True):
            results[place] = each
    return tuple(results)


def _row(calibrator: Any, prediction: ObservedPrediction) -> NDArray[Any] | None:
    """Return the row of ``X`` of a prediction; None if it is not known or the calibrator now takes other columns."""
    row = prediction.logits if calibrator.inputs == "logits" else prediction.embedding
    return row if row is not None and len(row) == calibrator.n_features_in_ else None
