"""What methods on logits share: the border of ``fit``, the normal form of the inputs, the state."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from math import log, log1p
from operator import attrgetter
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from kcal.calibrators.base import REPRESENTATIONS, Calibrator, CalibratorState, refuse_extra
from kcal.calibrators.class_scores import network_log_probs, sort_classes, unsort_classes
from kcal.calibrators.fit_warnings import warn_of_missing_classes, warn_without_errors
from kcal.calibrators.model_state import LogitModel, Stored, StoredModel
from kcal.calibrators.modules import LogitModule
from kcal.calibrators.temperature_prior import scaled_network
from kcal.errors import FileFormatError, InvalidInputError
from kcal.modes import with_gradients
from kcal.threads import threads_for
from kcal.validation import (
    check_labels,
    check_weights,
    checked_parameters,
    collect_classes,
    encode_labels,
    refuse_where,
    require_two_columns,
    table_classes,
    warn_of_probabilities,
)

Codes = NDArray[np.int64]
Floats = NDArray[np.float64]

LARGEST_PENALTY = 1e12
MAX_BINS = 100_000
BLOCK_NUMBERS = 2**17
"""Largest size of a tensor in a block of predictions: bounds their memory for any number of rows."""

NAME_COLUMNS = "pass fit(..., classes=...) with the label of every column, in order."


@dataclass(frozen=True)
class NetworkPart(StoredModel):
    """The share ν of the scaled network in a prediction, and its temperature T."""

    network_share: float
    network_temperature: float


@dataclass(frozen=True)
class PooledModel(LogitModel):
    """(1 − ν)·p + ν·softmax(z / T), p the prediction of a method."""

    method: LogitModel
    network: NetworkPart

    def log_probs(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Return calibrated log probabilities, (n, n_classes)."""
        share, (descending, order) = self.network.network_share, sort_classes(log_probs)
        scaled = torch.log_softmax(descending / self.network.network_temperature, dim=1)
        own = self.method.log_probs(log_probs).gather(1, order)
        return unsort_classes(torch.logsumexp(torch.stack([log1p(-share) + own, log(share) + scaled]), dim=0), order)

    @property
    def numbers_per_score(self) -> int:
        """Size of the largest tensor of the formula, per class and row."""
        return self.method.numbers_per_score


@dataclass(kw_only=True, eq=False, repr=False)
class LogitCalibrator(Calibrator):
    """Base class of the methods on logits.

    A method declares its parameters as fields, names its ``model_class`` and fits in ``_fit_log_probs``. The rest is
    here: the checks of parameters and data, predictions by the frozen model, and the state, which is its fields.
    """

    inputs: ClassVar[str] = "logits"
    model_class: ClassVar[type[LogitModel]]
    """Class of ``model_``."""
    pools_network: ClassVar[bool] = False
    """Whether predictions are pooled with the scaled network, because the method itself has no prior."""
    ignores_class_order: ClassVar[bool] = False
    """Whether permuting the columns of ``X`` permutes the log probabilities to the last bit."""
    representation: str = "logits"
    seed: int = 0
    model_: LogitModel = field(init=False)
    representation_: str = field(init=False)
    network_: NetworkPart | None = field(init=False)

    @with_gradients()
    def fit(self, X: Any, y: Any, *, sample_weight: Any = None, classes: Any = None) -> Self:
        """Fit to the calibration set.

        Parameters
        ----------
        X : (n, n_classes) array, tensor or table
            Logits, or probabilities with ``representation="probabilities"``. Of two classes, (n,) or (n, 1) suffice:
            the log-odds or the probability of the second.
        y : (n,) array
            Labels: integers are columns of ``X``, truth values the two of them. Text needs ``classes``, unless ``X`` is
            a table whose columns are the classes.
        sample_weight : (n,) array, optional
            Relative importance of the samples; a factor common to all changes nothing, 0 leaves a sample out.
        classes : sequence, optional
            The label of every column, in order.
        """
        self._begin_fit()
        rows, _ = self._check_rows(X, fitting=True)
        warn_of_probabilities(rows, self.representation)
        log_probs = to_log_probs(rows, self.representation, ignore_order=self.ignores_class_order)
        codes, labels = encode_columns(y, X, log_probs.shape, classes)
        weights = np.ones(len(codes)) if sample_weight is None else check_weights(sample_weight, len(codes))
        if not weights.all():  # a weight of 0 leaves a sample out
            counted = np.flatnonzero(weights)
            log_probs, codes, weights = log_probs[torch.from_numpy(counted)], codes[counted], weights[counted]
        warn_without_errors(log_probs, codes)
        if self.fits_each_class:
            warn_of_missing_classes(labels, np.bincount(codes, minlength=len(labels)))
        with threads_for(log_probs.numel() * log_probs.shape[1]):
            model = self._fit_log_probs(log_probs, codes, weights)
            network = NetworkPart(*scaled_network(log_probs, codes, weights)) if self.pools_network else None
        self._remember(rows)
        self.model_, self.network_, self.representation_, self.classes_ = model, network, self.representation, labels
        return self

    @abstractmethod
    def _fit_log_probs(self, log_probs: torch.Tensor, codes: Codes, weights: Floats) -> LogitModel:
        """Return the model, from log probabilities (n, n_classes), columns of the labels and positive weights (n,)."""

    @property
    def fits_each_class(self) -> bool:
        """Whether parts of the model are fitted per class, so that a class without samples deserves a warning."""
        return False

    def _check_parameters(self) -> None:
        super()._check_parameters()
        checked_parameters(self)

    def summary(self) -> dict[str, str]:
        """Return the main results of the fit for display, label to text."""
        check_is_fitted(self)
        return self.model_.summary()

    def as_module(self) -> LogitModule:
        """Return the prediction as a torch module of logits."""
        check_is_fitted(self)
        return LogitModule(self._predictor(), self.representation_)

    def _predictor(self) -> LogitModel:
        """Return the model of predictions: that of the method or, where it has no prior, pooled with the network."""
        model = self.model_.prepare(len(self.classes_))
        return model if self.network_ is None else PooledModel(model, self.network_)

    def state(self) -> CalibratorState:
        """Return the content of the fitted calibrator."""
        check_is_fitted(self)
        self._check_parameters()
        values, tensors = self.model_.to_state()
        values |= {"representation": self.representation_}
        if self.network_ is not None:
            values |= self.network_.to_state()[0]
        return self._state(self.get_params(), values, **tensors)

    @classmethod
    def from_state(cls, state: CalibratorState, **extra: Any) -> Self:
        """Return the fitted calibrator that ``state`` describes."""
        refuse_extra(cls, extra)
        calibrator = cls(**state.parameters)
        cls._restore(calibrator, state)
        if state.values["representation"] not in REPRESENTATIONS:
            raise FileFormatError(f"the stored representation must be one of {REPRESENTATIONS}.")
        calibrator.representation_ = state.values["representation"]
        n_classes, n_features = len(calibrator.classes_), calibrator.n_features_in_
        stored = Stored(state.values, state.tensors, n_classes, n_features)
        calibrator.network_ = NetworkPart.from_state(stored) if cls.pools_network else None
        calibrator.model_ = cls.model_class.from_state(stored)
        return calibrator

    def _log_probabilities(self, inputs: torch.Tensor) -> torch.Tensor:
        warn_of_probabilities(inputs, self.representation_)
        log_probs = to_log_probs(inputs, self.representation_, ignore_order=self.ignores_class_order)
        n_classes = log_probs.shape[1]
        model = self._predictor()
        rows = max(1, BLOCK_NUMBERS // (model.numbers_per_score * n_classes))
        return torch.cat([model.log_probs(block) for block in torch.split(log_probs, rows)])


def fitted(name: str) -> Any:
    """Declare a fitted attribute that is one of ``model_``, such as "weights"; tensors are returned as numpy arrays."""

    def read(calibrator: LogitCalibrator) -> Any:
        value = attrgetter(name)(calibrator.model_)
        if isinstance(value, torch.Tensor):
            return value.numpy()
        is_ragged = isinstance(value, tuple) and isinstance(value[0], torch.Tensor)
        return [part.numpy() for part in value] if is_ragged else value

    return property(read)


def to_log_probs(rows: torch.Tensor, representation: str, *, ignore_order: bool = False) -> torch.Tensor:
    """Return log-softmax of the rows in float64 on the CPU, so that a constant added to a row changes nothing.

    ``ignore_order`` adds up the classes of a row in descending order, so that their order plays no part.
    """
    if ignore_order:
        descending, order = sort_classes(rows.cpu())
        return unsort_classes(to_log_probs(descending, representation), order)
    rows = rows.cpu().double()
    return network_log_probs(rows, representation)


def encode_columns(y: Any, table: Any, shape: torch.Size, classes: Any) -> tuple[Codes, NDArray[Any]]:
    """Return class codes and classes of logits of a ``shape`` that were given as ``table``.

    Integers are column indices, truth values stand for the first and the second of two columns. Text is one of
    ``classes`` or, without them, the name of a column of the table.
    """
    n_samples, n_columns = shape
    labels = check_labels(y, n_samples)
    if classes is None:
        classes = table_classes(table, labels)
    if classes is not None:
        known = collect_classes([], classes)
        if len(known) != n_columns:
            raise InvalidInputError(
                "classes", f"must name every column of the logits ({n_columns})", got=f"{len(known)} classes"
            )
    elif labels.dtype.kind == "b":
        require_two_columns(n_columns, "y")
        known = np.array([False, True])
    elif labels.dtype.kind in "iu":
        known = np.arange(n_columns)
        expected = f"must be column indices from 0 to {n_columns - 1}"
        remedy = f"Subtract 1 from labels that count from 1, or {NAME_COLUMNS}"
        refuse_where((labels < 0) | (labels >= n_columns), labels, "y", expected, remedy)
    else:
        raise InvalidInputError(
            "y",
            "must be column indices if classes are not given",
            got=f"labels of dtype {labels.dtype}",
            remedy=f"{NAME_COLUMNS[0].upper()}{NAME_COLUMNS[1:]}",
        )
    return encode_labels(labels, known, "y"), known
