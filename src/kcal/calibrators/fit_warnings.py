"""What KCal warns of: leaks, missing classes, a part held out."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.errors import FewSamplesWarning, HeldOutWarning, LeakageWarning, MissingClassWarning
from kcal.validation import row_fingerprints

FEW_A_CLASS = 8
"""Calibration samples of a class, on average, from which on a blend was never far behind temperature scaling."""
CALLERS_CALLER = 4
"""Warnings point at the line that called ``fit`` or ``predict_proba``."""


def warn_of_known_rows(
    known: NDArray[np.bool_], remedy: str = "Use leave_one_out_proba_ for calibration rows."
) -> None:
    """Warn of queries that the calibrator was fitted on."""
    if known.any():
        warnings.warn(
            f"{known.sum()} of {len(known)} rows are in the calibration set, where a sample is judged by itself and "
            "looks better than it is. " + remedy,
            LeakageWarning,
            stacklevel=CALLERS_CALLER,
        )


def warn_of_few_samples(n: int, n_classes: int) -> None:
    """Warn of a calibration set that tells too little to weigh estimates by."""
    if n < FEW_A_CLASS * n_classes:
        warnings.warn(
            f"{n:,} calibration samples for {n_classes:,} classes are few: below {FEW_A_CLASS} a class a blend may do "
            "worse than TemperatureScaling alone.",
            FewSamplesWarning,
            stacklevel=CALLERS_CALLER,
        )


def warn_that_nothing_is_judged() -> None:
    """Warn of groups that hold all samples of their classes."""
    warnings.warn(
        "No calibration sample can be judged by the others: each class lies within one group (or has one sample). The "
        "blend keeps to the network, or to its first estimate. Calibrate on groups that share classes.",
        FewSamplesWarning,
        stacklevel=CALLERS_CALLER + 1,
    )


def warn_of_training_rows(rows: torch.Tensor, training: NDArray[np.uint64]) -> None:
    """Warn of calibration rows that occur among the ``training`` rows, given by their fingerprints."""
    shared = int(np.isin(row_fingerprints(rows), training).sum())
    if shared:
        warnings.warn(
            f"{shared} of {len(rows)} calibration rows also occur in the training set. The network has seen them: "
            "calibrate on data that it has not.",
            LeakageWarning,
            stacklevel=CALLERS_CALLER,
        )


def warn_of_missing_classes(
    classes: NDArray[Any], counts: NDArray[Any], remedy: str = "Add samples of them, or pass smoothing=1e-3."
) -> None:
    """Warn of classes without a calibration sample."""
    missing = classes[counts == 0].tolist()
    if missing:
        warnings.warn(
            f"{len(missing)} of {len(classes)} classes have no calibration sample and get probability 0 or next to it: "
            f"{', '.join(repr(label) for label in missing[:5])}{', …' if len(missing) > 5 else ''}. {remedy}",
            MissingClassWarning,
            stacklevel=CALLERS_CALLER,
        )


def warn_of_held_out(n_learned: int, n_kept: int) -> None:
    """Warn that a part of the calibration set was held out to learn the projection."""
    warnings.warn(
        f"No training set was given: {n_learned} of the {n_learned + n_kept} samples were held out to learn the "
        f"projection, {n_kept} are support. Pass train_embeddings and train_labels to use all of them, or "
        'projection="identity" to learn none.',
        HeldOutWarning,
        stacklevel=CALLERS_CALLER,
    )
