"""Checks of the arguments of plots: one name has one meaning in all of them."""

from collections.abc import Collection, Mapping, Set
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from kcal.errors import InvalidInputError
from kcal.metrics import AverageRanks, CanonicalCells, ReliabilityBins, SubgroupEvaluation
from kcal.validation import check_integer, shown

MAX_PANELS = 400
"""More panels, methods or curves would give a figure too large to draw."""
INTEGERS = {"minimum_count": (0, 10**12), "limit": (1, MAX_PANELS)}
"""The lowest and the highest value of an integer."""
KINDS: dict[str, tuple[Any, str]] = {
    "ax": (Axes | None, "matplotlib axes or None"),
    "figure": (Figure | SubFigure | None, "a matplotlib figure or None"),
    "title": (str | None, "text or None"),
    "class_name": (str | None, "text or None"),
    "legend": (bool | np.bool_, "True or False"),
    "bins": (ReliabilityBins, "the result of kcal.metrics.reliability(probs, labels)"),
    "cells": (CanonicalCells, "the result of kcal.metrics.canonical_cells(probs, labels, bins=5)"),
    "subgroups": (SubgroupEvaluation, "the result of kcal.metrics.evaluate(probs, labels, by=...)"),
    "ranks": (AverageRanks, "the result of kcal.metrics.average_ranks(...)"),
}
"""The types of an argument, and their description."""


def check_arguments(**arguments: Any) -> None:
    """Raise if an argument is not what its name stands for in all plots."""
    for name, value in arguments.items():
        if name in INTEGERS:
            lowest, highest = INTEGERS[name]
            check_integer(value, name, minimum=lowest, maximum=highest)
        else:
            check_kind(value, name, *KINDS[name])


def check_kind(value: Any, name: str, kind: Any, expected: str) -> None:
    """Raise if ``value`` is not of this type."""
    if not isinstance(value, kind):
        raise InvalidInputError(name, f"must be {expected}", got=shown(value))


def check_names(names: Any, n_names: int | None = None) -> list[str]:
    """Return names as a list of text; raise if they are not a list, empty, or not ``n_names``."""
    unordered = isinstance(names, str | bytes | Mapping | Set) or not isinstance(names, Collection)
    if unordered or getattr(names, "ndim", 1) != 1:
        raise InvalidInputError("class_names", "must be a list of names", got=shown(names))
    if len(names) != (n_names or max(len(names), 1)):
        expected = f"{n_names} names, one per class" if n_names else "at least one name"
        raise InvalidInputError("class_names", f"must have {expected}", got=str(len(names)))
    return [str(entry) for entry in names]


def check_count(count: int, name: str, noun: str) -> None:
    """Raise if a figure would be empty, or have more of these than can be drawn."""
    if not 0 < count <= MAX_PANELS:
        raise InvalidInputError(name, f"must have 1 to {MAX_PANELS} {noun}", got=f"{count:,}")
