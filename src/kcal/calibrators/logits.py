"""What the methods on logits share: the border of ``fit``, the normal form of the inputs, predictions.

Logits become log-probabilities, log softmax(z) in float64, so that a constant added to a row changes nothing. A method
is a formula from log-probabilities to calibrated ones (:class:`LogitModel`) and a fit of its numbers. Some methods take
embeddings beside the logits.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log, log1p
from typing import Any, ClassVar, Self, dataclass_transform

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from kcal.calibrators.base import (
    EXAMPLE_ROWS,
    MAX_EXAMPLE_ROWS,
    REPRESENTATIONS,
    CalibrationModel,
    Calibrator,
    Prediction,
    option,
)
from kcal.calibrators.class_scores import sort_classes, unsort_classes
from kcal.calibrators.fit_warnings import warn_few_samples, warn_known_rows, warn_missing_classes, warn_without_errors
from kcal.calibrators.state import CalibratorState
from kcal.calibrators.temperature_prior import scaled_network
from kcal.errors import FileFormatError, InvalidInputError
from kcal.modes import with_gradients
from kcal.samples import Samples, check_samples
from kcal.threads import threads_for
from kcal.validation import (
    ALMOST_ZERO,
    check_choice,
    check_columns,
    check_integer,
    check_labels,
    check_matrix,
    check_scores,
    column_classes,
    column_names,
    row_fingerprints,
    unchecked_logits,
    warn_probabilities,
)

MASKED = -1e8
"""Log-probabilities of a class that is masked out are lower."""
LENGTHS = ("n_bins", "n_folds", "n_points")
"""Lengths that a summary shows."""
MAX_PENALTY = 1e12
MAX_BINS = 100_000


class LogitModel(CalibrationModel):
    """Base class of the models: a formula of the network's log-probabilities and, in some methods, of embeddings.

    With a ``network_share`` ν in the configuration the prediction is (1 − ν)·p + ν·softmax(z / T), p that of the
    method: a method without a prior of its own is pooled with the scaled network.
    """

    ignores_class_order: ClassVar[bool] = False
    """Whether permuting the classes permutes the log-probabilities to the last bit."""
    keeps_masks: ClassVar[bool] = False
    """Whether the formula itself gives a class that is masked out a probability of 0."""

    representation: str = option("logits")
    network_share: float = option(0.0)
    network_temperature: float = option(1.0)

    @abstractmethod
    def log_probs(self, log_probs: torch.Tensor, embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated log-probabilities, (n, n_classes), of the network's and of embeddings, (n, h), in float64.

        A formula without branches that depend on numbers: it is compiled and exported.
        """

    def forward(self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated log-probabilities, (n, n_classes), in float64."""
        rows = unchecked_logits(required(logits, "logits"), self.representation)
        log_probs = to_log_probs(rows, self.representation, ignore_order=self.ignores_class_order)
        own = self.log_probs(log_probs, None if embeddings is None else embeddings.double())
        if not self.keeps_masks:
            own = without_masked(own, log_probs)
        if not self.network_share:
            return own
        descending, order = sort_classes(log_probs)
        scaled = torch.log_softmax(descending / self.network_temperature, dim=1)
        parts = [log1p(-self.network_share) + own.gather(1, order), log(self.network_share) + scaled]
        return unsort_classes(torch.logsumexp(torch.stack(parts), dim=0), order)

    def summary(self) -> dict[str, str]:
        """Return the numbers of the model, its options and the part of the network in it, for display."""
        ranges = {name for name, entry in self.fields.items() if set(entry.shape or ()) <= {"n_classes", 3}}
        entries: dict[str, Any] = dict(self.named_buffers())
        entries = {name: value for name, value in entries.items() if value.ndim == 0 or name in ranges}
        entries |= {name: self.sizes[name] for name in LENGTHS if name in self.sizes} | self.options
        texts = {name.rpartition(".")[2].removeprefix("n_"): _show(value) for name, value in entries.items()}
        share, temperature = texts.pop("network_share"), texts.pop("network_temperature")
        if self.network_share:
            texts["network"] = f"{share} of the prediction, at temperature {temperature}"
        return {name.replace("_", " "): text for name, text in texts.items() if name != "representation"}


def _show(value: Any) -> str:
    """Return a number, the entries of a short vector, or the range of a longer one or of a matrix, for display."""
    if isinstance(value, torch.Tensor) and value.numel() > 3:
        return f"{float(value.min()):.4g} to {float(value.max()):.4g}"
    numbers = value.ravel().tolist() if isinstance(value, torch.Tensor) else [value]
    return ", ".join(f"{number:.4g}" if isinstance(number, float) else str(number) for number in numbers)


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
@dataclass(kw_only=True, eq=False, repr=False)
class LogitCalibrator(Calibrator):
    """Base class of the methods on logits, or on embeddings and logits.

    A method is a dataclass: its parameters are fields, and it has a ``_model_class`` that ``_fit_model`` fits.
    """

    inputs: ClassVar[str] = "logits"
    _model_class: ClassVar[type[LogitModel]]
    _pools_network: ClassVar[bool] = False
    """Whether predictions are pooled with the scaled network, because the method itself has no prior."""
    representation: str = "logits"
    seed: int = 0
    model_: Any = field(init=False)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        dataclass(cls, kw_only=True, eq=False, repr=False)

    def fit(self, X: Any, y: Any, *, sample_weight: Any = None, classes: Any = None) -> Self:
        """Fit to the calibration set.

        Parameters
        ----------
        X : (n, n_classes) array, tensor or table
            Logits, or probabilities with ``representation="probabilities"``; a logit of −∞ is a class that is masked
            out. Of two classes, (n,) or (n, 1) suffice: the log-odds or the probability of the second.
        y : (n,) array
            Labels: integers are columns of ``X``, booleans the two of them. Text needs ``classes``, unless ``X`` is
            a table whose columns are the classes.
        sample_weight : (n,) array, optional
            Relative importance of the samples; a factor common to all changes nothing, 0 leaves a sample out.
        classes : sequence, optional
            The label of every column, in order.
        """
        return self._fit(X, y, sample_weight=sample_weight, classes=classes)

    @with_gradients()
    def _fit(
        self,
        X: Any,
        y: Any,
        *,
        logits: Any = None,
        classes: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
        **options: Any,
    ) -> Self:
        """Check the data and fit; ``options`` are what ``_fit_model`` takes beside samples."""
        self._begin_fit()
        rows, _ = self._check_rows(X, fitting=True)
        table, scores = (X, rows) if self.inputs == "logits" else (logits, self._check_logits(logits, rows))
        warn_probabilities(scores, self.representation)
        log_probs = to_log_probs(scores, self.representation, ignore_order=self._model_class.ignores_class_order)
        labels = columns_of(y, table, log_probs.shape, classes)
        embeddings = None if self.inputs == "logits" else rows.cpu()
        given = {"groups": groups, "sample_weight": sample_weight}
        samples = check_samples(embeddings, y, logits=log_probs.cpu(), classes=labels, **given)
        samples = samples.select(samples.counted)  # a weight of 0 leaves a sample out
        if self.inputs == "both":
            check_two_parts(samples)
        warn_without_errors(samples.logits, samples.codes)
        warn_few_samples(len(samples), self.method)
        if self._fits_each_class:
            warn_missing_classes(labels, samples.class_weights())
        size = samples.logits.numel() * (log_probs.shape[1] if embeddings is None else embeddings.shape[1])
        with threads_for(size):
            model = self._fit_model(samples, **options)
            network = scaled_network(samples.logits, samples.codes, samples.weights) if self._pools_network else {}
        self._fingerprints = np.sort(row_fingerprints(rows if embeddings is None else samples.embeddings))
        if embeddings is not None:
            self.logit_names_in_ = np.array(column_names(logits), dtype=object)
        self.model_, self.classes_ = model.changed(representation=self.representation, **network), labels
        return self

    @abstractmethod
    def _fit_model(self, samples: Samples) -> LogitModel:
        """Return the model of samples of positive weight, whose ``logits`` are log-probabilities in float64."""

    @property
    def _fits_each_class(self) -> bool:
        """Whether parts of the model are fitted per class, so that a class without samples deserves a warning."""
        return False

    def example_inputs(self, n_rows: int = EXAMPLE_ROWS) -> dict[str, torch.Tensor]:
        """Return random logits and, for a method that takes them, random embeddings."""
        check_is_fitted(self)
        n_columns = self.n_features_in_ if self.inputs == "logits" else len(self.classes_)
        rows = {"logits": example_logits(n_rows, n_columns, self._representation())}
        if self.inputs == "both":
            rows["embeddings"] = torch.randn(n_rows, self.n_features_in_, generator=torch.Generator().manual_seed(0))
        return dict(sorted(rows.items()))

    def _predict(self, X: Any, logits: Any) -> Prediction:
        rows, kind = self._check_rows(X)
        model = self.model_
        if self.inputs == "logits":
            self._raise_unused_logits(logits)
            embeddings, scores = None, rows
        else:
            embeddings, scores = rows, self._check_logits(logits, rows, self.classes_)
            if model.holds_samples:
                warn_known_rows(self._fingerprints, rows)
        warn_probabilities(scores, model.representation)
        return Prediction(model.in_blocks(embeddings, scores), self.classes_, kind)

    def _check_logits(self, logits: Any, rows: torch.Tensor, classes: NDArray[Any] | None = None) -> torch.Tensor:
        """Return the checked logits of a method on both; ``classes`` are those of the fit, None at the fit itself."""
        if logits is None:
            raise InvalidInputError("logits", "are needed beside the embeddings", got="None", remedy="Pass logits=.")
        names = [] if classes is None else self.logit_names_in_.tolist()
        n_columns = None if classes is None else len(classes)
        representation = self._representation(fitting=classes is None)
        return check_logits(logits, len(rows), representation, n_columns=n_columns, names=names)

    def _representation(self, *, fitting: bool = False) -> str:
        return self.representation if fitting else self.model_.representation

    def _restore_fit(self, state: CalibratorState, model: LogitModel, classes: NDArray[Any]) -> None:
        n_columns = self.n_features_in_ if self.inputs == "logits" else len(classes)
        if n_columns != len(classes) and (n_columns, len(classes)) != (1, 2):
            raise FileFormatError(f"{n_columns} columns are stored for {len(classes)} classes.")
        check_choice(model.representation, "representation", REPRESENTATIONS)
        super()._restore_fit(state, model, classes)


def fit_with_embeddings(
    self: Any,
    X: Any,
    y: Any,
    *,
    logits: Any = None,
    groups: Any = None,
    sample_weight: Any = None,
    classes: Any = None,
) -> Any:
    """Fit to the calibration set.

    Parameters
    ----------
    X : (n, h) array, tensor or table
        Embeddings.
    y : (n,) array
        Labels: integers are columns of ``logits``, as in :meth:`TemperatureScaling.fit`.
    logits : (n, n_classes) array, tensor or table
        The network's logits for the rows of ``X``, or its probabilities with ``representation="probabilities"``.
    groups : (n,) array, optional
        Patients, speakers, sites: no sample is predicted from its own group when parameters are chosen.
    sample_weight, classes
        As in :meth:`TemperatureScaling.fit`.
    """
    return self._fit(X, y, logits=logits, groups=groups, sample_weight=sample_weight, classes=classes)


def to_log_probs(rows: torch.Tensor, representation: str, *, ignore_order: bool = False) -> torch.Tensor:
    """Return the log-softmax of logits, or the logarithm of probabilities, (n, n_classes), in float64.

    ``ignore_order`` adds up the classes of a row in descending order, so that their order plays no part.
    """
    if ignore_order:
        descending, order = sort_classes(rows)
        return unsort_classes(to_log_probs(descending, representation), order)
    scores = rows.double()
    return torch.log_softmax(scores if representation == "logits" else scores.clamp_min(ALMOST_ZERO).log(), dim=1)


def without_masked(log_probs: torch.Tensor, network: torch.Tensor) -> torch.Tensor:
    """Return log-probabilities, (n, n_classes), with −∞ for the classes that the network masks; the others sum to 1."""
    masked = network < MASKED
    visible = torch.log_softmax(log_probs.masked_fill(masked, -torch.inf), dim=1)
    return torch.where(masked.any(dim=1, keepdim=True), visible, log_probs)


def lowest_unmasked(log_probs: torch.Tensor) -> torch.Tensor:
    """Return the lowest log-probability of the classes that are not masked out."""
    return log_probs.masked_fill(log_probs < MASKED, 0.0).min()


def required(rows: torch.Tensor | None, name: str) -> torch.Tensor:
    """Return an input that a module cannot do without."""
    if rows is None:
        raise InvalidInputError(name, "are needed by this module", got="None")
    return rows


def check_two_parts(samples: Samples) -> None:
    """Raise if there are not two samples, or groups, of which one is predicted from the other."""
    if samples.n_parts < 2:
        name, unit = ("X", "samples") if samples.groups is None else ("groups", "groups")
        raise InvalidInputError(name, f"must hold at least two {unit} of positive weight", got=f"1 {unit[:-1]}")


def example_logits(n_rows: int, n_columns: int, representation: str) -> torch.Tensor:
    """Return random logits, (n_rows, n_columns), or probabilities; one column is that of the second of two classes."""
    check_integer(n_rows, "n_rows", minimum=1, maximum=MAX_EXAMPLE_ROWS)
    logits = 3.0 * torch.randn(n_rows, n_columns, generator=torch.Generator().manual_seed(0))
    if representation == "logits":
        return logits
    return torch.sigmoid(logits) if n_columns == 1 else torch.softmax(logits, dim=1)


def check_logits(
    logits: Any, n_rows: int, representation: str, *, n_columns: int | None = None, names: Sequence[str] = ()
) -> torch.Tensor:
    """Return the logits beside embeddings of ``n_rows`` rows, (n, n_classes), checked.

    ``n_columns`` and ``names`` are those of the columns at the fit, if they are known.
    """
    given = column_names(logits)
    if given and names and given != list(names):
        expected = f"must have the columns of the fit, in the same order: {', '.join(names)}"
        raise InvalidInputError("logits", expected, got=", ".join(given))
    scores = check_scores(logits, check_matrix(logits, "logits", logits=True), representation, "logits")
    if n_columns is not None and scores.shape[1] != n_columns:
        expected = f"must have one column for each of the {n_columns:,} classes of the fit"
        raise InvalidInputError("logits", expected, got=f"{scores.shape[1]:,} columns")
    if len(scores) != n_rows:
        expected = f"must have a row for each row of X, {n_rows:,} of them"
        raise InvalidInputError("logits", expected, got=f"{len(scores):,}")
    return scores


def columns_of(y: Any, table: Any, shape: torch.Size, classes: Any) -> NDArray[Any]:
    """Return the class of every column of logits of a ``shape`` that were given as ``table``, for labels ``y``.

    Without ``classes`` integers are column indices, booleans stand for the first and the second of two columns, and
    text is the name of a column of the table.
    """
    n_samples, n_columns = shape
    labels = check_labels(y, n_samples)
    is_column = n_columns == 2 and np.shape(table)[1:] in ((), (1,))
    more = "One column of logits is of two classes; of more, pass (n, n_classes) logits." if is_column else ""
    known = column_classes(table, labels, n_columns, classes, "y", more)
    if known is not None:
        return known
    kind = check_columns(labels, n_samples, n_columns, "y", more).dtype
    return np.arange(n_columns, dtype=kind if kind.kind in "bf" else np.int64)
