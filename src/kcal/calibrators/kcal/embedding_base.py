"""What KCal and its blend with the network share: a fit from embeddings, and a state with a projection."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import nn

from kcal.calibrators.base import (
    EXAMPLE_ROWS,
    CalibratorState,
    encode_classes,
    refuse_extra,
)
from kcal.calibrators.explanation import Explanation
from kcal.calibrators.kcal.attribution import BLOCK_NUMBERS, BLOCK_ROWS, Attribution, point_names, to_explanation
from kcal.calibrators.kcal.compression import CompressionOptions, FindSize, check_target
from kcal.calibrators.kcal.example_rows import example_rows
from kcal.calibrators.kcal.growing import GrowingCalibrator
from kcal.calibrators.kcal.state import (
    read_history,
    read_indices,
    read_parameters,
    refuse_unused_projection,
    stored_parameters,
)
from kcal.calibrators.model_state import Stored, StoredModel, Tensors
from kcal.calibrators.online.records import SampleRecords
from kcal.calibrators.online.snapshots import copy_with, on_latest, on_snapshot
from kcal.calibrators.online.updates import Updates, check_updates
from kcal.calibrators.prior import check_prior, check_prior_reaches
from kcal.modes import without_autocast
from kcal.progress import progress_bar
from kcal.threads import threads_for
from kcal.validation import check_device, check_integer, checked_parameters


@dataclass(kw_only=True, eq=False, repr=False)
class EmbeddingCalibrator(GrowingCalibrator):
    """Base class of the methods with kernel density estimates over projected embeddings.

    A method declares its parameters as fields, names its ``model_class`` and adds what it stores beside the model to
    ``_model_state`` and ``_restore``.
    """

    columns_are_classes: ClassVar[bool] = False
    has_evidence: ClassVar[bool] = True
    has_explanations: ClassVar[bool] = True
    model_class: ClassVar[type[StoredModel]]
    """Class of ``model_``."""
    prior: Any = None
    seed: int = 0
    progress: bool | None = None
    updates: Updates | None = None

    @on_latest
    @without_autocast()
    def log_evidence(self, X: Any) -> Any:
        """Return the log density of the calibration set at each row, (n,).

        Low values mark queries far from all calibration samples; :meth:`evidence` puts them on a scale from 0 to 1.
        """
        rows, kind = self._check_rows(X)
        return kind.give_back(self.model_.log_evidence(self.as_embeddings(rows)))

    @on_snapshot
    @without_autocast()
    def evidence(self, X: Any) -> Any:
        """Return the share of calibration samples that have less evidence than each row, (n,), from 0 to 1.

        A calibration sample has the log density of the others (of other groups) at it.
        Rows of the distribution of the calibration set get roughly uniform values, rows far from it values near 0:
        with ``evidence(X) < 0.01`` about 1 % of ordinary rows are rejected. Where the metric divides embeddings by
        their length, a length unlike those of the calibration samples lowers the evidence too: s, the smaller of the
        shares of the density and of the length, 2·min(F, 1 − F), becomes 1 − (1 − s)². Rows of the calibration set see
        themselves, and get too much.
        """
        rows, kind = self._check_rows(X)
        return kind.give_back(self.model_.evidence(self.as_embeddings(rows)))

    @on_snapshot
    @without_autocast()
    def explain(self, X: Any, k: int = 5, *, logits: Any = None) -> Explanation:
        """Return the ``k`` calibration samples that carry each prediction most, with their shares and distances.

        Shares of the samples, of all other samples and of what is no sample sum to the probabilities of
        :meth:`predict_proba`; :class:`~kcal.calibrators.Explanation` says how they are defined. Of a blend there are
        also the contributions of its parts to the log-odds of the two most probable classes.

        Parameters
        ----------
        X, logits
            As in :meth:`predict_proba`. Rows of the calibration set are carried by themselves.
        k : int
            Number of samples; fewer if the calibration set has fewer.
        """
        inputs, _ = self._check_inputs(X, logits)
        check_integer(k, "k", minimum=1, maximum=10**9)
        probs = self._probabilities(inputs).cpu().double()
        n_points = len(self.first_estimate.support)
        step = max(min(BLOCK_ROWS, BLOCK_NUMBERS // (min(k, n_points) * self.n_features_in_)), 1)
        blocks = [slice(start, start + step) for start in range(0, len(probs), step)]
        attributions = []
        with progress_bar("Explaining", len(blocks), show=self.progress if len(blocks) > 1 else False) as advance:
            for block in blocks:
                attributions.append(self._attribute(inputs, block, probs[block], k))
                advance("")
        rows = self.support_indices_
        ids = rows if self.ids_ is None else self.ids_
        if len(rows) != n_points:  # the points are no samples, but stand for several
            rows, ids = np.full(n_points, -1), point_names(self.first_estimate)
        return to_explanation(attributions, probs, self.classes_, rows=rows, ids=ids)

    @abstractmethod
    def _attribute(self, inputs: Any, block: slice, probs: torch.Tensor, k: int) -> Attribution:
        """Return the attribution of some rows of checked inputs, of the probabilities ``probs``."""

    @property
    def prior_(self) -> NDArray[np.float64]:
        """Class frequencies that the probabilities assume: the prior, or those of the calibration set."""
        check_is_fitted(self)
        assumed = self.model_.frequencies if self.model_.prior is None else self.model_.prior
        frequencies: NDArray[np.float64] = assumed.cpu().numpy().copy()
        return frequencies

    @on_snapshot
    def with_prior(self, prior: Any) -> Self:
        """Return a calibrator for other class frequencies of deployment, without a new fit; this one stays as it is.

        ``prior`` is "uniform", a sequence, a mapping, or None for the frequencies of the calibration set.
        """
        check_is_fitted(self)
        checked = check_prior(prior, self.classes_)
        check_prior_reaches(checked, self.model_.frequencies)
        other: Self = copy_with(self, prior=prior, model_=self.model_.with_prior(checked))
        return other

    @property
    def calibration_log_evidence_(self) -> NDArray[np.float64]:
        """The log evidence of calibration samples given the others (other groups), ascending: at most 1,000 of them.

        New rows like the calibration set have a :meth:`log_evidence` of the same distribution.
        """
        check_is_fitted(self)
        log_densities: NDArray[np.float64] = self.first_estimate.reference.log_densities.cpu().numpy().copy()
        return log_densities

    @on_snapshot
    def example_inputs(self, n_rows: int = EXAMPLE_ROWS) -> dict[str, torch.Tensor]:
        """Return made-up rows like those of the calibration set; their projections lie among the support points."""
        check_is_fitted(self)
        estimate, n_features = self.first_estimate, self.n_features_in_
        if self.inputs != "logits":
            return {"embeddings": example_rows(estimate, n_rows, n_features, self.as_embeddings)}
        rows = example_rows(estimate, n_rows, max(n_features, 2), self.as_embeddings)
        return {"logits": rows[:, 1:] - rows[:, :1] if n_features == 1 else rows}  # one column: the log-odds

    @on_snapshot
    def compress(
        self,
        size: int | float | None = None,
        *,
        max_loss_increase: float | None = None,
        method: str = "kmeans",
        min_cluster_size: int = 1,
        groups: Any = None,
    ) -> Self:
        """Return a fitted calibrator with fewer support points, in each metric of a blend; this one stays as it is.

        Size and bandwidth are chosen by out-of-fold predictions: samples are predicted from the smaller support of the
        other folds, since a merged support contains every sample. The pool weights of a blend stay. With as many points
        as there are samples, nothing changes.

        Merged points are means, which store no single sample's embedding, with limits: a cluster of one sample is that
        sample, one of few samples is close to each (``compression.fewest`` of the model is the smallest, and
        ``min_cluster_size`` bounds it), and fingerprints of the rows stay, by which a known embedding can be recognised
        as one of the calibration set. The other methods keep samples as they are.

        Parameters
        ----------
        size : int or float
            Number of support points, at least one per class, or their share of the samples.
        max_loss_increase : float
            In place of a size: the smallest one is taken whose out-of-fold log-loss is higher than that of all samples
            by at most this share, such as 0.005, the standard error of the difference included.
        method : "kmeans", "kernel-thinning", "herding" or "random"
            Merge points into weighted centroids within each class, or keep some of the points: those that preserve the
            kernel mean of their class, or random ones. Merging is the most accurate at every size.
        min_cluster_size : int
            Samples that a centroid stands for at least, where its class has as many.
        groups : (n,) array, optional
            Groups of the calibration samples of positive weight, in the order of the fit; a KCal has its own.
        """
        check_is_fitted(self)
        find_size = check_target(size, max_loss_increase)
        options = CompressionOptions(method, min_cluster_size, self.seed, self.progress).checked()
        with threads_for(0):
            attributes = self._compressed(find_size, options, groups)
        compressed: Self = copy_with(self, **attributes)
        return compressed

    @abstractmethod
    def _compressed(self, find_size: FindSize, options: CompressionOptions, groups: Any) -> dict[str, Any]:
        """Return the fitted attributes that a smaller support changes."""

    def to(self, device: str | torch.device) -> Self:
        """Move the fitted calibrator to a device; kernel sums then run there."""
        check_is_fitted(self)
        place = check_device(device)
        if "_stream" in vars(self):
            self._stream.change_base(lambda base: copy_with(base, model_=base.model_.to(place)))
        else:
            self.model_ = self.model_.to(place)
        return self

    @on_snapshot
    def state(self) -> CalibratorState:
        """Return the content of the fitted calibrator."""
        check_is_fitted(self)
        self._check_parameters()
        values, tensors = self._model_state()
        return self._state(stored_parameters(self.get_params(deep=False), self.classes_), values, **tensors)

    def _model_state(self) -> tuple[dict[str, Any], Tensors]:
        values, tensors = self.model_.to_state()
        kept = self._stored_records()
        records, own = (None, {}) if kept is None else kept.to_state()
        values |= {
            "ids": None if self.ids_ is None else encode_classes(self.ids_),
            "records": records,
            "bandwidth_history": [asdict(record) for record in self.bandwidth_history_],
        }
        if kept is not None:
            tensors["support.indices"] = torch.from_numpy(self.support_indices_)
        return values, tensors | {f"records.{name}": part for name, part in own.items()}

    def _stored_records(self) -> SampleRecords | None:
        """Return the records that a file gets."""
        return self._records

    @classmethod
    def from_state(cls, state: CalibratorState, *, projection: nn.Module | None = None, **extra: Any) -> Self:
        """Return the fitted calibrator; ``projection`` is its module, if the architecture is not one of kcal's."""
        refuse_extra(cls, extra)
        values = state.values
        refuse_unused_projection(projection, values.get("estimate", values)["projection"])
        n_features = values["n_features"]
        if cls.inputs == "logits":
            n_features = max(n_features, 2)  # one column of logits becomes those of both classes
        stored = Stored(values, state.tensors, len(values["classes"]["labels"]), n_features, projection)
        model = cls.model_class.from_state(stored)
        calibrator = cls(**read_parameters(state.parameters, model))
        calibrator.model_ = model
        records = values["records"]
        calibrator._records = None if records is None else SampleRecords.from_state(stored.part("records", records))
        return cls._restore(calibrator, state)

    def _restore(self, state: CalibratorState) -> Self:
        n_support = len(self._supports()[0])
        if self._records is not None:
            self._records.check(n_support)
        self.support_indices_, self.ids_ = read_indices(state, n_support)
        self.bandwidth_history_ = read_history(state.values["bandwidth_history"])
        return super()._restore(state)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        checked_parameters(self)
        check_updates(self.updates)


def without_samples() -> dict[str, Any]:
    """Return the fitted attributes of a calibrator whose support points are no samples."""
    return {"support_indices_": np.empty(0, dtype=np.int64), "ids_": None, "_records": None}
