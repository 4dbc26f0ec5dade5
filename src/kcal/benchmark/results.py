"""The result of one method on one split of a task, and how it is stored as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, order=True)
class ResultKey:
    """Which method on which split; ``by_group`` for grouped splits."""

    task: str
    by_group: bool
    split: int
    method: str


@dataclass(frozen=True)
class Origin:
    """What a result depends on: hashes of the data, the method's parameters and the code, and package versions."""

    fingerprint: str
    parameters: str
    versions: Mapping[str, str]
    code: str


@dataclass(frozen=True)
class Result:
    """What was measured, or the error of a method that failed.

    Attributes
    ----------
    metrics : mapping
        Test metrics by name.
    details : mapping
        What the method chose: bandwidth, temperature, weights.
    reliability : mapping, optional
        Bins of the confidence and of every class, for the first split.
    sizes : tuple
        Number of calibration and test samples.
    n_groups : int, optional
        Number of groups of the pool.
    train_seconds : float, optional
        Time to train the projection, which all splits share.
    """

    key: ResultKey
    metrics: Mapping[str, float] = field(default_factory=dict)
    fit_seconds: float = math.nan
    predict_seconds: float = math.nan
    details: Mapping[str, Any] = field(default_factory=dict)
    reliability: Mapping[str, Any] | None = None
    error: str | None = None
    sizes: tuple[int, int] | None = None
    n_groups: int | None = None
    train_seconds: float | None = None
    origin: Origin | None = None

    def as_json(self) -> dict[str, Any]:
        """Return what JSON can hold; numbers that are not finite become null."""
        return {
            **asdict(self),
            "metrics": {name: finite_or_none(value) for name, value in self.metrics.items()},
            "fit_seconds": finite_or_none(self.fit_seconds),
            "predict_seconds": finite_or_none(self.predict_seconds),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Result:
        """Return the result that was stored."""
        fields = dict(stored)
        fields["key"] = ResultKey(**stored["key"])
        fields["metrics"] = {name: _number(value) for name, value in stored["metrics"].items()}
        for name in ("fit_seconds", "predict_seconds"):
            fields[name] = _number(stored[name])
        fields["sizes"] = None if stored["sizes"] is None else tuple(stored["sizes"])
        fields["origin"] = None if stored["origin"] is None else Origin(**stored["origin"])
        return cls(**fields)


def finite_or_none(value: float) -> float | None:
    """Return a number, or None if it is not finite."""
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.nan if value is None else value
