"""The contract that every calibrator keeps: scikit-learn's conventions, numpy or torch in and out, a state to save."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted, validate_data

from kcal.calibrators.modules import PredictionModule
from kcal.errors import FileFormatError, InvalidInputError
from kcal.modes import without_autocast
from kcal.validation import check_choice, check_matrix, check_scores, check_seed, kind_of, row_fingerprints

REPRESENTATIONS = ("logits", "probabilities")
EXAMPLE_ROWS = 64
FITTED_PRIVATELY = ("_fingerprints", "_records", "_stream", "_compares_lengths", "_lives")
"""Results of a fit whose names do not end in an underscore."""


class LoadArgumentError(InvalidInputError):
    """Raise for an argument of :func:`kcal.load` beside the path that is wrong or missing; the file is sound."""


@dataclass(frozen=True)
class CalibratorState:
    """The content of a fitted calibrator: parameters and values that JSON can represent, and tensors."""

    method: str
    parameters: dict[str, Any]
    values: dict[str, Any]
    tensors: dict[str, torch.Tensor] = field(repr=False)


class Calibrator(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Base class of all calibrators.

    ``__init__`` stores, ``fit`` computes, fitted names end in ``_``. ``fit`` builds one frozen dataclass, ``model_``,
    and assigns it with ``classes_`` at its end. Predictions read the fitted attributes only, never the parameters: what
    ``set_params`` changes takes effect at the next fit. A fit that fails leaves the calibrator unfitted, also if it had
    been fitted before. Columns of the probabilities follow ``classes_``.

    ``sample_weight`` means relative importance, for every method: weights are scaled to mean 1 over the samples of
    positive weight, equal weights equal no weights, and a weight of 0 leaves a sample out.
    """

    inputs: ClassVar[str]
    """What ``X`` holds: "embeddings", "logits" or "both"."""
    method: ClassVar[str]
    """Name of the method in saved files."""
    fit_options: ClassVar[frozenset[str]] = frozenset({"sample_weight", "classes"})
    """Keywords of ``fit``."""
    preserves_order: ClassVar[bool] = False
    """Whether classes always rank as their logits do, equal ones equal: accuracy and top-k accuracy cannot change."""
    has_evidence: ClassVar[bool] = False
    """Whether ``evidence`` and ``log_evidence`` tell how close a query is to the calibration set."""
    has_explanations: ClassVar[bool] = False
    """Whether ``explain`` names the calibration samples that carry a prediction."""
    learns_online: ClassVar[bool] = False
    """Whether samples may be added, corrected and forgotten after the fit: ``partial_fit``, ``correct``, ``forget``."""
    columns_are_classes: ClassVar[bool] = True
    """Whether ``X`` has one column per class, as logits have and embeddings have not."""
    seed: int
    representation: str  # of the methods that take logits
    model_: Any
    classes_: NDArray[Any]
    n_features_in_: int
    _fingerprints: NDArray[np.uint64]  # of the rows of the fit, ascending

    @abstractmethod
    def fit(self, X: Any, y: Any) -> Self:
        """Fit to the rows ``X`` and labels ``y`` of the calibration set; ``fit_options`` names the keywords."""

    def _probabilities(self, inputs: Any) -> torch.Tensor:
        """Return probabilities, (n, n_classes), of checked inputs; a method defines these or their logarithms."""
        return torch.exp(self._log_probabilities(inputs))

    def _log_probabilities(self, inputs: Any) -> torch.Tensor:
        """Return log probabilities, (n, n_classes), of checked inputs."""
        return torch.log(self._probabilities(inputs))

    @abstractmethod
    def as_module(self) -> PredictionModule:
        """Return the prediction as a torch module, with a copy of its tensors.

        ``module(embeddings, logits)`` are the probabilities of :meth:`predict_proba`, (n, n_classes), of tensors (n, h)
        and (n, n_classes); what the method does not use may be None, or left out. The rows are not checked. The module
        can be compiled, exported (``torch.export``, ONNX) and made part of a network. With ``has_evidence``,
        ``module.evidence(embeddings, logits)`` is the evidence.
        """

    @abstractmethod
    def state(self) -> CalibratorState:
        """Return the content of the fitted calibrator."""

    @classmethod
    @abstractmethod
    def from_state(cls, state: CalibratorState, **extra: Any) -> Self:
        """Return the fitted calibrator that ``state`` describes."""

    @abstractmethod
    def summary(self) -> dict[str, str]:
        """Return the main results of the fit for display, label to text."""

    def example_inputs(self, n_rows: int = EXAMPLE_ROWS) -> dict[str, torch.Tensor]:
        """Return made-up rows like those of the calibration set, "embeddings", "logits" or both, as predictions take.

        An exported file can be verified with them. They are the same at every call.
        """
        check_is_fitted(self)
        return {"logits": example_logits(n_rows, self.n_features_in_, getattr(self, "representation_", "logits"))}

    @property
    def needs_logits_(self) -> bool:
        """Whether predictions need the logits of the classifier."""
        return self.inputs == "logits"

    @property
    def uses_training_set(self) -> bool:
        """Whether ``fit``, with the present parameters, learns from the classifier's training set."""
        return False

    @property
    def uses_logits(self) -> bool:
        """Whether ``fit``, with the present parameters, takes the logits of the classifier."""
        return self.inputs != "embeddings"

    def was_fitted_on(self, X: Any) -> NDArray[np.bool_]:
        """Return for each row whether the calibrator was fitted on it, (n,); do not evaluate on such rows."""
        rows, _ = self._check_rows(X)
        return self._knows(rows)

    @without_autocast()
    def predict_proba(self, X: Any, *, logits: Any = None) -> Any:
        """Return calibrated probabilities, (n, n_classes); every row sums to 1.

        ``logits`` are for a method that takes both embeddings and logits, if it was fitted with them.
        """
        inputs, kind = self._check_inputs(X, logits)
        return kind.give_back(self._probabilities(inputs))

    @without_autocast()
    def predict_log_proba(self, X: Any, *, logits: Any = None) -> Any:
        """Return the logarithms of the calibrated probabilities, (n, n_classes)."""
        inputs, kind = self._check_inputs(X, logits)
        log_probs = self._log_probabilities(inputs).to(kind.dtype)
        return kind.give_back(log_probs.masked_fill(torch.exp(log_probs) == 1, 0.0))

    @without_autocast()
    def predict(self, X: Any, *, logits: Any = None) -> NDArray[Any]:
        """Return the most probable class of each row, with the type of ``classes_``."""
        inputs, _ = self._check_inputs(X, logits)
        labels: NDArray[Any] = self.classes_[self._probabilities(inputs).argmax(dim=1).cpu().numpy()]
        return labels

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, logits: Any = None) -> float:
        """Return the accuracy, as scikit-learn's classifiers do."""
        return float(accuracy_score(y, self.predict(X, logits=logits), sample_weight=sample_weight))

    def __sklearn_is_fitted__(self) -> bool:
        return "classes_" in vars(self)

    def _begin_fit(self) -> None:
        """Delete the results of an earlier fit and check the parameters; every ``fit`` begins here."""
        for name in [name for name in vars(self) if name.endswith("_") or name in FITTED_PRIVATELY]:
            delattr(self, name)
        self._check_parameters()

    def _check_parameters(self) -> None:
        """Raise if a parameter is invalid; subclasses add theirs. Every fit and every load begins here."""
        check_seed(self.seed)
        if "representation" in self.get_params(deep=False):
            check_choice(self.representation, "representation", REPRESENTATIONS)

    def _remember(self, rows: torch.Tensor) -> NDArray[np.uint64]:
        """Keep fingerprints of the rows of the fit, and return them in the order of the rows."""
        prints = row_fingerprints(rows)
        self._fingerprints = np.sort(prints)
        return prints

    def _knows(self, rows: torch.Tensor) -> NDArray[np.bool_]:
        prints = row_fingerprints(rows)
        places = np.searchsorted(self._fingerprints, prints).clip(max=len(self._fingerprints) - 1)
        known: NDArray[np.bool_] = self._fingerprints[places] == prints
        return known

    def _check_inputs(self, X: Any, logits: Any) -> tuple[Any, Any]:
        """Return the checked inputs of a prediction, by default the rows of ``X``, and the kind of ``X``."""
        if logits is not None:
            raise InvalidInputError("logits", f"are not an argument of {type(self).__name__}", remedy="Leave them out.")
        return self._check_rows(X)

    def _check_rows(self, X: Any, *, fitting: bool = False) -> tuple[torch.Tensor, Any]:
        """Check the rows of ``X``, and the number of their columns against that of the fit.

        Logits of one column, of a classifier with two classes, are returned as those of both.
        """
        if not fitting and not self.__sklearn_is_fitted__():  # asked first, since scikit-learn takes its time
            check_is_fitted(self)
        columns = None if fitting else self.n_features_in_
        logits = self.inputs == "logits"
        checked = check_matrix(X, "X", columns=columns, owner=type(self).__name__, logits=logits)
        if fitting:
            self.n_features_in_ = checked.shape[1]
        has_names = hasattr(X, "columns") or hasattr(self, "feature_names_in_")
        if not isinstance(X, torch.Tensor) and (fitting or has_names):
            self._check_column_names(X, fitting=fitting)
        if logits:
            representation = getattr(self, "representation" if fitting else "representation_", "logits")
            checked = check_scores(X, checked, representation)
        return checked, kind_of(X, checked)

    def _check_column_names(self, X: Any, *, fitting: bool) -> None:
        """Store the names of the columns at a fit; raise if those of a query are others."""
        try:
            validate_data(self, X, reset=fitting, skip_check_array=True, ensure_2d=False)
        except ValueError as error:
            raise InvalidInputError("X", "must have the columns of the fit", remedy=str(error)) from error

    def _state(self, parameters: dict[str, Any], values: dict[str, Any], /, **tensors: torch.Tensor) -> CalibratorState:
        """Return the state: the part that all calibrators share and, from the arguments, the method's own.

        numpy's numbers, as a grid search sets them, become Python's, which JSON can represent.
        """
        shared = {
            "classes": encode_classes(self.classes_),
            "n_features": self.n_features_in_,
            "feature_names": getattr(self, "feature_names_in_", np.array([])).tolist(),
        }
        prints = torch.from_numpy(self._fingerprints.view(np.int64))
        tensors = {"fingerprints": prints, **tensors}
        return CalibratorState(self.method, plain(parameters), plain(shared | values), tensors)

    def _restore(self, state: CalibratorState) -> Self:
        """Check the parameters and set the fitted attributes that all calibrators share."""
        self._check_parameters()
        values, prints = state.values, state.tensors["fingerprints"]
        names, classes, n_features = values["feature_names"], decode_classes(values["classes"]), values["n_features"]
        if names and not (len(names) == n_features and all(isinstance(name, str) for name in names)):
            raise FileFormatError("the stored feature names are damaged.")
        unique = len(np.unique(classes)) == len(classes)
        if type(n_features) is not int or n_features < 1 or len(classes) < 2 or not unique:
            raise FileFormatError("the stored classes or features are damaged.")
        if self.columns_are_classes and n_features != len(classes) and (n_features, len(classes)) != (1, 2):
            raise FileFormatError(f"{n_features} columns are stored for {len(classes)} classes.")
        if prints.dtype != torch.int64 or prints.ndim != 1 or len(prints) == 0:
            raise FileFormatError("the stored fingerprints are damaged.")
        if names:
            self.feature_names_in_ = np.array(names, dtype=object)
        self.classes_, self.n_features_in_ = classes, n_features
        self._fingerprints = np.sort(prints.numpy().view(np.uint64))
        return self


def example_logits(n_rows: int, n_columns: int, representation: str) -> torch.Tensor:
    """Return random logits, (n_rows, n_columns), or probabilities; one column is that of the second of two classes."""
    logits = 3.0 * torch.randn(n_rows, n_columns, generator=torch.Generator().manual_seed(0))
    if representation == "logits":
        return logits
    return torch.sigmoid(logits) if n_columns == 1 else torch.softmax(logits, dim=1)


def check_at_least_two(classes: NDArray[Any], owner: str) -> None:
    """Raise if there is only one class: there is nothing to calibrate."""
    if len(classes) < 2:
        raise InvalidInputError(
            "classes",
            f"must be at least two for {owner}",
            got=f"1 class, {classes.tolist()[0]!r}",
            remedy="Pass classes= with every class of the problem if the calibration set holds only one of them.",
        )


def refuse_extra(kind: type[Calibrator], extra: dict[str, Any]) -> None:
    """Raise if :func:`kcal.load` was given an argument that the method does not use."""
    for name in extra:
        raise LoadArgumentError(name, f"is not used by a saved {kind.__name__}", remedy="Leave it out.")


def plain(value: Any) -> Any:
    """Return ``value`` with Python's numbers and lists in place of numpy's numbers, arrays and tuples."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, dict):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value


def encode_classes(classes: NDArray[Any]) -> dict[str, Any]:
    """Return class labels in a form that JSON can represent."""
    if classes.dtype.kind not in "biufU":
        raise InvalidInputError(
            "classes", "must be integers, floats, booleans or strings to be saved", got=f"dtype {classes.dtype}"
        )
    return {"dtype": classes.dtype.str, "labels": classes.tolist()}


def decode_classes(stored: dict[str, Any]) -> NDArray[Any]:
    """Return the class labels that :func:`encode_classes` wrote."""
    dtype, labels = np.dtype(stored["dtype"]), stored["labels"]
    if dtype.kind not in "biufU" or not isinstance(labels, list):
        raise FileFormatError(f"the stored labels are of dtype {dtype}, which kcal does not write.")
    classes = np.array(labels, dtype=dtype)
    if classes.ndim != 1 or (dtype.kind == "f" and not np.isfinite(classes).all()):
        raise FileFormatError("the stored labels are damaged: one finite value per class is expected.")
    return classes
