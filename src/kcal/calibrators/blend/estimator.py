"""KCal blended with the network: its calibrated probabilities, its last layer refitted, and a kernel estimate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.calibrators.base import (
    EXAMPLE_ROWS,
    Tags,
    fitted,
)
from kcal.calibrators.blend.fitting import fit_blend
from kcal.calibrators.blend.model import BlendModel, LinearHead
from kcal.calibrators.fit_warnings import warn_fewer_than_classes, warn_missing_classes, warn_without_errors
from kcal.calibrators.kernel_calibrator import Fit, KernelCalibrator
from kcal.calibrators.logits import (
    check_logits,
    check_two_parts,
    columns_of,
    example_logits,
    lowest_unmasked,
    to_log_probs,
)
from kcal.calibrators.online import BandwidthRecord, SampleTable, bandwidth_record, check_updates, with_record
from kcal.calibrators.prior import check_prior
from kcal.errors import InvalidInputError, KcalWarning, warn, without_warnings
from kcal.kernels import sorted_support
from kcal.modes import with_gradients
from kcal.projection import UNTRAINED, FastRecipe, architecture_of, frozen_copy, project
from kcal.samples import MAX_FOLDS, Samples
from kcal.threads import threads_for
from kcal.validation import (
    ArrayKind,
    check_integer,
    check_labels,
    column_names,
    parameter,
    shown,
    warn_probabilities,
)


@dataclass(kw_only=True, eq=False, repr=False)
class KCalBlend(KernelCalibrator):
    """Calibrated probabilities from the network, its last layer refitted, and the calibration samples nearby.

    p = λ_1·pool + λ_2·f + λ_3·r + λ_4·d,   pool ∝ f^(w_f)·r^(w_r)·d'^(w_d)

    f is the network, averaged over the posterior of its temperature and corrected for classes that it predicts more
    or less often than they occur; r = softmax(b·z + Wᵀe + a) its last layer, refitted by ridge regression; d counts
    the calibration samples of each class near the embedding, beside a prior of β samples that agree with f; d' is d
    with a much smaller β. Exponents and shares are fitted on out-of-fold predictions. Few samples leave the network as
    it is; far from all samples d is f.

    Parameters
    ----------
    folds : int
        For the out-of-fold predictions of the refitted layer.
    head : nn.Linear, 1×1 convolution or pair of arrays, optional
        The network's last layer, or its weight, (n_classes, h), and bias, (n_classes,) or None. It computes the logits
        from the embeddings, so that ``fit`` and predictions take none: pipelines, ``cross_val_score`` and
        ``GridSearchCV`` work. It is copied by ``fit``, in any precision and from any device.
    representation : "logits" or "probabilities"
        What ``logits`` holds; it is never guessed.
    prior, seed, progress, updates
        As in :class:`KCal`; the probabilities assume ``frequencies_``.

    Attributes
    ----------
    classes_ : array
        Labels, in the order of the columns; with logits, of their columns.
    model_ : BlendModel
        The fitted model: everything that predictions need.
    weights_ : dict
        Exponents of the pool by expert: w_f ("network"), w_r ("refit") and w_d ("samples").
    shares_ : dict
        λ, of the pool and of each expert, by name.
    temperature_ : float
        Posterior mean of the network's temperature.
    bandwidth_, background_ : float
        b and β of the kernel estimate.
    bandwidth_history_ : tuple of BandwidthRecord
        Bandwidth at the fit, and at every later one that updates led to.
    frequencies_ : array, (n_classes,)
        Class frequencies that the probabilities assume: those of the calibration set and, with the weight of two
        samples, of the network's predictions.
    support_indices_ : array
        Rows of ``X`` that are support: those of positive weight.
    logit_names_in_ : array
        Names of the columns of the logits, if they were a table; otherwise empty.

    Examples
    --------
    >>> import kcal
    >>> example = kcal.load_example()
    >>> cal, test = example.calibration, example.test
    >>> blend = kcal.KCalBlend().fit(cal.embeddings, cal.labels, logits=cal.logits)
    >>> probs = blend.predict_proba(test.embeddings, logits=test.logits)
    >>> probs.shape == test.logits.shape
    True

    With the network's last layer it computes the logits:

    >>> blend = kcal.KCalBlend(head=example.network().head).fit(cal.embeddings, cal.labels)
    >>> probs = blend.predict_proba(test.embeddings)
    """

    inputs: ClassVar[str] = "both"
    method: ClassVar[str] = "kcal-blend"

    _model_class = BlendModel
    weights_ = fitted("weights")
    shares_ = fitted("shares")
    temperature_ = fitted("network.temperature")
    background_ = fitted("background")
    frequencies_ = fitted("frequencies")
    folds: int = parameter(5, check_integer, minimum=2, maximum=MAX_FOLDS)
    head: Any = None
    representation: str = "logits"

    @with_gradients()
    def fit(
        self,
        X: Any,
        y: Any,
        *,
        logits: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
        classes: Any = None,
        ids: Any = None,
    ) -> Self:
        """Fit to the calibration set.

        Parameters
        ----------
        X, y, groups, sample_weight, classes, ids
            As in :meth:`KCal.fit`. With logits, integers in ``y`` are columns, booleans the two of them; text needs
            ``classes``, all of them in the order of the columns, unless the logits are a table whose columns are the
            classes.
        logits : (n, n_classes) array, tensor or table, optional
            The network's logits for the rows of ``X``, unless a ``head`` computes them. Of two classes, (n,) or (n, 1)
            suffice: the log-odds of the second.
        """
        self._begin_fit()
        rows, _ = self._check_rows(X, fitting=True)
        head = None if self.head is None else LinearHead.from_layer(self.head, rows.shape[1])
        scores = self._check_logits(logits, rows, head, self.representation)
        if scores is not None:
            check_not_swapped(rows, scores, y)
            classes = columns_of(y, logits, scores.shape, classes)
        options = {"classes": classes, "groups": groups, "sample_weight": sample_weight, "ids": ids}
        samples = self._check_samples(rows, rows, y, logits=scores, **options)
        check_two_parts(samples)
        warn_calibration_set(samples)
        metric = "unit" if FastRecipe().takes_directions(rows.shape[1]) else "identity"
        module = frozen_copy(UNTRAINED[metric](), samples.embeddings)
        points = replace(samples, embeddings=project(module, samples.embeddings))
        model = self._fit_points(points, module, head, self.representation)
        self.logit_names_in_ = np.array(column_names(logits), dtype=object)
        self._fit, self._table = Fit.of(model, samples, record_of(model, samples, len(samples))), None
        return self

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
        """Add samples to the support. Without a fit before, this is :meth:`fit`.

        On the schedule of :class:`Updates` the next prediction fits everything else anew, as ``fit`` would. Between two
        fits it stays fixed, and the support grows. For this the directions of the embeddings, their lengths, labels,
        weights, groups, ids and logits of all samples are kept, in files too.

        Parameters
        ----------
        X, y, logits, groups, sample_weight
            New samples, as in :meth:`fit`. With logits or a head, labels are of the known classes.
        classes, ids
            As in :meth:`KCal.partial_fit`.
        """
        given = {"classes": classes, "ids": ids, "groups": groups, "sample_weight": sample_weight, "logits": logits}
        return self._add(X, y, **given) if self.__sklearn_is_fitted__() else self.fit(X, y, **given)

    @property
    def tags(self) -> Tags:
        """What the calibrator takes and offers: logits without a head; to predict, if it was fitted with them."""
        takes, needs = self.head is None, False
        if self.__sklearn_is_fitted__():
            model: Any = self._built().model
            needs = bool(model.has_logits) and model.head is None
        return replace(super().tags, takes_logits=takes, needs_logits=needs)

    def summary(self) -> dict[str, str]:
        """Return the main results of the fit for display, label to text."""
        model: Any = self._latest().model
        parts = {name: f"{share:.0%}" for name, share in model.shares.items()}
        powers = {name: f"{weight:.2f}" for name, weight in model.weights.items()}
        network = {} if model.has_logits else {"network": "none: fitted without logits"}
        return network | {
            "shares": ", ".join(f"{name} {text}" for name, text in parts.items()),
            "exponents of the pool": ", ".join(f"{name} {text}" for name, text in powers.items()),
            "temperature": f"{model.network.temperature:.3f}",
            "bandwidth": f"{model.bandwidth:.4g}",
            "out-of-fold log-loss": f"{float(model.loss):.4f}; the network alone: {float(model.network_loss):.4f}",
        }

    def example_inputs(self, n_rows: int = EXAMPLE_ROWS) -> dict[str, torch.Tensor]:
        """Return made-up rows like those of the calibration set and, if it was fitted with them, random logits."""
        rows = super().example_inputs(n_rows)
        if self.tags.needs_logits:
            model: Any = self.model_
            rows["logits"] = example_logits(n_rows, len(self.classes_), model.representation)
        return rows

    def _check_logits(
        self, logits: Any, rows: torch.Tensor, head: LinearHead | None, representation: str, **known: Any
    ) -> torch.Tensor | None:
        """Return the logits of rows, given or of the head, (n, n_classes); None without logits and head."""
        if head is not None:
            if logits is not None:
                raise InvalidInputError("logits", "must be left out: the head computes them")
            logits = head(rows)
        if logits is None:
            return None
        scores = check_logits(logits, len(rows), representation, **known)
        warn_probabilities(scores, representation)
        return scores

    def _check_inputs(self, fit: Fit, X: Any, logits: Any) -> tuple[torch.Tensor, torch.Tensor | None, ArrayKind]:
        rows, kind = self._check_rows(X)
        model: Any = fit.model
        if model.head is None and (logits is not None) != model.has_logits:
            expected = "are needed: this blend was fitted with logits; pass logits="
            unused = "must be left out: this blend was fitted without logits"
            raise InvalidInputError("logits", expected if logits is None else unused)
        known = {"n_columns": len(fit.classes), "names": self.logit_names_in_.tolist()}
        return rows, self._check_logits(logits, rows, model.head, model.representation, **known), kind

    @with_gradients()
    def _fit_points(
        self, samples: Samples, projection: torch.nn.Module, head: LinearHead | None, representation: str
    ) -> BlendModel:
        """Return the model of samples whose embeddings are projected."""
        prior = check_prior(self.prior, samples.classes)
        with threads_for(0):
            options: dict[str, Any] = {"folds": self.folds, "seed": self.seed, "prior": prior}
            return fit_blend(samples, projection, head, representation=representation, **options)

    # Updates

    def _check_new_classes(self, table: SampleTable, labels: NDArray[Any], name: str) -> None:
        new = labels[table.is_new(labels)].tolist()
        if new and self._built().model.has_logits:
            expected = f"must be one of the {len(table.classes):,} classes that the logits have columns for"
            raise InvalidInputError(name, expected, got=repr(new[0]))
        super()._check_new_classes(table, labels, name)

    def _rebuild(self, fit: Fit, samples: Samples, n_updates: int, *, search: bool) -> Fit:
        """Return the fit with a larger support or, where one is due, with everything fitted anew."""
        model, history = fit.model, fit.history
        is_due = check_updates(self.updates).is_due(history, n_updates, samples.classes_seen) and samples.n_parts > 1
        if is_due and (search or samples.n_classes != len(fit.classes)):  # the model has no entry for a new class
            given = model.projection, model.head, model.representation
            with without_warnings():  # a prediction is not the place for warnings of a fit
                model, is_due = self._fit_points(samples, *given), False
            history = with_record(history, record_of(model, samples, n_updates))
        else:
            model = model.with_support(sorted_support(samples))
            if samples.logits is not None:  # the lowest may have been that of a forgotten sample
                lowest = float(lowest_unmasked(to_log_probs(samples.logits, model.representation)))
                model = model.changed(min_log_prob=model.min_log_prob.clamp_min(lowest))
        return replace(fit, model=model, history=history, is_search_due=is_due)

    # Files and parameters

    def _stored_parameters(self) -> dict[str, Any]:
        return {**super()._stored_parameters(), "head": None}  # the model has it

    @classmethod
    def _read_parameters(cls, stored: dict[str, Any], model: Any) -> dict[str, Any]:
        head = model.head
        if head is not None:
            head = (head.weight.numpy().copy(), None if head.bias is None else head.bias.numpy().copy())
        return {**stored, "head": head}

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.head is not None and self.representation != "logits":
            expected = 'must be "logits" with a head, which computes logits'
            raise InvalidInputError("representation", expected, got=shown(self.representation))


def check_not_swapped(rows: torch.Tensor, scores: torch.Tensor, y: Any) -> None:
    """Raise if ``X`` looks like the logits, and the logits do not: by their columns, and by the labels they predict."""
    labels = check_labels(y, len(rows))
    seen = np.unique(labels)
    if scores.shape[1] == rows.shape[1] or not np.array_equal(seen, np.arange(rows.shape[1])):
        return
    right = [float((part.argmax(dim=1).cpu().numpy() == labels).mean()) for part in (rows, scores)]
    if right[0] > right[1]:
        expected = f"must have one column per class, {len(seen)} of them by the labels"
        remedy = "X and logits look swapped: pass the embeddings as X."
        raise InvalidInputError("logits", expected, got=f"{scores.shape[1]:,} columns", remedy=remedy)


def warn_calibration_set(samples: Samples) -> None:
    """Warn of samples that leave out what a blend needs, or that say little of it."""
    weights = samples.class_weights()
    if samples.logits is None:
        warn(
            "No logits were given: this blend knows nothing of the network. It is a kernel estimate, with a linear "
            "layer on the embeddings.",
            KcalWarning,
            remedy="Pass logits=, or the network's last layer as head=.",
        )
        warn_missing_classes(samples.classes, weights, "Or pass logits=.")
        return
    if np.count_nonzero(weights) == 1:
        warn_missing_classes(samples.classes, weights)
    warn_fewer_than_classes(len(samples), samples.n_classes)
    warn_without_errors(samples.logits, samples.codes)


def record_of(model: BlendModel, samples: Samples, n_updates: int) -> BandwidthRecord:
    """Return the bandwidth of a fit, with the out-of-fold loss of the blend."""
    metric = architecture_of(model.projection)
    return bandwidth_record(samples, n_updates, model.bandwidth, "search", float(model.loss), metric)
