"""A two-sample test of embeddings: maximum mean discrepancy by random Fourier features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kcal.errors import InvalidInputError
from kcal.validation import check_groups, check_integer, check_seed, to_numbers

Floats = NDArray[np.float64]

MEDIAN_ROWS = 1_000
"""Rows by which the median distance is estimated."""
BLOCK = 64
"""Permutations at once."""


@dataclass(frozen=True)
class MeanEmbeddingTest:
    """The distance of two samples and its p-value.

    Attributes
    ----------
    statistic : float
        ‖mean φ(x) − mean φ(y)‖², φ being the random features: the squared maximum mean discrepancy.
    p_value : float
        Share of the permutations with at least this distance, the sample itself included.
    bandwidth : float
        Of the kernel exp(−‖x − y‖²/(2·bandwidth²)): the median distance of all rows.
    """

    statistic: float
    p_value: float
    bandwidth: float
    n_reference: int
    n_samples: int


def mean_embedding_test(
    reference: ArrayLike,
    X: ArrayLike,
    *,
    reference_groups: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    n_features: int = 256,
    n_permutations: int = 500,
    seed: int = 0,
) -> MeanEmbeddingTest:
    """Test whether embeddings come from the distribution of the reference.

    φ(x) = [cos(w_j·x), sin(w_j·x)]_j/√D with w_j from the spectrum of a Gaussian kernel, D of them (Rahimi and Recht);
    the p-value is that of permutations, exact for exchangeable rows at any D. With many rows a harmless difference is
    found too: look at the statistic.

    Parameters
    ----------
    reference, X
        Embeddings of the calibration set and of new rows, (n, h) and (m, h).
    reference_groups, groups
        Patients, recordings of both: whole groups are permuted, because rows of one are alike.
    n_features, n_permutations
        D, and how many permutations the p-value counts.
    """
    before, after = (_check_rows(rows, name) for rows, name in ((reference, "reference"), (X, "X")))
    if before.shape[1] != after.shape[1]:
        raise InvalidInputError(
            "X", f"must have the columns of the reference ({before.shape[1]})", got=f"{after.shape[1]}"
        )
    check_integer(n_features, "n_features", minimum=1, maximum=100_000)
    check_integer(n_permutations, "n_permutations", minimum=19, maximum=1_000_000)
    generator = np.random.default_rng(check_seed(seed))
    rows = np.concatenate([before, after])
    bandwidth = _median_distance(rows, generator)
    frequencies = generator.normal(size=(rows.shape[1], n_features)) / bandwidth
    angles = rows @ frequencies
    features = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) / np.sqrt(n_features)
    parts = [_by_group(features[: len(before)], reference_groups, "reference_groups")]
    parts.append(_by_group(features[len(before) :], groups, "groups"))
    sums, sizes = (np.concatenate([part[place] for part in parts]) for place in (0, 1))
    own = np.arange(len(sizes)) < len(parts[0][1])
    statistic = float(_distances(own[None], sums, sizes)[0])
    permuted = []
    for start in range(0, n_permutations, BLOCK):
        sides = np.tile(own, (min(BLOCK, n_permutations - start), 1))
        permuted.append(_distances(generator.permuted(sides, axis=1), sums, sizes))
    # Equal distances, of the same division, differ by rounding only.
    at_least = int((np.concatenate(permuted) >= statistic * (1 - 1e-9)).sum())
    p_value = (1 + at_least) / (1 + n_permutations)
    return MeanEmbeddingTest(statistic, p_value, bandwidth, len(before), len(after))


def _distances(first: NDArray[np.bool_], sums: Floats, sizes: Floats) -> Floats:
    """Return the squared distance of the means of both sides, (n,), for n divisions, (n, n_units)."""
    chosen = first.astype(np.float64)
    n_first = chosen @ sizes
    of_first = chosen @ sums
    of_second = sums.sum(axis=0) - of_first
    gaps = of_first / n_first[:, None] - of_second / (sizes.sum() - n_first)[:, None]
    return np.asarray((gaps**2).sum(axis=1))


def _by_group(features: Floats, groups: Any, name: str) -> tuple[Floats, Floats]:
    """Return the sums of the features of each group, or of each row, and the numbers of rows."""
    if groups is None:
        return features, np.ones(len(features))
    codes = check_groups(groups, len(features), name)
    sizes = np.bincount(codes)
    sums = np.zeros((len(sizes), features.shape[1]))
    np.add.at(sums, codes, features)
    return sums, sizes.astype(np.float64)


def _median_distance(rows: Floats, generator: np.random.Generator) -> float:
    """Return the median distance of rows that differ; 1 if all are equal."""
    first, second = generator.integers(len(rows), size=(2, MEDIAN_ROWS))
    distances = np.linalg.norm(rows[first] - rows[second], axis=1)
    positive = distances[distances > 0]
    return float(np.median(positive)) if len(positive) else 1.0


def _check_rows(rows: ArrayLike, name: str) -> Floats:
    array = to_numbers(rows, name).astype(np.float64)
    if array.ndim != 2 or not array.size:
        raise InvalidInputError(name, "must have two dimensions (samples, features)", got=f"shape {array.shape}")
    if not np.isfinite(array).all():
        raise InvalidInputError(name, "must be finite, without NaN or inf")
    return array
