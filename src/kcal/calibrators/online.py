"""Samples that change after a fit: when a calibrator searches again, which samples it keeps, and their table.

``partial_fit``, ``correct`` and ``forget`` change plain arrays under a lock. The next prediction copies what counts,
builds a new model from it and assigns it; whoever predicts meanwhile uses the model before.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf, log
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.errors import InvalidInputError
from kcal.kernels import BandwidthLaw, fit_bandwidth_law, size_of_rarest_class
from kcal.samples import Samples, code_groups, log_weights, relative_weights
from kcal.validation import (
    check_flag,
    check_group_names,
    check_integer,
    check_number,
    checked_parameters,
    collect_classes,
    encode_labels,
    of_one_type,
    parameter,
    shown,
    to_array,
)

if TYPE_CHECKING:
    from kcal.calibrators.kernel_calibrator import KernelCalibrator

Index = NDArray[np.int64]
Columns = dict[str, Any]

MAX_COUNT = 10**12
MIN_HALF_LIFE = 1e-3
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
        Samples that are kept at most, from the first update on; the oldest leave when a model is built.
    half_life : float, optional
        Samples after whose arrival a weight has halved.
    max_per_class : int, optional
        Samples of a class that are kept at most; its oldest leave.
    """

    growth: float = parameter(1.5, check_number, minimum=1, maximum=1e9, exclusive=True)
    fit_exponent: bool = parameter(True, check_flag)
    window: int | None = parameter(None, check_integer, minimum=1, maximum=MAX_COUNT)
    half_life: float | None = parameter(None, check_number, minimum=MIN_HALF_LIFE, maximum=MAX_COUNT)
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
                bandwidths, sizes = zip(*((record.bandwidth, record.size) for record in searches), strict=True)
                exponent = 0.5 * (exponent + fit_bandwidth_law(bandwidths, sizes).exponent)
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

    def __post_init__(self) -> None:
        _check_counts(self.n_samples, self.n_classes, self.n_updates)
        if not (self.bandwidth >= 0 and self.size >= 0 and self.source in ("search", "law", "given")):
            raise ValueError(f"a record of a bandwidth is damaged: {self}")


def bandwidth_record(
    samples: Samples, n_updates: int, bandwidth: float, source: str, loss: float | None = None, metric: str = ""
) -> BandwidthRecord:
    """Return how the bandwidth of samples was chosen."""
    seen = tuple(samples.classes_seen)
    return BandwidthRecord(
        bandwidth,
        source,
        loss,
        n_samples=len(samples),
        size=size_of_rarest_class(samples.codes, samples.weights, samples.n_classes),
        n_classes=len(seen),
        n_updates=n_updates,
        metric=metric,
        classes=() if source == "law" else seen,
    )


def with_record(history: Sequence[BandwidthRecord], record: BandwidthRecord) -> tuple[BandwidthRecord, ...]:
    """Return the history with one more record; of those between two searches only the latest is kept."""
    searches = [entry for entry in history if entry.source == "search"]
    if record.source == "search":  # only the latest search needs its classes
        searches = [replace(entry, classes=()) for entry in searches]
    return (*searches, record)


def _check_counts(*counts: int) -> None:
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        raise ValueError(f"counts must be integers from 0, not {counts}")


def check_updates(updates: Any) -> Updates:
    """Return the options of updates, by default those of ``Updates()``."""
    if updates is None:
        return DEFAULT
    if not isinstance(updates, Updates):
        raise InvalidInputError("updates", "must be a kcal.Updates or None", got=shown(updates))
    return updates


@dataclass(frozen=True)
class Counters:
    """What a calibrator counts while its samples change."""

    n_updates: int  # samples added, corrected or removed, those of the fit included
    next_id: int  # for a sample without an id
    clock: int = 0  # samples added since the fit
    own_ids: bool = True  # whether the fit was given ids

    def __post_init__(self) -> None:
        _check_counts(self.n_updates, self.next_id, self.clock)

    @classmethod
    def of(cls, samples: Samples) -> Counters:
        """Return the counters after a fit."""
        ids = (samples.indices if samples.ids is None else samples.ids).tolist()
        return cls(len(samples), max(_integers(ids), default=len(ids) - 1) + 1, own_ids=samples.ids is not None)


class SampleTable:
    """The samples of a calibrator while they change, one row each in the order of their arrival.

    Columns are arrays with room to grow: "ids", "groups", "codes", "log_weights" (as given; growing with half-lives),
    "log_lengths", "fingerprints", "embeddings" (projected) and the "logits" of a blend. New rows are appended;
    ``row_of`` has the latest of each id. Rows that no longer count are left out when the arrays are copied: by
    ``prune``. Whoever reads or changes the table holds ``lock``; the thread that builds a model holds ``building``.
    """

    def __init__(self, samples: Samples, counters: Counters, *, version: int) -> None:
        self.lock, self.building = threading.RLock(), threading.Lock()
        self.counters, self.version = counters, version
        self.author = threading.current_thread()  # thread of the latest change
        columns = {name: getattr(samples, name) for name in ("codes", "log_weights", "log_lengths", "fingerprints")}
        rows = {"embeddings": samples.embeddings, "logits": samples.logits}
        columns |= {name: part.cpu().numpy() for name, part in rows.items() if part is not None}
        names = {"ids": samples.indices if samples.ids is None else samples.ids, "groups": samples.group_names}
        columns |= {name: np.array(part.tolist(), dtype=object) for name, part in names.items() if part is not None}
        self.columns: Columns = {name: column.copy() for name, column in columns.items()}
        self._set_classes(samples.classes)
        self.n_rows = len(samples)
        self.row_of: dict[Any, int] = {name: row for row, name in enumerate(self.ids)}

    @property
    def ids(self) -> list[Any]:
        """Identifiers of all rows, those that were replaced included until ``prune``."""
        return list(self.columns["ids"][: self.n_rows])

    def samples(self, updates: Updates) -> Samples:
        """Return the samples that count, with their points as embeddings; raise if none has a positive weight."""
        self.prune(updates)
        weights = relative_weights(self.columns["log_weights"][: self.n_rows])
        counted = np.flatnonzero(weights)
        columns = {name: column[counted] for name, column in self.columns.items()}
        columns |= {name: torch.from_numpy(columns[name]) for name in ("embeddings", "logits") if name in columns}
        columns |= {name: to_array(columns[name].tolist(), name) for name in ("ids", "groups") if name in columns}
        names = columns.pop("groups", None)
        return Samples(
            **columns,
            classes=self.classes,
            weights=weights[counted],
            groups=None if names is None else code_groups(names),
            group_names=names,
            indices=np.full(len(counted), -1),
        )

    def rows_of(self, ids: Sequence[Any]) -> Index:
        """Return the rows of some ids; raise if one is unknown."""
        unknown = [name for name in ids if name not in self.row_of]
        if unknown:
            raise InvalidInputError("ids", "must be ids of samples of this calibrator", got=repr(unknown[0]))
        return np.array([self.row_of[name] for name in ids], dtype=np.int64)

    def is_new(self, labels: NDArray[Any]) -> NDArray[np.bool_]:
        """Return for each label whether it is not a class yet, (n,)."""
        return np.array([label not in self.code_of for label in labels.tolist()], dtype=np.bool_)

    def add(
        self,
        columns: Columns,
        labels: NDArray[Any],
        updates: Updates,
        *,
        ids: Sequence[Any] | None,
        groups: Any,
        sample_weight: Any,
    ) -> None:
        """Add samples; one with a known id replaces the earlier sample."""
        n_new, clock = len(labels), self.counters.clock
        next_id = self.counters.next_id
        known = self.columns["ids"][: self.n_rows]
        known = known if next_id <= 2**63 else [next_id - 1]  # once an id is that large, none is negative
        names = _of_one_kind(self._new_ids(n_new) if ids is None else ids, known, "ids")
        weights = log_weights(sample_weight, n_new)
        given = self._check_groups(groups, n_new)
        if updates.half_life is not None:
            weights += (np.arange(1, n_new + 1) + clock) * (log(2.0) / updates.half_life)
        columns |= {"ids": names, "groups": given, "codes": self._encode(labels), "log_weights": weights}
        if self.n_rows + n_new > len(self.columns["codes"]):
            self.prune(updates)
            self._reserve(self.n_rows + n_new)
        start, self.n_rows = self.n_rows, self.n_rows + n_new
        for name, column in self.columns.items():
            column[start : self.n_rows] = columns[name]
        self.row_of.update(zip(names, range(start, self.n_rows), strict=True))
        next_id = max(next_id + n_new, max(_integers(names), default=0) + 1)
        self._count(n_new, next_id=next_id, clock=clock + n_new)

    def relabel(self, ids: Sequence[Any], labels: NDArray[Any], updates: Updates) -> list[Any]:
        """Give samples other labels; return the classes whose last sample this was."""
        self.prune(updates)
        rows, before = self.rows_of(ids), self._labels()
        self.columns["codes"][rows] = self._encode(labels)
        self._count(len(rows))
        return self._lost(before)

    def erase(self, ids: Sequence[Any], updates: Updates) -> list[Any]:
        """Remove samples and every trace of them, and of those that left before; return classes without a sample."""
        self.prune(updates)
        before = self._labels()
        self._keep(np.delete(np.arange(self.n_rows), self.rows_of(ids)))
        self._count(len(ids))
        return self._lost(before)

    def prune(self, updates: Updates) -> None:
        """Keep the latest sample of each id, and of these the latest of each class and of all, as ``updates`` says."""
        rows = np.sort(np.fromiter(self.row_of.values(), dtype=np.int64, count=len(self.row_of)))
        rows = rows[self.columns["log_weights"][rows] > -np.inf]
        if updates.max_per_class is not None:
            codes = self.columns["codes"][rows]
            order, ends = np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))
            rank = ends[codes[order]] - np.arange(len(rows))  # 1 for the latest of a class
            rows = np.sort(rows[order[rank <= updates.max_per_class]])
        self._keep(rows[max(len(rows) - updates.max_samples, 0) :])

    def _keep(self, rows: Index) -> None:
        """Copy some rows to new arrays: nothing of the others is left."""
        if len(rows) < self.n_rows:
            self.columns = {name: column[rows] for name, column in self.columns.items()}
            self.n_rows = len(rows)
            self.row_of = {name: row for row, name in enumerate(self.ids)}

    def _reserve(self, n_rows: int) -> None:
        """Make room for rows and as many more; what is not used holds zeros, so that no other memory shows."""
        for name, column in self.columns.items():
            self.columns[name] = np.zeros((max(2 * n_rows, MIN_ROWS), *column.shape[1:]), dtype=column.dtype)
            self.columns[name][: self.n_rows] = column[: self.n_rows]

    def _count(self, n_changed: int, **counters: Any) -> None:
        self.counters = replace(self.counters, n_updates=self.counters.n_updates + n_changed, **counters)
        self.version += 1
        self.author = threading.current_thread()

    def _set_classes(self, classes: NDArray[Any]) -> None:
        self.classes = classes
        self.code_of = {label: code for code, label in enumerate(classes.tolist())}

    def _encode(self, labels: NDArray[Any]) -> Index:
        """Return class codes; new classes come in order, or behind the others if these are in an order of their own."""
        new = self.is_new(labels)
        if new.any():
            before, added = self.classes, np.unique(labels[new])
            classes = collect_classes([before, added])
            if not np.array_equal(before, np.sort(before)):
                classes = np.concatenate(of_one_type([before, added]))
            self.columns["codes"] = encode_labels(before, classes)[self.columns["codes"]]
            self._set_classes(classes)
        return np.array([self.code_of[label] for label in labels.tolist()], dtype=np.int64)

    def _labels(self) -> set[Any]:
        """Return the classes that have samples."""
        return set(self.classes[np.unique(self.columns["codes"][: self.n_rows])].tolist())

    def _lost(self, before: set[Any]) -> list[Any]:
        after = self._labels()
        return sorted(before - after) if after else []

    def _check_groups(self, groups: Any, n: int) -> list[Any]:
        if (groups is None) == ("groups" in self.columns):
            expected = "are needed, as in the fit" if groups is None else "must be left out, as in the fit"
            raise InvalidInputError("groups", expected)
        if groups is None:
            return []
        known = self.columns["groups"][: self.n_rows]
        return _of_one_kind(check_group_names(groups, n).tolist(), known, "groups")

    def _new_ids(self, n: int) -> list[Any]:
        """Return ids for new samples: the next integers, as text if the other ids are text."""
        text = self.n_rows > 0 and isinstance(self.columns["ids"][self.n_rows - 1], str)
        number, names = self.counters.next_id, list[Any]()
        while len(names) < n:
            name: Any = str(number) if text else number
            if name not in self.row_of:
                names.append(name)
            number += 1
        return names


def is_current(fit: Any, table: SampleTable, *, search: bool) -> bool:
    """Return whether a fit is of the present samples and, with ``search``, no search is due."""
    return fit.version == table.version and not (search and fit.is_search_due)


def check_given_classes(classes: Any, table: SampleTable, labels: NDArray[Any]) -> None:
    """Raise if classes of ``partial_fit`` are not known; a class that appears in the labels is added by itself."""
    if classes is None:
        return
    known = set(table.code_of) | set(labels.tolist())
    unknown = [label for label in collect_classes([], classes).tolist() if label not in known]
    if unknown:
        expected = "must be those of the first call; a class that appears in y is added by itself"
        raise InvalidInputError("classes", expected, got=repr(unknown[0]))


@dataclass(frozen=True)
class OnlineState:
    """What there is to know before samples of a fitted calibrator change."""

    has_own_ids: bool  # whether the fit was given ids; otherwise samples are known by the numbers of their rows
    has_groups: bool  # whether the samples have groups: new ones need them too
    is_search_due: bool  # whether the latest model waits for a search, which ``refresh`` makes


def online_state(calibrator: KernelCalibrator) -> OnlineState:
    """Return the state of a fitted calibrator; raise if its samples cannot be updated."""
    fit = calibrator._built()
    has_groups = calibrator._samples_of(fit).groups is not None
    return OnlineState(fit.counters.own_ids, has_groups, fit.is_search_due)


def online_ids(calibrator: KernelCalibrator) -> list[Any]:
    """Return the ids of the samples after all updates, in the order of their arrival."""
    table = calibrator._open_table()
    with table.lock:
        table.prune(check_updates(calibrator.updates))
        return list(table.ids)


def online_samples(calibrator: KernelCalibrator) -> Samples:
    """Return the samples after all updates, in the order of their arrival; their ``embeddings`` are projected."""
    table = calibrator._open_table()
    with table.lock:
        return table.samples(check_updates(calibrator.updates))


def _integers(names: Sequence[Any]) -> list[int]:
    return [name for name in names if isinstance(name, int)]


def _of_one_kind(names: Sequence[Any], known: Any, parameter_name: str) -> list[Any]:
    """Return names; raise if they are text and the known ones are not, or if no type holds the numbers of both."""
    is_text = isinstance(known[0] if len(known) else names[0], str)
    if any(isinstance(name, str) != is_text for name in names):
        expected = f"must be {'text' if is_text else 'numbers'}, as before"
        raise InvalidInputError(parameter_name, expected, got=repr(names[0]))
    if not is_text and (min(names) < 0 or max(names) >= 2**63):
        to_array([min([*names, *known]), max([*names, *known])], parameter_name)  # raises where no type holds both
    return list(names)
