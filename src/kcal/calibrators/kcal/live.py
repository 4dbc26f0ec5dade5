"""A KCal that lives on: its support grows, and its bandwidth follows by searches and a power law between them."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.calibrators.fit_warnings import warn_of_missing_classes
from kcal.calibrators.kcal.bandwidth import BandwidthChoice
from kcal.calibrators.kcal.embedding_base import EmbeddingCalibrator
from kcal.calibrators.kcal.model import NO_REFERENCE, KCalModel, sorted_support
from kcal.calibrators.online.rows import SampleRows
from kcal.calibrators.online.snapshots import copy_with, on_base
from kcal.calibrators.online.stream import Snapshot
from kcal.calibrators.online.updates import BandwidthRecord, check_updates, with_record
from kcal.calibrators.prior import check_prior
from kcal.errors import BandwidthWarning
from kcal.kernels import BandwidthCurve, SortedSupport, get_kernel, size_of_rarest_class
from kcal.modes import with_gradients
from kcal.samples import Samples
from kcal.threads import threads_for

MOST_ALONE = 0.3
"""Share of samples without another of their class above which searches scan: the others say little of the bandwidth."""


class LiveKCal(EmbeddingCalibrator):
    """What updates need of a KCal."""

    model_: KCalModel

    def partial_fit(
        self, X: Any, y: Any, *, classes: Any = None, ids: Any = None, groups: Any = None, sample_weight: Any = None
    ) -> Self:
        """Add samples to the support; the projection stays as it is. Without a fit before, this is :meth:`fit`.

        It takes time O(d) per sample. The next prediction sorts the support anew and, where :class:`Updates` says so,
        searches for the bandwidth; between searches the bandwidth follows the power law. Other threads may predict
        meanwhile: they never see a part of an update.

        Parameters
        ----------
        X, y, groups, sample_weight
            New samples, as in :meth:`fit`. A label that is new adds a class. Groups are needed if ``fit`` had them.
            Weights count relative to those before; samples without weights have 1.
        classes : sequence, optional
            All classes, for the first call.
        ids : (n,) array, optional
            Identifiers; a sample with a known one replaces the earlier sample. By default the next integers.
        """
        given = {"classes": classes, "ids": ids, "groups": groups, "sample_weight": sample_weight}
        return self._add(X, y, **given) if self.__sklearn_is_fitted__() else self.fit(X, y, **given)

    def _first_record(self, samples: Samples, model: KCalModel, curve: BandwidthCurve | None) -> BandwidthRecord:
        """Return how the bandwidth of a fit was chosen."""
        size = size_of_rarest_class(samples.codes, samples.weights, len(samples.classes))
        source = "search" if curve is not None else self.bandwidth_choice(size).fixed_source
        loss, n = None if curve is None else curve.loss, len(samples.codes)
        classes = tuple(samples.classes_seen)
        return BandwidthRecord(model.bandwidth, source, loss, n, size, len(classes), n, classes=classes)

    def bandwidth_choice(self, size: float) -> BandwidthChoice:
        """Return how the bandwidth is chosen, for a rarest class of ``size`` samples."""
        return BandwidthChoice(
            self.bandwidth, self.bandwidth_interval, self.bandwidth_reference, self.bandwidth_exponent, size
        )

    def _warn_of_lost_classes(self, lost: list[Any], classes: NDArray[Any]) -> None:
        if lost and not self.smoothing:
            warn_of_missing_classes(classes, ~np.isin(classes, lost), "Or pass smoothing=1e-3 to KCal.")

    def _supports(self) -> list[SortedSupport]:
        return [self.model_.support]

    def _without_samples(self) -> Self:
        model = replace(self.model_, support=self.model_.support.empty(), groups=None, reference=NO_REFERENCE)
        return self._as_base(model)

    @on_base
    def _columns_of(self, X: Any, logits: Any) -> dict[str, NDArray[Any]]:
        rows, _ = self._check_rows(X)
        return self._columns_of_rows(rows, [self.model_])

    @on_base
    def _check_new_classes(self, rows: SampleRows, changes: dict[str, Any], name: str) -> None:
        if "classes" in changes:
            check_prior(self.prior, changes["classes"])

    @with_gradients()
    def _make_snapshot(self, rows: SampleRows) -> Snapshot[Self]:
        """Return the snapshot at a given bandwidth, or at that of the power law with a search around it, if it is due.

        The power law is that of the earlier searches.
        """
        samples = self._samples_of(rows)
        support = sorted_support(samples, samples.embeddings)
        choice = self.bandwidth_choice(size_of_rarest_class(samples.codes, samples.weights, len(samples.classes)))
        fixed = choice.without_search(support.dimension)
        if fixed is not None:
            record = self._record(fixed, choice.fixed_source, samples, rows)
            return self._snapshot_at(record, None, rows, samples, support)
        history, updates = self.bandwidth_history_, check_updates(self.updates)
        law = updates.law(history, dimension=support.dimension, exponent=self.bandwidth_exponent)
        expected = None if law is None else law(choice.size)
        record, curve = history[-1], self.bandwidth_curve_
        if record.n_updates != rows.n_updates:
            bandwidth = record.bandwidth if expected is None else expected
            record, curve = self._record(bandwidth, "law", samples, rows), None
        snapshot = self._snapshot_at(record, curve, rows, samples, support)

        @with_gradients()
        def search() -> Snapshot[Self]:
            curve = self._search(choice, samples, support, expected)
            if curve is None:
                return snapshot
            found = self._record(curve.bandwidth, "search", samples, rows, loss=curve.loss)
            return self._snapshot_at(found, curve, rows, samples, support)

        is_due = updates.is_due(history, rows.n_updates, samples.classes_seen)
        return replace(snapshot, search=search) if is_due else snapshot

    def _snapshot_at(
        self,
        record: BandwidthRecord,
        curve: BandwidthCurve | None,
        rows: SampleRows,
        samples: Samples,
        support: SortedSupport,
    ) -> Snapshot[Self]:
        """Return the snapshot at a bandwidth."""
        model = replace(
            self.model_,
            support=support,
            bandwidth=record.bandwidth,
            frequencies=torch.from_numpy(samples.frequencies()),
            prior=check_prior(self.prior, samples.classes),
            groups=None if samples.groups is None else torch.from_numpy(samples.groups).to(support.points.device),
        )
        history = with_record(self.bandwidth_history_, record)
        results = {"bandwidth_history_": history, "classes_": samples.classes, "bandwidth_curve_": curve}
        calibrator = copy_with(self, model_=model, _fingerprints=self._known_fingerprints(rows), **results)
        return Snapshot(calibrator, copy_with(self, bandwidth_history_=history, bandwidth_curve_=curve))

    @with_gradients()
    def _finish(self, rows: SampleRows) -> Self:
        lengths = self._reference_lengths(rows)
        model = self.model_.with_reference_lengths(lengths, self.model_.groups)
        return self._finished(rows, model)

    def _record(
        self, bandwidth: float, source: str, samples: Samples, rows: SampleRows, *, loss: float | None = None
    ) -> BandwidthRecord:
        """Return a record of a bandwidth for the present samples."""
        size = size_of_rarest_class(samples.codes, samples.weights, len(samples.classes))
        seen = samples.classes_seen
        classes = tuple(seen) if source == "search" else ()
        return BandwidthRecord(bandwidth, source, loss, len(rows), size, len(seen), rows.n_updates, classes=classes)

    def _search(
        self, choice: BandwidthChoice, samples: Samples, support: SortedSupport, expected: float | None
    ) -> BandwidthCurve | None:
        """Return a search around the expected bandwidth, or of the usual interval; None if too few samples are left."""
        if samples.n_parts < 2:
            return None
        folds = self.folds_for(samples)
        keys, kernel = samples.keys(folds, self.seed), get_kernel(self.kernel)
        with warnings.catch_warnings(), threads_for(0):
            warnings.simplefilter("ignore", BandwidthWarning)
            if expected is None:
                curve = choice.choose(support, kernel=kernel, keys=keys, progress=False)[1]
            else:
                scan = samples.share_alone > MOST_ALONE
                curve = choice.choose_near(expected, support, kernel=kernel, keys=keys, scan=scan)
        return None if curve is None else replace(curve, n_folds=folds)
