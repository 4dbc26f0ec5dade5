"""How far an observed frequency may be off by chance: Wilson's interval."""

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from kcal.metrics import ReliabilityBins


def frequency_bands(bins: ReliabilityBins, confidence: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the lower and upper ends, (bins,) each, of Wilson's interval of every observed frequency.

        (f + z²/2n ± z·√(f·(1 − f)/n + z²/4n²)) / (1 + z²/n),

    f being the observed frequency of n samples and z the (1 + confidence)/2 quantile of the normal distribution.
    nan in an empty bin. Weighted samples count as one each, so that the interval of very unequal weights is
    too narrow.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    counts = np.where(bins.counts > 0, bins.counts, np.nan)
    frequency = np.clip(bins.observed_frequency, 0.0, 1.0)
    scale = 1 + z**2 / counts
    middle = (frequency + z**2 / (2 * counts)) / scale
    half = z * np.sqrt(frequency * (1 - frequency) / counts + z**2 / (4 * counts**2)) / scale
    return np.clip(middle - half, 0.0, 1.0), np.clip(middle + half, 0.0, 1.0)
