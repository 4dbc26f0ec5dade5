"""What a fitted model is given: its columns by name, logits in its order, and no rows that it was fitted on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.calibrators import Calibrator, KCalBlend, predict_on
from kcal.cli.class_order import labels_for, order_for
from kcal.cli.fitting import outputs_of
from kcal.cli.messages import OverlapError
from kcal.cli.samples import Samples, Source, read_samples
from kcal.errors import InvalidInputError


def read_for(
    calibrator: Calibrator,
    source: Source,
    *,
    vectors: tuple[str, ...],
    labelled: bool = False,
    with_logits: bool = False,
) -> Samples:
    """Read samples for a fitted calibrator: its columns by name, logits in the order of its classes."""
    names: NDArray[np.object_] | None = getattr(calibrator, "feature_names_in_", None)
    both, inputs = takes_both(calibrator), "logits" if calibrator.inputs == "logits" else "embeddings"
    samples = read_samples(
        source,
        inputs=inputs,
        vectors=vectors,
        labelled=labelled,
        with_logits=with_logits or both,
        feature_names=None if names is None else [str(name) for name in names],
        logit_names=[str(name) for name in getattr(calibrator, "logit_names_in_", ())],
    )
    samples = labels_for(samples, calibrator.classes_)
    if samples.matrix.shape[1] != calibrator.n_features_in_:
        raise InvalidInputError(
            f"{samples.name}: {inputs} have {samples.matrix.shape[1]:,} columns, but the model was fitted on "
            f"{calibrator.n_features_in_:,}. In a table, choose them with --feature-columns."
        )
    if both:
        return replace(samples, logits=_logits_in_order(calibrator, samples), logit_columns=None)
    if inputs == "embeddings":
        return samples
    order = order_for(samples, calibrator.classes_, samples.matrix.shape[1], known=True)
    return samples if order is None else replace(samples, matrix=samples.matrix[:, order])


def takes_both(calibrator: Calibrator) -> bool:
    """Say whether a fitted calibrator needs logits beside embeddings."""
    return isinstance(calibrator, KCalBlend) and calibrator.needs_logits_


def predicted(calibrator: Calibrator, samples: Samples) -> NDArray[Any]:
    """Return a fitted calibrator's probabilities for samples that were read for it."""
    inputs = "both" if takes_both(calibrator) else "logits" if calibrator.inputs == "logits" else "embeddings"
    probabilities: NDArray[Any] = predict_on(calibrator, outputs_of(inputs, samples))
    return probabilities


def _logits_in_order(calibrator: Calibrator, samples: Samples) -> NDArray[Any]:
    """Return the logits that a model needs beside embeddings, in the order of its classes."""
    if samples.logits is None:
        raise InvalidInputError(
            f"{samples.name} holds no logits, but method {calibrator.method} was fitted with them and needs them for "
            "every row. Store them as logits in an npz file, or name their columns in a table with --logit-columns; "
            "beside a model, --logits FILE does it too."
        )
    columns, wanted = samples.logits.shape[1], len(calibrator.classes_)
    order = order_for(samples, calibrator.classes_, columns, known=True)
    if order is None:
        where = samples.source.files.get("logits", samples.name)
        raise InvalidInputError(
            f"{where}: logits have {columns:,} columns, but the model was fitted on {wanted:,}. In a table, choose "
            "them with --logit-columns."
        )
    ordered: NDArray[Any] = samples.logits[:, order]
    return ordered


def refuse_overlap(calibrator: Calibrator, samples: Samples) -> None:
    """Refuse samples that the calibrator was fitted on."""
    known = int(calibrator.was_fitted_on(samples.matrix).sum())
    if known:
        raise OverlapError(
            f"{known:,} of the {len(samples):,} rows of {samples.name} are in the calibration set of this model, which "
            "would look better than it is. Evaluate on other data, or pass --allow-overlap."
        )
