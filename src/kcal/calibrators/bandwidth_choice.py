"""How KCal comes by its bandwidth: a number, the power law, or a search on the calibration set."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from kcal.errors import BandwidthWarning, InvalidInputError
from kcal.kernels import (
    INTERVAL,
    BandwidthCurve,
    LeaveOutLoss,
    SortedSupport,
    scaled_bandwidth,
    search_bandwidth,
)
from kcal.progress import progress_bar
from kcal.projection import START_SPREAD


@dataclass(frozen=True)
class BandwidthChoice:
    """The parameters that decide, and the count of the rarest class that the power law goes by."""

    bandwidth: str | float
    interval: tuple[float, float] | None
    reference: tuple[float, float] | None
    rarest: float

    def without_search(self, dimension: int) -> float | None:
        """Return the number given or the power law's, or None where a search has to find it."""
        if self.bandwidth == "cv":
            return None
        if self.bandwidth == "rule":
            return scaled_bandwidth(self.reference, self.rarest, dimension)  # type: ignore[arg-type]
        return float(self.bandwidth)

    def lowest_loss(self, loss: LeaveOutLoss) -> float:
        """Return the leave-out loss at the bandwidth that this choice would lead to, roughly where it searches."""
        fixed = self.without_search(loss.support.dimension)
        if fixed is not None:
            return loss(fixed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BandwidthWarning)  # the search that counts comes later
            return search_bandwidth(loss, interval=self._interval(loss.support), tolerance=0.05).loss

    def search(self, loss: LeaveOutLoss, *, show: bool | None) -> BandwidthCurve:
        """Return the curve of the search, with the bandwidth that it found."""
        n_keys = loss.n_keys
        if n_keys < 2:
            what = "groups" if loss.grouped else "calibration samples"
            raise InvalidInputError(
                f"choosing the bandwidth by cross-validation needs at least two {what}; got {n_keys}. "
                "Pass bandwidth= a number."
            )
        with progress_bar("Choosing the bandwidth", 14, show=show) as advance:
            return search_bandwidth(loss, interval=self._interval(loss.support), after_each=advance)

    def _interval(self, support: SortedSupport) -> tuple[float, float]:
        if self.interval is not None:
            return self.interval
        unit = (support.mean_square / START_SPREAD) ** 0.5 or 1.0
        return INTERVAL[0] * unit, INTERVAL[1] * unit
