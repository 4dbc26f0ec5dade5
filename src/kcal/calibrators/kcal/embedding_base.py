"""What KCal and its blend with the network share: a fit from embeddings, and a state with a projection."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import nn

from kcal.calibrators.base import (
    EXAMPLE_ROWS,
    CalibratorState,
    check_at_least_two,
    encode_classes,
    refuse_extra,
)
from kcal.calibrators.explanation import Explanation
from kcal.calibrators.kcal.attribution import BLOCK_NUMBERS, BLOCK_ROWS, Attribution, to_explanation
from kcal.calibrators.kcal.compression import CompressionOptions, FindSize, check_target
from kcal.calibrators.kcal.evidence import log_lengths
from kcal.calibrators.kcal.example_rows import example_rows
from kcal.calibrators.kcal.learning import EstimateOptions
from kcal.calibrators.kcal.model import KernelEstimate
from kcal.calibrators.kcal.parameters import check_learned_projection
from kcal.calibrators.kcal.samples import (
    Samples,
    TrainingSet,
    check_samples,
    check_training_set,
    known_labels,
    relative_weights,
)
from kcal.calibrators.kcal.state import (
    read_history,
    read_indices,
    read_parameters,
    refuse_unused_projection,
    stored_parameters,
)
from kcal.calibrators.model_state import Stored, StoredModel, Tensors
from kcal.calibrators.online.live import LiveCalibrator
from kcal.calibrators.online.records import SampleRecords, log_given_weights, named_groups, records_of
from kcal.calibrators.online.rows import SampleRows
from kcal.calibrators.online.snapshots import copy_with, on_latest, on_snapshot
from kcal.calibrators.online.updates import check_updates
from kcal.calibrators.prior import check_prior, check_prior_reaches
from kcal.errors import InvalidInputError
from kcal.modes import without_autocast
from kcal.progress import progress_bar
from kcal.projection import Recipe, get_recipe, needs_training
from kcal.threads import threads_for
from kcal.validation import check_device, check_integer, column_names, row_fingerprints


class EmbeddingCalibrator(LiveCalibrator):
    """Base class of the methods with kernel density estimates over projected embeddings.

    A method names its ``model_class`` and adds what it stores beside the model to ``_model_state`` and ``_restore``.
    """

    columns_are_classes: ClassVar[bool] = False
    has_evidence: ClassVar[bool] = True
    has_explanations: ClassVar[bool] = True
    model_class: ClassVar[type[StoredModel]]
    """Class of ``model_``."""
    _compares_lengths: bool  # of a calibrator without samples: whether the projection ignores lengths

    def __init__(
        self,
        *,
        projection: Any,
        dimension: int | str,
        recipe: Any,
        prior: Any,
        seed: int,
        progress: bool | None,
        updates: Any,
    ) -> None:
        self.projection = projection
        self.dimension = dimension
        self.recipe = recipe
        self.prior = prior
        self.seed = seed
        self.progress = progress
        self.updates = updates

    @property
    def uses_training_set(self) -> bool:
        """Whether ``fit``, with the present parameters, learns from the network's training set."""
        return needs_training(self.projection)

    def as_embeddings(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the embeddings that the projection works on, (n, h), from rows of ``X``."""
        return rows

    def training_recipe(self) -> Recipe:
        """Return the recipe by which the projection is trained."""
        return get_recipe(self.recipe)

    def estimate_options(self, **options: Any) -> EstimateOptions:
        """Return how kernel density estimates are fitted; ``options`` are the kernel and the bandwidth."""
        return EstimateOptions(self.dimension, self.training_recipe(), self.seed, self.progress, **options)

    @on_latest
    @without_autocast()
    def log_evidence(self, X: Any) -> Any:
        """Return the log density of the calibration set (in the first metric of a blend) at each row, (n,).

        Low values mark queries far from all calibration samples; :meth:`evidence` puts them on a scale from 0 to 1.
        """
        rows, kind = self._check_rows(X)
        return kind.give_back(self.model_.log_evidence(self.as_embeddings(rows)))

    @on_snapshot
    @without_autocast()
    def evidence(self, X: Any) -> Any:
        """Return the share of calibration samples that have less evidence than each row, (n,), from 0 to 1.

        A calibration sample has the log density of the others (of other groups) at it, in the first metric of a blend.
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
        other: Self = copy_with(self, prior=prior, model_=replace(self.model_, prior=checked))
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

    @property
    def first_estimate(self) -> KernelEstimate:
        """The kernel density estimate by which the evidence is measured."""
        estimate: KernelEstimate = self.model_
        return estimate

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
        refuse_unused_projection(projection, [part["projection"] for part in values.get("experts", [values])])
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
        get_recipe(self.recipe)
        check_updates(self.updates)
        self._check_projection()

    def _check_projection(self) -> None:
        check_learned_projection(self.projection, self.dimension)

    def _check_fit_data(
        self, rows: torch.Tensor, y: Any, embeddings: Any, labels: Any, train_groups: Any, **options: Any
    ) -> tuple[Samples, TrainingSet | None]:
        """Return the checked samples of a fit, and its training set; ``options`` are those of ``check_samples``."""
        columns, names = column_names(embeddings), getattr(self, "feature_names_in_", [])
        if columns and len(names) and columns != list(names):
            raise InvalidInputError("train_embeddings", "must have the columns of X, in the same order")
        given, logits = (embeddings, labels, train_groups), self.inputs == "logits"
        training = check_training_set(*given, rows, self.projection, columns=self.n_features_in_, logits=logits)
        if training is not None:
            training = replace(training, embeddings=self.as_embeddings(training.embeddings))
        known = known_labels(training, self.projection)
        samples = check_samples(self.as_embeddings(rows), y, known_labels=known, **options)
        check_at_least_two(samples.classes, type(self).__name__)
        return samples, training

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
            torch.from_numpy(rows.column("points.0")).to(like.device),
            rows.classes[codes],
            codes,
            rows.classes,
            relative_weights(rows.column("log_weights")),
            None if names is None else np.unique(names, return_inverse=True)[1].reshape(-1).astype(np.int64),
            None,
            np.arange(len(codes)),
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


def point_names(estimate: KernelEstimate) -> NDArray[Any]:
    """Return a name of each support point of a compressed estimate, in the original order, (n,).

    The weight of a centroid is the number of its samples, if these had equal weights. Points of other methods are
    samples, whose ids the estimate does not know.
    """
    support, compression = estimate.support, estimate.compression
    numbers = np.arange(len(support))
    if compression is None:
        return numbers
    if compression.method != "kmeans":
        return np.array([f"point #{number}" for number in numbers])
    weights = torch.ones(len(support)) if support.log_weights is None else support.log_weights.double().exp().cpu()
    counts = support.in_original_order(weights / weights.sum() * compression.n_samples).numpy()
    if np.abs(counts - counts.round()).max() > 1e-3 * counts.min():
        return np.array([f"centroid #{number}" for number in numbers])
    sizes = counts.round().astype(np.int64).tolist()
    return np.array([f"centroid of {size:,} sample{'s'[: size != 1]} #{place}" for place, size in enumerate(sizes)])


def without_samples() -> dict[str, Any]:
    """Return the fitted attributes of a calibrator whose support points are no samples."""
    return {"support_indices_": np.empty(0, dtype=np.int64), "ids_": None, "_records": None}
