"""The samples of a calibrator that lives on: rows that only grow, and frozen views of them.

A row that a view shows is never written again: new rows come behind it, and what changes gets an array of its own.
That a row was removed is written beside it, with the number of the removal, which views from before do not look at.
So a view can be read without a lock while the log goes on, and an update takes no time for rows that it does not touch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.calibrators.online.caps import ClassCaps
from kcal.errors import InvalidInputError
from kcal.validation import collect_classes, encode_labels

Index = NDArray[np.int64]
Columns = Mapping[str, NDArray[Any]]

MIN_ROWS = 64
"""Rows of the smallest array."""
NEVER = np.iinfo(np.int64).max
"""Number of the removal of a row that is there."""


@dataclass(frozen=True, eq=False)
class SampleRows:
    """Samples at one moment; ``columns`` are arrays whose first ``n_rows`` rows are those of the view."""

    columns: Columns
    ids: list[Any]
    n_rows: int
    classes: NDArray[Any]  # labels in the order of the columns of probabilities
    labels: tuple[Any, ...]  # label of each class code, in the order of their appearance
    groups: tuple[Any, ...] | None  # name of each group code; None without groups
    n_updates: int = 0  # samples added, corrected or removed so far
    next_id: int = 0
    clock: int = 0  # samples that have arrived
    n_erasures: int = 0
    removed_at: Index | None = None  # number of the removal of each row; None if no row was ever removed
    removal: int = 0  # number of the latest removal
    n_removed: int = 0  # rows that no longer count

    def __len__(self) -> int:
        return self.n_rows - self.n_removed

    @cached_property
    def present(self) -> NDArray[np.bool_] | None:
        """Which rows count, (n_rows,); None for all of them."""
        if self.removed_at is None or self.n_removed == 0:
            return None
        return np.asarray(self.removed_at[: self.n_rows] > self.removal)

    def some(self, index: Index) -> SampleRows:
        """Return a view of some of the samples, by their positions among those that count."""
        removed_at = np.zeros(self.n_rows, dtype=np.int64)
        removed_at[index if self.present is None else np.flatnonzero(self.present)[index]] = NEVER
        return replace(self, removed_at=removed_at, n_removed=self.n_rows - len(index))

    def column(self, name: str) -> NDArray[Any]:
        """Return a column of the samples that count, in the order of their arrival."""
        rows = self.columns[name][: self.n_rows]
        return rows if self.present is None else rows[self.present]

    def codes(self) -> Index:
        """Return the position of the label of each sample in ``classes``, (n,)."""
        position = encode_labels(np.array(self.labels), self.classes)
        codes: Index = position[self.column("codes")]
        return codes

    def without_samples(self, codes: Index) -> list[Any]:
        """Return the labels of those of some class codes that have no sample; none if there are no samples at all."""
        counts = np.bincount(self.column("codes"), minlength=len(self.labels))
        return [self.labels[code] for code in codes.tolist() if counts[code] == 0] if len(self) else []

    def names(self) -> NDArray[Any]:
        """Return the id of each sample, (n,)."""
        names = self.ids[: self.n_rows]
        return np.array(names if self.present is None else [names[row] for row in np.flatnonzero(self.present)])

    def group_names(self) -> NDArray[Any] | None:
        """Return the group of each sample, (n,); None without groups."""
        return None if self.groups is None else np.array(self.groups)[self.column("groups")]


class SampleLog:
    """The rows behind the views. One thread at a time may change it; every change returns a new view."""

    def __init__(self, rows: SampleRows) -> None:
        removed_at = None
        if rows.present is not None:
            removed_at = removals(len(rows.columns["codes"]))
            removed_at[: rows.n_rows][~rows.present] = rows.removal
        self.view = replace(rows, ids=rows.ids[: rows.n_rows], removed_at=removed_at)
        self._rows_of = {rows.ids[row]: row for row in self._present_rows().tolist()}
        self._first = 0  # no row before it is there
        self._caps: ClassCaps | None = None
        self._code_of = {label: code for code, label in enumerate(rows.labels)}
        self._group_of = None if rows.groups is None else {name: code for code, name in enumerate(rows.groups)}

    def __contains__(self, name: Any) -> bool:
        return name in self._rows_of

    def _present_rows(self) -> Index:
        present = self.view.present
        return np.arange(self.view.n_rows) if present is None else np.flatnonzero(present)

    def _is_present(self, row: int) -> bool:
        return self.view.removed_at is None or bool(self.view.removed_at[row] == NEVER)

    def rows_of(self, ids: Sequence[Any]) -> Index:
        """Return the rows of some ids; raise if one is unknown."""
        unknown = next((name for name in ids if name not in self._rows_of), None)
        if unknown is not None:
            raise InvalidInputError("ids", "must be ids of samples of this calibrator", got=repr(unknown))
        return np.array([self._rows_of[name] for name in ids], dtype=np.int64)

    def class_codes(self, labels: NDArray[Any]) -> tuple[Index, dict[str, Any]]:
        """Return the class codes of labels, and what a view needs to know of new classes."""
        codes, new = encode(labels, self._code_of)
        if not new:
            return codes, {}
        return codes, {"classes": self._with_classes(np.array(new)), "labels": (*self.view.labels, *new)}

    def _with_classes(self, new: NDArray[Any]) -> NDArray[Any]:
        """Return the classes with new ones: in their order, or behind the others if these are in one of their own."""
        known = self.view.classes
        union = collect_classes([known, new])
        if np.array_equal(known, np.sort(known)):
            return union
        return np.concatenate([known, np.sort(new)])

    def group_codes(self, groups: NDArray[Any]) -> tuple[Index, dict[str, Any]]:
        """Return the codes of groups, and what a view needs to know of new ones."""
        assert self._group_of is not None
        assert self.view.groups is not None
        codes, new = encode(groups, self._group_of)
        return codes, {"groups": (*self.view.groups, *new)} if new else {}

    def new_ids(self, n: int) -> list[Any]:
        """Return ids for new samples: the next integers, as text if the other ids are text."""
        text = bool(self.view.ids) and isinstance(self.view.ids[-1], str)
        numbers = count(self.view.next_id)
        names: Iterator[Any] = map(str, numbers) if text else numbers
        return list(islice((name for name in names if name not in self._rows_of), n))

    def append(self, columns: Columns, ids: Sequence[Any], changes: dict[str, Any]) -> None:
        """Add samples; one with a known id replaces the earlier sample."""
        view, n_new = self.view, len(ids)
        replaced = [self._rows_of[name] for name in ids if name in self._rows_of]
        start, stop = view.n_rows, view.n_rows + n_new
        arrays = dict(view.columns)
        for name, array in arrays.items():
            if len(array) < stop:
                arrays[name] = grown(array, start, max(2 * len(array), stop, MIN_ROWS))
            arrays[name][start:stop] = columns[name]
        view.ids.extend(ids)
        removed_at = view.removed_at
        if removed_at is not None and len(removed_at) < stop:
            removed_at = removals(len(arrays["codes"]), removed_at)
        self._rows_of.update(zip(ids, range(start, stop), strict=True))
        if self._caps is not None:
            for row in range(start, stop):
                self._caps.add(row, int(arrays["codes"][row]))
        integers = [name for name in ids if isinstance(name, int)]
        numbers: dict[str, Any] = {
            "n_updates": view.n_updates + n_new,
            "clock": view.clock + n_new,
            "next_id": max(view.next_id + n_new, max(integers, default=0) + 1),
        }
        self._publish(replace(view, columns=arrays, n_rows=stop, removed_at=removed_at, **numbers, **changes))
        self._remove(replaced)

    def _remove(self, rows: Sequence[int]) -> None:
        """Let some rows no longer count, in views from now on."""
        if not rows:
            return
        view = self.view
        removed_at = removals(len(view.columns["codes"])) if view.removed_at is None else view.removed_at
        removed_at[rows] = view.removal + 1
        if self._caps is not None:
            for code in view.columns["codes"][rows].tolist():
                self._caps.remove(code)
        n_removed = view.n_removed + len(rows)
        self._publish(replace(view, removed_at=removed_at, removal=view.removal + 1, n_removed=n_removed))

    def relabel(self, rows: Index, codes: Index, changes: dict[str, Any]) -> None:
        """Give some rows other class codes."""
        view = self.view
        new = grown(view.columns["codes"], view.n_rows, len(view.columns["codes"]))
        new[rows] = codes
        if self._caps is not None:
            before = view.columns["codes"][rows]
            for row, old, code in zip(rows.tolist(), before.tolist(), codes.tolist(), strict=True):
                self._caps.remove(old)
                self._caps.add(row, code)
        counted = view.n_updates + len(rows)
        self._publish(replace(view, columns={**view.columns, "codes": new}, n_updates=counted, **changes))

    def evict(self, rows: Index) -> None:
        """Let some rows no longer count; their memory is freed once they are the majority."""
        if len(rows) == 0:
            return
        names = [self.view.ids[row] for row in rows.tolist()]
        self._remove(rows.tolist())
        for name in names:
            self._rows_of.pop(name, None)
        if 2 * len(self.view) < self.view.n_rows - MIN_ROWS:
            self.compact()

    def evict_oldest(self, most: float) -> None:
        """Let the oldest samples leave until at most so many are left."""
        rows: list[int] = []
        if len(self.view) <= most:
            return
        while len(self.view) - len(rows) > most:
            if self._is_present(self._first):
                rows.append(self._first)
            self._first += 1
        self.evict(np.array(rows, dtype=np.int64))

    def evict_oldest_of_classes(self, most: int) -> None:
        """Let the oldest samples of each class leave until it has at most so many."""
        codes = self.view.columns["codes"]
        if self._caps is None or self._caps.limit != most:
            rows = self._present_rows()
            self._caps = ClassCaps(most, rows.tolist(), codes[rows].tolist())
        excess = self._caps.excess(lambda row, code: self._is_present(row) and bool(codes[row] == code))
        self.evict(np.array(sorted(excess), dtype=np.int64))

    def compact(self) -> None:
        """Copy the samples that count to new arrays, so that nothing of the others is left."""
        view = self.view
        n_rows, ids = len(view), view.names().tolist()
        columns = {name: grown(view.column(name), n_rows, max(n_rows, MIN_ROWS)) for name in view.columns}
        groups = view.groups
        if groups is not None:
            present, codes = np.unique(view.column("groups"), return_inverse=True)
            groups = tuple(groups[code] for code in present.tolist())
            columns["groups"][:n_rows] = codes.reshape(-1)
            self._group_of = {name: code for code, name in enumerate(groups)}
        self._rows_of = {name: row for row, name in enumerate(ids)}
        self._first, self._caps = 0, None
        self.view = replace(view, columns=columns, ids=ids, n_rows=n_rows, groups=groups, removed_at=None, n_removed=0)

    def erase(self, rows: Index) -> None:
        """Remove some rows, and every trace of them and of those that were evicted or replaced before."""
        self.evict(rows)
        self.compact()
        view = self.view
        self.view = replace(view, n_updates=view.n_updates + len(rows), n_erasures=view.n_erasures + 1)

    def _publish(self, view: SampleRows) -> None:
        if view.labels is not self.view.labels:
            self._code_of = {label: code for code, label in enumerate(view.labels)}
        if view.groups is not self.view.groups and view.groups is not None:
            self._group_of = {name: code for code, name in enumerate(view.groups)}
        self.view = view


def encode(values: NDArray[Any], known: Mapping[Any, int]) -> tuple[Index, list[Any]]:
    """Return the code of each value, and the values that are new: they get the next codes."""
    names = values.tolist()
    new = [name for name in dict.fromkeys(names) if name not in known]
    codes = known if not new else {**known, **{name: len(known) + place for place, name in enumerate(new)}}
    return np.array([codes[name] for name in names], dtype=np.int64), new


def grown(array: NDArray[Any], n_rows: int, capacity: int) -> NDArray[Any]:
    """Return a copy of the first rows with room for more, which holds zeros: no memory of others shows through."""
    copy = np.zeros((capacity, *array.shape[1:]), dtype=array.dtype)
    copy[:n_rows] = array[:n_rows]
    return copy


def removals(capacity: int, known: Index | None = None) -> Index:
    """Return the number of the removal of each row, of which those behind the known ones are there."""
    numbers = np.full(capacity, NEVER, dtype=np.int64)
    if known is not None:
        numbers[: len(known)] = known
    return numbers
