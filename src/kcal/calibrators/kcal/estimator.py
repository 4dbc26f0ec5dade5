"""KCal: class probabilities from a kernel density estimate over projected calibration embeddings."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import nn

from kcal.calibrators.base import Calibrator, CalibratorState, check_at_least_two
from kcal.calibrators.fit_warnings import (
    warn_of_known_rows,
    warn_of_missing_classes,
    warn_of_training_rows,
)
from kcal.calibrators.holdout import fold_codes
from kcal.calibrators.kcal.bandwidth import BandwidthChoice
from kcal.calibrators.kcal.parameters import check_parameters
from kcal.calibrators.kcal.training_set import (
    CalibrationSet,
    TrainingSet,
    adopt_projection,
    given_training_set,
    hold_out_half,
    is_to_be_learned,
    learn_projection,
)
from kcal.calibrators.prior import apply_prior, check_prior, smooth
from kcal.errors import InvalidInputError
from kcal.kernels import (
    BandwidthCurve,
    LeaveOutLoss,
    SortedSupport,
    class_posteriors,
    get_kernel,
    leave_out_posteriors,
    log_densities,
    sort_support,
)
from kcal.projection import (
    Recipe,
    TrainedProjection,
    TrainingCurve,
    get_recipe,
    project,
)
from kcal.validation import (
    ArrayKind,
    check_groups,
    check_ids,
    check_labels,
    check_weights,
    collect_classes,
    encode_labels,
    row_fingerprints,
)


class KCal(Calibrator):
    """Calibrated probabilities for every class, from the embeddings of a trained network.

    p_k(x) = Σ_{i: y_i = k} w_i·φ_b(Π(x_i) − Π(x)) / Σ_i w_i·φ_b(Π(x_i) − Π(x)), the sums over the calibration set.

    Parameters
    ----------
    dimension : int or "auto"
        d, the dimension of the projected space; for "auto" min(h, 128), or min(h, 32) with the paper's recipe.
    kernel : str
        A mother kernel: "rbf", "laplace", "matern32", "matern52", "epanechnikov", "biweight", "triweight". The
        projection is learned with "rbf" whatever the kernel.
    projection : "skip", "linear", "unit", "identity", TrainedProjection or nn.Module
        Π. "skip" is the paper's, "linear" is KCal-Linear, "unit" learns nothing and compares directions. A module is
        copied, and trained unless it is frozen. A :class:`~kcal.projection.TrainedProjection` is used as it is: the
        way to use KCal in pipelines and cross-validation, where a training set cannot be passed along.
    recipe : "fast", "paper", FastRecipe or PaperRecipe
        How Π is trained.
    bandwidth : "cv", "rule" or float
        b. "cv" minimises the leave-one-out log-loss on the calibration set (leave-one-group-out with groups, or by
        ``folds``). "rule" scales ``bandwidth_reference`` by the power law b ∝ m^(−1/(d+4)), m being the count of the
        rarest class.
    prior : "uniform", sequence, mapping or None
        Class frequencies in the field, where they differ from those of the calibration set.
    seed : int
        Same seed, same result.
    folds : int, optional
        Folds for the bandwidth search in place of leave-one-out.
    bandwidth_interval : (float, float), optional
        Where the search looks first; it widens by itself. By default the published interval, [0.224, 2.236], in units
        of the spread of the projected samples.
    bandwidth_reference : (float, int), optional
        (b₀, m₀) for the rule: a bandwidth found before, and the count of the rarest class then.
    smoothing : float
        Share of the probability spread evenly over all classes; with 0, a class without calibration samples gets
        probability 0.
    progress : bool, optional
        Progress bars; by default only in a terminal.

    Attributes
    ----------
    classes_ : array
        Labels, in the order of the columns: the sorted union of those in the calibration and the training set.
    bandwidth_ : float
        b in use.
    bandwidth_curve_ : BandwidthCurve or None
        Every bandwidth tried, with its loss.
    projection_ : nn.Module
        Π in use.
    training_curve_ : TrainingCurve or None
        Loss of the projection's training.
    support_indices_ : array
        Rows of ``X`` that became support: all of them, unless a part was held out to learn the projection.
    leave_one_out_proba_ : array
        Probabilities of each support row given the others, as predict_proba would give them; with groups, given the
        samples of other groups. Rows as in ``support_indices_``.

    Examples
    --------
    >>> calibrator = KCal().fit(cal_x, cal_y, train_embeddings=train_x, train_labels=train_y)  # doctest: +SKIP
    >>> probabilities = calibrator.predict_proba(test_x)  # doctest: +SKIP
    """

    inputs: ClassVar[str] = "embeddings"
    method: ClassVar[str] = "kcal"
    columns_are_classes: ClassVar[bool] = False
    has_evidence: ClassVar[bool] = True
    fit_options: ClassVar[frozenset[str]] = frozenset(
        {"train_embeddings", "train_labels", "groups", "train_groups", "sample_weight", "classes", "ids"}
    )

    bandwidth_: float
    bandwidth_curve_: BandwidthCurve | None
    projection_: nn.Module
    training_curve_: TrainingCurve | None
    support_indices_: NDArray[np.int64]
    checkpoint_step_: int | None
    checkpoint_losses_: tuple[float, ...]
    ids_: NDArray[Any] | None
    _points: torch.Tensor  # (n_support, d), in the order in which they came
    _codes: torch.Tensor  # (n_support,)
    _weights: torch.Tensor | None
    _keys: torch.Tensor | None  # groups
    _search_keys: torch.Tensor | None  # folds, or else groups
    _sorted: SortedSupport | None  # the support as the sums read it, once they have
    _frequencies: NDArray[np.float64]
    _leave_one_out: torch.Tensor | None
    _kind: ArrayKind  # of the rows that fit was given

    def __init__(
        self,
        *,
        dimension: int | str = "auto",
        kernel: str = "rbf",
        projection: str | nn.Module | TrainedProjection = "skip",
        recipe: str | Recipe = "fast",
        bandwidth: str | float = "cv",
        prior: Any = None,
        seed: int = 0,
        folds: int | None = None,
        bandwidth_interval: tuple[float, float] | None = None,
        bandwidth_reference: tuple[float, float] | None = None,
        smoothing: float = 0.0,
        progress: bool | None = None,
    ) -> None:
        self.dimension = dimension
        self.kernel = kernel
        self.projection = projection
        self.recipe = recipe
        self.bandwidth = bandwidth
        self.prior = prior
        self.seed = seed
        self.folds = folds
        self.bandwidth_interval = bandwidth_interval
        self.bandwidth_reference = bandwidth_reference
        self.smoothing = smoothing
        self.progress = progress

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        train_embeddings: Any = None,
        train_labels: Any = None,
        groups: Any = None,
        train_groups: Any = None,
        sample_weight: Any = None,
        classes: Any = None,
        ids: Any = None,
    ) -> Self:
        """Learn the projection from the training set and the bandwidth from the calibration set.

        Parameters
        ----------
        X : (n, h) array or tensor
            Embeddings of the calibration set: data that the network was not trained on.
        y : (n,) array
            Their labels, of any type.
        train_embeddings, train_labels : (m, h) and (m,) arrays, optional
            Embeddings and labels of the network's training set, to learn the projection from. Without them, a
            stratified half of ``X`` (by groups, if given) is held out for it, and a warning says so.
        groups, train_groups : arrays, optional
            Patients, speakers, sites: a sample is never judged by its own group.
        sample_weight : (n,) array, optional
            How many samples each one counts for, in the support; the learning of a projection does not weigh.
        classes : sequence, optional
            All classes in the wanted order of columns, where the data do not hold them all.
        ids : (n,) array, optional
            A name of your own for each calibration sample.
        """
        self._begin_fit()
        check_parameters(self)
        rows, self._kind = self._check_rows(X, fitting=True)
        self._remember(rows)
        rows, n = self._as_embeddings(rows), rows.shape[0]
        labels = check_labels(y, n)
        group_codes = None if groups is None else check_groups(groups, n)
        weights = None if sample_weight is None else check_weights(sample_weight, n)
        if weights is not None:
            weights = weights / weights.max()  # only their ratios count
        names = None if ids is None else check_ids(ids, n)
        columns = list(getattr(train_embeddings, "columns", []))
        if columns and hasattr(self, "feature_names_in_") and columns != self.feature_names_in_.tolist():
            raise InvalidInputError("train_embeddings must have the columns of X, in the same order.")
        training = given_training_set(train_embeddings, train_labels, train_groups, rows, self._as_embeddings)
        learns = is_to_be_learned(self.projection)
        if training is not None and not learns:
            raise InvalidInputError(
                f"train_embeddings are of no use with projection={self.projection!r}: nothing is to be learned. "
                "Leave them out."
            )
        label_sets = [labels] if training is None else [labels, training.labels]
        if isinstance(self.projection, TrainedProjection):
            label_sets.append(self.projection.classes)
        self.classes_ = collect_classes(label_sets, classes)
        check_at_least_two(self.classes_, type(self).__name__)
        codes = encode_labels(labels, self.classes_, "y")

        kept = np.arange(n)
        if learns and training is None:
            training, kept = hold_out_half(rows, labels, codes, group_codes, self.seed)
        self.support_indices_ = kept
        self._describe_support(
            rows[kept], codes[kept], _at(weights, kept), _at(names, kept), _at(group_codes, kept), training
        )
        self._fit_projection(rows[kept], training)
        self._fit_bandwidth()
        return self

    def log_evidence(self, X: Any) -> Any:
        """Return the log density of each row under the support, (n,).

        Low values mark queries far from everything that was calibrated; compare with the values of held-out data.
        """
        rows, kind = self._check_rows(X)
        queries = project(self.projection_, self._here(self._as_embeddings(rows)))
        return kind.give_back(log_densities(queries, self._support, self.bandwidth_, kernel=get_kernel(self.kernel)))

    @property
    def uses_training_set(self) -> bool:
        """Whether ``fit`` learns a projection from the classifier's training set."""
        return is_to_be_learned(self.projection)

    @property
    def leave_one_out_proba_(self) -> Any:
        """Probabilities of each support row given the others, (n, n_classes), in the order in which they came."""
        check_is_fitted(self)
        if self._leave_one_out is None:
            shares = leave_out_posteriors(
                self._support, self.bandwidth_, kernel=get_kernel(self.kernel), keys=self._keys
            )
            self._leave_one_out = self._finish(shares)
        return self._kind.give_back(self._leave_one_out)

    @property
    def dimension_(self) -> int:
        """Dimension of the projected space."""
        return int(self._support.dimension)

    def to(self, device: str | torch.device) -> Self:
        """Move the fitted calibrator to a device; predictions then run there."""
        check_is_fitted(self)
        self._points, self._codes = self._points.to(device), self._codes.to(device)
        self._weights = None if self._weights is None else self._weights.to(device)
        self._keys = None if self._keys is None else self._keys.to(device)
        self._search_keys = None if self._search_keys is None else self._search_keys.to(device)
        self.projection_ = self.projection_.to(device)
        self._sorted = None
        return self

    def state(self) -> CalibratorState:
        """Return what the fitted calibrator is made of."""
        from kcal.calibrators.kcal.state import describe

        check_is_fitted(self)
        return describe(self)

    @classmethod
    def from_state(cls, state: CalibratorState, **extra: Any) -> Self:
        """Return the fitted calibrator; ``projection=module`` gives the module of a projection of your own."""
        from kcal.calibrators.kcal.state import restore

        return restore(cls, state, **extra)

    @property
    def _support(self) -> SortedSupport:
        if self._sorted is None:
            self._sorted = sort_support(self._points, self._codes, len(self.classes_), self._weights)
        return self._sorted

    def _probabilities(self, rows: torch.Tensor) -> torch.Tensor:
        warn_of_known_rows(self._knows(rows))
        queries = project(self.projection_, self._here(self._as_embeddings(rows)))
        return self._finish(class_posteriors(queries, self._support, self.bandwidth_, kernel=get_kernel(self.kernel)))

    def _training_recipe(self) -> Recipe:
        return get_recipe(self.recipe)

    def _as_embeddings(self, rows: torch.Tensor) -> torch.Tensor:
        """Return what the kernel works on, made from what the caller gave."""
        return rows

    def _finish(self, shares: torch.Tensor) -> torch.Tensor:
        if not bool(torch.isfinite(shares).all()):
            raise InvalidInputError(
                f"probabilities are not finite at bandwidth {self.bandwidth_:.3g}: the embeddings or the bandwidth are "
                "too large or too small for floating point. Scale the embeddings."
            )
        prior = check_prior(self.prior, self.classes_)
        return smooth(apply_prior(shares, prior, self._frequencies), self.smoothing)

    def _here(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.to(device=self._points.device, dtype=self._points.dtype)

    def _describe_support(
        self,
        rows: torch.Tensor,
        codes: NDArray[np.int64],
        weights: NDArray[np.float64] | None,
        ids: NDArray[Any] | None,
        groups: NDArray[np.int64] | None,
        training: TrainingSet | None,
    ) -> None:
        """Keep what the support is known by, and warn of what is wrong with it."""
        self._codes = torch.as_tensor(codes, device=rows.device)
        self._weights = None if weights is None else torch.as_tensor(weights).to(rows)
        self._keys = None if groups is None else torch.as_tensor(groups, device=rows.device)
        folds = None if self.folds is None else fold_codes(codes, self.folds, groups, self.seed)
        self._search_keys = self._keys if folds is None else torch.as_tensor(folds, device=rows.device)
        self.ids_ = ids
        counts = np.bincount(codes, weights=weights, minlength=len(self.classes_))
        if not counts.any():
            raise InvalidInputError("every sample of the support has weight 0; give some of them a weight.")
        self._frequencies = counts / counts.sum()
        prior = check_prior(self.prior, self.classes_)
        if prior is not None and not prior[counts > 0].any():
            raise InvalidInputError("prior gives nothing to the classes that have calibration samples.")
        if self.smoothing == 0:
            warn_of_missing_classes(self.classes_, counts)
        if isinstance(self.projection, TrainedProjection):
            warn_of_training_rows(rows, self.projection.fingerprints)
        elif training is not None:
            warn_of_training_rows(rows, row_fingerprints(training.embeddings))

    def _fit_projection(self, rows: torch.Tensor, training: TrainingSet | None) -> None:
        calibration = CalibrationSet(rows, self._codes, len(self.classes_), self._weights, self._search_keys)
        kernel = get_kernel(self.kernel)
        if training is None:
            learned = adopt_projection(self.projection, calibration, self._checkpoint_loss, show=self.progress)
        else:
            learned = learn_projection(
                self.projection,  # type: ignore[arg-type]
                training,
                encode_labels(training.labels, self.classes_, "train_labels"),
                calibration,
                dimension=self.dimension,
                recipe=self._training_recipe(),
                kernel=kernel,
                loss_of=self._checkpoint_loss,
                seed=self.seed,
                show=self.progress,
            )
        self.projection_ = learned.module.requires_grad_(False)
        self.training_curve_ = learned.curve
        self.checkpoint_step_ = learned.step
        self.checkpoint_losses_ = learned.checkpoint_losses
        self._points = project(self.projection_, rows)
        self._sorted = self._leave_one_out = None

    def _fit_bandwidth(self) -> None:
        choice = self._bandwidth_choice()
        fixed = choice.without_search(self._support.dimension)
        self.bandwidth_curve_ = None
        if fixed is None:
            loss = LeaveOutLoss(self._support, kernel=get_kernel(self.kernel), keys=self._search_keys)
            self.bandwidth_curve_ = choice.search(loss, show=self.progress)
        self.bandwidth_ = fixed if self.bandwidth_curve_ is None else self.bandwidth_curve_.bandwidth  # type: ignore[assignment]

    def _bandwidth_choice(self) -> BandwidthChoice:
        rarest = float(self._frequencies[self._frequencies > 0].min() * len(self._codes))
        return BandwidthChoice(self.bandwidth, self.bandwidth_interval, self.bandwidth_reference, rarest)

    def _checkpoint_loss(self, calibration: CalibrationSet, module: nn.Module) -> float:
        return self._bandwidth_choice().lowest_loss(calibration.leave_out_loss(module, get_kernel(self.kernel)))


def _at(values: NDArray[Any] | None, index: NDArray[np.int64]) -> Any:
    return None if values is None else values[index]
