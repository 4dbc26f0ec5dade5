"""KCal blended with the network: kernel density estimates in several metrics and widths, pooled with its logits.

log p(x) = g·(Σ_j w_j·log p_j(x) + Σ_i v_i·log n_i(x) + bias) + (1 − g)·log n_1(x), normalised, then sharpened

p_j is a kernel density estimate over the calibration set (a metric, a bandwidth), with a little background mass, and
classes as frequent as they are likely to be; n_i is the network, calibrated; g is the share of evidence, near 1
wherever calibration samples lie. Sharpening makes sure answers surer and unsure ones less sure, or the other way round,
as the calibration set asks for.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted

from kcal.calibrators.base import Calibrator, CalibratorState, check_at_least_two
from kcal.calibrators.blend.answers import blended, evidence_of, least_logarithm, reweighed, share_of_pool
from kcal.calibrators.blend.class_frequencies import likely_frequencies, most_likely_strength
from kcal.calibrators.blend.experts import Expert, fit_experts
from kcal.calibrators.blend.fitting import Samples, cross_fitted_partners, fit_pool
from kcal.calibrators.blend.network import Partner
from kcal.calibrators.blend.parameters import check_blend_parameters, check_names, check_scales, names_of
from kcal.calibrators.blend.pool import Pool, PoolProblem
from kcal.calibrators.blend.sharpness import Sharpness
from kcal.calibrators.fit_warnings import warn_of_few_samples, warn_of_known_rows, warn_of_missing_classes
from kcal.calibrators.kcal.training_set import is_to_be_learned
from kcal.calibrators.logit_base import encode_columns
from kcal.calibrators.prior import check_prior
from kcal.errors import InvalidInputError
from kcal.validation import check_groups, check_labels, check_matrix, check_weights

Floats = NDArray[np.float64]

ROWS_AT_ONCE = 4096
LARGEST_FACTOR = 1e6
"""By which the sums of a class grow, however little its samples weigh: single precision has to hold them."""


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
    needs_logits_ : bool
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

    _experts: list[Expert]
    _partners: list[Partner]
    _pool: Pool
    sharpness_: Sharpness
    group_efficiency_: float
    background_: float
    _frequencies: Floats
    _least_evidence: float
    _steepness: float
    _least_logarithm: float
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
        check_blend_parameters(self)
        rows, _ = self._check_rows(X, fitting=True)
        self._remember(rows)
        n = rows.shape[0]
        labels, scores = check_labels(y, n), None if logits is None else self._check_logits(logits, n)
        self.logit_names_in_ = np.array(names_of(logits), dtype=object)
        if scores is not None:
            classes = encode_columns(labels, n, scores.shape[1], classes)[1]
        weights = np.ones(n) if sample_weight is None else check_weights(sample_weight, n)
        keys = None if groups is None else check_groups(groups, n)
        kept = np.flatnonzero(weights > 0)
        if len(kept) == 0:
            raise InvalidInputError("every sample has weight 0; give some of them a weight.")
        for what, found in (("samples", len(kept)), ("groups", 2 if keys is None else len(np.unique(keys[kept])))):
            if found < 2:
                raise InvalidInputError(f"a blend judges calibration samples by others: it needs two {what}; got 1.")
        described = {
            "classes": classes,
            "groups": None if keys is None else keys[kept],
            "sample_weight": None if sample_weight is None else weights[kept],
        }
        training = {"train_embeddings": train_embeddings, "train_labels": train_labels, "train_groups": train_groups}
        self._experts = self._find_experts(rows[kept], labels[kept], described, training)
        self.classes_ = self._experts[0].estimate.classes_
        check_at_least_two(self.classes_, type(self).__name__)
        check_prior(self.prior, self.classes_)
        if scores is not None:
            warn_of_few_samples(len(kept), len(self.classes_))
        else:
            warn_of_missing_classes(
                self.classes_, self._experts[0].estimate._frequencies, "Add samples, or pass logits=."
            )
        codes = self._experts[0].estimate._codes.cpu().numpy()
        samples = Samples(codes, weights[kept] / weights[kept].mean(), described["groups"])
        self._strength = self._strength_of_frequencies(samples)
        self._frequencies = likely_frequencies(samples.totals(len(self.classes_)).numpy(), self._strength)
        self._partners = [] if scores is None else self._calibrated_network(scores[kept], samples)
        self._least_logarithm = 0.0 if scores is None else least_logarithm(scores[kept], self.representation)
        fit_pool(self, samples)
        return self

    def predict_proba(self, X: Any, *, logits: Any = None) -> Any:
        """Return calibrated probabilities, (n, n_classes), of embeddings and, if it was fitted so, of their logits."""
        rows, kind = self._check_rows(X)
        return kind.give_back(torch.exp(self._blend(rows, logits)))

    def predict_log_proba(self, X: Any, *, logits: Any = None) -> Any:
        """Return the logarithms of the calibrated probabilities, (n, n_classes)."""
        rows, kind = self._check_rows(X)
        return kind.give_back(self._blend(rows, logits))

    def predict(self, X: Any, *, logits: Any = None) -> NDArray[Any]:
        """Return the most probable class of each row, in the kind of ``classes_``."""
        rows, _ = self._check_rows(X)
        labels: NDArray[Any] = self.classes_[self._blend(rows, logits).argmax(dim=1).cpu().numpy()]
        return labels

    def score(self, X: Any, y: Any, *, logits: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy on test data, as scikit-learn's classifiers do."""
        return float(accuracy_score(y, self.predict(X, logits=logits), sample_weight=sample_weight))

    def evidence(self, X: Any) -> Any:
        """Return g, (n,): near 1 where calibration samples lie, near 0 where the network is on its own.

        Of 16 features or more it looks at directions, and a length tells it nothing. It is 1 with
        ``fallback_quantile=0``.
        """
        rows, kind = self._check_rows(X)
        found = reweighed(self, self._experts[0].class_sums(rows))
        return kind.give_back(share_of_pool(self, evidence_of(self, found))[:, 0])

    @property
    def weights_(self) -> dict[str, float]:
        """The weight of each expert, by name."""
        check_is_fitted(self)
        names = [name for expert in self._experts for name in expert.names]
        names += [partner.calibrator.method for partner in self._partners]
        return dict(zip(names, self._pool.weights.tolist(), strict=True))

    @property
    def bandwidths_(self) -> dict[str, float]:
        """The best single bandwidth of each metric."""
        check_is_fitted(self)
        return {expert.metric: expert.estimate.bandwidth_ for expert in self._experts}

    @property
    def uses_training_set(self) -> bool:
        """Whether ``fit`` learns a projection from the classifier's training set."""
        return is_to_be_learned(self.projection)

    @property
    def needs_logits_(self) -> bool:
        """Whether it was fitted with logits, and so needs them to predict."""
        check_is_fitted(self)
        return bool(self._partners)

    @property
    def bias_(self) -> Floats:
        """The bias of each class, (n_classes,)."""
        check_is_fitted(self)
        return self._pool.bias

    @property
    def frequencies_(self) -> Floats:
        """The class frequencies that answers presume, (n_classes,)."""
        check_is_fitted(self)
        return self._frequencies

    def to(self, device: str | torch.device) -> Self:
        """Move the fitted calibrator to a device; kernel sums then run there."""
        check_is_fitted(self)
        for expert in self._experts:
            expert.estimate.to(device)
        return self

    def state(self) -> CalibratorState:
        """Return what the fitted calibrator is made of."""
        from kcal.calibrators.blend.state import describe

        check_is_fitted(self)
        return describe(self)

    @classmethod
    def from_state(cls, state: CalibratorState, **extra: Any) -> Self:
        """Return the fitted calibrator; ``projection=module`` gives the module of a learned metric of your own."""
        from kcal.calibrators.blend.state import restore

        return restore(cls, state, **extra)

    def _find_experts(
        self, rows: torch.Tensor, labels: NDArray[Any], described: dict[str, Any], training: dict[str, Any]
    ) -> list[Expert]:
        """Return the kernel density estimates, a metric each."""
        return fit_experts(self, rows, labels, check_scales(self.bandwidth_factors), described, training)

    def _strength_of_frequencies(self, samples: Samples) -> float:
        """Return how many samples every class is given beside its own, where their numbers differ by chance."""
        return most_likely_strength(samples.totals(len(self.classes_)).numpy())

    def _calibrated_network(self, scores: torch.Tensor, samples: Samples) -> list[Partner]:
        """Return the network's calibrators, with what they say of samples that they were not fitted on."""
        return cross_fitted_partners(self, scores, samples)

    def _worth_of_a_sample(self, problem: PoolProblem, groups: NDArray[np.int64]) -> float:
        """Return the share of what a sample tells that is not told by the others of its group."""
        return problem.worth_of_a_sample(self._pool, groups)

    def _centre(self) -> Floats:
        """Return the weights that are expected before any data: the network alone, or the best bandwidth alone."""
        centre = np.zeros(sum(len(expert.names) for expert in self._experts) + len(self._partners))
        centre[-len(self._partners) if self._partners else self._experts[0].middle] = 1.0
        return centre

    def _blend(self, rows: torch.Tensor, logits: Any) -> torch.Tensor:
        """Return log probabilities, (n, n_classes)."""
        if (logits is None) != (not self._partners):
            raise InvalidInputError(
                "this blend was fitted with logits; pass logits= of the same rows."
                if self._partners
                else "this blend was fitted without logits; leave logits= out, or fit it with logits=."
            )
        scores = None if logits is None else self._check_logits(logits, rows.shape[0], len(self.classes_))
        check_names(logits, self.logit_names_in_.tolist())
        warn_of_known_rows(self._knows(rows), "Judge a blend by other data.")
        parts = []
        for start in range(0, rows.shape[0], ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            parts.append(blended(self, rows[part], None if scores is None else scores[part]))
        return torch.cat(parts)

    def _frequency_factors(self) -> Floats:
        """Return what class sums are multiplied by, (n_classes,), as if each class had been seen as often as is likely.

        The sum of a class grows with its number of samples, which is partly chance.
        """
        seen = self._experts[0].estimate._frequencies
        factors: Floats = self._frequencies / np.where(seen > 0, seen, self._frequencies)
        return np.minimum(factors, LARGEST_FACTOR)

    def _check_logits(self, logits: Any, n: int, n_classes: int | None = None) -> torch.Tensor:
        scores = check_matrix(logits, "logits", columns=n_classes, owner=type(self).__name__)
        if scores.shape[0] != n:
            raise InvalidInputError(f"logits must have a row for each row of X, {n:,} of them; got {len(scores):,}.")
        return scores
