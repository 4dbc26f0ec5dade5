"""KCal blended with the network: kernel density estimates in several metrics and bandwidths, pooled with its logits."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from kcal.calibrators.base import EXAMPLE_ROWS, CalibratorState, example_logits
from kcal.calibrators.blend.attribution import attribute_blend
from kcal.calibrators.blend.compression import compress_blend
from kcal.calibrators.blend.experts import Expert, at_best_bandwidth, check_factors, fit_experts
from kcal.calibrators.blend.fitting import fit_blend
from kcal.calibrators.blend.head import LinearHead, check_logit_names, check_logits
from kcal.calibrators.blend.live import LiveBlend, bandwidth_records
from kcal.calibrators.blend.model import BlendModel
from kcal.calibrators.blend.module import BlendModule
from kcal.calibrators.blend.network import NetworkFit, cross_fit_network
from kcal.calibrators.fit_warnings import (
    are_few,
    warn_of_few_samples,
    warn_of_known_rows,
    warn_of_missing_classes,
)
from kcal.calibrators.holdout import MAX_FOLDS
from kcal.calibrators.kcal.attribution import Attribution
from kcal.calibrators.kcal.compression import CompressionOptions, FindSize
from kcal.calibrators.kcal.embedding_base import without_samples
from kcal.calibrators.kcal.samples import Samples, TrainingSet, warn_of_shared_rows
from kcal.calibrators.logit_base import encode_columns, fitted, to_log_probs
from kcal.calibrators.model_state import Tensors
from kcal.calibrators.online.records import SampleRecords
from kcal.calibrators.online.snapshots import on_latest, on_snapshot
from kcal.calibrators.prior import check_prior
from kcal.errors import InvalidInputError
from kcal.kernels import SortedSupport
from kcal.modes import with_gradients
from kcal.projection import ARCHITECTURES, TrainedProjection
from kcal.threads import threads_for
from kcal.validation import (
    ArrayKind,
    check_choice,
    check_groups,
    check_integer,
    check_number,
    column_names,
    parameter,
    shown,
)

BLOCK_ROWS = 4096
MAX_SPREAD = 1e6
MIN_BACKGROUND = 1e-20
"""Smallest background that single precision can spread over classes, however rare."""
BACKGROUND = f'must be "cv" or a number from {MIN_BACKGROUND:g} to 1'


@dataclass(kw_only=True, eq=False, repr=False)
class KCalBlend(LiveBlend):
    """KCal that keeps the information of the network's logits.

    Kernel density estimates over the calibration set (of the embeddings' directions and, where there is a training
    set, of a learned projection, each at three bandwidths) are pooled with the network's calibrated probabilities. The
    weights are found by a convex solver on out-of-fold predictions (leave-one-out for the estimates, cross-fitted for
    the network). Where no calibration samples are near, the prediction falls back to the network or, without logits,
    to the class frequencies.

    Parameters
    ----------
    projection : "skip", "linear", None or TrainedProjection
        The learned metric; left out if there is no training set to learn it from, or if None.
    dimension, recipe
        Of the learned projection, as in :class:`KCal`.
    bandwidth_factors : sequence of float
        Bandwidths of each metric, in units of the one with the lowest leave-one-out loss. Powers of √2 are fastest.
    network_calibrator : "auto", "ts", "svs" or "sms"
        Calibration of the network: temperature scaling, and beside it structured vector or matrix scaling, always
        ("svs", "sms") or where cross-validation prefers it ("auto": the matrix, from 200 classes on the vector).
    bias : float
        Prior standard deviation of the bias of a class; 0 for none.
    background : "cv" or float
        Mass that is spread over the classes by their frequency, in units of the median mass at a calibration sample;
        "cv" takes the one of a few with the lowest loss. It bounds the confidence of an estimate.
    fallback_quantile : float
        Quantile of the calibration samples' log mass at which pool and fallback have equal shares; with less mass the
        fallback prevails. 0 for no fallback. A larger one makes predictions far from all classes more cautious, and
        others slightly worse.
    sharpness : float
        Prior standard deviation of the change of the log temperature with the entropy of the prediction; 0 for none.
    folds : int
        For the out-of-fold predictions of the network.
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
        Pool weight of each estimate and network calibrator, by name.
    bias_, background_, sharpness_ : array, (n_classes,), float and Sharpness
        Bias of each class, background mass, temperature by entropy.
    group_efficiency_ : float
        Information of a sample relative to an independent one, estimated from the groups; 1 without groups.
    bandwidths_ : dict
        Best single bandwidth of each metric.
    bandwidth_history_ : tuple of BandwidthRecord
        Bandwidth of each metric at the fit, and at every later one that updates led to.
    frequencies_ : array, (n_classes,)
        Class frequencies that the probabilities assume: those of the calibration set, without sampling noise.
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
    fit_options: ClassVar[frozenset[str]] = frozenset(
        {"logits", "train_embeddings", "train_labels", "groups", "train_groups", "sample_weight", "classes", "ids"}
    )

    model_class = BlendModel
    weights_ = fitted("weights")
    bias_ = fitted("pool.bias")
    sharpness_ = fitted("sharpness")
    group_efficiency_ = fitted("group_efficiency")
    background_ = fitted("background")
    bandwidths_ = fitted("bandwidths")
    frequencies_ = fitted("frequencies")
    bandwidth_factors: Any = (0.5, 1.0, 2.0)
    network_calibrator: str = parameter("auto", check_choice, choices=("auto", "ts", "svs", "sms"))
    bias: float = parameter(0.1, check_number, minimum=0, maximum=MAX_SPREAD)
    background: str | float = parameter("cv", check_number, minimum=MIN_BACKGROUND, maximum=1, expected=BACKGROUND)
    fallback_quantile: float = parameter(0.01, check_number, minimum=0, maximum=0.999)
    sharpness: float = parameter(0.5, check_number, minimum=0, maximum=MAX_SPREAD)
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
        train_embeddings: Any = None,
        train_labels: Any = None,
        groups: Any = None,
        train_groups: Any = None,
        sample_weight: Any = None,
        classes: Any = None,
        ids: Any = None,
    ) -> Self:
        """Fit metrics, bandwidths and weights to the calibration set.

        Parameters
        ----------
        X, y, train_embeddings, train_labels, train_groups, groups, sample_weight, classes, ids
            As in :meth:`KCal.fit`, but without a training set no projection is learned. With logits, integers in ``y``
            are columns, truth values the two of them; text needs ``classes``, all of them in the order of the columns,
            unless the logits are a table whose columns are the classes.
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
        samples, training = self._check_fit_data(rows, y, train_embeddings, train_labels, train_groups, **options)
        prior = check_prior(self.prior, samples.classes)
        samples = samples.rows(np.flatnonzero(samples.weights))
        if len(np.unique(samples.indices if samples.groups is None else samples.groups)) < 2:
            name, unit = ("X", "samples") if groups is None else ("groups", "groups")
            raise InvalidInputError(name, f"must hold at least two {unit} of positive weight", got="1")
        warn_of_shared_rows(samples, training, self.projection)
        if scores is None:
            warn_of_missing_classes(samples.classes, samples.class_weights(), "Or pass logits=.")
        elif are_few(len(samples.codes), len(samples.classes)):
            warn_of_few_samples(len(samples.codes), len(samples.classes))
        scores = None if scores is None else scores[samples.indices]
        with threads_for(0 if scores is None else scores.numel() * scores.shape[1]):
            model = self._fit_model(samples, training, scores)
        prints = self._remember(rows[samples.indices])
        self._remember_samples(prints, samples, groups, sample_weight, scores)
        self.support_indices_, self.ids_ = samples.indices, samples.ids
        self.bandwidth_history_ = bandwidth_records(model, samples, len(samples.codes))
        self.classes_, self.logit_names_in_ = samples.classes, np.array(column_names(logits), dtype=object)
        self.model_ = replace(model, representation=self.representation, prior=prior, head=head)
        return self

    def _fit_model(self, samples: Samples, training: TrainingSet | None, scores: torch.Tensor | None) -> BlendModel:
        """Return the model of the samples, without a prior."""
        options, factors = self.estimate_options(), check_factors(self.bandwidth_factors)
        experts = fit_experts(samples, training, options, projection=self.projection, factors=factors)
        return self._fit_weights(samples, experts, scores).with_reference(samples.embeddings, samples.keys)

    def _fit_weights(self, samples: Samples, experts: tuple[Expert, ...], scores: torch.Tensor | None) -> BlendModel:
        network = NetworkFit()
        if scores is not None:
            log_probs, choice = to_log_probs(scores, self.representation), self.network_calibrator
            network = cross_fit_network(log_probs, samples, choice=choice, folds=self.folds, seed=self.seed)
        tuning = {name: getattr(self, name) for name in ("bias", "background", "fallback_quantile", "sharpness")}
        return fit_blend(samples, experts, network, **tuning)

    def _compressed(self, find_size: FindSize, options: CompressionOptions, groups: Any) -> dict[str, Any]:
        keys: NDArray[np.int64] | None = None
        if groups is not None:
            keys = check_groups(groups, len(self.model_.experts[0].support))
        elif self._records is not None and self._records.group_codes is not None:
            keys = self._records.group_codes.numpy()
        model = compress_blend(self.model_, keys, find_size, options)
        unchanged = all(one is other for one, other in zip(model.experts, self.model_.experts, strict=True))
        return {} if unchanged else {"model_": model, **without_samples()}

    def _fit_expert(self, expert: Expert, support: SortedSupport, samples: Samples) -> Expert:
        return at_best_bandwidth(replace(expert, support=support), samples, self.estimate_options())

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
            rows["logits"] = example_logits(n_rows, len(self.classes_), self.model_.representation)
        return rows

    @property
    def first_estimate(self) -> Expert:
        """The kernel density estimate by which the evidence is measured: that of the first metric."""
        return self.model_.experts[0]

    @on_latest
    def gate(self, X: Any) -> Any:
        """Return g, (n,): near 1 where calibration samples lie, near 0 where the fallback decides.

        From 16 features on it depends on directions only. It is 1 with ``fallback_quantile=0``.
        """
        rows, kind = self._check_rows(X)
        model = self.model_
        return kind.give_back(model.gate(model.at_estimated_frequencies(model.experts[0].class_sums(rows)))[:, 0])

    @property
    def needs_logits_(self) -> bool:
        """Whether it was fitted with logits, and so needs them to predict."""
        check_is_fitted(self)
        return bool(self.model_.network) and self.model_.head is None

    @property
    def uses_logits(self) -> bool:
        """Whether ``fit``, with the present parameters, takes logits: without a head."""
        return self.head is None

    @on_snapshot
    def summary(self) -> dict[str, str]:
        """Return the main results of the fit for display, label to text."""
        check_is_fitted(self)
        width, model = max(map(len, self.weights_)), self.model_
        losses = f"{model.pool.loss:.4f}; the network alone, temperature scaled: {model.network_loss or 0.0:.4f}"
        return {
            "metrics": "\n".join(f"{metric}, bandwidth {b:.4g}" for metric, b in self.bandwidths_.items()),
            "weights": "\n".join(f"{name:<{width}}  {weight: .4f}" for name, weight in self.weights_.items()),
            "background": f"{self.background_:.4g} of the median mass at a calibration sample",
            **({} if model.network_loss is None else {"out-of-fold log-loss": losses}),
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
        if (head := self.model_.head) is not None:
            self.head = (head.weight.numpy().copy(), None if head.bias is None else head.bias.numpy().copy())
        return super()._restore(state)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_factors(self.bandwidth_factors)
        if self.head is not None and self.representation != "logits":
            expected = 'must be "logits" with a head, which computes logits'
            raise InvalidInputError("representation", expected, got=shown(self.representation))

    def _check_projection(self) -> None:
        if isinstance(self.projection, str) and self.projection in ARCHITECTURES:
            super()._check_projection()
        elif self.projection is not None and not isinstance(self.projection, TrainedProjection):
            expected = f"must be {', '.join(map(repr, ARCHITECTURES))}, a TrainedProjection or None"
            raise InvalidInputError("projection", expected, got=shown(self.projection))

    def _check_inputs(self, X: Any, logits: Any) -> tuple[tuple[torch.Tensor, torch.Tensor | None], ArrayKind]:
        rows, kind = self._check_rows(X)
        if (logits is not None) != self.needs_logits_ and self.model_.head is None:
            expected = "are needed: this blend was fitted with logits; pass logits="
            unused = "must be left out: this blend was fitted without logits"
            raise InvalidInputError("logits", expected if logits is None else unused)
        check_logit_names(logits, self.logit_names_in_.tolist())
        model, n_classes = self.model_, len(self.classes_)
        return (rows, check_logits(logits, rows, model.representation, model.head, n_classes=n_classes)), kind

    def _attribute(self, inputs: Any, block: slice, probs: torch.Tensor, k: int) -> Attribution:
        rows, scores = inputs
        own, n_samples = None if scores is None else scores[block], len(self.support_indices_)
        return attribute_blend(self.model_, rows[block], own, probs, k, n_samples=n_samples)

    def _log_probabilities(self, inputs: tuple[torch.Tensor, torch.Tensor | None]) -> torch.Tensor:
        rows, scores = inputs
        warn_of_known_rows(self._knows(rows))
        blocks = [slice(start, start + BLOCK_ROWS) for start in range(0, len(rows), BLOCK_ROWS)]
        parts = (self.model_.inputs(rows[block], None if scores is None else scores[block]) for block in blocks)
        return torch.cat([self.model_.log_probs(part) for part in parts])
