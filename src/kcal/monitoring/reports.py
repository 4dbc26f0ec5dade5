"""What a monitor has found, as frozen results that print as tables, and the border of its stored state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import exp, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.errors import FileFormatError
from kcal.validation import shown

MAX_SHOWN = 10
MAX_EXPONENT = 700.0


@dataclass(frozen=True)
class Part:
    """A class, a group, or all predictions together.

    Attributes
    ----------
    predicted, observed : float
        Mean probability and frequency of the class; for a group and for all, mean confidence and accuracy.
    log_wealth : float
        Logarithm of its part of the wealth, weighted: it is named when this reaches −log α.
    alarm_at : int or None
        Rows of the monitor after which that happened first.
    """

    name: Any
    n_samples: int
    predicted: float
    observed: float
    log_wealth: float
    alarm_at: int | None

    @property
    def alarm(self) -> bool:
        """Whether it has been named."""
        return self.alarm_at is not None


@dataclass(frozen=True, eq=False)
class MonitorReport:
    """What a monitor has found so far.

    Attributes
    ----------
    overall : Part
        All predictions; its wealth is the sum of all parts.
    classes, groups : tuple of Part
        Each class against the rest, and each group.
    alpha : float
        Probability of a false alarm, at most.
    path : array, (n,)
        Logarithm of the wealth after each row of the last update.
    """

    overall: Part
    classes: tuple[Part, ...]
    groups: tuple[Part, ...]
    alpha: float
    path: NDArray[np.float64] = field(repr=False)

    @property
    def alarm(self) -> bool:
        """Whether the probabilities were found not to be calibrated."""
        return self.overall.alarm

    @property
    def alarm_at(self) -> int | None:
        """Rows after which the alarm was raised."""
        return self.overall.alarm_at

    @property
    def n_samples(self) -> int:
        """Rows seen."""
        return self.overall.n_samples

    @property
    def wealth(self) -> float:
        """The wealth of the gambler, who started with 1; the alarm is raised at 1/α."""
        return exp(min(self.overall.log_wealth, MAX_EXPONENT))

    @property
    def alarmed_classes(self) -> tuple[Any, ...]:
        """Classes that were named."""
        return tuple(part.name for part in self.classes if part.alarm)

    @property
    def alarmed_groups(self) -> tuple[Any, ...]:
        """Groups that were named."""
        return tuple(part.name for part in self.groups if part.alarm)

    def __str__(self) -> str:
        found = f"ALARM after {self.alarm_at:,} samples" if self.alarm_at is not None else "no alarm"
        heading = f"{self.n_samples:,} samples: {found} (wealth {self.wealth:.3g}, alarm at {1 / self.alpha:g})"
        lines = [heading, _line("", "samples", "predicted", "observed", "wealth", "")]
        for kind, parts in (("class", self.classes), ("group", self.groups)):
            ordered = sorted(parts, key=lambda part: -part.log_wealth)
            lines += [_part_line(f"{kind} {part.name}", part) for part in ordered[:MAX_SHOWN]]
            if len(parts) > MAX_SHOWN:
                lines.append(f"… and {len(parts) - MAX_SHOWN} more")
        lines.insert(2, _part_line("all: confidence", self.overall))
        return "\n".join(lines)


def _part_line(name: str, part: Part) -> str:
    wealth = exp(min(part.log_wealth, MAX_EXPONENT)) if part.log_wealth > log(1e-3) else 0.0
    alarm = f"alarm after {part.alarm_at:,}" if part.alarm_at is not None else ""
    return _line(name, f"{part.n_samples:,}", f"{part.predicted:.4f}", f"{part.observed:.4f}", f"{wealth:.3g}", alarm)


def _line(name: str, samples: str, predicted: str, observed: str, wealth: str, alarm: str) -> str:
    return f"{name:<24}  {samples:>9}  {predicted:>9}  {observed:>9}  {wealth:>9}  {alarm}".rstrip()


@contextmanager
def reading_state(state: Any, expected_format: int) -> Iterator[None]:
    """Turn errors of reading the stored state of a monitor into a FileFormatError."""
    if not isinstance(state, dict):
        raise FileFormatError(f"the state of a monitor must be a dictionary, as to_dict returns; got {shown(state)}.")
    if state.get("format") != expected_format:
        found = state.get("format")
        raise FileFormatError(f"the state of a monitor must be of format {expected_format}; got {found!r}.")
    try:
        yield
    except FileFormatError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FileFormatError(f"this is not the state of a monitor ({error!r}).") from error
