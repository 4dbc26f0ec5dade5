"""Checks of the arguments that several plots share."""

from collections.abc import Collection, Mapping, Set
from typing import Any, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from numpy.typing import NDArray

from kcal.errors import InvalidInputError
from kcal.plots.style import new_axes
from kcal.validation import check_integer, shown

LARGEST_COUNT = 10**12
MOST_PANELS = 400
"""More panels, methods or curves would give a figure too large to draw."""

Result = TypeVar("Result")


def prepare_axes(ax: Any, width: float, height: float, title: Any, *, pad: float | None = None) -> Axes:
    """Return the axes to draw on, with their title; those of a new figure of this size in inches if None."""
    check_text(title, "title")
    if ax is not None and not isinstance(ax, Axes):
        raise InvalidInputError("ax", "must be matplotlib axes or None", got=shown(ax))
    axes = new_axes(width, height) if ax is None else ax
    if title is not None:
        axes.set_title(title, pad=pad)
    return axes


def check_figure(figure: Any) -> None:
    """Raise if ``figure`` is neither a matplotlib figure nor None."""
    if figure is not None and not isinstance(figure, Figure | SubFigure):
        raise InvalidInputError("figure", "must be a matplotlib figure or None", got=shown(figure))


def check_text(text: Any, name: str) -> None:
    """Raise if ``text`` is neither text nor None."""
    if text is not None and not isinstance(text, str):
        raise InvalidInputError(name, "must be text or None", got=shown(text))


def check_names(names: Any, n_names: int | None = None, name: str = "class_names") -> list[str]:
    """Return names as a list of text; raise if they are not a list, if there are none, or not ``n_names``."""
    if (
        isinstance(names, str | bytes | Mapping | Set)
        or not isinstance(names, Collection)
        or getattr(names, "ndim", 1) != 1
    ):
        raise InvalidInputError(name, "must be a list of names", got=shown(names))
    if len(names) != (n_names or max(len(names), 1)):
        expected = f"{n_names} names, one per class" if n_names else "at least one name"
        raise InvalidInputError(name, f"must have {expected}", got=str(len(names)))
    return [str(entry) for entry in names]


def check_result(value: Any, kind: type[Result], name: str, source: str) -> Result:
    """Return ``value``; raise if it is not of this type. ``source`` says how to get one."""
    if isinstance(value, kind):
        return value
    raise InvalidInputError(name, f"must be {source}", got=shown(value))


def check_minimum_count(minimum_count: Any) -> int:
    """Return the number of samples below which nothing is drawn."""
    return check_integer(minimum_count, "minimum_count", minimum=0, maximum=LARGEST_COUNT)


def check_panel_count(n_panels: int, name: str) -> None:
    """Raise if a figure would have more panels, methods or curves than can be drawn."""
    if n_panels > MOST_PANELS:
        raise InvalidInputError(name, f"must give at most {MOST_PANELS} panels or lines", got=f"{n_panels:,}")


def check_numbers(values: Any, name: str) -> NDArray[np.float64]:
    """Return real numbers as a one-dimensional array of at least one entry."""
    try:
        array = np.asarray(values)
        numbers = array.astype(np.float64) if array.dtype.kind in "fiu" else np.empty((0, 0))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        numbers = np.empty((0, 0))
    if isinstance(values, np.ma.MaskedArray) or numbers.ndim != 1 or numbers.size == 0:
        raise InvalidInputError(name, "must be a list of at least one number", got=shown(values))
    return numbers
