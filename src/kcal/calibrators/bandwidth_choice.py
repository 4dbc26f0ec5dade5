"""Choose the bandwidth of a KCal: a given number, the power law, or a search on the calibration set."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from kcal.errors import BandwidthWarning, InvalidInputError
from kcal.kernels import (
    INTERVAL,
    MIN_PROB,
    BandwidthCurve,
    LeaveOutLoss,
    MotherKernel,
    SortedSupport,
    fit_bandwidth_law,
    leave_out_loss,
    search_bandwidth,
    search_near,
    search_published,
)
from kcal.progress import progress_bar
from kcal.projection import START_SPREAD
from kcal.validation import ALMOST_ZERO

TYPICAL_EVALUATIONS = {"cv": 14, "published": 26}
"""Evaluations of a search, for the progress bar, by the value of ``bandwidth`` that asks for it."""
NEAR_SAMPLES = 1_000
"""Samples that a search around an expected bandwidth predicts, at most."""
EXPECTED_SPREAD = 0.05
"""Standard deviation of log b around the expected bandwidth, where a search predicts only some of the samples."""
PUBLISHED_FOLDS = 20
"""Folds of the published search."""


class SearchedLoss(Protocol):
    """A loss as a function of the bandwidth, with a standard error."""

    def __call__(self, bandwidth: float) -> float:
        """Return the loss at a bandwidth."""

    def at(self, bandwidths: Sequence[float]) -> list[float]:
        """Return the losses at several bandwidths, from one pass."""

    def standard_error(self, bandwidth: float) -> float:
        """Return the standard error of the loss at a bandwidth."""


def check_parts(n_samples: int, keys: torch.Tensor | None) -> None:
    """Raise if there are not two samples, or two groups or folds, to leave out in turn."""
    n_keys = n_samples if keys is None else len(torch.unique(keys))
    if n_keys < 2:
        raise InvalidInputError(
            "bandwidth" if keys is None else "groups",
            f"needs at least two {'calibration samples' if keys is None else 'groups'} for cross-validation",
            got=str(n_keys),
            remedy="Pass a number as the bandwidth.",
        )


@dataclass(frozen=True)
class BandwidthChoice:
    """How the bandwidth is chosen: KCal's parameters, and the size of the rarest class for the power law."""

    bandwidth: str | float = "cv"
    interval: tuple[float, float] | None = None
    reference: tuple[float, float] | None = None
    exponent: float | None = None
    size: float = 1.0

    def without_search(self, dimension: int) -> float | None:
        """Return the given bandwidth or that of the power law; None where a search has to find it."""
        if self.bandwidth in TYPICAL_EVALUATIONS:
            return None
        if self.bandwidth == "rule":
            assert self.reference is not None
            bandwidth, size = self.reference
            law = fit_bandwidth_law([bandwidth], [size], exponent=self.exponent, dimension=dimension)
            return law(self.size)
        return float(self.bandwidth)

    @property
    def fixed_source(self) -> str:
        """Where a bandwidth without a search comes from."""
        return "law" if self.bandwidth == "rule" else "given"

    def lowest_loss(self, loss: LeaveOutLoss) -> float:
        """Return the leave-out loss at the chosen bandwidth, found roughly where it is searched for."""
        fixed = self.without_search(loss.support.dimension)
        if fixed is not None:
            return loss(fixed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BandwidthWarning)  # the final search warns
            interval = self._interval(loss.support.mean_square)
            return search_bandwidth(loss, interval=interval, tolerance=0.05, at=loss.at).loss

    def choose(
        self, support: SortedSupport, *, kernel: MotherKernel, keys: torch.Tensor | None, progress: bool | None
    ) -> tuple[float, BandwidthCurve | None]:
        """Return the bandwidth and, where it was searched for by the leave-out loss, all that were tried."""
        fixed = self.without_search(support.dimension)
        if fixed is not None:
            return fixed, None
        check_parts(len(support), keys)
        loss = leave_out_loss(support, kernel=kernel, keys=keys, least_prob=self.least_prob)
        curve = self.search(loss, mean_square=support.mean_square, progress=progress)
        return curve.bandwidth, curve

    @property
    def least_prob(self) -> float:
        """Where the loss clips probabilities."""
        return MIN_PROB if self.bandwidth == "published" else ALMOST_ZERO

    def search(self, loss: SearchedLoss, *, mean_square: float, progress: bool | None) -> BandwidthCurve:
        """Return the search for the lowest loss over samples of this mean squared distance."""
        total = TYPICAL_EVALUATIONS[str(self.bandwidth)]
        with progress_bar("Choosing the bandwidth", total, show=progress) as advance:
            if self.bandwidth == "published":
                curve = search_published(loss, after_each=advance)
            else:
                curve = search_bandwidth(loss, interval=self._interval(mean_square), at=loss.at, after_each=advance)
        return replace(curve, standard_error=loss.standard_error(curve.bandwidth))

    def choose_near(
        self,
        expected: float,
        support: SortedSupport,
        *,
        kernel: MotherKernel,
        keys: torch.Tensor | None,
        scan: bool = False,
    ) -> BandwidthCurve:
        """Return a quick search around an expected bandwidth, on at most ``NEAR_SAMPLES`` samples given all others.

        With ``scan`` it begins with the usual interval. If it predicts only some samples, others than the search
        before, it is pulled towards the expected bandwidth, in which earlier searches have their part.
        """
        options: dict[str, Any] = {"kernel": kernel, "keys": keys, "least_prob": self.least_prob}
        n_samples = len(support)
        loss = LeaveOutLoss(support, n_predicted=NEAR_SAMPLES, seed=n_samples, **options)
        left_out = max(0.0, 1.0 - NEAR_SAMPLES / n_samples)
        pull = left_out / (NEAR_SAMPLES * EXPECTED_SPREAD**2)
        return search_near(loss.at, expected, interval=self._interval(support.mean_square) if scan else None, pull=pull)

    def _interval(self, mean_square: float) -> tuple[float, float]:
        """Return the interval of the search: by default the published one, in units of the spread of the samples."""
        if self.interval is not None:
            return self.interval
        unit = (mean_square / START_SPREAD) ** 0.5 or 1.0
        return INTERVAL[0] * unit, INTERVAL[1] * unit
