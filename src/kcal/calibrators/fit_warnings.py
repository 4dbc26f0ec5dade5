"""Warnings of the kernel methods: leakage, missing classes, held-out samples, few samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.errors import FewSamplesWarning, HeldOutWarning, LeakageWarning, MissingClassWarning, warn
from kcal.validation import row_fingerprints

FEW_PER_CLASS = 8
"""Mean calibration samples per class from which a blend was never measured far behind temperature scaling."""


def warn_of_known_rows(
    known: NDArray[np.bool_], remedy: str = "Use leave_one_out_proba_ for calibration rows."
) -> None:
    """Warn of queries that the calibrator was fitted on."""
    if known.any():
        warn(
            f"{known.sum()} of {len(known)} rows are in the calibration set: their probabilities are too optimistic, "
            f"since each sample is its own neighbour. {remedy}",
            LeakageWarning,
        )


def warn_of_few_samples(n: int, n_classes: int) -> None:
    """Warn of a calibration set that is too small to fit the weights of a blend."""
    if n < FEW_PER_CLASS * n_classes:
        warn(
            f"{n:,} calibration samples for {n_classes:,} classes are few: below {FEW_PER_CLASS} per class a blend may "
            "do worse than TemperatureScaling alone.",
            FewSamplesWarning,
        )


def warn_without_out_of_fold() -> None:
    """Warn of a calibration set in which no sample has another one of its class outside its group."""
    warn(
        "No calibration sample can be predicted from the others: each class lies within one group (or has one "
        "sample). The blend keeps to the network, or to its first estimate. Calibrate on groups that share classes.",
        FewSamplesWarning,
    )


def warn_of_training_rows(rows: torch.Tensor, training: NDArray[np.uint64]) -> None:
    """Warn of calibration rows that occur among the ``training`` rows, given by their fingerprints."""
    shared = int(np.isin(row_fingerprints(rows), training).sum())
    if shared:
        warn(
            f"{shared} of {len(rows)} calibration rows also occur in the training set. The network was trained on "
            "them: calibrate on data that it has not seen.",
            LeakageWarning,
        )


def warn_of_missing_classes(
    classes: NDArray[Any], counts: NDArray[Any], remedy: str = "Add samples of them, or pass smoothing=1e-3."
) -> None:
    """Warn of classes without a calibration sample."""
    missing = classes[counts == 0].tolist()
    if missing:
        warn(
            f"{len(missing)} of {len(classes)} classes have no calibration sample and get a probability of about 0: "
            f"{', '.join(repr(label) for label in missing[:5])}{', …' if len(missing) > 5 else ''}. {remedy}",
            MissingClassWarning,
        )


def warn_of_held_out(n_training: int, n_kept: int) -> None:
    """Warn that part of the calibration set was held out to train the projection."""
    warn(
        f"No training set was given: {n_training} of the {n_training + n_kept} samples were held out to learn the "
        f"projection, {n_kept} are support. Pass train_embeddings and train_labels to use all of them, or "
        'projection="identity" to learn none.',
        HeldOutWarning,
    )
