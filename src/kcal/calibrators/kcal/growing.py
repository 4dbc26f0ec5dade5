"""What updates need of KCal and of the blend: records of the samples of a fit, and samples of the records again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.calibrators.kcal.model import KernelEstimate
from kcal.calibrators.online.live import LiveCalibrator
from kcal.calibrators.online.records import SampleRecords, log_given_weights, named_groups, records_of
from kcal.calibrators.online.rows import SampleRows
from kcal.calibrators.online.snapshots import copy_with
from kcal.projection import log_lengths
from kcal.samples import Samples, code_groups, relative_weights
from kcal.validation import row_fingerprints


class GrowingCalibrator(LiveCalibrator):
    """Base class of the methods whose supports grow by updates."""

    _compares_lengths: bool  # of a calibrator without samples: whether the projection ignores lengths

    def as_embeddings(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the embeddings that the projection works on, (n, h), from rows of ``X``."""
        return rows

    @property
    def first_estimate(self) -> KernelEstimate:
        """The kernel density estimate by which the evidence is measured."""
        estimate: KernelEstimate = self.model_
        return estimate

    def _remember_samples(
        self,
        fingerprints: NDArray[np.uint64],
        samples: Samples,
        groups: Any,
        sample_weight: Any,
        scores: torch.Tensor | None = None,
    ) -> None:
        """Keep what updates need of the samples of a fit, beside the support; groups and weights are of all rows."""
        names, codes = None, None
        if groups is not None:
            names, codes = np.unique(named_groups(groups)[samples.indices], return_inverse=True)
        ids = samples.indices if samples.ids is None else samples.ids
        self._records = SampleRecords(
            fingerprints=torch.from_numpy(fingerprints.view(np.int64)),
            log_lengths=log_lengths(samples.embeddings).cpu(),
            log_weights=log_given_weights(sample_weight, samples.indices),
            group_codes=None if codes is None else torch.from_numpy(codes.reshape(-1).astype(np.int64)),
            group_names=names,
            scores=None if scores is None else scores.detach().cpu().clone(),
            n_updates=len(samples.codes),
            next_id=int(ids.max()) + 1 if ids.dtype.kind in "iu" else len(ids),
        )

    def _as_base(self, model: Any) -> Self:
        """Return a copy with a model without samples, and the fingerprints of rows that are no samples."""
        samples = self._checked_records().fingerprints.numpy().view(np.uint64)
        others = np.setdiff1d(self._fingerprints, samples)
        compares_lengths = self.first_estimate.reference.log_lengths is not None
        named = {"has_own_ids": self.ids_ is not None}
        base: Self = copy_with(self, model_=model, _fingerprints=others, _compares_lengths=compares_lengths, **named)
        for name in ("ids_", "support_indices_", "_records"):
            base.__dict__.pop(name, None)
        return base

    def _columns_of_rows(self, rows: torch.Tensor, estimates: Sequence[KernelEstimate]) -> dict[str, NDArray[Any]]:
        """Return fingerprints, lengths and projected points of checked rows."""
        embeddings = self.as_embeddings(rows)
        points = {f"points.{place}": part.project(embeddings).cpu().numpy() for place, part in enumerate(estimates)}
        with np.errstate(divide="ignore"):
            lengths = np.log(np.linalg.norm(embeddings.cpu().numpy().astype(np.float64), axis=1))
        return {"fingerprints": row_fingerprints(rows), "log_lengths": lengths, **points}

    def _samples_of(self, rows: SampleRows) -> Samples:
        """Return the samples of a view; their embeddings are the points of the first metric."""
        like, codes = self.first_estimate.support.points, rows.codes()
        names = rows.group_names()
        return Samples(
            embeddings=torch.from_numpy(rows.column("points.0")).to(like.device),
            codes=codes,
            classes=rows.classes,
            weights=relative_weights(rows.column("log_weights")),
            groups=None if names is None else code_groups(names),
            indices=np.arange(len(codes)),
        )

    def _known_fingerprints(self, rows: SampleRows) -> NDArray[np.uint64]:
        return np.sort(np.concatenate([self._fingerprints, rows.column("fingerprints")]))

    def _reference_lengths(self, rows: SampleRows) -> torch.Tensor | None:
        """Return the lengths that the evidence compares; None if the projection does not ignore lengths."""
        return torch.from_numpy(rows.column("log_lengths")) if self._compares_lengths else None

    def _finished(self, rows: SampleRows, model: Any) -> Self:
        """Return a snapshot with its complete model, ids and records."""
        unknown = np.full(len(rows), -1)  # samples that came by updates are known by their ids only
        finished: Self = copy_with(
            self, model_=model, ids_=rows.names(), support_indices_=unknown, _records=records_of(rows)
        )
        return finished
