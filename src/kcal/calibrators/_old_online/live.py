"""What calibrators that live on share: updates, and fitted attributes that follow them."""

from __future__ import annotations

import threading
from abc import abstractmethod
from math import log
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from kcal.calibrators.base import Calibrator
from kcal.calibrators.online.records import SampleRecords, logged_rows, named_groups
from kcal.calibrators.online.rows import SampleLog, SampleRows
from kcal.calibrators.online.snapshots import LatestAttribute, copy_with, latest, on_latest
from kcal.calibrators.online.stream import Snapshot, Stream
from kcal.calibrators.online.updates import BandwidthRecord, Updates, check_updates
from kcal.errors import InvalidInputError
from kcal.kernels import SortedSupport
from kcal.modes import without_autocast
from kcal.validation import check_groups, check_ids, check_labels, check_nonnegative, shown

_starting = threading.Lock()


class LiveCalibrator(Calibrator):
    """Base class of calibrators whose samples may be added, corrected and forgotten after the fit.

    Until the first update a calibrator has its fitted attributes itself. From then on a stream has the samples, and
    makes snapshots: fitted calibrators of the same class that no update changes, and that all attributes come from.
    """

    learns_online: ClassVar[bool] = True
    updates: Updates | None
    model_ = latest(complete=True)
    classes_ = latest()
    ids_ = latest(complete=True)
    support_indices_ = latest(complete=True)
    bandwidth_history_: tuple[BandwidthRecord, ...] = latest()
    _fingerprints = latest()
    _records: SampleRecords | None = latest(complete=True)  # None if the support is not made of single samples
    _stream: Stream[Any]
    has_own_ids: bool = True  # of a calibrator without samples: whether the fit was given ids

    predict_proba = on_latest(Calibrator.predict_proba)
    predict_log_proba = on_latest(Calibrator.predict_log_proba)
    predict = on_latest(Calibrator.predict)
    was_fitted_on = on_latest(Calibrator.was_fitted_on)

    def __sklearn_is_fitted__(self) -> bool:
        return "_stream" in vars(self) or super().__sklearn_is_fitted__()

    def snapshot(self) -> Self:
        """Return a fitted calibrator with the present samples that later updates do not change."""
        return self.frozen()

    @property
    def has_groups_(self) -> bool:
        """Whether the samples have groups, so that new ones need them too."""
        check_is_fitted(self)
        if "_stream" in vars(self):
            return self._stream.has_groups
        return self._checked_records().group_codes is not None

    @property
    def has_own_ids_(self) -> bool:
        """Whether the fit was given ids; otherwise samples are known by the numbers of their rows."""
        check_is_fitted(self)
        return bool(self.fixed_part_.has_own_ids) if "_stream" in vars(self) else self.ids_ is not None

    @property
    def fixed_part_(self) -> Self:
        """What updates do not change: a calibrator without samples; before the first update, this one."""
        check_is_fitted(self)
        part: Self = self._stream.base if "_stream" in vars(self) else self
        return part

    @property
    def current_ids_(self) -> list[Any]:
        """Identifiers of the samples after all updates, without waiting for a snapshot."""
        check_is_fitted(self)
        if "_stream" in vars(self):
            return list(self._stream.ids)
        ids: list[Any] = (self.support_indices_ if self.ids_ is None else self.ids_).tolist()
        return ids

    def frozen(self, *, complete: bool = True, search: bool = True) -> Self:
        """Return the latest snapshot; without ``complete``, as far as predictions need it.

        Without ``search``, a search (of a blend: a fit) that is due is left for later.
        """
        copy: Self = copy_with(self)
        stream = vars(copy).get("_stream")  # looked up in the copy: an update may begin the stream meanwhile
        if stream is None:
            return copy
        calibrator: Self = stream.complete(search=search) if complete else stream.latest(search=search)
        return calibrator

    def refresh(self, *, search: bool = True) -> Self:
        """Make what predictions need after updates, in this thread; other threads predict as before meanwhile.

        Otherwise the next prediction does so. Without ``search``, a search (of a blend: a fit) that is due is left for
        later, and the parameters are those of the last one, as between two searches.
        """
        if "_stream" in vars(self):
            self._stream.latest(search=search)
        return self

    @property
    def is_search_due_(self) -> bool:
        """Whether the latest snapshot waits for a search, which :meth:`refresh` makes."""
        return "_stream" in vars(self) and self._stream.is_search_due

    @without_autocast()
    def correct(self, ids: Any, labels: Any) -> Self:
        """Replace the labels of samples.

        Parameters
        ----------
        ids : (n,) array
            Identifiers of samples, as ``fit`` or ``partial_fit`` was given them; else ``ids_`` holds them.
        labels : (n,) array
            Their new labels, of known or new classes.
        """
        stream = self._begun_stream()
        names = check_ids(ids, _length(ids)).tolist()
        given = check_labels(labels, len(names), "labels")
        with stream.update() as log:
            rows = log.rows_of(names)
            codes, changes = log.class_codes(given)
            self._check_new_classes(log.view, changes, "labels")
            before = np.unique(log.view.columns["codes"][rows])
            log.relabel(rows, codes, changes)
            lost = log.view.without_samples(before)
            self._evict(log)
        self._warn_of_lost_classes(lost, log.view.classes)
        return self

    def forget(self, ids: Any) -> Self:
        """Erase samples: nothing of them is left in the calibrator, nor in the next file that it is saved to.

        What was learned from them together with others stays until it is learned anew: a projection, a bandwidth, the
        weights of a blend. Snapshots that you keep, earlier files and copies are yours to delete.

        A class whose last sample is forgotten stays in ``classes_``: a KCal warns, and gives it no probability but that
        of ``smoothing`` until samples of it come.
        """
        stream = self._begun_stream()
        names = check_ids(ids, _length(ids)).tolist()
        with stream.update() as log:
            try:
                rows = log.rows_of(names)
            except InvalidInputError:
                log.erase(np.empty(0, dtype=np.int64))  # what was evicted under this id goes all the same
                raise
            before = np.unique(log.view.columns["codes"][rows])
            log.erase(rows)
            lost = log.view.without_samples(before)
        self._warn_of_lost_classes(lost, log.view.classes)
        return self

    def _warn_of_lost_classes(self, lost: list[Any], classes: NDArray[Any]) -> None:
        """Warn of classes whose last sample has left, where that changes what can be predicted."""

    def _add(
        self, X: Any, y: Any, *, classes: Any, ids: Any, groups: Any, sample_weight: Any, logits: Any = None
    ) -> Self:
        """Add samples to a fitted calibrator."""
        stream = self._begun_stream()
        columns = self._columns_of(X, logits)
        n_new = len(columns["fingerprints"])
        labels = check_labels(y, n_new)
        names = None if ids is None else check_ids(ids, n_new).tolist()
        group_names = None
        if groups is not None:
            check_groups(groups, n_new)
            group_names = named_groups(groups)
        columns["log_weights"] = self._log_weights(sample_weight, n_new)
        with stream.update() as log:
            columns["codes"], changes = log.class_codes(labels)
            self._check_new_classes(log.view, changes, "y")
            _check_given_classes(classes, log.view)
            names = log.new_ids(n_new) if names is None else _of_one_kind(names, log.view.ids, "ids")
            columns |= self._group_columns(log, group_names, changes)
            if (half_life := self._options().half_life) is not None:
                ages = np.arange(1, n_new + 1) + log.view.clock
                columns["log_weights"] = columns["log_weights"] + ages * (log_of_two / half_life)
            log.append(columns, names, changes)
            self._evict(log)
        return self

    def _options(self) -> Updates:
        return check_updates(self._stream.base.updates)

    def _log_weights(self, sample_weight: Any, n_samples: int) -> NDArray[np.float64]:
        if sample_weight is None:
            return np.zeros(n_samples)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(check_nonnegative(sample_weight, n_samples, "sample_weight")))

    def _group_columns(
        self, log: SampleLog, groups: NDArray[Any] | None, changes: dict[str, Any]
    ) -> dict[str, NDArray[Any]]:
        """Return the column of group codes, if there are groups; all samples have them, or none."""
        known = log.view.groups
        if (groups is None) != (known is None):
            expected = "must be left out, as in the fit" if known is None else "are needed, as in the fit"
            raise InvalidInputError("groups", expected)
        if groups is None:
            return {}
        _of_one_kind(groups.tolist(), known or (), "groups")
        codes, new = log.group_codes(groups)
        changes |= new
        return {"groups": codes}

    def _evict(self, log: SampleLog) -> None:
        """Let the oldest samples leave, of all and of each class, where there are too many."""
        options = self._options()
        if options.max_per_class is not None:
            log.evict_oldest_of_classes(options.max_per_class)
        log.evict_oldest(options.most_samples)

    def _begun_stream(self) -> Stream[Any]:
        """Return the stream; at the first update it takes over the samples of the fit."""
        if "_stream" in vars(self):
            return self._stream
        check_is_fitted(self)
        with _starting:
            if "_stream" not in vars(self):
                ids = self.support_indices_ if self.ids_ is None else self.ids_
                rows = logged_rows(self._checked_records(), self._supports(), self.classes_, ids)
                make: Any = self._make_snapshot
                finish: Any = self._finish
                self._stream = Stream(
                    self._without_samples(), SampleLog(rows), make.__func__, finish.__func__, first=copy_with(self)
                )
                kind = type(self)
                for name in [name for name in vars(self) if isinstance(getattr(kind, name, None), LatestAttribute)]:
                    delattr(self, name)
        return self._stream

    def _checked_records(self) -> SampleRecords:
        """Return the records of the fit; raise if they do not suffice for updates."""
        if self._records is None:
            raise InvalidInputError(
                "calibrator",
                "has a support that is not made of single samples, so that they cannot be updated",
                remedy="Update the calibrator that it was made from.",
            )
        return self._records

    @abstractmethod
    def _supports(self) -> list[SortedSupport]:
        """Return the supports, one per metric."""

    @abstractmethod
    def _without_samples(self) -> Self:
        """Return a copy from which no sample can be learned, for snapshots to be made from."""

    @abstractmethod
    def _columns_of(self, X: Any, logits: Any) -> dict[str, NDArray[Any]]:
        """Return what is kept of new samples: checked, projected, by name of the column. Called ``on_base``."""

    @abstractmethod
    def _check_new_classes(self, rows: SampleRows, changes: dict[str, Any], name: str) -> None:
        """Raise if classes that appear cannot be added; ``changes`` are those of the view. Called ``on_base``."""

    @abstractmethod
    def _make_snapshot(self, rows: SampleRows) -> Snapshot[Self]:
        """Return what predicts with the samples; called on the calibrator without samples."""

    @abstractmethod
    def _finish(self, rows: SampleRows) -> Self:
        """Return a snapshot with everything that a fit gives; called on one that can predict."""


log_of_two = log(2.0)


def _length(ids: Any) -> int:
    try:
        return len(ids)
    except TypeError:
        raise InvalidInputError("ids", "must be a sequence of ids", got=shown(ids)) from None


def _check_given_classes(classes: Any, rows: SampleRows) -> None:
    if classes is None:
        return
    known = set(rows.labels) | set(rows.classes.tolist())
    unknown = [label for label in np.asarray(classes).reshape(-1).tolist() if label not in known]
    if unknown:
        expected = "must be those of the first call; a class that appears in y is added by itself"
        raise InvalidInputError("classes", expected, got=repr(unknown[0]))


def _of_one_kind(names: list[Any], known: Any, parameter: str) -> list[Any]:
    """Return names; raise if they are text and the known ones are not, or the other way round."""
    kinds = {isinstance(name, str) for name in (*names, *known[:1])}
    if len(kinds) > 1:
        expected = f"must be {'text' if isinstance(known[0], str) else 'numbers'}, as before"
        raise InvalidInputError(parameter, expected, got=repr(names[0]))
    return names
