"""How far an observed frequency may be off by chance: Wilson's interval."""

from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def wilson_interval(frequency: ArrayLike, count: ArrayLike, confidence: float) -> tuple[Array, Array]:
    """Return the lower and upper ends of Wilson's interval of frequencies f of n samples each.

        (f + z²/2n ± z·√(f·(1 − f)/n + z²/4n²)) / (1 + z²/n),

    z being the (1 + confidence)/2 quantile of the normal distribution; nan where n is 0.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    n = np.asarray(count, dtype=np.float64)
    n = np.where(n > 0, n, np.nan)
    f = np.clip(np.asarray(frequency, dtype=np.float64), 0.0, 1.0)
    scale = 1 + z**2 / n
    middle = (f + z**2 / (2 * n)) / scale
    half = z * np.sqrt(f * (1 - f) / n + z**2 / (4 * n**2)) / scale
    return np.clip(middle - half, 0.0, 1.0), np.clip(middle + half, 0.0, 1.0)
