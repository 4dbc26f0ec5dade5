"""How a calibrator follows a stream of samples, and what it notes of its bandwidths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import Any

from kcal.errors import InvalidInputError
from kcal.kernels import BandwidthLaw, fit_bandwidth_law
from kcal.validation import check_flag, check_integer, check_number, checked_parameters, parameter, shown

MAX_COUNT = 10**12
EARLY_SAMPLES, EARLY_GROWTH = 200, 1.1
"""Below so many samples, a search is due when they have grown by this factor, if ``growth`` is no smaller."""
NEGLIGIBLE_HALVINGS = 30
"""Half-lives after which a sample leaves: its weight is below 1e-9 of a new one."""


@dataclass(frozen=True)
class Updates:
    """How a calibrator follows a stream: when it searches again, and which samples it keeps.

    Parameters
    ----------
    growth : float
        A new search (of a blend: a new fit of everything but the projections) follows once the samples that were
        added, corrected or removed since the last one are (growth − 1) times those that it saw; 1.5 for half as many.
        A class that appears leads to one at once. With fewer than 200 samples, a tenth of them leads to a search:
        there bandwidths and weights are uncertain, and a search or fit takes little time.
    fit_exponent : bool
        Whether the exponent of the power law by which bandwidths shrink between searches, and not only the constant,
        is learned from the earlier searches: as the mean of the one fitted to them and that of the theory,
        −1/(d + 4). The theory's is mostly too close to 0, since samples fill fewer dimensions than they have; the
        fitted one alone is too steep more often than not. A ``bandwidth_exponent`` of the calibrator replaces both.
    window : int, optional
        Samples that are kept at most, from the first update on; the oldest leave.
    half_life : float, optional
        Samples after whose arrival a weight has halved.
    max_per_class : int, optional
        Samples of a class that are kept at most; its oldest leave.
    """

    growth: float = parameter(1.5, check_number, minimum=1, maximum=1e9, exclusive=True)
    fit_exponent: bool = parameter(True, check_flag)
    window: int | None = parameter(None, check_integer, minimum=1, maximum=MAX_COUNT)
    half_life: float | None = parameter(None, check_number, minimum=0, maximum=MAX_COUNT, exclusive=True)
    max_per_class: int | None = parameter(None, check_integer, minimum=1, maximum=MAX_COUNT)

    def __post_init__(self) -> None:
        for name, value in checked_parameters(self).items():
            object.__setattr__(self, name, value)

    @property
    def most_samples(self) -> float:
        """Number of samples that are kept at most."""
        lasting = inf if self.half_life is None else ceil(NEGLIGIBLE_HALVINGS * self.half_life)
        return min(self.window or inf, lasting)

    def is_due(self, history: Sequence[BandwidthRecord], n_updates: int, classes: Sequence[Any]) -> bool:
        """Return whether a search is due, by the earlier bandwidths, the present count and the classes with samples."""
        last = next((record for record in reversed(history) if record.source == "search"), None)
        if last is None or not set(classes) <= set(last.classes):
            return True
        growth = min(self.growth, EARLY_GROWTH) if last.n_samples < EARLY_SAMPLES else self.growth
        return n_updates - last.n_updates >= (growth - 1.0) * last.n_samples

    def law(self, history: Sequence[BandwidthRecord], *, dimension: int, exponent: float | None) -> BandwidthLaw | None:
        """Return the power law through the latest search; None without any.

        The exponent is ``exponent`` or, if that is None, that of the theory, with ``fit_exponent`` averaged with the
        one fitted to all searches.
        """
        searches = [record for record in history if record.source == "search"]
        if not searches:
            return None
        if exponent is None:
            exponent = -1.0 / (dimension + 4)
            if self.fit_exponent and len({record.size for record in searches}) > 1:
                exponent = 0.5 * (exponent + fit_bandwidth_law(*_columns(searches)).exponent)
        return BandwidthLaw(searches[-1].bandwidth * searches[-1].size ** -exponent, exponent)


DEFAULT = Updates()


@dataclass(frozen=True)
class BandwidthRecord:
    """A bandwidth in use, and how it was chosen.

    Attributes
    ----------
    bandwidth : float
        b.
    source : "search", "law" or "given"
        A search on the samples, the power law between searches (or that of ``bandwidth="rule"``), or a given number.
    loss : float or None
        Leave-out log-loss at b; None where it was not searched for.
    n_samples : int
        Samples at that time.
    size : float
        Size of the rarest class, by which the power law scales.
    n_classes : int
        Classes that had samples.
    n_updates : int
        Samples added, corrected or removed until then, those of the fit included.
    metric : str
        Metric of a blend; empty for KCal.
    classes : tuple
        Those classes, in the latest search only.
    """

    bandwidth: float
    source: str
    loss: float | None
    n_samples: int
    size: float
    n_classes: int
    n_updates: int
    metric: str = ""
    classes: tuple[Any, ...] = field(default=(), repr=False)


def with_record(history: Sequence[BandwidthRecord], record: BandwidthRecord) -> tuple[BandwidthRecord, ...]:
    """Return the history with one more record; of those between two searches only the latest is kept."""
    earlier = tuple(entry for entry in history if entry.source == "search")
    return (*(without_classes(earlier) if record.source == "search" else earlier), record)


def without_classes(history: Sequence[BandwidthRecord]) -> tuple[BandwidthRecord, ...]:
    """Return the history without the classes, which only the latest search needs."""
    return tuple(replace(entry, classes=()) if entry.classes else entry for entry in history)


def check_updates(updates: Any) -> Updates:
    """Return the options of updates, by default those of ``Updates()``."""
    if updates is None:
        return DEFAULT
    if not isinstance(updates, Updates):
        raise InvalidInputError("updates", "must be a kcal.Updates or None", got=shown(updates))
    return updates


def _columns(records: Sequence[BandwidthRecord]) -> tuple[list[float], list[float]]:
    return [record.bandwidth for record in records], [record.size for record in records]
