"""Warnings that several calibrators issue, and whether rows are those of a fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.errors import (
    FewSamplesWarning,
    KcalWarning,
    LeakageWarning,
    MissingClassWarning,
    warn,
)
from kcal.validation import row_fingerprints

FEW_PER_CLASS = 50
"""Calibration samples per class up to which KCal without logits was worse than the uncalibrated network on some tasks.

Of six tasks (docs/results/sizes.csv, rows split at random) it had the higher log-loss in all 14 cases with fewer than 8
samples per class, in 5 of 10 with 8 to 50, and in none with more. The blend had the lower log-loss in every case.
"""

MIN_SAMPLES = 15
"""Calibration samples below which the prior of a temperature, which weighs as much as some ten, decides it."""

MIN_WITHOUT_ERRORS = 30
"""Calibration samples without an error from which the training set is suspected."""


def warn_missing_classes(classes: NDArray[Any], counts: NDArray[Any], remedy: str = "") -> None:
    """Warn if a class has no calibration sample."""
    missing = classes[counts == 0].tolist()
    if missing:
        have, get, them = ("has", "gets", "it") if len(missing) == 1 else ("have", "get", "them")
        names = f"{', '.join(map(repr, missing[:5]))}{', …' if len(missing) > 5 else ''}"
        warn(
            f"{len(missing)} of {len(classes)} classes {have} no calibration sample and {get} a probability of 0 or "
            f"close to it: {names}. Add samples of {them}.",
            MissingClassWarning,
            remedy=remedy,
        )


def warn_without_errors(log_probs: torch.Tensor, codes: NDArray[np.int64]) -> None:
    """Warn if the network predicts every calibration sample right, of its log probabilities (n, n_classes)."""
    if len(codes) >= MIN_WITHOUT_ERRORS and bool((log_probs.argmax(dim=1) == torch.from_numpy(codes)).all()):
        warn(
            f"The network makes no error on the {len(codes):,} calibration samples. Are they from its training set? "
            "Calibrate on data that it has not seen.",
            LeakageWarning,
        )


def warn_few_samples(n: int, method: str) -> None:
    """Warn if a method on logits has so few calibration samples that its prior, not they, decides the fit."""
    if n < MIN_SAMPLES and method != "uncal":
        advice = "" if method == "ts" else " With fewer, temperature scaling (ts) is the safest method."
        description = f"{n} calibration samples are few: the fit depends on its prior more than on them."
        warn(description, FewSamplesWarning, remedy=f"Use 100 or more.{advice}")


def warn_known_rows(fingerprints: NDArray[np.uint64], *inputs: torch.Tensor | None) -> None:
    """Warn if queries, the first of the inputs that are given, are rows of the calibration set."""
    known = contains_rows(fingerprints, next(rows for rows in inputs if rows is not None))
    if known.any():
        warn(
            f"{known.sum()} of {len(known)} rows are in the calibration set: each is its own neighbour there, so that "
            "results look better than they are. Evaluate on other data; a KCal has leave_one_out_proba_ of these.",
            LeakageWarning,
        )


def was_fitted_on(calibrator: Any, X: Any) -> NDArray[np.bool_]:
    """Return for each row whether a calibrator was fitted on it, (n,); do not evaluate on such rows."""
    rows, _ = calibrator._check_rows(X)
    return contains_rows(calibrator._fingerprints, rows)


def contains_rows(fingerprints: NDArray[np.uint64], rows: torch.Tensor) -> NDArray[np.bool_]:
    """Return for each row whether its fingerprint is among those of a fit, which are ascending."""
    prints = row_fingerprints(rows)
    places = np.searchsorted(fingerprints, prints).clip(max=len(fingerprints) - 1)
    known: NDArray[np.bool_] = fingerprints[places] == prints
    return known


def too_few_samples(n: int, n_classes: int) -> bool:
    """Return whether there are so few calibration samples per class that KCal may do worse than the network."""
    return n <= FEW_PER_CLASS * n_classes


def warn_sparse_support(n: int, n_classes: int, accuracy: float, log_loss: float) -> None:
    """Warn that there are too few calibration samples per class for an estimate without the network's logits."""
    measured = (
        "half of the cases measured with 8 to 50" if n >= 8 * n_classes else "all cases measured with fewer than 8"
    )
    warn(
        f"{n:,} calibration samples for {n_classes:,} classes are few: in {measured} per class, KCal alone had a "
        "higher log-loss than the uncalibrated network. Leave-one-out expects an accuracy of "
        f"{accuracy:.1%} and a log-loss of {log_loss:.3f}; compare them with the network's.",
        FewSamplesWarning,
        remedy="Use KCalBlend, fitted with logits: it was better in every case.",
    )


def warn_fewer_than_classes(n: int, n_classes: int) -> None:
    """Warn that there are fewer calibration samples than classes, where temperature scaling was measured to be better.

    With that few, the log-loss of the blend was up to 2 % above that of temperature scaling on networks of 100 to 507
    classes; with more it was the lowest.
    """
    if n < n_classes:
        warn(
            f"{n:,} calibration samples are fewer than the {n_classes:,} classes: with so few, temperature scaling "
            "predicts as well or better, by up to 2 % in log-loss.",
            FewSamplesWarning,
            remedy="Use kcal.TemperatureScaling, or add samples.",
        )


def warn_training_rows(rows: torch.Tensor, training: NDArray[np.uint64]) -> None:
    """Warn if calibration rows occur among the training rows, which are given by their fingerprints."""
    shared = int(np.isin(row_fingerprints(rows), training).sum())
    if shared:
        warn(
            f"{shared} of {len(rows)} calibration rows also occur in the training set. The network has seen them: "
            "calibrate on data that it has not.",
            LeakageWarning,
        )


def warn_untrained(metric: str) -> None:
    """Warn that no projection is learned, and what is compared without one."""
    compared = "the directions of the embeddings" if metric == "unit" else "the embeddings as they are"
    warn(
        f"No training set was given: no projection is learned, and distances are those of {compared}.",
        KcalWarning,
        remedy=f'Pass train_embeddings and train_labels, or projection="{metric}" if this is what you want.',
    )
