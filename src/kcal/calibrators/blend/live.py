"""A blend that lives on: its support grows, and everything else is fitted anew on a schedule."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kcal.calibrators.blend.model import BlendModel
from kcal.calibrators.kcal.embedding_base import EmbeddingCalibrator
from kcal.calibrators.kcal.model import NO_REFERENCE, sorted_support
from kcal.calibrators.logit_base import to_log_probs
from kcal.calibrators.online.records import SampleRecords
from kcal.calibrators.online.rows import SampleRows
from kcal.calibrators.online.snapshots import copy_with, on_base
from kcal.calibrators.online.stream import Snapshot
from kcal.calibrators.online.updates import BandwidthRecord, check_updates, without_classes
from kcal.calibrators.prior import check_prior
from kcal.errors import InvalidInputError, KcalWarning
from kcal.kernels import SortedSupport, size_of_rarest_class
from kcal.modes import with_gradients
from kcal.samples import Samples
from kcal.threads import threads_for


class LiveBlend(EmbeddingCalibrator):
    """What updates need of a blend."""

    model_: BlendModel
    _n_erasures: int  # of a calibrator without samples: until its fit
    _lives: bool = False  # whether there were updates

    def partial_fit(
        self,
        X: Any,
        y: Any,
        *,
        logits: Any = None,
        classes: Any = None,
        ids: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
    ) -> Self:
        """Add samples to the support. Without a fit before, this is :meth:`fit`.

        On the schedule of :class:`Updates` the next prediction fits everything else anew, as ``fit`` would. Between two
        fits it stays fixed, and the support grows. For this the directions of the embeddings, their lengths, labels,
        weights, groups, ids and logits of all samples are kept. Files have the logits if ``updates`` is set or once
        updates have begun.

        Parameters
        ----------
        X, y, logits, groups, sample_weight
            New samples, as in :meth:`fit`. With logits or a head, labels are of the known classes.
        classes, ids
            As in :meth:`KCal.partial_fit`.
        """
        given = {"classes": classes, "ids": ids, "groups": groups, "sample_weight": sample_weight, "logits": logits}
        return self._add(X, y, **given) if self.__sklearn_is_fitted__() else self.fit(X, y, **given)

    @abstractmethod
    def _fit_points(
        self, samples: Samples, points: torch.Tensor, scores: torch.Tensor | None, projection: nn.Module
    ) -> BlendModel:
        """Return the model of samples with given points, without a prior."""

    def _supports(self) -> list[SortedSupport]:
        return [self.model_.estimate.support]

    def _checked_records(self) -> SampleRecords:
        records = super()._checked_records()
        if self.model_.formula.has_logits and records.scores is None:
            raise InvalidInputError(
                "calibrator",
                "was saved without the logits of its samples, which updates need",
                remedy="Save one that was made with KCalBlend(updates=kcal.Updates()), or fit it again.",
            )
        return records

    def _without_samples(self) -> Self:
        return self._base_of(self.model_, 0, self._as_base(self.model_))

    def _base_of(self, model: BlendModel, n_erasures: int, base: Self) -> Self:
        estimate = replace(model.estimate, support=model.estimate.support.empty(), reference=NO_REFERENCE)
        emptied = replace(model, estimate=estimate)
        stripped: Self = copy_with(base, model_=emptied, _n_erasures=n_erasures, _lives=True)
        return stripped

    @on_base
    def _columns_of(self, X: Any, logits: Any) -> dict[str, NDArray[Any]]:
        (rows, scores), _ = self._check_inputs(X, logits)
        columns = self._columns_of_rows(rows, [self.model_.estimate])
        if scores is not None:
            columns["scores"] = scores.cpu().numpy()
        return columns

    @on_base
    def _check_new_classes(self, rows: SampleRows, changes: dict[str, Any], name: str) -> None:
        if "classes" not in changes:
            return
        if self.model_.formula.has_logits:
            new = changes["labels"][len(rows.labels)]
            expected = f"must be one of the {len(rows.classes):,} classes that the logits have columns for"
            raise InvalidInputError(name, expected, got=repr(new))
        check_prior(self.prior, changes["classes"])

    @with_gradients()
    def _make_snapshot(self, rows: SampleRows) -> Snapshot[Self]:
        samples = self._samples_of(rows)
        counted = samples.counted
        samples = samples.select(counted)
        support = sorted_support(samples, samples.embeddings)  # which are points
        scores = torch.from_numpy(rows.column("scores")[counted]) if "scores" in rows.columns else None

        def grown(base: Self) -> Snapshot[Self]:
            results = {"classes_": samples.classes, "_fingerprints": self._known_fingerprints(rows)}
            model = base.model_.with_support(support, len(samples.codes))
            return Snapshot(copy_with(base, model_=model, **results), base)

        @with_gradients()
        def search() -> Snapshot[Self]:
            return grown(self._refitted(rows, samples, scores))

        is_due = check_updates(self.updates).is_due(self.bandwidth_history_, rows.n_updates, samples.classes_seen)
        is_due = is_due and samples.n_parts > 1
        if is_due and len(samples.classes) != len(self.classes_):
            return search()  # the present model has no entry for a new class
        base = self
        if rows.n_erasures > self._n_erasures and scores is not None:
            representation = self.model_.formula.representation
            lowest = float(to_log_probs(scores, representation).min())  # maybe that of a forgotten sample
            model = self.model_.with_formula(min_log_prob=lowest)
            base = copy_with(self, model_=model, _n_erasures=rows.n_erasures)
        return replace(grown(base), search=search if is_due else None)

    def _refitted(self, rows: SampleRows, samples: Samples, scores: torch.Tensor | None) -> Self:
        """Return the calibrator without samples, fitted to them as ``fit`` would."""
        before = self.model_
        with warnings.catch_warnings(), threads_for(0 if scores is None else scores.numel() * scores.shape[1]):
            warnings.simplefilter("ignore", KcalWarning)  # a prediction is no place for the warnings of a fit
            model = self._fit_points(samples, samples.embeddings, scores, before.estimate.projection)
        formula, prior = before.formula, check_prior(self.prior, samples.classes)
        model = model.with_formula(representation=formula.representation, head=formula.head, prior=prior)
        history = (*without_classes(self.bandwidth_history_), bandwidth_record(model, samples, rows.n_updates))
        base = copy_with(self, classes_=samples.classes, bandwidth_history_=history)
        return self._base_of(model, rows.n_erasures, base)

    @with_gradients()
    def _finish(self, rows: SampleRows) -> Self:
        rows = rows.some(np.flatnonzero(self._samples_of(rows).weights))  # the support has no others
        lengths, keys = self._reference_lengths(rows), self._samples_of(rows).keys()
        estimate = self.model_.estimate.with_reference_lengths(lengths, keys)
        return self._finished(rows, replace(self.model_, estimate=estimate))


def bandwidth_record(model: BlendModel, samples: Samples, n_updates: int) -> BandwidthRecord:
    """Return the bandwidth of a fit, with the out-of-fold loss of the blend."""
    size = size_of_rarest_class(samples.codes, samples.weights, len(samples.classes))
    classes = tuple(samples.classes_seen)
    counts: dict[str, Any] = {"n_samples": len(samples.codes), "size": size, "n_classes": len(classes)}
    counts |= {"n_updates": n_updates, "classes": classes}
    return BandwidthRecord(model.bandwidth, "search", model.formula.loss, **counts, metric=model.metric)
