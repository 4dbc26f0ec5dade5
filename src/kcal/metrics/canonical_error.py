"""The canonical calibration error: whole distributions, predicted and observed, in cells of the simplex."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kcal.metrics.predictions import Floats, blocks, check_bins, check_predictions


def canonical_calibration_error(
    probs: ArrayLike, labels: ArrayLike, *, bins: int = 10, sample_weight: ArrayLike | None = None
) -> float:
    """Σ_c (n_c / n)·½·Σ_k |mean of p_k in cell c − frequency of class k in cell c|, over cells of the simplex.

    Two rows are in one cell if each of their probabilities falls into the same of the bins
    [0, 1/B), [1/B, 2/B), …, [1 − 1/B, 1]. Half the sum over classes is the total variation distance.

    Parameters
    ----------
    probs, labels, sample_weight
        As in `expected_calibration_error`.
    bins
        Number of bins B of every probability.

    Returns
    -------
    float
        From 0 to 1, lower is better. With many classes almost every sample is alone in its cell, and the value
        measures the distance of predictions from the labels rather than calibration: compare it only between methods
        on the same samples.
    """
    predictions = check_predictions(probs, labels, sample_weight)
    cells, weights = _cells(predictions.probs, check_bins(bins)), predictions.row_weights
    total = 0.0
    for k, column in enumerate(predictions.probs.T):  # one class at a time, so that memory stays bounded
        differences = np.bincount(cells, weights=weights * (column.astype(np.float64) - (predictions.labels == k)))
        total += float(np.abs(differences).sum())
    return total / (2 * float(weights.sum()))


@dataclass(frozen=True, eq=False)
class CanonicalCells:
    """Predicted and observed distributions in the occupied cells of the simplex; the samples themselves for plots."""

    counts: NDArray[np.intp]  # (n_cells,), samples in each cell
    mean_prediction: NDArray[np.float64]  # (n_cells, n_classes)
    observed_frequency: NDArray[np.float64]  # (n_cells, n_classes), of each class
    weights: NDArray[np.float64]  # (n_cells,), sums of the samples' weights; the counts if they have none
    bins: int  # of every probability
    probs: Floats
    labels: NDArray[np.intp]

    @property
    def calibration_error(self) -> float:
        """Mean total variation between prediction and observation: `canonical_calibration_error`."""
        distances = 0.5 * np.abs(self.mean_prediction - self.observed_frequency).sum(axis=1)  # (n_cells,)
        return float(np.average(distances, weights=self.weights))

    def __str__(self) -> str:
        return (
            f"{len(self.labels):,} samples in {len(self.counts):,} cells of the simplex of {self.probs.shape[1]:,} "
            f"classes, canonical calibration error {self.calibration_error:.4f}"
        )


def canonical_cells(
    probs: ArrayLike, labels: ArrayLike, *, bins: int = 10, sample_weight: ArrayLike | None = None
) -> CanonicalCells:
    """Return the cells of `canonical_calibration_error`, of the same parameters; those without weight are left out."""
    predictions = check_predictions(probs, labels, sample_weight)
    number, n_classes = check_bins(bins), predictions.n_classes
    cells = _cells(predictions.probs, number)
    weights = predictions.row_weights
    mass = np.bincount(cells, weights=weights)
    predicted = np.stack([np.bincount(cells, weights=weights * column) for column in predictions.probs.T], axis=1)
    of_pair = np.bincount(cells * n_classes + predictions.labels, weights=weights, minlength=len(mass) * n_classes)
    return CanonicalCells(
        counts=np.bincount(cells),
        mean_prediction=predicted / mass[:, None],
        observed_frequency=of_pair.reshape(len(mass), n_classes) / mass[:, None],
        weights=np.asarray(mass, dtype=np.float64),
        bins=number,
        probs=predictions.probs,
        labels=predictions.labels,
    )


def _cells(probs: Floats, bins: int) -> NDArray[np.intp]:
    """Return the cell of every row; occupied cells are numbered from 0."""
    edges = (np.arange(1, bins) / bins).astype(probs.dtype)  # correctly rounded, so that 0.3 is the edge 3/10
    coordinates = np.empty(probs.shape, dtype=np.min_scalar_type(bins))  # (n_samples, n_classes), one byte each
    for rows in blocks(*probs.shape):
        coordinates[rows] = np.searchsorted(edges, probs[rows], side="right")
    as_bytes = coordinates.view(f"V{coordinates.itemsize * probs.shape[1]}")[:, 0]  # each row is one value
    return np.asarray(np.unique(as_bytes, return_inverse=True)[1].reshape(-1), dtype=np.intp)
