"""What KCal and its blend with the network share: a fit from embeddings, and a state with a projection."""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from sklearn.utils.validation import check_is_fitted
from torch import nn

from kcal.calibrators.base import EXAMPLE_ROWS, Calibrator, CalibratorState, check_at_least_two, refuse_extra
from kcal.calibrators.kcal.compression import CompressionOptions, FindSize, check_target
from kcal.calibrators.kcal.example_rows import example_rows
from kcal.calibrators.kcal.learning import EstimateOptions
from kcal.calibrators.kcal.model import KernelEstimate
from kcal.calibrators.kcal.parameters import check_learned_projection
from kcal.calibrators.kcal.samples import Samples, TrainingSet, check_samples, check_training_set, known_labels
from kcal.calibrators.kcal.state import read_parameters, refuse_unused_projection, stored_parameters
from kcal.calibrators.model_state import Stored, StoredModel, Tensors
from kcal.errors import InvalidInputError
from kcal.modes import without_autocast
from kcal.projection import Recipe, get_recipe, needs_training
from kcal.threads import threads_for
from kcal.validation import check_device, column_names


class EmbeddingCalibrator(Calibrator):
    """Base class of the methods with kernel density estimates over projected embeddings.

    A method names its ``model_class`` and adds what it stores beside the model to ``_model_state`` and ``_restore``.
    """

    columns_are_classes: ClassVar[bool] = False
    has_evidence: ClassVar[bool] = True
    model_class: ClassVar[type[StoredModel]]
    """Class of ``model_``."""

    def __init__(
        self, *, projection: Any, dimension: int | str, recipe: Any, prior: Any, seed: int, progress: bool | None
    ) -> None:
        self.projection = projection
        self.dimension = dimension
        self.recipe = recipe
        self.prior = prior
        self.seed = seed
        self.progress = progress

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

    @without_autocast()
    def log_evidence(self, X: Any) -> Any:
        """Return the log density of the calibration set (in the first metric of a blend) at each row, (n,).

        Low values mark queries far from all calibration samples; :meth:`evidence` puts them on a scale from 0 to 1.
        """
        rows, kind = self._check_rows(X)
        return kind.give_back(self.model_.log_evidence(self.as_embeddings(rows)))

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
        result = copy(self)
        for name, value in attributes.items():
            setattr(result, name, value)
        return result

    @abstractmethod
    def _compressed(self, find_size: FindSize, options: CompressionOptions, groups: Any) -> dict[str, Any]:
        """Return the fitted attributes that a smaller support changes."""

    def to(self, device: str | torch.device) -> Self:
        """Move the fitted calibrator to a device; kernel sums then run there."""
        check_is_fitted(self)
        self.model_ = self.model_.to(check_device(device))
        return self

    def state(self) -> CalibratorState:
        """Return the content of the fitted calibrator."""
        check_is_fitted(self)
        self._check_parameters()
        values, tensors = self._model_state()
        return self._state(stored_parameters(self.get_params(deep=False), self.classes_), values, **tensors)

    def _model_state(self) -> tuple[dict[str, Any], Tensors]:
        values, tensors = self.model_.to_state()
        return values, tensors

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
        return cls._restore(calibrator, state)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        get_recipe(self.recipe)
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
