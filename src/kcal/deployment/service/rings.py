"""The latest rows of a stream in arrays of fixed size, known by their ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class RowRing:
    """Hold the latest rows, at most ``capacity``; a new row replaces the oldest.

    Columns are made when rows first have them. Erased rows are zeros, and are left out of :meth:`places`.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.numbers = np.full(capacity, -1, dtype=np.int64)  # of the row in the stream; −1 if there is none
        self.columns: dict[str, NDArray[Any]] = {}
        self.n_rows = 0  # ever appended
        self._names: list[str | None] = [None] * capacity
        self._places: dict[str, int] = {}

    def append(self, ids: Sequence[str] | None, rows: Mapping[str, NDArray[Any] | None]) -> None:
        """Append rows, in their order; ``rows`` are the values by column, None for a column that these rows lack."""
        given = {name: values for name, values in rows.items() if values is not None}
        n_new = len(next(iter(given.values())))
        kept = slice(max(n_new - self.capacity, 0), n_new)
        numbers = np.arange(self.n_rows, self.n_rows + n_new)[kept]
        places = numbers % self.capacity
        for absent in self.columns.keys() - given.keys():
            self.columns[absent][places] = _empty(self.columns[absent].dtype)
        for column, values in given.items():
            self._column(column, values)[places] = values[kept]
        self.numbers[places] = numbers
        self.n_rows += n_new
        names: Sequence[str | None] = [None] * len(places) if ids is None else ids[kept]
        for place, name in zip(places.tolist(), names, strict=True):
            self._rename(place, name)

    def _column(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Return the array of a column, of a type that holds the values; a new one if the rows have another shape."""
        column = self.columns.get(name)
        if column is None or column.shape[1:] != values.shape[1:]:
            column = np.full((self.capacity, *values.shape[1:]), _empty(values.dtype), dtype=values.dtype)
        elif not np.can_cast(values.dtype, column.dtype):
            column = column.astype(np.result_type(values.dtype, column.dtype))
        self.columns[name] = column
        return column

    def _rename(self, place: int, name: str | None) -> None:
        old = self._names[place]
        if old is not None and self._places.get(old) == place:
            del self._places[old]
        self._names[place] = name
        if name is not None:
            self._places[name] = place

    def place_of(self, name: str) -> int | None:
        """Return the place of the latest row with this id."""
        return self._places.get(name)

    def name_at(self, place: int) -> str | None:
        """Return the id of the row at a place."""
        return self._names[place]

    def value(self, column: str, place: int) -> Any:
        """Return what a row has in a column; None if no row has it."""
        return self.columns[column][place] if column in self.columns else None

    def rows(self, places: NDArray[Any], names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Return copies of some columns at some places; columns that no row has are left out."""
        return {name: self.columns[name][places] for name in names if name in self.columns}

    def has(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether the rows of these numbers are still there, (n,)."""
        present: NDArray[np.bool_] = self.numbers[numbers % self.capacity] == numbers
        return present

    def fill(self, column: str, numbers: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Set a column of the rows of these numbers; those that are gone are left out."""
        kept = self.has(numbers)
        self._column(column, values)[numbers[kept] % self.capacity] = values[kept]

    def places(self, after: int = -1) -> NDArray[np.intp]:
        """Return the places of the rows with numbers above ``after``, oldest first."""
        chosen = np.flatnonzero(self.numbers > after)
        return np.asarray(chosen[np.argsort(self.numbers[chosen])])

    def erase(self, names: set[str]) -> NDArray[np.int64]:
        """Erase every row with one of these ids; return their numbers."""
        chosen = np.array([place for place, name in enumerate(self._names) if name in names], dtype=np.intp)
        numbers = self.numbers[chosen]
        for column in self.columns.values():
            column[chosen] = _empty(column.dtype)
        self.numbers[chosen] = -1
        for place in chosen.tolist():
            self._rename(place, None)
        return numbers


def _empty(dtype: np.dtype[Any]) -> Any:
    """Return what stands for no value: nan, 0 or None."""
    return {"f": np.nan, "O": None}.get(dtype.kind, 0)
