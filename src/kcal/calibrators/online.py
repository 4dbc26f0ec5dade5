"""Samples that change after a fit: how a calibrator follows a stream, and the table that holds its samples.

``partial_fit``, ``correct`` and ``forget`` change plain arrays under one lock. The next prediction copies what counts,
builds a new model from it and assigns it; whoever predicts meanwhile uses the model before.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from math import ceil, inf, log
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.calibrators.base import decode_classes, encode_classes
from kcal.errors import FileFormatError, InvalidInputError
from kcal.kernels import BandwidthLaw, fit_bandwidth_law
from kcal.samples import Samples, code_groups, relative_weights
from kcal.validation import (
    check_flag,
    check_groups,
    check_integer,
    check_nonnegative,
    check_number,
    checked_parameters,
    collect_classes,
    encode_labels,
    parameter,
    shown,
    to_array,
)

Index = NDArray[np.int64]
Columns = Mapping[str, NDArray[Any]]

MAX_COUNT = 10**12
EARLY_SAMPLES, EARLY_GROWTH = 200, 1.1
"""Below so many samples, a search is due when they have grown by this factor, if ``growth`` is no smaller."""
NEGLIGIBLE_HALVINGS = 30
"""Half-lives after which a sample leaves: its weight is below 1e-9 of a new one."""
MIN_ROWS = 64
"""Rows of the smallest array of a table."""


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
    def max_samples(self) -> float:
        """Largest number of samples that are kept."""
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


class Names(dict[Any, int]):
    """Labels or groups with their codes, in the order of their appearance."""

    def __init__(self, names: Iterable[Any]) -> None:
        super().__init__((name, code) for code, name in enumerate(names))

    def __reduce__(self) -> Any:
        return Names, (list(self),)

    def encode(self, values: NDArray[Any]) -> Index:
        """Return the code of each value, (n,); new ones get the next codes."""
        return np.array([self.setdefault(name, len(self)) for name in values.tolist()], dtype=np.int64)


class SampleTable:
    """The samples of a fitted calibrator, one row each in the order of their arrival.

    Columns are arrays with room to grow: "codes" (of the labels, in the order of their appearance), "log_weights" (as
    given; growing with half-lives), "fingerprints" and "log_lengths" of the embeddings, "groups" if there are any,
    "logits" of a blend, and "points", the projected embeddings, from the first update on. Whoever reads or changes the
    table holds ``lock``; ``building`` is held by the one who builds a model.
    """

    def __init__(
        self,
        columns: Columns,
        ids: Sequence[Any],
        classes: NDArray[Any],
        groups: Iterable[Any] | None,
        *,
        has_own_ids: bool = True,
        n_updates: int | None = None,
        next_id: int | None = None,
        clock: int = 0,
    ) -> None:
        self.columns, self.ids, self.n_rows = dict(columns), list(ids), len(ids)
        self.present = np.ones(self.n_rows, dtype=np.bool_)
        self.labels = Names(classes.tolist())  # of the class codes
        self.classes = classes  # in the order of the columns of probabilities
        self.groups = None if groups is None else Names(groups)  # of the group codes
        self.has_own_ids, self.clock = has_own_ids, clock
        self.other_fingerprints = np.empty(0, dtype=np.uint64)  # of rows of the fit that are not samples
        self.n_updates = self.n_rows if n_updates is None else n_updates  # samples added, corrected or removed so far
        integers = [name for name in ids if isinstance(name, int)]
        self.next_id = max(integers, default=self.n_rows - 1) + 1 if next_id is None else next_id
        self.version = 0
        self.author = threading.get_ident()  # thread of the latest change
        self._queues: dict[int, deque[int]] | None = None
        self._index()
        self._begin()

    @classmethod
    def of(
        cls,
        samples: Samples,
        *,
        fingerprints: NDArray[np.uint64],
        log_lengths: torch.Tensor,
        groups: Any,
        sample_weight: Any,
        logits: torch.Tensor | None = None,
        other_fingerprints: NDArray[np.uint64] | None = None,
    ) -> SampleTable:
        """Return the table of a fit; ``groups`` and ``sample_weight`` are of all rows, as they were given."""
        columns: dict[str, NDArray[Any]] = {
            "codes": samples.codes,
            "fingerprints": fingerprints,
            "log_lengths": log_lengths.cpu().numpy(),
            "log_weights": _log_weights(sample_weight, len(samples), samples.indices),
        }
        names = None
        if groups is not None:
            names = Names(())
            columns["groups"] = names.encode(named_groups(groups)[samples.indices])
        if logits is not None:
            columns["logits"] = logits.detach().cpu().numpy().copy()
        ids = samples.indices if samples.ids is None else samples.ids
        table = cls(columns, ids.tolist(), samples.classes, names, has_own_ids=samples.ids is not None)
        if other_fingerprints is not None:
            table.other_fingerprints = other_fingerprints
        return table

    def __len__(self) -> int:
        return self.n_present

    def column(self, name: str) -> NDArray[Any]:
        """Return a copy of a column, of the samples that count."""
        return self.columns[name][: self.n_rows][self.present[: self.n_rows]]

    def current_ids(self) -> list[Any]:
        """Return the ids of the samples that count, in the order of their arrival."""
        rows = np.flatnonzero(self.present[: self.n_rows])
        return [self.ids[row] for row in rows.tolist()]

    def rename(self, ids: Sequence[Any]) -> None:
        """Give the samples that count other ids, in the order of their arrival."""
        self._compact()
        self.ids, self.has_own_ids = list(ids), True
        self._index()

    def samples(self) -> Samples:
        """Return the samples that count, with their points as embeddings; raise if none has a positive weight."""
        position = encode_labels(np.array(list(self.labels)), self.classes)
        return Samples(
            embeddings=torch.from_numpy(self.column("points")) if "points" in self.columns else None,
            logits=torch.from_numpy(self.column("logits")) if "logits" in self.columns else None,
            codes=position[self.column("codes")],
            classes=self.classes,
            weights=relative_weights(self.column("log_weights")),
            groups=None if self.groups is None else code_groups(self.column("groups")),
            ids=np.array(self.current_ids()),
            indices=np.full(len(self), -1),
        )

    def __contains__(self, name: Any) -> bool:
        return name in self._row_of

    def rows_of(self, ids: Sequence[Any]) -> Index:
        """Return the rows of some ids; raise if one is unknown."""
        unknown = next((name for name in ids if name not in self._row_of), None)
        if unknown is not None:
            raise InvalidInputError("ids", "must be ids of samples of this calibrator", got=repr(unknown))
        return np.array([self._row_of[name] for name in ids], dtype=np.int64)

    def new_classes(self, labels: NDArray[Any]) -> list[Any]:
        """Return the labels that are not known yet."""
        return [label for label in dict.fromkeys(labels.tolist()) if label not in self.labels]

    def add(
        self,
        columns: dict[str, NDArray[Any]],
        labels: NDArray[Any],
        updates: Updates,
        *,
        ids: Sequence[Any] | None,
        groups: Any,
        sample_weight: Any,
    ) -> None:
        """Add samples; one with a known id replaces the earlier sample. The oldest leave where there are too many."""
        n_new, names = len(labels), self._new_ids(len(labels)) if ids is None else _of_one_kind(ids, self.ids, "ids")
        columns["log_weights"] = _log_weights(sample_weight, n_new)
        if (groups is None) != (self.groups is None):
            expected = "are needed, as in the fit" if groups is None else "must be left out, as in the fit"
            raise InvalidInputError("groups", expected)
        if self.groups is not None:
            check_groups(groups, n_new)
            given = named_groups(groups)
            _of_one_kind(given.tolist(), self.groups, "groups")
            columns["groups"] = self.groups.encode(given)
        if updates.half_life is not None:
            columns["log_weights"] += (np.arange(1, n_new + 1) + self.clock) * (log(2.0) / updates.half_life)
        columns["codes"] = self._encode_labels(labels)
        start, stop = self.n_rows, self.n_rows + n_new
        self._reserve(stop)
        for name, array in self.columns.items():
            array[start:stop] = columns[name]
        self.present[start:stop] = True
        self.ids.extend(names)
        self.n_rows = stop
        self.n_present += n_new
        for row, (name, code) in enumerate(zip(names, columns["codes"].tolist(), strict=True), start):
            if name in self._row_of:
                self._drop(self._row_of[name])
            self._row_of[name] = row
            self.counts[code] += 1
            if self._queues is not None:
                self._queues[code].append(row)
        self.n_updates += n_new
        self.clock += n_new
        self.next_id = max(self.next_id + n_new, max((name for name in names if isinstance(name, int)), default=0) + 1)
        self._evict(updates, columns["codes"])
        self._changed()

    def relabel(self, rows: Index, labels: NDArray[Any], updates: Updates) -> list[Any]:
        """Give rows other labels; return the labels whose last sample this was."""
        before = self.columns["codes"][rows]
        self.columns["codes"][rows] = self._encode_labels(labels)
        self.counts, self._queues = Counter(self.column("codes").tolist()), None
        self.n_updates += len(rows)
        self._evict(updates, before)
        self._changed()
        return self._lost(before)

    def drop_weightless(self, n_new: int) -> None:
        """Let samples of weight 0 among the latest ``n_new`` no longer count."""
        rows = np.arange(max(self.n_rows - n_new, 0), self.n_rows)
        for row in rows[self.present[rows] & np.isneginf(self.columns["log_weights"][rows])].tolist():
            self._drop(row)

    def erase(self, rows: Index) -> list[Any]:
        """Remove rows and every trace of them, and of those that left before; return labels without a sample now."""
        before = self.columns["codes"][rows]
        for row in np.unique(rows).tolist():
            self._drop(row)
        self._compact()
        self.n_updates += len(rows)
        self._changed()
        return self._lost(before)

    def _lost(self, codes: Index) -> list[Any]:
        counts = np.bincount(self.column("codes"), minlength=len(self.labels))
        lost = {code for code in codes.tolist() if counts[code] == 0} if counts.any() else set()
        return [label for label, code in self.labels.items() if code in lost]

    def _encode_labels(self, labels: NDArray[Any]) -> Index:
        """Return class codes; new classes come in order, or behind the others if these are in an order of their own."""
        new = self.new_classes(labels)
        if new:
            union = collect_classes([self.classes, np.array(new)])
            in_order = np.array_equal(self.classes, np.sort(self.classes))
            self.classes = union if in_order else np.concatenate([self.classes, np.sort(np.array(new))])
        return self.labels.encode(labels)

    def _new_ids(self, n: int) -> list[Any]:
        """Return ids for new samples: the next integers, as text if the other ids are text."""
        text, number, names = bool(self.ids) and isinstance(self.ids[-1], str), self.next_id, list[Any]()
        while len(names) < n:
            name: Any = str(number) if text else number
            if name not in self._row_of:
                names.append(name)
            number += 1
        return names

    def _evict(self, updates: Updates, codes: Index) -> None:
        """Let the oldest samples leave, of the classes that have grown and of all, where there are too many."""
        if (limit := updates.max_per_class) is not None:
            grown = set(codes.tolist()) if self._queues is not None else set(self.counts)
            for code in grown:
                queue = self._class_queues()[code]
                while self.counts[code] > limit:
                    row = queue.popleft()
                    if self.present[row] and self.columns["codes"][row] == code:
                        self._drop(row)
        while self.n_present > updates.max_samples:
            if self.present[self._first]:
                self._drop(self._first)
            self._first += 1
        if 2 * self.n_present < self.n_rows - MIN_ROWS:
            self._compact()

    def _class_queues(self) -> dict[int, deque[int]]:
        """Return the rows of each class, the oldest first; those that have left since are skipped in their turn."""
        if self._queues is None:
            queues: dict[int, deque[int]] = defaultdict(deque)
            for row in np.flatnonzero(self.present[: self.n_rows]).tolist():
                queues[int(self.columns["codes"][row])].append(row)
            self._queues = queues
        return self._queues

    def _drop(self, row: int) -> None:
        """Let a row no longer count; its memory is freed by the next compaction."""
        self.present[row] = False
        self.n_present -= 1
        self.counts[int(self.columns["codes"][row])] -= 1
        if self._row_of.get(self.ids[row]) == row:
            del self._row_of[self.ids[row]]

    def _reserve(self, n_rows: int) -> None:
        """Make room for rows; what is not used holds zeros, so that no memory of others shows through."""
        for name, array in self.columns.items():
            if len(array) < n_rows:
                self.columns[name] = _with_room(array, self.n_rows, max(2 * len(array), n_rows, MIN_ROWS))
        if len(self.present) < n_rows:
            self.present = _with_room(self.present, self.n_rows, max(2 * len(self.present), n_rows, MIN_ROWS))

    def _compact(self) -> None:
        """Copy the samples that count to new arrays: nothing of the others is left."""
        ids, columns = self.current_ids(), {name: self.column(name) for name in self.columns}
        if self.groups is not None:
            used, columns["groups"] = np.unique(columns["groups"], return_inverse=True)
            names = list(self.groups)
            self.groups = Names(names[code] for code in used.tolist())
        self.columns, self.ids, self.n_rows = columns, ids, len(ids)
        self.present = np.ones(self.n_rows, dtype=np.bool_)
        self._index()

    def _changed(self) -> None:
        self.version += 1
        self.author = threading.get_ident()

    def _index(self) -> None:
        """Count the rows, all of which are present, and find them by id."""
        self.n_present, self._first = self.n_rows, 0
        self.counts = Counter(self.columns["codes"][: self.n_rows].tolist())
        self._row_of = {name: row for row, name in enumerate(self.ids)}
        self._queues = None

    def _begin(self) -> None:
        self.lock, self.building = threading.RLock(), threading.Lock()

    def copy(self) -> SampleTable:
        """Return a table with the same samples, which changes by itself."""
        with self.lock:
            return deepcopy(self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("lock", "building")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    def to_state(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Return what a file needs beside the model, whose points it does not repeat: values for JSON, and tensors."""
        with self.lock:
            tensors = {name: torch.from_numpy(_signed(self.column(name))) for name in self.columns if name != "points"}
            groups = None if self.groups is None else encode_classes(np.array(list(self.groups)))
            counters = {"n_updates": self.n_updates, "next_id": self.next_id, "clock": self.clock}
            ids, labels = (encode_classes(np.array(names)) for names in (self.current_ids(), list(self.labels)))
            named = {"ids": ids, "labels": labels, "groups": groups, "has_own_ids": self.has_own_ids}
            return named | counters, tensors

    @classmethod
    def from_state(
        cls, values: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], classes: NDArray[Any], n_samples: int
    ) -> SampleTable:
        """Return the table of a file; raise FileFormatError if it does not fit ``n_samples`` samples."""
        ids, labels = decode_classes(values["ids"]), decode_classes(values["labels"])
        groups = None if values["groups"] is None else decode_classes(values["groups"])
        columns = {name: tensor.numpy() for name, tensor in tensors.items()}
        columns["fingerprints"] = columns["fingerprints"].view(np.uint64)
        sizes = {"codes": len(labels), "groups": 0 if groups is None else len(groups)}
        valid = all(len(column) == n_samples for column in (ids, *columns.values())) and set(labels) == set(classes)
        for name, size in sizes.items():
            codes = columns.get(name, np.empty(0, dtype=np.int64))
            valid = valid and codes.dtype == np.int64 and bool(((codes >= 0) & (codes < size)).all())
        counters = {name: values[name] for name in ("n_updates", "next_id", "clock")}
        if not valid or ("groups" in columns) != (groups is not None) or min(counters.values()) < 0:
            raise FileFormatError("the stored samples do not fit the support.")
        names = None if groups is None else groups.tolist()
        table = cls(columns, ids.tolist(), classes, names, has_own_ids=bool(values["has_own_ids"]), **counters)
        table.labels = Names(labels.tolist())
        return table


def named_groups(groups: Any) -> NDArray[Any]:
    """Return checked groups as text, numbers or booleans."""
    names = to_array(groups, "groups")
    return names if names.dtype.kind in "biufU" else names.astype(str)


def _log_weights(sample_weight: Any, n: int, rows: Index | None = None) -> NDArray[np.float64]:
    """Return the logarithms of weights, of some rows; 0 without weights."""
    if sample_weight is None:
        return np.zeros(n)
    given = to_array(sample_weight, "sample_weight")
    weights = check_nonnegative(given, len(given) if rows is not None else n, "sample_weight")
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(weights if rows is None else weights[rows]))


def _with_room(array: NDArray[Any], n_rows: int, capacity: int) -> NDArray[Any]:
    copy = np.zeros((capacity, *array.shape[1:]), dtype=array.dtype)
    copy[:n_rows] = array[:n_rows]
    return copy


def _signed(column: NDArray[Any]) -> NDArray[Any]:
    return column.view(np.int64) if column.dtype == np.uint64 else column


def _of_one_kind(names: Sequence[Any], known: Iterable[Any], parameter_name: str) -> Sequence[Any]:
    """Return names; raise if they are text and the known ones are not, or the other way round."""
    is_text = isinstance(next(iter(known), names[0]), str)
    if any(isinstance(name, str) != is_text for name in names):
        expected = f"must be {'text' if is_text else 'numbers'}, as before"
        raise InvalidInputError(parameter_name, expected, got=repr(names[0]))
    return names
