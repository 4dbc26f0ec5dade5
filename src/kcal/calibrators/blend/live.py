"""A blend that lives on: the supports of its metrics grow, and everything else is fitted anew on a schedule."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.calibrators.blend.experts import Expert
from kcal.calibrators.blend.model import BlendModel
from kcal.calibrators.kcal.embedding_base import EmbeddingCalibrator
from kcal.calibrators.kcal.model import NO_REFERENCE
from kcal.calibrators.kcal.samples import Samples
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
from kcal.threads import threads_for


class LiveBlend(EmbeddingCalibrator):
    """What updates need of a blend."""

    model_: BlendModel
    _log_weight: float  # of a calibrator without samples: log total weight of those that it was fitted on
    _n_erasures: int  # until that fit
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
        """Add samples to the supports; the projections stay as they are. Without a fit before, this is :meth:`fit`.

        On the schedule of :class:`Updates` the next prediction fits everything else anew: bandwidths, the network's
        calibrators, class frequencies, background, gate, weights and sharpness, as ``fit`` would. Between two fits they
        stay fixed, and the supports grow. For this the projected embeddings, their lengths, labels, weights, groups,
        ids and logits of all samples are kept. Files have the logits if ``updates`` is set or once updates have begun.

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
    def _fit_weights(self, samples: Samples, experts: tuple[Expert, ...], scores: torch.Tensor | None) -> BlendModel:
        """Return the model of given metrics and bandwidths."""

    @abstractmethod
    def _fit_expert(self, expert: Expert, support: SortedSupport, samples: Samples) -> Expert:
        """Return the expert of a metric with another support and the best bandwidth for it."""

    def _supports(self) -> list[SortedSupport]:
        return [expert.support for expert in self.model_.experts]

    def _checked_records(self) -> SampleRecords:
        records = super()._checked_records()
        if self.model_.network and records.scores is None:
            raise InvalidInputError(
                "calibrator",
                "was saved without the logits of its samples, which updates need",
                remedy="Save one that was made with KCalBlend(updates=kcal.Updates()), or fit it again.",
            )
        return records

    def _without_samples(self) -> Self:
        log_weight = self.model_.experts[0].support.log_total_weight
        return self._base_of(self.model_, log_weight, 0, self._as_base(self.model_))

    def _base_of(self, model: BlendModel, log_weight: float, n_erasures: int, base: Self) -> Self:
        experts = tuple(
            replace(expert, support=expert.support.empty(), reference=NO_REFERENCE) for expert in model.experts
        )
        emptied = replace(model, experts=experts)
        stripped: Self = copy_with(base, model_=emptied, _log_weight=log_weight, _n_erasures=n_erasures, _lives=True)
        return stripped

    @on_base
    def _columns_of(self, X: Any, logits: Any) -> dict[str, NDArray[Any]]:
        (rows, scores), _ = self._check_inputs(X, logits)
        columns = self._columns_of_rows(rows, self.model_.experts)
        if scores is not None:
            columns["scores"] = scores.cpu().numpy()
        return columns

    @on_base
    def _check_new_classes(self, rows: SampleRows, changes: dict[str, Any], name: str) -> None:
        if "classes" not in changes:
            return
        if self.model_.network:
            new = changes["labels"][len(rows.labels)]
            expected = f"must be one of the {len(rows.classes):,} classes that the logits have columns for"
            raise InvalidInputError(name, expected, got=repr(new))
        check_prior(self.prior, changes["classes"])

    @with_gradients()
    def _make_snapshot(self, rows: SampleRows) -> Snapshot[Self]:
        samples = self._samples_of(rows)
        counted = np.flatnonzero(samples.weights)
        samples = samples.rows(counted)
        supports = [self._support_of(rows, place, samples, counted) for place in range(len(self.model_.experts))]
        scores = torch.from_numpy(rows.column("scores")[counted]) if "scores" in rows.columns else None

        def grown(base: Self) -> Snapshot[Self]:
            model = grown_model(base.model_, supports, vars(base)["_log_weight"])
            results = {"classes_": samples.classes, "_fingerprints": self._known_fingerprints(rows)}
            return Snapshot(copy_with(base, model_=model, **results), base)

        @with_gradients()
        def search() -> Snapshot[Self]:
            return grown(self._refitted(rows, samples, supports, scores))

        is_due = check_updates(self.updates).is_due(self.bandwidth_history_, rows.n_updates, samples.classes_seen)
        is_due = is_due and samples.n_parts > 1
        if is_due and len(samples.classes) != len(self.classes_):
            return search()  # the present weights have no entry for a new class
        base = self
        if rows.n_erasures > self._n_erasures and scores is not None:
            lowest = float(to_log_probs(scores, self.model_.representation).min())  # maybe that of a forgotten sample
            base = copy_with(self, model_=replace(self.model_, min_log_prob=lowest), _n_erasures=rows.n_erasures)
        return replace(grown(base), search=search if is_due else None)

    def _support_of(self, rows: SampleRows, place: int, samples: Samples, counted: NDArray[np.int64]) -> SortedSupport:
        like = self.model_.experts[place].support.points
        return samples.sorted(torch.from_numpy(rows.column(f"points.{place}")[counted]).to(like.device))

    def _refitted(
        self, rows: SampleRows, samples: Samples, supports: list[SortedSupport], scores: torch.Tensor | None
    ) -> Self:
        """Return the calibrator without samples, fitted to them: as ``fit`` would with the same projections."""
        before = self.model_
        with warnings.catch_warnings(), threads_for(0 if scores is None else scores.numel() * scores.shape[1]):
            warnings.simplefilter("ignore", KcalWarning)  # a prediction is no place for the warnings of a fit
            experts = tuple(map(self._fit_expert, before.experts, supports, [samples] * len(supports)))
            model = self._fit_weights(samples, experts, scores)
        prior = check_prior(self.prior, samples.classes)
        model = replace(model, representation=before.representation, prior=prior, head=before.head)
        history = (*without_classes(self.bandwidth_history_), *bandwidth_records(model, samples, rows.n_updates))
        base = copy_with(self, classes_=samples.classes, bandwidth_history_=history)
        return self._base_of(model, supports[0].log_total_weight, rows.n_erasures, base)

    @with_gradients()
    def _finish(self, rows: SampleRows) -> Self:
        rows = rows.some(np.flatnonzero(self._samples_of(rows).weights))  # the support has no others
        first, *others = self.model_.experts
        first = first.with_reference_lengths(self._reference_lengths(rows), self._samples_of(rows).keys)
        return self._finished(rows, replace(self.model_, experts=(first, *others)))


def grown_model(model: BlendModel, supports: list[SortedSupport], log_weight: float) -> BlendModel:
    """Return a model with larger supports; log masses are compared at the total weight that it was fitted with."""
    shift = supports[0].log_total_weight - log_weight
    experts = tuple(
        replace(expert, support=support, median_evidence=expert.median_evidence + shift)
        for expert, support in zip(model.experts, supports, strict=True)
    )
    threshold = None if model.gate_threshold is None else model.gate_threshold + shift
    return replace(model, experts=experts, gate_threshold=threshold)


def bandwidth_records(model: BlendModel, samples: Samples, n_updates: int) -> tuple[BandwidthRecord, ...]:
    """Return the bandwidth of each metric at a fit, with the out-of-fold loss of the blend."""
    size = size_of_rarest_class(samples.codes, samples.weights, len(samples.classes))
    classes = tuple(samples.classes_seen)
    counts: dict[str, Any] = {"n_samples": len(samples.codes), "size": size, "n_classes": len(classes)}
    counts |= {"n_updates": n_updates, "classes": classes}
    return tuple(
        BandwidthRecord(bandwidth, "search", model.pool.loss, **counts, metric=metric)
        for metric, bandwidth in model.bandwidths.items()
    )
