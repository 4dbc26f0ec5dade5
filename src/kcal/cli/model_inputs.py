"""What a fitted model is given: its columns by name, logits in its order, and no rows that it was fitted on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kcal.calibrators import Calibrator
from kcal.cli.class_order import labels_for, order_for
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
    samples = read_samples(
        source,
        inputs=calibrator.inputs,
        vectors=vectors,
        labelled=labelled,
        with_logits=with_logits,
        feature_names=None if names is None else [str(name) for name in names],
    )
    samples = labels_for(samples, calibrator.classes_)
    if samples.matrix.shape[1] != calibrator.n_features_in_:
        raise InvalidInputError(
            f"{samples.name}: {calibrator.inputs} have {samples.matrix.shape[1]:,} columns, but the model was fitted "
            f"on {calibrator.n_features_in_:,}. In a table, choose them with --feature-columns."
        )
    if calibrator.inputs == "embeddings":
        return samples
    order = order_for(samples, calibrator.classes_, samples.matrix.shape[1], known=True)
    return samples if order is None else replace(samples, matrix=samples.matrix[:, order])


def refuse_overlap(calibrator: Calibrator, samples: Samples) -> None:
    """Refuse samples that the calibrator was fitted on."""
    known = int(calibrator.was_fitted_on(samples.matrix).sum())
    if known:
        raise OverlapError(
            f"{known:,} of the {len(samples):,} rows of {samples.name} are in the calibration set of this model, which "
            "would look better than it is. Evaluate on other data, or pass --allow-overlap."
        )
