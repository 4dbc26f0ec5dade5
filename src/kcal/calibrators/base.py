"""The contract of every calibrator: scikit-learn's conventions around one immutable torch module, ``model_``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from inspect import signature
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from kcal.calibrators.state import (
    CalibratorState,
    LoadArgumentError,
    below,
    decode_classes,
    encode_classes,
    from_json,
    to_json,
)
from kcal.errors import FileFormatError, InvalidInputError
from kcal.modes import without_autocast
from kcal.threads import map_blocks, small_operations
from kcal.validation import (
    ArrayKind,
    check_choice,
    check_labels,
    check_matrix,
    check_scores,
    check_seed,
    check_weights,
    checked_parameters,
    column_names,
    computing_dtype,
    kind_of,
    of_one_type,
)

REPRESENTATIONS = ("logits", "probabilities")
EXAMPLE_ROWS, MAX_EXAMPLE_ROWS = 64, 10**6
MAX_FEATURES = 10**7
"""Of a calibrator in a file: no number in it may make loading allocate much memory."""
MAX_BLOCK_ENTRIES = 2**17
"""Largest tensor of a block of predictions: bounds their memory for any number of rows."""

Tensors = Mapping[str, torch.Tensor]
REQUIRED: Any = object()
"""Default of what a model cannot do without."""


@contextmanager
def prediction_mode() -> Iterator[None]:
    """Predict without gradients, in the precision of the tensors, each operation on one thread.

    On a busy machine threads wait long for each other.
    """
    with without_autocast(), small_operations(), torch.no_grad():
        yield


@dataclass(frozen=True)
class Field:
    """What a model is made of: an option that JSON can represent or, where the others are given, a tensor or module."""

    default: Any
    shape: tuple[int | str, ...] | None = None  # of a tensor
    dtype: torch.dtype | None = None
    restore: Callable[..., nn.Module] | None = None  # makes a module of its configuration and tensors

    @property
    def is_option(self) -> bool:
        """Whether it is an option."""
        return self.shape is None and self.restore is None


def option(default: Any = REQUIRED) -> Any:
    """Declare a value of a model that JSON can represent; an integer is a length, too."""
    return Field(default)


def submodule(restore: Callable[..., nn.Module], *, optional: bool = False) -> Any:
    """Declare a module within a model; ``restore`` takes what ``from_state`` of a model takes."""
    return Field(None if optional else REQUIRED, restore=restore)


def buffer(*shape: int | str, dtype: torch.dtype | None = torch.float64, optional: bool = False) -> Any:
    """Declare a tensor of a model: lengths, or names such as "n_classes"; none for a number. A dtype of None is any.

    Lengths of the same name are equal in the whole model, its parts included.
    """
    return Field(None if optional else REQUIRED, shape, dtype)


class CalibrationModel(nn.Module):
    """A fitted model: embeddings, (n, h), and logits, (n, n_classes), to log-probabilities, (n, n_classes).

    It is immutable: a new fit makes a new model. A class declares tensors, modules and options; its constructor takes
    them by name. The tensors are buffers, so that ``state_dict``, ``to``, copies and export are torch's own; ``config``
    is what JSON can represent. The precision of the buffers is part of the fit: ``half()`` and the like do not change
    it, ``to()`` changes the device only. The model stays in evaluation mode. Gradients flow to the inputs.
    """

    fields: ClassVar[dict[str, Field]] = {}
    """What a model of the class is made of, as :func:`option`, :func:`submodule` and :func:`buffer` declared it."""
    max_block_entries: ClassVar[int] = MAX_BLOCK_ENTRIES
    shares_blocks: ClassVar[bool] = True
    """Whether threads share the blocks of a prediction; otherwise they share the work inside a block."""
    holds_samples: bool = False
    """Whether a row of the calibration set would find itself in the model."""
    evidence_step: float = 0.0
    """Difference that one calibration sample more or less makes to the evidence, at most; 0 without evidence."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        declared = {name: entry for name, entry in vars(cls).items() if isinstance(entry, Field)}
        cls.fields = {**cls.fields, **declared}
        for name in declared:
            delattr(cls, name)  # the name is that of what an instance has

    def __init__(self, **values: Any) -> None:
        """Take what ``fields`` names, None for a default; lengths must agree, also with known ``sizes``."""
        super().__init__()
        self.training = False
        self.sizes: dict[str, int] = dict(values.pop("sizes", {}))
        if unknown := values.keys() - self.fields.keys():
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        for name, declared in self.fields.items():
            value = declared.default if values.get(name) is None else values[name]
            if value is REQUIRED:
                raise TypeError(f"{type(self).__name__} needs {name}")
            if declared.shape is not None:
                self.register_buffer(name, None if value is None else self._checked(name, declared, value))
                continue
            setattr(self, name, value)
            known = value.sizes if isinstance(value, CalibrationModel) else {name: value} if type(value) is int else {}
            for size, found in known.items():
                self._check_size(name, size, found)

    def _checked(self, name: str, declared: Field, value: Any) -> torch.Tensor:
        """Return a buffer of the declared type and lengths; numbers and arrays become tensors of that type."""
        shape, dtype = declared.shape or (), declared.dtype
        tensor = value if isinstance(value, torch.Tensor) else torch.as_tensor(value, dtype=dtype)
        if tensor.ndim != len(shape) or (dtype or tensor.dtype) != tensor.dtype:
            raise ValueError(f"{name} is of shape {tuple(tensor.shape)} and type {tensor.dtype}")
        for size, found in zip(shape, tensor.shape, strict=True):
            self._check_size(name, size, found)
        return tensor.detach().contiguous()

    def _check_size(self, name: str, size: int | str, found: int) -> None:
        """Raise if a length is not the declared one, or not the one of the same name elsewhere."""
        expected = self.sizes.setdefault(size, found) if isinstance(size, str) else size
        if found != expected:
            raise ValueError(f"{name} has a length of {found}, not of {expected}")

    @classmethod
    def from_state(cls, config: Mapping[str, Any], tensors: Tensors, **modules: nn.Module) -> Self:
        """Return the model of a ``config`` and a ``state_dict``; names, lengths and types must match.

        ``modules`` are parts that a configuration cannot describe, such as a projection of the caller's own.
        """
        parts = {name: declared.restore for name, declared in cls.fields.items() if declared.restore is not None}
        values = {**config, **{name: tensors[name] for name in tensors if name.partition(".")[0] not in parts}}
        for name, restore in parts.items():
            if (own := below(tensors, f"{name}.")) or name in config:
                values[name] = restore(config.get(name), own, **modules)
        try:
            return cls(**values)
        except (TypeError, ValueError) as error:
            raise FileFormatError(f"the stored tensors do not fit the model: {error}") from error

    @property
    def config(self) -> dict[str, Any]:
        """What builds the model beside tensors: its options, those of its parts, and the lengths of its buffers."""
        parts = {name: part.config for name, part in self.named_children() if isinstance(part, CalibrationModel)}
        return {"sizes": self.sizes, **self.options, **parts}

    @property
    def options(self) -> dict[str, Any]:
        """The values that JSON can represent, by name."""
        return {name: getattr(self, name) for name, declared in self.fields.items() if declared.is_option}

    def changed(self, **values: Any) -> Self:
        """Return a model with other buffers, on the device of this one, parts or options; the rest is shared."""
        device = self.device
        moved = {name: value.to(device) for name, value in values.items() if isinstance(value, torch.Tensor)}
        return type(self)(**{name: getattr(self, name) for name in self.fields} | values | moved)

    @abstractmethod
    def forward(self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return log-probabilities, (n, n_classes); None for an input that the method ignores."""

    def with_evidence(
        self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities, (n, n_classes), and the evidence of each row, (n,)."""
        raise InvalidInputError("model", "must be of a method with evidence", remedy="Use KCal or KCalBlend.")

    def evidence_of(self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return the evidence of each row, (n,), from the inputs that it depends on."""
        return self.with_evidence(embeddings, logits)[1]

    def prepare(self) -> None:
        """Compute what all predictions share, before they are compiled or exported."""

    def entries_per_row(self) -> int:
        """Return the size of the largest tensor of the formula, per row: blocks of predictions bound it."""
        return 1

    def summary(self) -> dict[str, str]:
        """Return the main results of the fit for display, label to text."""
        return {}

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return next((buffer.device for buffer in self.buffers()), torch.device("cpu"))

    def in_blocks(self, embeddings: torch.Tensor | None, logits: torch.Tensor | None) -> torch.Tensor:
        """Return log-probabilities, (n, n_classes), computed in blocks of rows on the device of the model."""
        device = self.device
        inputs = [None if rows is None else rows.to(device) for rows in (embeddings, logits)]
        n_rows = next(len(rows) for rows in inputs if rows is not None)
        n_columns = 1 if logits is None else logits.shape[-1]
        step = max(1, self.max_block_entries // max(self.entries_per_row(), n_columns))
        if n_rows <= step:
            return self(*inputs)  # type: ignore[no-any-return]
        blocks = [slice(start, start + step) for start in range(0, n_rows, step)]

        def predict(block: slice) -> torch.Tensor:
            return self(*(None if rows is None else rows[block] for rows in inputs))  # type: ignore[no-any-return]

        return torch.cat(map_blocks(predict, blocks, device) if self.shares_blocks else list(map(predict, blocks)))

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode: nothing here is trained."""
        return super().train(False)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """Move buffers as ``fn`` does, without changing their precision; parts, which others share, stay with them."""
        with torch.inference_mode(False):
            self._modules.update({name: deepcopy(part) for name, part in self._modules.items()})

        def move(tensor: torch.Tensor) -> torch.Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(move, recurse)  # type: ignore[no-untyped-call]


def load_tensors(module: nn.Module, tensors: Tensors) -> nn.Module:
    """Return a module, frozen, with stored tensors in place of its own; names, shapes and types must match.

    A module of sizes out of a file is built on the meta device, where they allocate nothing.
    """
    for name, own in module.state_dict().items():
        if name in tensors and tensors[name].dtype != own.dtype:
            raise FileFormatError(f"the stored {name} is of {tensors[name].dtype}, not of {own.dtype}.")
    try:
        module.load_state_dict(dict(tensors), strict=True, assign=True)
    except RuntimeError as error:
        raise FileFormatError(f"the stored tensors do not fit the model: {error}") from error
    return module.eval().requires_grad_(False)


def accuracy_of(predicted: NDArray[Any], y: Any, sample_weight: Any = None) -> float:
    """Return the share of predicted labels that are those of ``y``; raise if they cannot be compared."""
    labels = check_labels(y, len(predicted))
    if (labels.dtype.kind == "U") != (predicted.dtype.kind == "U"):
        expected = "must be text or numbers, as the labels of the fit"
        raise InvalidInputError("y", expected, got=repr(labels[0].item()))
    weights = None if sample_weight is None else check_weights(sample_weight, len(labels))
    return float(np.average(np.equal(*of_one_type([labels, predicted])), weights=weights))


class PredictionModule(nn.Module):
    """Calibrated probabilities as a torch module, for networks, ``torch.compile`` and exports.

    It equals ``predict_proba`` of the calibrator that it was made from, with any number of rows. Nothing is checked but
    that no result is NaN, unless it is compiled. Inputs of half precision are computed in float32, and so is their
    result.
    """

    def __init__(self, model: CalibrationModel) -> None:
        super().__init__()
        model.prepare()
        self.model = model
        self.training = False

    def forward(self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated probabilities, (n, n_classes); None for what the method does not use."""
        with self._limits():
            return _without_nan(torch.exp(self.model(embeddings, logits))).to(_dtype_of(embeddings, logits))

    def evidence(self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return the share of calibration samples with less evidence than each row, (n,)."""
        with self._limits():
            return self.model.evidence_of(embeddings, logits).to(_dtype_of(embeddings, logits))

    def with_evidence(
        self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return calibrated probabilities, (n, n_classes), and evidence, (n,)."""
        with self._limits():
            log_probs, evidence = self.model.with_evidence(embeddings, logits)
            dtype = _dtype_of(embeddings, logits)
            return _without_nan(torch.exp(log_probs)).to(dtype), evidence.to(dtype)

    def _limits(self) -> AbstractContextManager[None]:
        """Return the limit of threads of a prediction; a compiled one has none."""
        return nullcontext() if torch.compiler.is_compiling() else small_operations()

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode: nothing here is trained."""
        return super().train(False)


def _without_nan(probs: torch.Tensor) -> torch.Tensor:
    """Return probabilities; raise if one is NaN, where a program may look at numbers."""
    if torch.compiler.is_compiling():
        return probs
    is_nan = False
    with suppress(RuntimeError):  # of a transformation such as vmap, under which it may not
        is_nan = bool(probs.isnan().any())
    if is_nan:
        expected = "and logits must be finite, without NaN or inf"
        raise InvalidInputError("embeddings", expected, got="some that lead to NaN")
    return probs


def _dtype_of(embeddings: torch.Tensor | None, logits: torch.Tensor | None) -> torch.dtype:
    rows = logits if embeddings is None else embeddings
    if rows is None:
        raise InvalidInputError("embeddings", "or logits are needed by this module", got="None")
    return computing_dtype(rows.dtype)


class Prediction(NamedTuple):
    """What a calibrator predicts for checked inputs."""

    log_probs: torch.Tensor  # (n, n_classes)
    classes: NDArray[Any]  # of the columns
    kind: ArrayKind  # of the array that the caller passed


@dataclass(frozen=True, kw_only=True)
class Tags:
    """What a calibrator takes and offers, with its present parameters and, if it is fitted, its fit.

    The command line, the benchmark, deployment and the service ask here; none asks for a class.
    """

    fit_options: frozenset[str] = frozenset()
    """Keywords of ``fit``."""
    takes_logits: bool = False
    """Whether ``fit`` takes the logits of the classifier."""
    needs_logits: bool = False
    """Whether predictions need them; before the fit, whether the fit does."""
    uses_training_set: bool = False
    """Whether ``fit`` learns from the classifier's training set."""
    recipe: Any = None
    """How a projection of the training set would be learned, with all numbers; None for methods without one."""
    preserves_order: bool = False
    """Whether classes always rank as their logits do, equal ones equal: accuracy and top-k accuracy cannot change."""
    has_evidence: bool = False
    """Whether ``evidence`` and ``log_evidence`` tell how close a query is to the calibration set."""
    has_prior: bool = False
    """Whether ``prior_`` has the class frequencies that predictions assume."""
    has_explanations: bool = False
    """Whether ``explain`` names the most influential calibration samples of a prediction."""
    learns_online: bool = False
    """Whether samples may be added, corrected and forgotten after the fit: ``partial_fit``, ``correct``, ``forget``."""
    has_support: bool = False
    """Whether it has a support of points, which ``compress`` makes smaller and ``to`` moves to a device."""


class Calibrator(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Base class of all calibrators.

    ``__init__`` stores, ``fit`` computes, fitted names end in ``_``. ``fit`` builds one immutable torch module,
    ``model_``, and assigns it with ``classes_`` at its end. Predictions read the fitted attributes only, never the
    parameters: what ``set_params`` changes takes effect at the next fit or update. A fit that fails leaves the
    calibrator unfitted, also if it had been fitted before. Columns of the probabilities follow ``classes_``.

    ``sample_weight`` means relative importance, for every method: weights are scaled to mean 1 over the samples of
    positive weight, equal weights equal no weights, and a weight of 0 leaves a sample out.
    """

    inputs: ClassVar[str]
    """What ``X`` holds: "embeddings", "logits" or, with the logits beside it, "both"."""
    method: ClassVar[str]
    """Name of the method in saved files."""
    _model_class: ClassVar[type[CalibrationModel]]
    """Class of ``model_``."""
    _tags: ClassVar[Tags] = Tags()
    """What all calibrators of the class offer; ``tags`` adds what depends on parameters and the fit."""
    _private_results: ClassVar[tuple[str, ...]] = ("_fingerprints",)
    """Fitted attributes that users do not see; other private ones are scikit-learn's own."""
    seed: int
    model_: CalibrationModel
    classes_: NDArray[Any]
    n_features_in_: int
    logit_names_in_: NDArray[np.object_]  # of a method on embeddings and logits
    _fingerprints: NDArray[np.uint64]  # of the rows of the fit, ascending

    @abstractmethod
    def fit(self, X: Any, y: Any) -> Self:
        """Fit to the rows ``X`` and labels ``y`` of the calibration set; ``tags.fit_options`` names the keywords."""

    @prediction_mode()
    def predict_proba(self, X: Any, *, logits: Any = None) -> Any:
        """Return calibrated probabilities, (n, n_classes); every row sums to 1.

        ``logits`` are for a method that takes both embeddings and logits, if it was fitted with them.
        """
        log_probs, _, kind = self._predict(X, logits)
        return kind.restore(torch.exp(log_probs.to(kind.dtype)))  # equal logarithms have equal probabilities

    @prediction_mode()
    def predict_log_proba(self, X: Any, *, logits: Any = None) -> Any:
        """Return the logarithms of the calibrated probabilities, (n, n_classes)."""
        log_probs, _, kind = self._predict(X, logits)
        log_probs = log_probs.to(kind.dtype)
        return kind.restore(log_probs.masked_fill(torch.exp(log_probs) == 1, 0.0))

    @prediction_mode()
    def predict(self, X: Any, *, logits: Any = None) -> NDArray[Any]:
        """Return the most probable class of each row, with the type of ``classes_``."""
        log_probs, classes, _ = self._predict(X, logits)
        labels: NDArray[Any] = classes[log_probs.argmax(dim=1).cpu().numpy()]
        return labels

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, logits: Any = None) -> float:
        """Return the accuracy, as scikit-learn's classifiers do."""
        return accuracy_of(self.predict(X, logits=logits), y, sample_weight)

    def as_module(self) -> PredictionModule:
        """Return the prediction as a torch module, with a copy of its tensors.

        ``module(embeddings, logits)`` are the probabilities of :meth:`predict_proba`, (n, n_classes), of tensors (n, h)
        and (n, n_classes); what the method does not use may be None, or left out. The rows are not checked. The module
        can be compiled, exported (``torch.export``, ONNX) and made part of a network. With ``tags.has_evidence``,
        ``module.evidence(embeddings, logits)`` is the evidence.
        """
        check_is_fitted(self)
        return PredictionModule(deepcopy(self.model_))

    def summary(self) -> dict[str, str]:
        """Return the main results of the fit for display, label to text."""
        check_is_fitted(self)
        return self.model_.summary()

    @property
    def tags(self) -> Tags:
        """What the calibrator takes and offers."""
        keywords = signature(self.fit).parameters.values()
        options = frozenset(keyword.name for keyword in keywords if keyword.kind is keyword.KEYWORD_ONLY)
        takes_logits = self.inputs != "embeddings"
        return replace(self._tags, fit_options=options, takes_logits=takes_logits, needs_logits=takes_logits)

    @abstractmethod
    def example_inputs(self, n_rows: int = EXAMPLE_ROWS) -> dict[str, torch.Tensor]:
        """Return made-up rows, "embeddings", "logits" or both, as predictions take: an exported file can be verified.

        They are the same at every call.
        """

    def _state(self) -> CalibratorState:
        """Return the content of the fitted calibrator."""
        check_is_fitted(self)
        self._check_parameters()
        values = {
            "classes": encode_classes(self.classes_),
            "n_features": self.n_features_in_,
            "feature_names": getattr(self, "feature_names_in_", np.array([])).tolist(),
            "model": self.model_.config,
        }
        tensors = {f"model.{name}": tensor for name, tensor in self.model_.state_dict().items()}
        tensors["fingerprints"] = torch.from_numpy(self._fingerprints.view(np.int64))
        if self.inputs == "both":
            values["logit_names"] = self.logit_names_in_
        own_values, own_tensors = self._extra_state()
        values, parameters = to_json(values | own_values), to_json(self._stored_parameters())
        return CalibratorState(self.method, parameters, values, tensors | own_tensors)

    @classmethod
    def _from_state(cls, state: CalibratorState, **parts: Any) -> Self:
        """Return the fitted calibrator that ``state`` describes; ``parts`` are arguments of :func:`kcal.load`."""
        for name in () if cls._tags.has_support else parts:
            raise LoadArgumentError(name, f"is not used by a saved {cls.__name__}", remedy="Leave it out.")
        model = cls._model_class.from_state(state.values["model"], below(state.tensors, "model."), **parts)
        calibrator = cls(**cls._read_parameters(from_json(state.parameters), model))
        calibrator._check_parameters()
        classes = decode_classes(state.values["classes"])
        calibrator._restore_features(state, model, classes)
        calibrator._restore_fit(state, model, classes)
        return calibrator

    def _stored_parameters(self) -> dict[str, Any]:
        """Return the parameters, in a form that :func:`to_json` takes."""
        return dict(self.get_params(deep=False))

    @classmethod
    def _read_parameters(cls, stored: dict[str, Any], model: Any) -> dict[str, Any]:
        """Return the parameters that ``_stored_parameters`` returned."""
        return stored

    def _extra_state(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Return what else a file has: values for :func:`to_json`, and tensors."""
        return {}, {}

    def _restore_fit(self, state: CalibratorState, model: Any, classes: NDArray[Any]) -> None:
        """Set the results of the fit, from a file."""
        self._fingerprints = np.sort(state.tensors["fingerprints"].numpy().view(np.uint64))
        self.model_, self.classes_ = model, classes

    def _restore_features(self, state: CalibratorState, model: CalibrationModel, classes: NDArray[Any]) -> None:
        """Set number and names of the features, from a file; they and the classes must be those of its model."""
        n_features, names = state.values["n_features"], state.values["feature_names"]
        prints = state.tensors["fingerprints"]
        n_taken = model.sizes.get("n_features", n_features)
        if n_features != n_taken and (n_features, n_taken) != (1, 2):  # one column may be logits of two classes
            raise FileFormatError(f"{n_features} features are stored for a model of {n_taken}.")
        if len(classes) != model.sizes.get("n_classes", len(classes)):
            raise FileFormatError("the stored classes do not fit the model.")
        is_sound = type(n_features) is int and 1 <= n_features <= MAX_FEATURES and len(names) in (0, n_features)
        are_distinct = len(np.unique(classes)) == len(classes) >= 2
        if not (is_sound and are_distinct and prints.dtype == torch.int64 and prints.ndim == 1 and len(prints)):
            raise FileFormatError("the stored classes, features or fingerprints are damaged.")
        self.n_features_in_ = n_features
        if names:
            self.feature_names_in_ = np.array(names, dtype=object)
        if self.inputs == "both":
            self.logit_names_in_ = np.array(state.values["logit_names"], dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return "classes_" in vars(self)

    def _begin_fit(self) -> None:
        """Delete the results of an earlier fit and check the parameters; every ``fit`` begins here."""
        for name in [name for name in vars(self) if name.endswith("_") or name in self._private_results]:
            delattr(self, name)
        self._check_parameters()

    def _check_parameters(self) -> None:
        """Raise if a parameter is invalid; subclasses add theirs. Every fit and every load begins here."""
        check_seed(self.seed)
        if "representation" in (parameters := self.get_params(deep=False)):
            check_choice(parameters["representation"], "representation", REPRESENTATIONS)
        checked_parameters(self)

    @abstractmethod
    def _predict(self, X: Any, logits: Any) -> Prediction:
        """Return the prediction for inputs that are checked here."""

    def _check_rows(self, X: Any, *, fitting: bool = False) -> tuple[torch.Tensor, ArrayKind]:
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
            checked = check_scores(X, checked, self._representation(fitting=fitting))
        return checked, kind_of(X, checked)

    def _representation(self, *, fitting: bool = False) -> str:
        """Return what logits hold; of a method with such a parameter as it says, in a prediction as fitted."""
        return "logits"

    def _check_same_columns(self, table: Any, name: str) -> None:
        """Raise if a table has other columns than the rows of the fit."""
        given, known = column_names(table), list(getattr(self, "feature_names_in_", []))
        if given and known and given != known:
            raise InvalidInputError(name, "must have the columns of X, in the same order")

    def _raise_unused_logits(self, logits: Any) -> None:
        if logits is not None:
            expected = f"are not an argument of {type(self).__name__}"
            raise InvalidInputError("logits", expected, remedy="Leave them out.")

    def _check_column_names(self, X: Any, *, fitting: bool) -> None:
        """Store the names of the columns at a fit; raise if those of a query are others."""
        try:
            validate_data(self, X, reset=fitting, skip_check_array=True, ensure_2d=False)
        except ValueError as error:
            raise InvalidInputError("X", "must have the columns of the fit", remedy=str(error)) from error


def fitted(name: str) -> Any:
    """Declare a fitted attribute that is one of ``model_``, such as "weights"; tensors are returned as numpy arrays."""

    def read(calibrator: Calibrator) -> Any:
        value = attrgetter(name)(calibrator.model_)
        if not isinstance(value, torch.Tensor):
            return value
        return value.item() if value.ndim == 0 else value.cpu().numpy()

    return property(read)
