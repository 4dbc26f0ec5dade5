"""KCal blended with the network: its calibrated probabilities, its last layer refitted, and a kernel estimate."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import nn

from kcal.calibrators.base import EXAMPLE_ROWS, CalibratorState, check_at_least_two, example_logits
from kcal.calibrators.blend.attribution import attribute_blend
from kcal.calibrators.blend.fitting import fit_blend
from kcal.calibrators.blend.head import LinearHead, check_logit_names, check_logits
from kcal.calibrators.blend.live import LiveBlend, bandwidth_record
from kcal.calibrators.blend.model import BlendModel
from kcal.calibrators.blend.module import BlendModule
from kcal.calibrators.fit_warnings import warn_of_known_rows, warn_of_missing_classes, warn_without_errors
from kcal.calibrators.kcal.attribution import Attribution
from kcal.calibrators.kcal.compression import CompressionOptions, FindSize, compress_estimate
from kcal.calibrators.kcal.embedding_base import without_samples
from kcal.calibrators.kcal.model import KernelEstimate
from kcal.calibrators.logit_base import encode_columns, fitted, to_log_probs
from kcal.calibrators.model_state import Tensors
from kcal.calibrators.online.records import SampleRecords
from kcal.calibrators.online.snapshots import on_snapshot
from kcal.calibrators.prior import check_prior
from kcal.errors import InvalidInputError
from kcal.modes import with_gradients
from kcal.projection import UNTRAINED, frozen_copy, project
from kcal.projection.recipes import FEATURES_OF_A_DIRECTION
from kcal.samples import MAX_FOLDS, Samples, check_samples
from kcal.threads import threads_for
from kcal.validation import ArrayKind, check_groups, check_integer, column_names, parameter, shown

BLOCK_ROWS = 4096


@dataclass(kw_only=True, eq=False, repr=False)
class KCalBlend(LiveBlend):
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
    group_efficiency_ : float
        Information of a sample relative to an independent one, estimated from the groups; 1 without groups.
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
    fit_options: ClassVar[frozenset[str]] = frozenset({"logits", "groups", "sample_weight", "classes", "ids"})

    model_class = BlendModel
    weights_ = fitted("weights")
    shares_ = fitted("shares")
    temperature_ = fitted("formula.network.temperature")
    bandwidth_ = fitted("bandwidth")
    background_ = fitted("formula.background")
    group_efficiency_ = fitted("formula.group_efficiency")
    frequencies_ = fitted("frequencies")
    folds: int = parameter(5, check_integer, minimum=2, maximum=MAX_FOLDS)
    head: Any = None
    representation: str = "logits"
    logit_names_in_: NDArray[np.object_] = field(init=False)

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
        head = None if self.head is None else LinearHead.of(self.head, rows.shape[1])
        scores = check_logits(logits, rows, self.representation, head)
        if scores is not None:
            classes = encode_columns(y, logits, scores.shape, classes)[1]
        options = {"classes": classes, "groups": groups, "sample_weight": sample_weight, "ids": ids}
        samples = check_samples(rows, y, **options)
        check_at_least_two(samples.classes, type(self).__name__)
        prior = check_prior(self.prior, samples.classes)
        samples = samples.select(samples.counted)
        if samples.n_parts < 2:
            name, unit = ("X", "samples") if groups is None else ("groups", "groups")
            raise InvalidInputError(name, f"must hold at least two {unit} of positive weight", got="1")
        if scores is None:
            warn_of_missing_classes(samples.classes, samples.class_weights(), "Or pass logits=.")
        else:
            scores = scores[samples.indices]
            warn_without_errors(scores, samples.codes)
        module = frozen_copy(UNTRAINED[metric_of(rows.shape[1])](), samples.embeddings)
        with threads_for(samples.embeddings.numel() * len(samples.classes)):
            model = self._fit_points(samples, project(module, samples.embeddings), scores, module)
            model = model.with_reference(samples.embeddings, samples.keys())
        prints = self._remember(rows[samples.indices])
        self._remember_samples(prints, samples, groups, sample_weight, scores)
        self.support_indices_, self.ids_ = samples.indices, samples.ids
        self.bandwidth_history_ = (bandwidth_record(model, samples, len(samples.codes)),)
        self.classes_, self.logit_names_in_ = samples.classes, np.array(column_names(logits), dtype=object)
        self.model_ = model.with_formula(representation=self.representation, prior=prior, head=head)
        return self

    def _fit_points(
        self, samples: Samples, points: torch.Tensor, scores: torch.Tensor | None, projection: nn.Module
    ) -> BlendModel:
        log_probs = None if scores is None else to_log_probs(scores, self.representation)
        metric = metric_of(points.shape[1])
        return fit_blend(samples, points, log_probs, projection, metric, folds=self.folds, seed=self.seed)

    def _compressed(self, find_size: FindSize, options: CompressionOptions, groups: Any) -> dict[str, Any]:
        keys: NDArray[np.int64] | None = None
        if groups is not None:
            keys = check_groups(groups, len(self.model_.estimate.support))
        elif self._records is not None and self._records.group_codes is not None:
            keys = self._records.group_codes.numpy()
        estimate, _ = compress_estimate(self.model_.estimate, keys, find_size, options)
        unchanged = estimate is self.model_.estimate
        return {} if unchanged else {"model_": replace(self.model_, estimate=estimate), **without_samples()}

    @on_snapshot
    def as_module(self) -> BlendModule:
        """Return the prediction as a torch module of embeddings and, if it was fitted with them, logits."""
        check_is_fitted(self)
        return BlendModule(self.model_)

    @on_snapshot
    def example_inputs(self, n_rows: int = EXAMPLE_ROWS) -> dict[str, torch.Tensor]:
        """Return made-up rows like those of the calibration set and, if it was fitted with them, random logits."""
        rows = super().example_inputs(n_rows)
        if self.needs_logits_:
            rows["logits"] = example_logits(n_rows, len(self.classes_), self.model_.formula.representation)
        return rows

    @property
    def first_estimate(self) -> KernelEstimate:
        """The kernel density estimate by which the evidence is measured."""
        return self.model_.estimate

    @property
    def needs_logits_(self) -> bool:
        """Whether it was fitted with logits, and so needs them to predict."""
        check_is_fitted(self)
        return self.model_.formula.has_logits and self.model_.formula.head is None

    @property
    def uses_logits(self) -> bool:
        """Whether ``fit``, with the present parameters, takes logits: without a head."""
        return self.head is None

    @on_snapshot
    def summary(self) -> dict[str, str]:
        """Return the main results of the fit for display, label to text."""
        check_is_fitted(self)
        formula = self.model_.formula
        parts = {name: f"{share:.0%}" for name, share in self.shares_.items()}
        powers = {name: f"{weight:.2f}" for name, weight in self.weights_.items()}
        return {
            "shares": ", ".join(f"{name} {text}" for name, text in parts.items()),
            "exponents of the pool": ", ".join(f"{name} {text}" for name, text in powers.items()),
            "temperature": f"{self.temperature_:.3f}",
            "bandwidth": f"{self.bandwidth_:.4g}",
            "out-of-fold log-loss": f"{formula.loss:.4f}; the network alone: {formula.network_loss:.4f}",
        }

    def _model_state(self) -> tuple[dict[str, Any], Tensors]:
        values, tensors = super()._model_state()
        return values | {"logit_names": self.logit_names_in_}, tensors

    def _stored_records(self) -> SampleRecords | None:
        records = super()._stored_records()
        if records is None or self._lives or self.updates is not None:
            return records
        return replace(records, scores=None)

    def _restore(self, state: CalibratorState) -> Self:
        self.logit_names_in_ = np.array(state.values["logit_names"], dtype=object)
        self._lives = self._records is not None and self._records.scores is not None
        if (head := self.model_.formula.head) is not None:
            self.head = (head.weight.numpy().copy(), None if head.bias is None else head.bias.numpy().copy())
        return super()._restore(state)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.head is not None and self.representation != "logits":
            expected = 'must be "logits" with a head, which computes logits'
            raise InvalidInputError("representation", expected, got=shown(self.representation))

    def _check_inputs(self, X: Any, logits: Any) -> tuple[tuple[torch.Tensor, torch.Tensor | None], ArrayKind]:
        rows, kind = self._check_rows(X)
        formula = self.model_.formula
        if (logits is not None) != self.needs_logits_ and formula.head is None:
            expected = "are needed: this blend was fitted with logits; pass logits="
            unused = "must be left out: this blend was fitted without logits"
            raise InvalidInputError("logits", expected if logits is None else unused)
        check_logit_names(logits, self.logit_names_in_.tolist())
        n_classes = len(self.classes_)
        return (rows, check_logits(logits, rows, formula.representation, formula.head, n_classes=n_classes)), kind

    def _attribute(self, inputs: Any, block: slice, probs: torch.Tensor, k: int) -> Attribution:
        rows, scores = inputs
        return attribute_blend(self.model_, rows[block], None if scores is None else scores[block], probs, k)

    def _log_probabilities(self, inputs: tuple[torch.Tensor, torch.Tensor | None]) -> torch.Tensor:
        rows, scores = inputs
        warn_of_known_rows(self._knows(rows))
        blocks = [slice(start, start + BLOCK_ROWS) for start in range(0, len(rows), BLOCK_ROWS)]
        parts = [self.model_.log_probs(rows[block], None if scores is None else scores[block]) for block in blocks]
        return torch.cat(parts)


def metric_of(n_features: int) -> str:
    """Return the metric of embeddings: their directions or, if they are short, the embeddings themselves."""
    return "unit" if n_features >= FEATURES_OF_A_DIRECTION else "identity"
