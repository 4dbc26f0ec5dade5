"""The squared kernel calibration error of all classes at once, and the test whether it is zero; needs no bins.

A model is calibrated if the label of every sample is distributed as its prediction says. The residual
e_y − p of one-hot label and prediction is then zero on average wherever one looks, and so is

    h_ij = k(p_i, p_j)·⟨e_{y_i} − p_i, e_{y_j} − p_j⟩

for two samples i ≠ j (Widmann, Lindsten and Zachariah, "Calibration tests in multi-class classification",
NeurIPS 2019, with the matrix-valued kernel k·I). No n × n matrix is kept: h is made block by block.
"""

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import cdist, pdist

from kcal.errors import InvalidInputError
from kcal.metrics.predictions import Floats, Predictions, check_bandwidth, check_predictions

Estimator = Literal["unbiased-quadratic", "unbiased-linear", "biased"]
Kernel = Literal["total-variation", "euclidean"]

# How scipy calls the distance of each kernel, and the factor that makes it ours.
DISTANCES: dict[str, tuple[str, float]] = {"total-variation": ("cityblock", 0.5), "euclidean": ("euclidean", 1.0)}

BLOCK_ROWS = 1024  # a block of h and its two factors take 24 MB
ALL_PAIRS_ROWS = 2000  # up to here the median distance is that of all pairs, 2 million
SAMPLED_PAIRS = 1_000_000  # beyond, that of as many pairs drawn at random
BLOCK_ENTRIES = 1_000_000  # entries of the drawn pairs that are widened to float64 at a time


@dataclass(frozen=True)
class KernelCalibrationError:
    """An estimate of the squared kernel calibration error, and how surprising it is for a calibrated model.

    Attributes
    ----------
    value
        The estimate; 0 is calibrated. An unbiased one may be negative.
    p_value
        Chance of an estimate at least as high if the model were calibrated; nan where it is not defined.
    estimator, kernel
        What was computed.
    bandwidth
        ν in the kernel.
    n_samples
        Number of rows.
    """

    value: float
    p_value: float
    estimator: Estimator
    kernel: Kernel
    bandwidth: float
    n_samples: int

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return (
            f"squared kernel calibration error {self.value:.3e}, p-value {self.p_value:.4f} "
            f"({self.estimator}, {self.kernel} kernel, bandwidth {self.bandwidth:.4g}, {self.n_samples:,} samples)"
        )


def kernel_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    estimator: Estimator = "unbiased-quadratic",
    kernel: Kernel = "total-variation",
    bandwidth: float | None = None,
    resamples: int = 1000,
    seed: int = 0,
    sample_weight: ArrayLike | None = None,
) -> KernelCalibrationError:
    """Mean of h_ij = k(p_i, p_j)·⟨e_{y_i} − p_i, e_{y_j} − p_j⟩ over pairs of samples, with k = exp(−d(p_i, p_j)/ν).

    Parameters
    ----------
    probs
        Probabilities, (n_samples, n_classes); each row sums to 1.
    labels
        True classes as column indices of probs, (n_samples,).
    estimator
        "unbiased-quadratic": mean over all pairs i < j; zero on average if calibrated.
        "biased": mean over all i and j, also i = j; never negative, but above zero on average.
        "unbiased-linear": mean over the disjoint pairs (1, 2), (3, 4), …, an odd last row being left out;
        fast and noisy, and it depends on the order of the rows.
    kernel
        The distance d in k: "total-variation", ½·Σ_k |p_k − q_k|, or "euclidean".
    bandwidth
        ν; by default the median distance of two rows: of all pairs up to 2,000 rows, beyond of a million pairs
        drawn at random. Where that is 0, the mean distance; where all rows are equal, 1, which then changes nothing.
    resamples
        Draws of the bootstrap behind the p-value of the quadratic estimators; 0 leaves it out (nan).
    seed
        Of the drawn pairs and of the bootstrap.
    sample_weight
        How much each row counts, (n_samples,): a pair counts w_i·w_j. Rows of weight 0 are left out; in the median
        distance the others count alike.

    Returns
    -------
    KernelCalibrationError
        The estimate, its p-value and the bandwidth; `float()` gives the estimate.

    Notes
    -----
    The p-value tests "the model is calibrated" against "the error is positive".

    - linear: the mean of independent terms is normal, p = 1 − Φ(mean/standard error); nan for a single pair.
    - quadratic: if calibrated, U = Σ_{i≠j} h_ij is degenerate, and its distribution is that of
      U* = Σ_{i≠j} (w_i − 1)(w_j − 1)·h_ij, where w counts how often each row is drawn when n rows are drawn
      with replacement (Arcones and Giné 1992). p = (1 + #{U* ≥ U}) / (1 + resamples).
    - biased: the same with the terms i = j in U and in U*.

    The quadratic estimators and their p-values do not depend on the order of the rows. They take time in
    n²·(n_classes + resamples), and memory for a sorted copy of the input and n·resamples numbers.
    """
    predictions = check_predictions(probs, labels, sample_weight)
    predictions = predictions.weighted_rows()
    _check_options(estimator, kernel, predictions.n_samples)
    number = _check_resamples(resamples)
    generator = np.random.default_rng(seed)
    if estimator != "unbiased-linear":
        predictions = _in_canonical_order(predictions)
    width = _median_distance(predictions.probs, kernel, generator) if bandwidth is None else check_bandwidth(bandwidth)
    if estimator == "unbiased-linear":
        value, p_value = _linear_estimate(predictions, kernel, width)
    else:
        value, p_value = _quadratic_estimate(
            predictions, kernel, width, with_diagonal=estimator == "biased", resamples=number, generator=generator
        )
    return KernelCalibrationError(value, p_value, estimator, kernel, width, predictions.n_samples)


def _linear_estimate(predictions: Predictions, kernel: Kernel, bandwidth: float) -> tuple[float, float]:
    """Mean of h over consecutive disjoint pairs, and the upper tail of the normal distribution."""
    height = max(1, BLOCK_ENTRIES // predictions.n_classes)
    n_pairs = predictions.n_samples // 2
    products, masses = np.empty(n_pairs), np.ones(n_pairs)
    for start in range(0, n_pairs, height):
        stop = min(start + height, n_pairs)
        first, second = slice(2 * start, 2 * stop, 2), slice(2 * start + 1, 2 * stop + 1, 2)
        similarity = np.exp(-_row_distances(predictions.probs[first], predictions.probs[second], kernel) / bandwidth)
        inner = np.einsum("ik,ik->i", _residuals(predictions, first), _residuals(predictions, second))
        products[start:stop] = similarity * inner
    if predictions.weights is not None:
        masses = predictions.weights[0 : 2 * n_pairs : 2] * predictions.weights[1 : 2 * n_pairs : 2]
    value = float(products.sum() / masses.sum())
    if n_pairs < 2:
        return value, float("nan")
    standard_error = float((products - value * masses).std(ddof=1)) * math.sqrt(n_pairs) / float(masses.sum())
    if standard_error == 0:
        return value, 0.0 if value > 0 else 1.0
    return value, 0.5 * math.erfc(value / standard_error / math.sqrt(2))


def _quadratic_estimate(
    predictions: Predictions,
    kernel: Kernel,
    bandwidth: float,
    *,
    with_diagonal: bool,
    resamples: int,
    generator: np.random.Generator,
) -> tuple[float, float]:
    """Mean of h over all pairs, with or without i = j, and the p-value of the bootstrap."""
    n = predictions.n_samples
    multipliers = _centred_counts(n, resamples, generator)  # (n, resamples)
    total, resampled = 0.0, np.zeros(resamples)
    for rows, columns, products in _pair_products(predictions, kernel, bandwidth):
        if rows == columns and not with_diagonal:
            np.fill_diagonal(products, 0)
        times = 1 if rows == columns else 2  # h is symmetric: a block off the diagonal stands for two
        total += times * float(products.sum())
        if resamples:
            sums = products.astype(np.float32) @ multipliers[columns]  # (rows, resamples)
            resampled += times * np.einsum("ir,ir->r", multipliers[rows], sums, dtype=np.float64)
    pairs = predictions.total_weight**2
    if not with_diagonal:
        pairs -= n if predictions.weights is None else float(np.sum(predictions.weights**2))
    value = total / pairs
    if not resamples or n < 2:
        return value, float("nan")
    return value, (1 + int(np.count_nonzero(resampled >= total))) / (1 + resamples)


def _pair_products(
    predictions: Predictions, kernel: Kernel, bandwidth: float
) -> Iterator[tuple[slice, slice, NDArray[np.float64]]]:
    """Yield h in square blocks, those on the diagonal and above it."""
    metric, factor = DISTANCES[kernel]
    for row_start in range(0, predictions.n_samples, BLOCK_ROWS):
        rows = slice(row_start, min(row_start + BLOCK_ROWS, predictions.n_samples))
        row_probs, row_residuals = predictions.probs[rows].astype(np.float64), _residuals(predictions, rows)
        for column_start in range(row_start, predictions.n_samples, BLOCK_ROWS):
            columns = slice(column_start, min(column_start + BLOCK_ROWS, predictions.n_samples))
            products = cdist(row_probs, predictions.probs[columns].astype(np.float64), metric)
            products *= -factor / bandwidth
            np.exp(products, out=products)
            products *= row_residuals @ _residuals(predictions, columns).T
            yield rows, columns, products


def _centred_counts(n: int, resamples: int, generator: np.random.Generator) -> NDArray[np.float32]:
    """How often each row is drawn, less its mean 1, when n rows are drawn with replacement: (n, resamples)."""
    counts = np.empty((n, resamples), dtype=np.float32)
    for r in range(resamples):
        counts[:, r] = np.bincount(generator.integers(0, n, n), minlength=n)
    counts -= 1
    return counts


def _residuals(predictions: Predictions, rows: slice) -> NDArray[np.float64]:
    """One-hot labels minus probabilities, times the rows' weights, (rows, n_classes)."""
    residuals = -predictions.probs[rows].astype(np.float64)
    labels = predictions.labels[rows]
    residuals[np.arange(labels.shape[0]), labels] += 1
    return residuals if predictions.weights is None else residuals * predictions.weights[rows, None]


def _row_distances(first: Floats, second: Floats, kernel: Kernel) -> NDArray[np.float64]:
    """Distances between rows of the same number, (rows,)."""
    differences = first.astype(np.float64) - second
    if kernel == "total-variation":
        return np.asarray(0.5 * np.abs(differences).sum(axis=1))
    return np.asarray(np.sqrt(np.einsum("ik,ik->i", differences, differences)))


def _median_distance(probs: Floats, kernel: Kernel, generator: np.random.Generator) -> float:
    """Median distance of two rows; the mean where most are equal, 1 where all are."""
    n = probs.shape[0]
    if n < 2:
        return 1.0
    if n <= ALL_PAIRS_ROWS:
        metric, factor = DISTANCES[kernel]
        distances = factor * pdist(probs.astype(np.float64), metric)
    else:
        first = generator.integers(0, n, SAMPLED_PAIRS)
        second = (first + generator.integers(1, n, SAMPLED_PAIRS)) % n  # never the same row
        height = max(1, BLOCK_ENTRIES // probs.shape[1])
        parts = [slice(start, start + height) for start in range(0, SAMPLED_PAIRS, height)]
        distances = np.concatenate([_row_distances(probs[first[p]], probs[second[p]], kernel) for p in parts])
    return float(np.median(distances)) or float(distances.mean()) or 1.0


def _in_canonical_order(predictions: Predictions) -> Predictions:
    """Sort the rows, so that neither sums nor draws depend on the order in which they came."""
    weights = () if predictions.weights is None else (predictions.weights,)
    return predictions.rows(np.lexsort((*weights, predictions.labels, *predictions.probs.T)))


def _check_options(estimator: str, kernel: str, n_samples: int) -> None:
    if estimator not in get_args(Estimator):
        names = ", ".join(f'"{name}"' for name in get_args(Estimator))
        raise InvalidInputError(f"estimator must be one of {names}; got {estimator!r}.")
    if kernel not in DISTANCES:
        names = " or ".join(f'"{name}"' for name in DISTANCES)
        raise InvalidInputError(f"kernel must be {names}; got {kernel!r}.")
    if n_samples < 2 and estimator != "biased":
        raise InvalidInputError(
            f"the {estimator} estimator needs at least 2 samples; got {n_samples}. "
            'Pass more rows, or estimator="biased".'
        )


def _check_resamples(resamples: int) -> int:
    try:
        number = operator.index(resamples)
    except TypeError:
        number = -1
    if number < 0:
        raise InvalidInputError(
            f"resamples must be a whole number, at least 0 (0 leaves the p-value out); got {resamples!r}."
        )
    return number
