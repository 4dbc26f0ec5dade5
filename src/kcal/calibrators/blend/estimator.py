"""KCal blended with the network: kernel density estimates in several metrics and bandwidths, pooled with its logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted
from torch import nn

from kcal.calibrators.base import Calibrator, CalibratorState, check_at_least_two, refuse_extra
from kcal.calibrators.blend.experts import fit_experts
from kcal.calibrators.blend.fitting import Targets, fit_blend
from kcal.calibrators.blend.model import BlendModel
from kcal.calibrators.blend.network import NetworkFit, cross_fit_network, min_log_prob, network_folds
from kcal.calibrators.blend.parameters import check_blend_parameters, check_factors
from kcal.calibrators.blend.sharpness import Sharpness
from kcal.calibrators.blend.state import model_from_state, model_state
from kcal.calibrators.fit_warnings import (
    warn_of_few_samples,
    warn_of_known_rows,
    warn_of_missing_classes,
    warn_of_training_rows,
)
from kcal.calibrators.kcal.parameters import refuse_training_set
from kcal.calibrators.kcal.samples import (
    Samples,
    TrainingSet,
    check_samples,
    check_training_set,
    other_labels,
    training_fingerprints,
)
from kcal.calibrators.kcal.state import OWN_MODULE, damaged_parameters, read_parameters, stored_parameters
from kcal.calibrators.logit_base import encode_columns, to_log_probs
from kcal.calibrators.prior import check_prior
from kcal.errors import FileFormatError, InvalidInputError
from kcal.projection import get_recipe
from kcal.validation import ArrayKind, check_matrix

Floats = NDArray[np.float64]

BLOCK_ROWS = 4096


class KCalBlend(Calibrator):
    """KCal that does not lose what the network already knows.

    Kernel density estimates over the calibration set (of the embeddings' directions and, where there is a training
    set, of the learned projection, each at three bandwidths) are pooled with the network's own calibrated
    probabilities: one weight each, found by a convex solver on predictions that no sample had a part in
    (leave-one-out for the estimates, cross-fitted for the network). Where no calibration samples are near, the answer
    is the network's; without logits, the class frequencies.

    Parameters
    ----------
    projection : "skip", "linear", None or TrainedProjection
        The learned metric beside the directions; left out if there is no training set to learn it from, or if None.
    dimension, recipe
        Of the learned projection, as in :class:`KCal`.
    bandwidth_factors : sequence of float
        Bandwidths of each metric, in units of the one with the least leave-one-out loss. Where each is twice the one
        before, or its square is, they are quick: the kernel of the one is a power of the other's by squares.
    network_calibrator : "auto", "ts" or "sms"
        The network's part: temperature scaling, and beside it structured matrix scaling where cross-validation finds
        it better ("auto") or always ("sms").
    bias : float
        How far the bias of a class is expected to lie from 0, as a standard deviation; 0 for none.
    background : "cv" or float
        Mass that is spread over classes by their frequency, in units of the mass that reaches a typical calibration
        sample; "cv" takes the one of a few with the least loss. It bounds how sure an estimate can be.
    fallback_quantile : float
        The share of calibration samples where the network has as much of a say as the pool, or more, for lack of
        samples near: with less and less evidence the answer becomes the network's. 0 never hands over. A larger share
        makes answers to inputs of no class more cautious, and others a little worse.
    sharpness : float
        How far the temperature of unsure answers is expected to lie from that of sure ones, as a standard deviation of
        its logarithm; 0 for none.
    folds : int
        For the network's cross-fitted predictions.
    representation : "logits" or "probabilities"
        What ``logits`` holds; it is never guessed.
    prior : "uniform", sequence, mapping or None
        Class frequencies in the field, where they differ from those of the calibration set. Answers presume
        ``frequencies_``, and a prior leads away from these.
    seed : int
        Same seed, same result.
    progress : bool, optional
        Progress bars; by default only in a terminal.

    Attributes
    ----------
    classes_ : array
        Labels, in the order of the columns; with logits, of their columns.
    weights_ : dict
        The weight of each expert, by name.
    bias_ : array, (n_classes,)
        Of each class.
    sharpness_ : Sharpness
        How much surer answers were made, by their entropy.
    group_efficiency_ : float
        The share of what a sample tells that is not told by the others of its group, as far as groups can tell: the
        fewer they are and the less they agree, the less. 1 without groups.
    background_ : float
        Background mass in units of the mass that reaches a typical calibration sample.
    bandwidths_ : dict
        The best single bandwidth of each metric.
    frequencies_ : array, (n_classes,)
        The class frequencies that answers presume: those of the calibration set, without what chance explains.
    takes_logits_ : bool
        Whether it was fitted with logits, and so needs them to predict.
    logit_names_in_ : array
        What the columns of the logits are called, where they came as a table; empty otherwise.

    Examples
    --------
    >>> blend = KCalBlend().fit(cal_x, cal_y, logits=cal_z, train_embeddings=x, train_labels=y)  # doctest: +SKIP
    >>> probabilities = blend.predict_proba(test_x, logits=test_z)  # doctest: +SKIP
    """

    inputs: ClassVar[str] = "both"
    method: ClassVar[str] = "kcal-blend"
    columns_are_classes: ClassVar[bool] = False

    has_evidence: ClassVar[bool] = True
    fit_options: ClassVar[frozenset[str]] = frozenset(
        {"logits", "train_embeddings", "train_labels", "groups", "train_groups", "sample_weight", "classes"}
    )

    model_: BlendModel
    logit_names_in_: NDArray[np.object_]

    def __init__(
        self,
        *,
        projection: Any = "skip",
        dimension: int | str = "auto",
        recipe: Any = "fast",
        bandwidth_factors: Any = (0.5, 1.0, 2.0),
        network_calibrator: str = "auto",
        bias: float = 0.1,
        background: str | float = "cv",
        fallback_quantile: float = 0.01,
        sharpness: float = 0.5,
        folds: int = 5,
        representation: str = "logits",
        prior: Any = None,
        seed: int = 0,
        progress: bool | None = None,
    ) -> None:
        self.projection = projection
        self.dimension = dimension
        self.recipe = recipe
        self.bandwidth_factors = bandwidth_factors
        self.network_calibrator = network_calibrator
        self.bias = bias
        self.background = background
        self.fallback_quantile = fallback_quantile
        self.sharpness = sharpness
        self.folds = folds
        self.representation = representation
        self.prior = prior
        self.seed = seed
        self.progress = progress

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
    ) -> Self:
        """Find metrics, bandwidths and weights on the calibration set.

        Parameters
        ----------
        X : (n, h) array or tensor
            Embeddings of the calibration set: data that the network was not trained on.
        y : (n,) array
            Their labels; with logits, integers are columns, and other labels need ``classes``.
        logits : (n, n_classes) array or tensor, optional
            The network's scores for them. Without, the blend is a KCal with pooled metrics and a background.
        train_embeddings, train_labels, train_groups : arrays, optional
            The network's training set, to learn the projection from.
        groups : (n,) array, optional
            Patients, speakers, sites: a sample is never judged by its own group.
        sample_weight : (n,) array, optional
            How many samples each one counts for, compared with the others.
        classes : sequence, optional
            All classes in the order of the columns.
        """
        self._begin_fit()
        rows, _ = self._check_rows(X, fitting=True)
        self._remember(rows)
        scores = None if logits is None else self._check_logits(logits, len(rows))
        training = check_training_set(train_embeddings, train_labels, train_groups, rows)
        if training is not None and not self.uses_training_set:
            raise refuse_training_set(self.projection)
        if scores is not None:
            classes = encode_columns(y, len(scores), scores.shape[1], classes)[1]
        other = other_labels(training, self.projection)
        samples = check_samples(
            rows, y, classes=classes, other_labels=other, groups=groups, sample_weight=sample_weight
        )
        check_at_least_two(samples.classes, type(self).__name__)
        prior = check_prior(self.prior, samples.classes)
        if samples.weights is not None:
            samples = samples.rows(np.flatnonzero(samples.weights))
        targets = _targets(samples)
        self._warn_of_samples(samples, training, with_logits=scores is not None)
        experts = fit_experts(
            samples.calibration_set(samples.groups),
            None if training is None else training.encoded(samples.classes),
            projection=self.projection,
            dimension=self.dimension,
            recipe=get_recipe(self.recipe),
            factors=check_factors(self.bandwidth_factors),
            seed=self.seed,
            progress=self.progress,
        )
        network = None if scores is None else self._fit_network(scores[samples.indices], targets)
        model = fit_blend(
            targets,
            experts,
            network,
            bias=self.bias,
            background=self.background,
            fallback_quantile=self.fallback_quantile,
            sharpness=self.sharpness,
        )
        lowest = 0.0 if scores is None else min_log_prob(scores[samples.indices], self.representation)
        self.classes_, self.logit_names_in_ = samples.classes, np.array(column_names(logits), dtype=object)
        self.model_ = replace(model, min_log_prob=lowest, representation=self.representation, prior=prior)
        return self

    def predict_proba(self, X: Any, *, logits: Any = None) -> Any:
        """Return calibrated probabilities, (n, n_classes), from embeddings and, if fitted with them, logits."""
        log_probs, kind = self._predict_log_probs(X, logits)
        return kind.give_back(torch.exp(log_probs))

    def predict_log_proba(self, X: Any, *, logits: Any = None) -> Any:
        """Return the logarithms of the calibrated probabilities, (n, n_classes)."""
        log_probs, kind = self._predict_log_probs(X, logits)
        return kind.give_back(log_probs)

    def predict(self, X: Any, *, logits: Any = None) -> NDArray[Any]:
        """Return the most probable class of each row, with the type of ``classes_``."""
        log_probs, _ = self._predict_log_probs(X, logits)
        labels: NDArray[Any] = self.classes_[log_probs.argmax(dim=1).cpu().numpy()]
        return labels

    def score(self, X: Any, y: Any, *, logits: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy, as scikit-learn's classifiers do."""
        return float(accuracy_score(y, self.predict(X, logits=logits), sample_weight=sample_weight))

    def gate(self, X: Any) -> Any:
        """Return g, (n,): near 1 where calibration samples lie, near 0 where the fallback decides.

        From 16 features on it depends on directions only. It is 1 with ``fallback_quantile=0``.
        """
        rows, kind = self._check_rows(X)
        first = replace(self.model_, experts=self.model_.experts[:1], network=())
        return kind.give_back(first.gate_values(first.inputs(rows, None))[:, 0])

    def log_evidence(self, X: Any) -> Any:
        """Return the log density of the calibration set, in the first metric, at each row, (n,)."""
        rows, kind = self._check_rows(X)
        return kind.give_back(self.model_.log_evidence(rows))

    @property
    def weights_(self) -> dict[str, float]:
        """Pool weight of each estimate and network calibrator, by name."""
        return dict(zip(self.model_.names, self.model_.pool.weights.tolist(), strict=True))

    @property
    def bandwidths_(self) -> dict[str, float]:
        """Best single bandwidth of each metric."""
        return {expert.metric: expert.bandwidth for expert in self.model_.experts}

    @property
    def bias_(self) -> Floats:
        """Bias of each class, (n_classes,)."""
        return self.model_.pool.bias

    @property
    def frequencies_(self) -> Floats:
        """Class frequencies that the probabilities assume, (n_classes,)."""
        return self.model_.frequencies

    @property
    def sharpness_(self) -> Sharpness:
        """How predictions are sharpened, by their entropy."""
        return self.model_.sharpness

    @property
    def background_(self) -> float:
        """Background mass, relative to the median mass at a calibration sample."""
        return self.model_.background

    @property
    def group_efficiency_(self) -> float:
        """Information of a sample relative to an independent one; 1 without groups."""
        return self.model_.group_efficiency

    @property
    def needs_logits_(self) -> bool:
        """Whether it was fitted with logits, and so needs them to predict."""
        check_is_fitted(self)
        return bool(self.model_.network)

    @property
    def uses_training_set(self) -> bool:
        """Whether ``fit``, with the present parameters, learns from the network's training set."""
        return isinstance(self.projection, str)

    def to(self, device: str | torch.device) -> Self:
        """Move the fitted calibrator to a device; kernel sums then run there."""
        check_is_fitted(self)
        self.model_ = self.model_.to(device)
        return self

    def summary(self) -> dict[str, str]:
        """Return the main results of the fit for display, label to text."""
        check_is_fitted(self)
        width = max(map(len, self.weights_))
        return {
            "metrics": "\n".join(f"{metric}, bandwidth {b:.4g}" for metric, b in self.bandwidths_.items()),
            "weights": "\n".join(f"{name:<{width}}  {weight: .4f}" for name, weight in self.weights_.items()),
            "background": f"{self.background_:.4g} of the median mass at a calibration sample",
        }

    def state(self) -> CalibratorState:
        """Return the content of the fitted calibrator."""
        check_is_fitted(self)
        self._check_parameters()
        values, tensors = model_state(self.model_)
        values["logit_names"] = self.logit_names_in_.tolist()
        parameters = stored_parameters(self.get_params(deep=False), self.classes_)
        if parameters["projection"] == OWN_MODULE:
            parameters["projection"] = "skip"  # the learned metric is stored with its tensors
        return self._state(parameters, values, **tensors)

    @classmethod
    def from_state(cls, state: CalibratorState, *, projection: nn.Module | None = None, **extra: Any) -> Self:
        """Return the fitted calibrator; ``projection`` is the module of a learned metric of one's own."""
        refuse_extra(cls, extra)
        model, names = model_from_state(state, projection), state.values["logit_names"]
        blend = cls(**read_parameters(state.parameters, None))
        with damaged_parameters():
            blend._restore(state)
        if len(names) not in (0, len(blend.classes_)) or not all(isinstance(name, str) for name in names):
            raise FileFormatError("the stored names of the logits are damaged.")
        blend.logit_names_in_ = np.array(names, dtype=object)
        blend.model_ = model
        return blend

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_blend_parameters(self.get_params(deep=False))

    def _warn_of_samples(self, samples: Samples, training: TrainingSet | None, *, with_logits: bool) -> None:
        warn_of_training_rows(samples.embeddings, training_fingerprints(training, self.projection))
        if with_logits:
            warn_of_few_samples(len(samples.codes), len(samples.classes))
        else:
            warn_of_missing_classes(samples.classes, samples.frequencies())

    def _fit_network(self, scores: torch.Tensor, targets: Targets) -> NetworkFit:
        log_probs = to_log_probs(scores, self.representation)
        folds = network_folds(targets.codes, targets.groups, self.folds, self.seed)
        fitted = (log_probs, targets.codes, targets.weights, folds)
        return cross_fit_network(*fitted, choice=self.network_calibrator, groups=targets.groups)

    def _predict_log_probs(self, X: Any, logits: Any) -> tuple[torch.Tensor, ArrayKind]:
        """Return log probabilities, (n, n_classes), computed in blocks, and the kind of ``X``."""
        rows, kind = self._check_rows(X)
        if (logits is None) == self.needs_logits_:
            expected = "are needed: this blend was fitted with logits; pass logits= of the same rows"
            raise InvalidInputError(
                "logits", expected if self.needs_logits_ else "must be left out: this blend was fitted without logits"
            )
        scores = None if logits is None else self._check_logits(logits, len(rows), len(self.classes_))
        names, known = column_names(logits), self.logit_names_in_.tolist()
        if names and known and names != known:
            raise InvalidInputError(
                "logits",
                f"must have the columns of the fit, in the same order: {', '.join(known)}",
                got=", ".join(names),
            )
        warn_of_known_rows(self._knows(rows))
        blocks = []
        for start in range(0, len(rows), BLOCK_ROWS):
            block = slice(start, start + BLOCK_ROWS)
            inputs = self.model_.inputs(rows[block], None if scores is None else scores[block])
            blocks.append(self.model_.log_probs(inputs))
        return torch.cat(blocks), kind

    def _check_logits(self, logits: Any, n: int, n_classes: int | None = None) -> torch.Tensor:
        scores = check_matrix(logits, "logits", columns=n_classes, owner=type(self).__name__)
        if len(scores) != n:
            raise InvalidInputError(
                "logits", f"must have a row for each row of X, {n:,} of them", got=f"{len(scores):,}"
            )
        return scores


def column_names(logits: Any) -> list[str]:
    """Return the names of the columns of a table; nothing for an array."""
    return [str(name) for name in getattr(logits, "columns", [])]


def _targets(samples: Samples) -> Targets:
    """Return the samples of the pool; raise if there are fewer than two, or fewer than two groups."""
    n = len(samples.codes)
    for name, count in (("X", n), ("groups", 2 if samples.groups is None else len(np.unique(samples.groups)))):
        if count < 2:
            what = "samples" if name == "X" else "groups"
            expected = f"must hold at least two {what}, since calibration samples are predicted from others"
            raise InvalidInputError(name, expected, got=str(count))
    weights = np.ones(n) if samples.weights is None else samples.weights  # of mean 1
    return Targets(samples.codes, weights, samples.groups, len(samples.classes))
