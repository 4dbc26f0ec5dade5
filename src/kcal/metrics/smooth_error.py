"""Calibration errors of one event by smoothing instead of binning: smooth ECE and KDE-ECE.

Both replace bins by a kernel, so that the value is continuous in the predictions. Each prediction is
split between the two nearest points of a fine grid, and everything after that is exact on the grid.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.fft import dct, irfft, next_fast_len, rfft

from kcal.metrics.predictions import Event, check_event, check_predictions
from kcal.validation import check_number

Array = NDArray[np.float64]

GRID_INTERVALS = 2**14  # changes the smooth error by less than 1e-9/σ, where σ is its width
BISECTIONS = 27  # of [0, 1]: the smooth error is accurate to 1e-8
INTERVALS_PER_HALF_WIDTH = 256  # of the kernel of the density estimate
SMALLEST_HALF_WIDTH = 1e-4  # so that the grid stays below three million points


def smooth_calibration_error(
    probs: ArrayLike, labels: ArrayLike, *, of: Event = "confidence", sample_weight: ArrayLike | None = None
) -> float:
    """Smooth ECE: the σ at which ∫₀¹ |(1/n)·Σ_i K_σ(t, z_i)·(o_i − z_i)| dt = σ.

    z_i is the prediction of the event, o_i is 1 if it occurred, and K_σ is the Gaussian kernel reflected at
    0 and 1, K_σ(t, z) = Σ_m φ_σ(t − z − 2m) + φ_σ(t + z − 2m). The integral falls as σ grows, so that
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
    values, outcomes, shares = _sorted_event(probs, labels, of, sample_weight)
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
    values, outcomes, shares = _sorted_event(probs, labels, of, sample_weight)
    if values[0] == values[-1]:
        return float(abs(np.dot(shares, outcomes) - values[0]))
    if bandwidth is None:
        spread = math.sqrt(float(np.dot(shares, (values - np.dot(shares, values)) ** 2)))
        bandwidth = 1.06 * spread * math.pow(np.dot(shares, shares), 0.2)
    else:
        bandwidth = check_number(bandwidth, "bandwidth", minimum=0, exclusive=True)
    half_width = min(max(3 * bandwidth, SMALLEST_HALF_WIDTH), 1.0)
    intervals = max(math.ceil(INTERVALS_PER_HALF_WIDTH / half_width), 2**12)
    reach = math.ceil(half_width * intervals)  # points on either side that a prediction can touch
    kernel = np.clip(1 - (np.arange(-reach, reach + 1) / (half_width * intervals)) ** 2, 0, None) ** 3
    kernel *= intervals / kernel.sum()
    density, occurred = (
        _smoothed(_on_grid(values * intervals, masses, intervals + 1), kernel) for masses in (shares, shares * outcomes)
    )  # (intervals + 1,) each; occurred is the density times the frequency
    points = np.arange(intervals + 1) / intervals
    return _trapezoid(np.abs(occurred - points * density), 1 / intervals)


def _sorted_event(
    probs: ArrayLike, labels: ArrayLike, of: Event, sample_weight: ArrayLike | None
) -> tuple[Array, Array, Array]:
    """Return predictions of the event, whether it occurred (0 or 1), and w_i / Σw, in an order that ignores ties."""
    predictions = check_predictions(probs, labels, sample_weight)
    values, occurred = predictions.event(check_event(of, predictions.n_classes))
    weights = predictions.row_weights
    order = np.lexsort((weights, occurred, values))
    weights = weights[order]
    ordered = np.minimum(values[order].astype(np.float64), 1.0)
    return ordered, occurred[order].astype(np.float64), weights / weights.sum()


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
