"""The contract that every calibrator keeps: scikit-learn's habits, numpy or torch in and out, a state of its own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from kcal.calibrators.logits import check_representation
from kcal.errors import FileFormatError, InvalidInputError
from kcal.validation import check_matrix, check_seed, kind_of, row_fingerprints

LONGEST_LABEL = 1_000_000
"""Bytes of a label in a file; more is no label."""
WORDS = ("representation", "form", "maps", "binning", "training")
"""Parameters that are one word each, whichever method has them."""


class LoadArgumentError(InvalidInputError):
    """What :func:`kcal.load` was given beside the file is wrong or missing; the file is sound."""


@dataclass(frozen=True)
class CalibratorState:
    """What a fitted calibrator is made of: parameters and values that JSON can hold, and tensors."""

    method: str
    parameters: dict[str, Any]
    values: dict[str, Any]
    tensors: dict[str, torch.Tensor] = field(repr=False)


class Calibrator(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Base of all calibrators.

    ``__init__`` stores, ``fit`` computes. ``inputs`` says what ``X`` holds: "embeddings", "logits" or "both".
    Columns of the probabilities follow ``classes_``.
    """

    inputs: ClassVar[str]
    method: ClassVar[str]
    """Name under which a saved calibrator is found again."""
    preserves_order: ClassVar[bool] = False
    """Whether classes always rank as their logits do, equal ones equal: accuracy and top-k accuracy cannot change."""
    columns_are_classes: ClassVar[bool] = True
    """Whether ``X`` has one column a class, as logits have and embeddings have not."""
    classes_: NDArray[Any]
    n_features_in_: int
    _fingerprints: NDArray[np.uint64]  # of the rows that it was fitted on, ascending

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "fit" in vars(cls):
            cls.fit = _whole_or_not_at_all(cls.fit)  # type: ignore[method-assign]

    @abstractmethod
    def fit(self, X: Any, y: Any) -> Self:
        """Learn from the rows ``X`` and labels ``y`` of the calibration set; methods add keywords of their own."""

    def _probabilities(self, rows: torch.Tensor) -> torch.Tensor:
        """Return probabilities, (n, n_classes), of checked rows; a method gives these or their logarithms."""
        return torch.exp(self._log_probabilities(rows))

    def _log_probabilities(self, rows: torch.Tensor) -> torch.Tensor:
        """Return log probabilities, (n, n_classes), of checked rows."""
        return torch.log(self._probabilities(rows))

    @abstractmethod
    def state(self) -> CalibratorState:
        """Return what the fitted calibrator is made of."""

    @classmethod
    @abstractmethod
    def from_state(cls, state: CalibratorState, **extra: Any) -> Self:
        """Return the fitted calibrator that ``state`` describes."""

    def was_fitted_on(self, X: Any) -> NDArray[np.bool_]:
        """Say of each row whether the calibrator was fitted on it, (n,); such rows must not be evaluated on."""
        rows, _ = self._check_rows(X)
        return self._knows(rows)

    def predict_proba(self, X: Any) -> Any:
        """Return calibrated probabilities, (n, n_classes); every row sums to 1."""
        rows, kind = self._check_rows(X)
        return kind.give_back(self._probabilities(rows))

    def predict_log_proba(self, X: Any) -> Any:
        """Return the logarithms of the calibrated probabilities, (n, n_classes)."""
        rows, kind = self._check_rows(X)
        logarithms = self._log_probabilities(rows).to(kind.dtype)
        return kind.give_back(logarithms.masked_fill(torch.exp(logarithms) == 1, 0.0))

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each row, in the kind of ``classes_``."""
        rows, _ = self._check_rows(X)
        labels: NDArray[Any] = self.classes_[self._probabilities(rows).argmax(dim=1).cpu().numpy()]
        return labels

    def _remember(self, rows: torch.Tensor) -> None:
        """Keep fingerprints of the rows that the calibrator is fitted on."""
        self._fingerprints = np.sort(row_fingerprints(rows))

    def _knows(self, rows: torch.Tensor) -> NDArray[np.bool_]:
        prints = row_fingerprints(rows)
        places = np.searchsorted(self._fingerprints, prints).clip(max=len(self._fingerprints) - 1)
        known: NDArray[np.bool_] = self._fingerprints[places] == prints
        return known

    def _state(self, parameters: dict[str, Any], values: dict[str, Any], **tensors: torch.Tensor) -> CalibratorState:
        """Return the state: what all calibrators share, and what is the method's own.

        Numbers of numpy, as a search over parameters gives them, become those of Python, which JSON can hold.
        """
        shared = {
            "classes": encode_classes(self.classes_),
            "n_features": self.n_features_in_,
            "feature_names": getattr(self, "feature_names_in_", np.array([])).tolist(),
        }
        prints = torch.from_numpy(self._fingerprints.view(np.int64))
        tensors = {"fingerprints": prints, **tensors}
        return CalibratorState(self.method, plain(parameters), plain(shared | values), tensors)

    def _check_shared_parameters(self) -> None:
        """Refuse a seed that is none, and what is no word where one is meant; every fit and every load begins here."""
        parameters = self.get_params(deep=False)
        check_seed(parameters.get("seed", 0))
        for name in WORDS:
            if not isinstance(parameters.get(name, ""), str):
                raise InvalidInputError(f"{name} must be one word, as text; got {parameters[name]!r}.")
        if "representation" in parameters:
            check_representation(parameters["representation"])

    def _restore(self, state: CalibratorState) -> Self:
        """Put back what all calibrators share."""
        self._check_shared_parameters()
        values, prints = state.values, state.tensors["fingerprints"]
        names = values["feature_names"]
        self.classes_, self.n_features_in_ = decode_classes(values["classes"]), values["n_features"]
        if names:
            self.feature_names_in_ = np.array(names, dtype=object)
        if names and not (len(names) == self.n_features_in_ and all(isinstance(name, str) for name in names)):
            raise FileFormatError("the stored names of the features are damaged.")
        unique = len(np.unique(self.classes_)) == len(self.classes_)
        if type(self.n_features_in_) is not int or self.n_features_in_ < 1 or len(self.classes_) < 2 or not unique:
            raise FileFormatError("the stored classes or features are damaged.")
        if self.columns_are_classes and self.n_features_in_ != len(self.classes_):
            raise FileFormatError(
                "the stored classes are not as many as the columns: "
                f"{self.n_features_in_} columns are stored for {len(self.classes_)} classes."
            )
        if prints.dtype != torch.int64 or prints.ndim != 1 or len(prints) == 0:
            raise FileFormatError("the stored fingerprints are damaged.")
        self._fingerprints = np.sort(prints.numpy().view(np.uint64))
        return self

    def _check_rows(self, X: Any, *, fitting: bool = False) -> tuple[torch.Tensor, Any]:
        """Check the rows of ``X``, and their number of columns against what ``fit`` saw."""
        if not fitting:
            check_is_fitted(self)
        name = type(self).__name__
        if isinstance(X, torch.Tensor):
            checked = check_matrix(X, "X", columns=None if fitting else self.n_features_in_, owner=name)
            if fitting:
                self.n_features_in_ = checked.shape[1]
        else:
            checked = check_matrix(X, "X")
            validate_data(self, X, reset=fitting, skip_check_array=True)
        return checked, kind_of(X, checked)


def _whole_or_not_at_all(fit: Callable[..., Any]) -> Callable[..., Any]:
    """Make a fit that fails leave the calibrator unfitted, not half of what it was and half of what it was to be.

    It also begins every fit with the check of the parameters that calibrators share.
    """

    @wraps(fit)
    def whole(self: Calibrator, *values: Any, **options: Any) -> Any:
        try:
            self._check_shared_parameters()
            return fit(self, *values, **options)
        except BaseException:
            for name in vars(self).keys() - self.get_params(deep=False).keys():
                delattr(self, name)
            raise

    return whole


def check_at_least_two(classes: NDArray[Any], owner: str) -> None:
    """Refuse a problem of one class: there is nothing to calibrate."""
    if len(classes) < 2:
        raise InvalidInputError(
            f"{owner} needs at least two classes; got 1 class, {classes.tolist()[0]!r}. Pass classes= with every class "
            "of the problem if the calibration set happens to hold only one."
        )


def refuse_extra(kind: type[Calibrator], extra: dict[str, Any]) -> None:
    """Refuse what a method needs nothing of when it is put together again."""
    if extra:
        raise LoadArgumentError(f"a saved {kind.__name__} takes no {', '.join(extra)}; leave it out.")


def plain(value: Any) -> Any:
    """Return ``value`` with Python's numbers, lists and dictionaries in place of numpy's numbers, arrays and tuples."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, dict):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value


def encode_classes(classes: NDArray[Any]) -> dict[str, Any]:
    """Return class labels as JSON can hold them."""
    if classes.dtype.kind not in "biufU":
        raise InvalidInputError(
            f"classes of dtype {classes.dtype} cannot be saved; use integers, floats, booleans or strings as labels."
        )
    return {"dtype": classes.dtype.str, "labels": classes.tolist()}


def decode_classes(stored: dict[str, Any]) -> NDArray[Any]:
    """Return the class labels that :func:`encode_classes` wrote."""
    dtype = np.dtype(stored["dtype"])
    if dtype.kind not in "biufU" or dtype.itemsize > LONGEST_LABEL:
        raise FileFormatError(f"stored labels are of dtype {dtype}, which kcal does not write.")
    labels = np.array(stored["labels"], dtype=dtype)
    if labels.ndim != 1 or (dtype.kind == "f" and not np.isfinite(labels).all()):
        raise FileFormatError("stored labels are damaged: one finite value each is expected.")
    return labels
