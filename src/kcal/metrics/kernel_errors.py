"""Calibration errors by kernels in place of bins: smooth ECE, KDE-ECE and the squared kernel calibration error.

Smooth ECE and KDE-ECE are of one event, and continuous in the predictions. Each prediction is split between the two
nearest points of a fine grid, and everything after that is exact on the grid.

The squared kernel calibration error is of all classes at once. A model is calibrated if the label of every sample has
the predicted distribution. The residual e_y − p of one-hot label and prediction then has mean zero for every
prediction, and so has

    h_ij = k(p_i, p_j)·⟨e_{y_i} − p_i, e_{y_j} − p_j⟩

for two samples i ≠ j (Widmann, Lindsten and Zachariah, "Calibration tests in multi-class classification",
NeurIPS 2019, with the matrix-valued kernel k·I). No n × n matrix is kept: h is computed block by block.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.fft import dct, irfft, next_fast_len, rfft
from scipy.spatial.distance import cdist, pdist

from kcal.errors import InvalidInputError
from kcal.metrics.binning import sort_event
from kcal.metrics.predictions import Event, Floats, Predictions, blocks, check_event, check_predictions
from kcal.validation import check_choice, check_integer, check_number, check_seed

Array = NDArray[np.float64]

GRID_INTERVALS = 2**14  # changes the smooth error by less than 1e-9/σ, where σ is its width
BISECTIONS = 27  # of [0, 1]: the smooth error is accurate to 1e-8
INTERVALS_PER_HALF_WIDTH = 256  # of the kernel of the density estimate
MIN_HALF_WIDTH = 1e-4  # so that the grid stays below three million points


def smooth_calibration_error(
    probs: ArrayLike, labels: ArrayLike, *, of: Event = "confidence", sample_weight: ArrayLike | None = None
) -> float:
    """Smooth ECE: the σ at which ∫₀¹ |(1/n)·Σ_i K_σ(t, z_i)·(o_i − z_i)| dt = σ.

    z_i is the prediction of the event, o_i is 1 if it occurred, and K_σ is the Gaussian kernel reflected at
    0 and 1, K_σ(t, z) = Σ_m φ_σ(t − z − 2m) + φ_σ(t + z − 2m). The integral falls as σ grows:
    exactly one width equals it: there is no bandwidth to choose (Błasiok and Nakkiran, "Smooth ECE", ICLR 2024).

    Parameters
    ----------
    probs, labels, of
        As in `reliability`.
    sample_weight
        Relative importance of each sample, (n_samples,); w_i / Σw takes the place of 1/n.

    Returns
    -------
    float
        From 0 to 1, lower is better; at least |mean of o − mean of z|.
    """
    predictions = check_predictions(probs, labels, sample_weight)
    return smooth_error(predictions, check_event(of, predictions.n_classes))


def smooth_error(predictions: Predictions, of: Event = "confidence") -> float:
    """Compute `smooth_calibration_error` of checked predictions."""
    values, outcomes, shares = _sorted_event(predictions, of)
    residuals = (outcomes - values) * shares
    on_grid = _on_grid(values * GRID_INTERVALS, residuals, GRID_INTERVALS + 1)
    # A function reflected at both ends is a sum of cosines; the Gaussian multiplies the m-th by exp(−(σπm)²/2).
    on_grid[1:-1] /= 2
    cosines = dct(on_grid, type=1)
    frequencies = np.pi * np.arange(GRID_INTERVALS + 1)
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        width = (low + high) / 2
        smoothed = dct(cosines * np.exp(-0.5 * (width * frequencies) ** 2), type=1)  # residual times density
        if _trapezoid(np.abs(smoothed), 1 / GRID_INTERVALS) > width:
            low = width
        else:
            high = width
    # exact bounds of the integral, which rounding could violate where σ is less than the step of the grid
    return float(np.clip(high, abs(residuals.sum()), np.abs(residuals).sum()))


def kde_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    of: Event = "confidence",
    bandwidth: float | None = None,
    sample_weight: ArrayLike | None = None,
) -> float:
    """∫₀¹ |π(z) − z|·f(z) dz, with the density f and the frequency π of the event estimated by kernels: KDE-ECE.

    f(z) = (1/n)·Σ_i K_h(z, z_i) is the density of the predictions and π(z) = Σ_i o_i·K_h(z, z_i) / Σ_i K_h(z, z_i)
    how often the event occurred near z (Zhang, Kailkhura and Han, "Mix-n-Match", ICML 2020). K_h is the
    triweight kernel (35/32)·(1 − u²)³/w for |u| ≤ 1, u = (z − z_i)/w, reflected at 0 and 1; h = w/3 is its standard
    deviation, and w is kept between 1e-4 and 1.

    Parameters
    ----------
    probs, labels, of
        As in `reliability`.
    bandwidth
        h; by default 1.06·s·n^(−1/5), with s the standard deviation of the predictions. (The authors' code uses
        (2n)^(−1/5) times the standard deviation of the predictions whose event occurred, which is narrower.)
    sample_weight
        Relative importance of each sample, (n_samples,); n in the bandwidth is then (Σw)² / Σw².

    Returns
    -------
    float
        From 0 to 1, lower is better. If all predictions are equal, their distance from the observed frequency.
    """
    predictions = check_predictions(probs, labels, sample_weight)
    values, outcomes, shares = _sorted_event(predictions, check_event(of, predictions.n_classes))
    if values[0] == values[-1]:
        return float(abs(np.dot(shares, outcomes) - values[0]))
    if bandwidth is None:
        spread = math.sqrt(float(np.dot(shares, (values - np.dot(shares, values)) ** 2)))
        bandwidth = 1.06 * spread * math.pow(np.dot(shares, shares), 0.2)
    else:
        bandwidth = check_number(bandwidth, "bandwidth", minimum=0, exclusive=True)
    half_width = min(max(3 * bandwidth, MIN_HALF_WIDTH), 1.0)
    intervals = max(math.ceil(INTERVALS_PER_HALF_WIDTH / half_width), 2**12)
    reach = math.ceil(half_width * intervals)  # points on either side that a prediction can touch
    kernel = np.clip(1 - (np.arange(-reach, reach + 1) / (half_width * intervals)) ** 2, 0, None) ** 3
    kernel *= intervals / kernel.sum()
    density, occurred = (
        _smoothed(_on_grid(values * intervals, masses, intervals + 1), kernel) for masses in (shares, shares * outcomes)
    )  # (intervals + 1,) each; occurred is the density times the frequency
    points = np.arange(intervals + 1) / intervals
    return _trapezoid(np.abs(occurred - points * density), 1 / intervals)


def _sorted_event(predictions: Predictions, of: Event) -> tuple[Array, Array, Array]:
    """Return predictions of the event, ascending, whether it occurred (0 or 1), and w_i / Σw."""
    event = sort_event(predictions, of)
    shares = event.row_weights / event.row_weights.sum()
    return np.minimum(event.values.astype(np.float64), 1.0), event.occurred.astype(np.float64), shares


def _on_grid(positions: Array, masses: Array, size: int) -> Array:
    """Split masses linearly between the two nearest of the points 0, 1, …, size − 1."""
    below = np.minimum(positions.astype(np.intp), size - 2)
    upper = positions - below
    on_grid = np.zeros(size)
    on_grid[:-1] += np.bincount(below, weights=(1 - upper) * masses, minlength=size - 1)
    on_grid[1:] += np.bincount(below, weights=upper * masses, minlength=size - 1)
    return on_grid


def _smoothed(on_grid: Array, kernel: Array) -> Array:
    """Convolve masses, reflected at both ends, with a kernel of odd length, by the fast Fourier transform."""
    on_grid[[0, -1]] *= 2  # a mass at an end is its own image and counts twice
    values = np.pad(on_grid, len(kernel) // 2, mode="reflect")
    size = next_fast_len(len(values), real=True)
    product = irfft(rfft(values, size) * rfft(kernel, size), size)
    return np.asarray(product[len(kernel) - 1 : len(values)])


def _trapezoid(values: Array, step: float) -> float:
    """Return the integral of a function given at equidistant points."""
    return float((values.sum() - (values[0] + values[-1]) / 2) * step)


Estimator = Literal["unbiased-quadratic", "unbiased-linear", "biased"]
Kernel = Literal["total-variation", "euclidean"]

DISTANCES = {"total-variation": ("cityblock", 1, 0.5), "euclidean": ("euclidean", 2, 1.0)}
"""The distance of each kernel: its name in scipy, the order of the norm, and a factor."""

BLOCK_ROWS = 1024  # a block of h and its two factors take 24 MB
ALL_PAIRS_ROWS = 2000  # up to here the median distance is that of all pairs, 2 million
SAMPLED_PAIRS = 1_000_000  # beyond, that of as many random pairs
MAX_RESAMPLES = 100_000


@dataclass(frozen=True)
class KernelCalibrationError:
    """An estimate of the squared kernel calibration error, and its p-value; ``float()`` gives the estimate."""

    value: float  # 0 is calibrated; an unbiased estimate may be negative
    p_value: float  # probability of an estimate at least as high if the model were calibrated; nan if undefined
    estimator: Estimator
    kernel: Kernel
    bandwidth: float  # ν in the kernel
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
    probs, labels
        As in `expected_calibration_error`.
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
        Number of bootstrap resamples for the p-value of the quadratic estimators; 0 leaves it out (nan).
    seed
        Seed of the random pairs and of the bootstrap.
    sample_weight
        Relative importance of each sample, (n_samples,): a pair has weight w_i·w_j. Rows of weight 0 are left out;
        the median distance is not weighted.

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
    check_choice(estimator, "estimator", get_args(Estimator))
    check_choice(kernel, "kernel", get_args(Kernel))
    if predictions.n_samples < 2 and estimator != "biased":
        remedy = 'Pass more rows, or estimator="biased".'
        raise InvalidInputError("probs", "must have at least 2 rows of positive weight", got="1", remedy=remedy)
    number = check_integer(resamples, "resamples", minimum=0, maximum=MAX_RESAMPLES)
    generator = np.random.default_rng(check_seed(seed))
    if estimator != "unbiased-linear":
        predictions = _in_canonical_order(predictions)
    if bandwidth is None:
        bandwidth = _median_distance(predictions.probs, kernel, generator)
    else:
        bandwidth = check_number(bandwidth, "bandwidth", minimum=0, exclusive=True)
    if estimator == "unbiased-linear":
        value, p_value = _linear_estimate(predictions, kernel, bandwidth)
    else:
        multipliers = _centred_counts(predictions.n_samples, number, generator)
        diagonal = estimator == "biased"
        value, p_value = _quadratic_estimate(predictions, kernel, bandwidth, multipliers, diagonal=diagonal)
    return KernelCalibrationError(value, p_value, estimator, kernel, bandwidth, predictions.n_samples)


def _linear_estimate(predictions: Predictions, kernel: Kernel, bandwidth: float) -> tuple[float, float]:
    """Return the mean of h over consecutive disjoint pairs, and its p-value by the normal distribution."""
    n_pairs = predictions.n_samples // 2
    products = np.empty(n_pairs)
    for pairs in blocks(n_pairs, predictions.n_classes):
        first, second = (slice(2 * pairs.start + i, 2 * pairs.stop + i, 2) for i in (0, 1))
        similarity = np.exp(-_row_distances(predictions.probs[first], predictions.probs[second], kernel) / bandwidth)
        inner = np.einsum("ik,ik->i", _residuals(predictions, first), _residuals(predictions, second))
        products[pairs] = similarity * inner
    masses = predictions.row_weights[: 2 * n_pairs].reshape(n_pairs, 2).prod(axis=1)
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
    multipliers: NDArray[np.float32],
    *,
    diagonal: bool,
) -> tuple[float, float]:
    """Return the mean of h over all pairs, with or without i = j, and its p-value by multipliers (n, resamples)."""
    n, resamples = multipliers.shape
    total, resampled = 0.0, np.zeros(resamples)
    for rows, columns, products in _pair_products(predictions, kernel, bandwidth):
        if rows == columns and not diagonal:
            np.fill_diagonal(products, 0)
        times = 1 if rows == columns else 2  # h is symmetric: a block off the diagonal counts twice
        total += times * float(products.sum())
        if resamples:
            sums = products.astype(np.float32) @ multipliers[columns]  # (rows, resamples)
            resampled += times * np.einsum("ir,ir->r", multipliers[rows], sums, dtype=np.float64)
    pairs = float(predictions.row_weights.sum()) ** 2
    if not diagonal:
        pairs -= float(np.sum(predictions.row_weights**2))
    value = total / pairs
    if not resamples or n < 2:
        return value, float("nan")
    return value, (1 + int(np.count_nonzero(resampled >= total))) / (1 + resamples)


def _pair_products(
    predictions: Predictions, kernel: Kernel, bandwidth: float
) -> Iterator[tuple[slice, slice, NDArray[np.float64]]]:
    """Yield h in square blocks, those on the diagonal and above it."""
    metric, _, factor = DISTANCES[kernel]
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
    """Return how often each row is drawn, minus 1, when n rows are drawn with replacement: (n, resamples)."""
    counts = np.empty((n, resamples), dtype=np.float32)
    for r in range(resamples):
        counts[:, r] = np.bincount(generator.integers(0, n, n), minlength=n) - 1
    return counts


def _residuals(predictions: Predictions, rows: slice) -> NDArray[np.float64]:
    """Return one-hot labels minus probabilities, times the weights of the rows, (rows, n_classes)."""
    return predictions.residuals(rows) * predictions.row_weights[rows, None]


def _row_distances(first: Floats, second: Floats, kernel: Kernel) -> NDArray[np.float64]:
    """Return the distances between corresponding rows, (rows,)."""
    _, order, factor = DISTANCES[kernel]
    return np.asarray(factor * np.linalg.norm(first.astype(np.float64) - second, ord=order, axis=1))


def _median_distance(probs: Floats, kernel: Kernel, generator: np.random.Generator) -> float:
    """Return the median distance of two rows; the mean if most rows are equal, 1 if all are."""
    n = probs.shape[0]
    if n < 2:
        return 1.0
    if n <= ALL_PAIRS_ROWS:
        metric, _, factor = DISTANCES[kernel]
        distances = factor * pdist(probs.astype(np.float64), metric)
    else:
        first = generator.integers(0, n, SAMPLED_PAIRS)
        second = (first + generator.integers(1, n, SAMPLED_PAIRS)) % n  # never the same row
        parts = blocks(SAMPLED_PAIRS, probs.shape[1])
        distances = np.concatenate([_row_distances(probs[first[p]], probs[second[p]], kernel) for p in parts])
    return float(np.median(distances)) or float(distances.mean()) or 1.0


def _in_canonical_order(predictions: Predictions) -> Predictions:
    """Sort the rows: then neither sums nor random draws depend on their order."""
    weights = () if predictions.weights is None else (predictions.weights,)
    return predictions.rows(np.lexsort((*weights, predictions.labels, *predictions.probs.T)))
