"""KCal: class probabilities from a kernel density estimate over projected calibration embeddings."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import nn

from kcal.calibrators.base import CalibratorState, check_at_least_two
from kcal.calibrators.fit_warnings import are_few, warn_of_known_rows, warn_of_missing_classes, warn_of_sparse_support
from kcal.calibrators.kcal.attribution import Attribution, attribute_kcal
from kcal.calibrators.kcal.bandwidth import PUBLISHED_FOLDS, BandwidthChoice
from kcal.calibrators.kcal.compression import (
    MOST_POINTS,
    CompressionOptions,
    FindSize,
    compress_estimate,
    of_clear_gain,
)
from kcal.calibrators.kcal.embedding_base import without_samples
from kcal.calibrators.kcal.learning import check_training_set, hold_out_half, warn_of_shared_rows
from kcal.calibrators.kcal.live import LiveKCal
from kcal.calibrators.kcal.model import KCalModel, sorted_support
from kcal.calibrators.kcal.module import KCalModule
from kcal.calibrators.kcal.out_of_fold import FOLDS
from kcal.calibrators.kcal.parameters import check_bandwidth, check_learned_projection, check_pair
from kcal.calibrators.kcal.state import read_curves
from kcal.calibrators.logit_base import fitted
from kcal.calibrators.model_state import Tensors
from kcal.calibrators.online.snapshots import latest, on_snapshot
from kcal.calibrators.prior import check_prior, check_prior_reaches
from kcal.errors import InvalidInputError
from kcal.kernels import BandwidthCurve, LeaveOutLoss, get_kernel, size_of_rarest_class
from kcal.modes import with_gradients
from kcal.projection import (
    FoundProjection,
    PaperRecipe,
    Recipe,
    TrainedProjection,
    TrainingCurve,
    find_projection,
    get_recipe,
    needs_training,
    project,
)
from kcal.samples import MAX_FOLDS, Samples, check_samples
from kcal.threads import threads_for
from kcal.validation import ArrayKind, check_choice, check_integer, check_number, column_names, parameter, shown

MAX_SCORED = 6_000
"""Calibration samples on which checkpoints are compared, at most: more would cost time and not change the choice."""


@dataclass(kw_only=True, eq=False, repr=False)
class KCal(LiveKCal):
    """Calibrated probabilities for every class, from the embeddings of a trained network.

    p_k(x) = Σ_{i: y_i = k} w_i·φ_b(Π(x_i) − Π(x)) / Σ_i w_i·φ_b(Π(x_i) − Π(x)), the sums over the calibration set.

    Parameters
    ----------
    dimension : int or "auto"
        d, the dimension of the projected space; for "auto" min(h, 128), or with the paper's recipe min(h, 32) below
        1,000 classes.
    kernel : str
        A mother kernel: "rbf", "laplace", "matern32", "matern52", "epanechnikov", "biweight", "triweight". The
        projection is always trained with "rbf".
    projection : "skip", "linear", "unit", "identity", TrainedProjection or nn.Module
        Π. "skip" is the paper's, "linear" is KCal-Linear, "unit" learns nothing and compares directions. A module is
        copied, and trained unless it is frozen. A :class:`~kcal.projection.TrainedProjection` is used without further
        training: pass one in pipelines and cross-validation, where a training set cannot be passed to ``fit``.
    recipe : "fast", "paper", FastRecipe or PaperRecipe
        How Π is trained.
    bandwidth : "cv", "published", "rule" or float
        b. "cv" minimises the leave-one-out log-loss on the calibration set (leave-one-group-out with groups, or by
        ``folds``). "published" is the paper's search: golden section in the fixed interval [0.224, 2.236], over 20
        folds unless ``folds`` says otherwise (as many as groups, if these are fewer). "rule" scales
        ``bandwidth_reference`` by the power law b ∝ m^(−1/(d+4)), m being the size of the rarest class: its effective
        number of samples, (Σ w)²/Σ w², but no less than a tenth of the mean class.
    prior : "uniform", sequence, mapping or None
        Class frequencies of deployment, where they differ from those of the calibration set.
    seed : int
        Same seed, same result.
    folds : int, optional
        Folds for the bandwidth search in place of leave-one-out.
    bandwidth_interval : (float, float), optional
        Where the search starts; it is widened where necessary. By default the published interval, [0.224, 2.236], in
        units of the spread of the projected samples.
    bandwidth_reference : (float, float), optional
        (b₀, m₀) for the rule: an earlier bandwidth, and the size of the rarest class at that time, as
        ``bandwidth_reference_`` holds them.
    bandwidth_exponent : float, optional
        Exponent of m in the rule, between −1 and 0; by default that of the theory, −1/(d+4).
        :func:`~kcal.kernels.fit_bandwidth_law` fits it to several searches.
    smoothing : float, optional
        Share of the probability spread evenly over all classes; by default 1/(n + 2) of n calibration samples, since
        they cannot exclude what is rarer. With 0, a class without calibration samples gets probability 0.
    support : "all" or "merged"
        What the sums are over: all calibration samples, or weighted means of clusters of samples of a class, as many as
        give the lowest out-of-fold log-loss. Merging removes noise where classes are compact, makes predictions faster,
        and stores no sample's embedding; see :meth:`compress` for its limits. All samples stay where no smaller number
        of points is better by more than a standard error, unless ``min_cluster_size`` is above 1.
    min_cluster_size : int
        Samples that a mean stands for at least, where its class has as many.
    progress : bool, optional
        Progress bars; by default only in a terminal.
    updates : Updates, optional
        How ``partial_fit`` follows a stream: when the bandwidth is searched again, which samples are kept.

    Attributes
    ----------
    classes_ : array
        Labels, in the order of the columns: the sorted union of those in the calibration and the training set.
    model_ : KCalModel
        The fitted model: everything that predictions need.
    bandwidth_ : float
        b in use.
    bandwidth_reference_ : (float, float)
        b in use and the size of the rarest class, the reference for a later fit by the rule.
    bandwidth_curve_ : BandwidthCurve or None
        Every bandwidth tried by the latest search, with its loss; None between searches.
    bandwidth_history_ : tuple of BandwidthRecord
        Every search, and the bandwidth in use: whether it is of a search, of the power law, or given.
    projection_ : nn.Module
        Π in use.
    dimension_ : int
        Dimension of the projected space.
    training_curve_ : TrainingCurve or None
        Loss of the projection's training.
    support_size_ : int
        Number of support points.
    compression_ : Compression or None
        How the samples became fewer support points, with the out-of-fold loss and the smallest cluster.
    support_indices_ : array
        Rows of ``X`` that became support: all of them, unless a part was held out to learn the projection; none if the
        support was merged or compressed. After updates −1: ``ids_`` tells the samples apart.
    ids_ : array or None
        Identifiers of the support rows; after updates those that ``correct`` and ``forget`` take.
    leave_one_out_proba_ : array
        Probabilities of each support row given the others, as ``predict_proba`` would return them; with groups, given
        the samples of other groups. Rows as in ``support_indices_``. A merged or compressed support has none.

    Examples
    --------
    >>> import kcal
    >>> example = kcal.load_example()
    >>> train, cal, test = example.train, example.calibration, example.test
    >>> calibrator = kcal.KCal().fit(
    ...     cal.embeddings, cal.labels, train_embeddings=train.embeddings, train_labels=train.labels
    ... )
    >>> probs = calibrator.predict_proba(test.embeddings)
    >>> probs.shape == test.logits.shape
    True
    """

    inputs: ClassVar[str] = "embeddings"
    method: ClassVar[str] = "kcal"
    fit_options: ClassVar[frozenset[str]] = frozenset(
        {"train_embeddings", "train_labels", "groups", "train_groups", "sample_weight", "classes", "ids"}
    )

    model_class = KCalModel
    bandwidth_ = fitted("bandwidth")
    projection_ = fitted("projection")
    dimension_ = fitted("dimension")
    compression_ = fitted("compression")
    bandwidth_curve_ = latest()
    projection: Any = "skip"
    dimension: int | str = "auto"
    recipe: str | Recipe = "fast"
    kernel: str = "rbf"
    bandwidth: str | float = "cv"
    folds: int | None = parameter(None, check_integer, minimum=2, maximum=MAX_FOLDS)
    bandwidth_interval: tuple[float, float] | None = parameter(None, check_pair)
    bandwidth_reference: tuple[float, float] | None = parameter(None, check_pair)
    bandwidth_exponent: float | None = parameter(None, check_number, minimum=-1, maximum=0)
    smoothing: float | None = parameter(None, check_number, minimum=0, maximum=1)
    support: str = parameter("all", check_choice, choices=("all", "merged"))
    min_cluster_size: int = parameter(1, check_integer, minimum=1, maximum=MOST_POINTS)
    training_curve_: TrainingCurve | None = field(init=False)
    checkpoint_step_: int | None = field(init=False)
    checkpoint_losses_: tuple[float, ...] = field(init=False)
    _kind: ArrayKind = field(init=False)  # of the rows that fit was given

    @classmethod
    def as_published(cls, data_set: str | None = None, **parameters: Any) -> Self:
        """Return the paper's KCal: its projection, training and bandwidth search.

        ``data_set`` is one of the paper's, for its learning rate (:meth:`PaperRecipe.for_data_set`); ``parameters``
        are others of KCal. Training takes an hour or so. The paper's rule, by which the calibration set decides when
        the learning rate is halved, applies to a training set that is passed to ``fit``.
        """
        recipe = PaperRecipe() if data_set is None else PaperRecipe.for_data_set(data_set)
        return cls(**{"recipe": recipe, "bandwidth": "published", "smoothing": 0.0, **parameters})

    @with_gradients()
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
            stratified half of ``X`` (by groups, if given) is held out for it, with a warning.
        groups, train_groups : arrays, optional
            Patients, speakers, sites: a sample is never predicted from its own group.
        sample_weight : (n,) array, optional
            Relative importance of each sample in the support; the training of the projection is not weighted.
        classes : sequence, optional
            All classes in the wanted order of columns, where the labels do not include them all.
        ids : (n,) array, optional
            An identifier of each calibration sample.
        """
        self._begin_fit()
        rows, self._kind = self._check_rows(X, fitting=True)
        prints = self._remember(rows)
        options = {"classes": classes, "groups": groups, "sample_weight": sample_weight, "ids": ids}
        samples, training = self._check_fit_data(rows, y, train_embeddings, train_labels, train_groups, **options)
        if training is None and self.uses_training_set:
            training, samples = hold_out_half(samples, self.seed)
        self._check_support(samples, training)
        folds = self.folds_for(samples)
        with threads_for(0):
            model, learned, curve = self._fit_model(samples, training, samples.keys(folds, self.seed))
        n_counted = int(np.count_nonzero(samples.weights))
        if are_few(n_counted, len(samples.classes)):
            warn_of_sparse_support(n_counted, len(samples.classes), *model.leave_one_out_score())
        self.support_indices_, self.ids_ = samples.indices, samples.ids
        self.bandwidth_curve_ = None if curve is None else replace(curve, n_folds=folds)
        self.training_curve_ = learned.curve
        self.checkpoint_step_, self.checkpoint_losses_ = learned.step, learned.checkpoint_losses
        self._remember_samples(prints[samples.indices], samples, groups, sample_weight)
        self.bandwidth_history_ = (self._first_record(samples, model, curve),)
        self.model_ = model
        if self.support == "merged":
            for name, value in self._merged().items():
                setattr(self, name, value)
        self.classes_ = samples.classes
        return self

    @property
    def uses_training_set(self) -> bool:
        """Whether ``fit``, with the present parameters, learns from the network's training set."""
        return needs_training(self.projection)

    def training_recipe(self) -> Recipe:
        """Return the recipe by which the projection is trained."""
        return get_recipe(self.recipe)

    def _merged(self) -> dict[str, Any]:
        """Return the fitted attributes that the best merged support changes."""
        options = CompressionOptions(
            min_cluster_size=self.min_cluster_size,
            seed=self.seed,
            progress=self.progress,
            n_folds=self.folds or FOLDS,
            fixed_bandwidth=self.bandwidth != "cv",
        )
        with threads_for(0):
            return self._compressed(of_clear_gain, options, None)

    def _compressed(self, find_size: FindSize, options: CompressionOptions, groups: Any) -> dict[str, Any]:
        if groups is not None:
            raise InvalidInputError("groups", "must be left out: a KCal has those of its fit")
        known = self.model_.groups
        model, trial = compress_estimate(
            self.model_, None if known is None else known.cpu().numpy(), find_size, options
        )
        if model is self.model_:
            return {}
        return {
            "model_": replace(model, groups=None),
            "bandwidth_curve_": trial.curve,
            **without_samples(),
        }

    def folds_for(self, samples: Samples) -> int | None:
        """Return the number of folds of the bandwidth search; None leaves out samples or groups one at a time."""
        if self.folds is not None or self.bandwidth != "published":
            return self.folds
        return min(PUBLISHED_FOLDS, samples.n_parts) if samples.n_parts > 1 else None

    def _fit_model(
        self, samples: Samples, training: Samples | None, keys: torch.Tensor | None
    ) -> tuple[KCalModel, FoundProjection, BandwidthCurve | None]:
        """Return the model, how its projection was found, and the bandwidths that were tried by leaving out keys."""
        kernel, frequencies = get_kernel(self.kernel), samples.frequencies()
        size = size_of_rarest_class(samples.codes, samples.weights, len(samples.classes))
        choice = self.bandwidth_choice(size)
        learned = self._find_projection(samples, training, keys, choice)
        support = sorted_support(samples, project(learned.module, samples.embeddings))
        bandwidth, curve = choice.choose(support, kernel=kernel, keys=keys, progress=self.progress)
        model = KCalModel(
            projection=learned.module,
            support=support,
            bandwidth=bandwidth,
            kernel=kernel.name,
            frequencies=torch.from_numpy(frequencies),
            prior=check_prior(self.prior, samples.classes),
            smoothing=None if self.smoothing is None else float(self.smoothing),
            groups=None if samples.groups is None else torch.as_tensor(samples.groups, device=support.points.device),
        )
        return model.with_reference(samples.embeddings, model.groups), learned, curve

    def _find_projection(
        self, samples: Samples, training: Samples | None, keys: torch.Tensor | None, choice: BandwidthChoice
    ) -> FoundProjection:
        """Return the projection; checkpoints are compared by the leave-out loss at the bandwidths that they would get.

        The training of the paper is monitored by that at its own bandwidth, leaving out one sample or group.
        """
        kernel, recipe, index = get_kernel(self.kernel), self.training_recipe(), samples.spread_index(MAX_SCORED)
        some, some_keys = samples.select(index), None if keys is None else keys[index]

        def score(module: nn.Module) -> float:
            support = sorted_support(some, project(module, some.embeddings))
            return choice.lowest_loss(LeaveOutLoss(support, kernel=kernel, keys=some_keys))

        def monitor(module: nn.Module) -> float:
            support = sorted_support(samples, project(module, samples.embeddings))
            return LeaveOutLoss(support, kernel=kernel, keys=samples.keys(), memory_budget=0)(recipe.bandwidth)

        return find_projection(
            self.projection,
            training,
            samples,
            dimension=self.dimension,
            recipe=recipe,
            seed=self.seed,
            progress=self.progress,
            score=score,
            monitor=monitor,
        )

    @property
    def bandwidth_reference_(self) -> tuple[float, float]:
        """B in use and the size of the rarest class, the reference for a later fit by the rule."""
        check_is_fitted(self)
        model = self.model_
        support = model.support
        weights = (
            np.ones(len(support)) if support.log_weights is None else support.log_weights.cpu().double().exp().numpy()
        )
        return model.bandwidth, size_of_rarest_class(support.codes.cpu().numpy(), weights, support.n_classes)

    @property
    def support_size_(self) -> int:
        """Number of support points."""
        check_is_fitted(self)
        return len(self.model_.support)

    @property
    def leave_one_out_proba_(self) -> Any:
        """Probabilities of each support row given the others, (n, n_classes), in the order of ``support_indices_``."""
        check_is_fitted(self)
        if self.compression_ is not None:
            raise AttributeError(
                "a merged or compressed support has no leave_one_out_proba_: its points are no samples"
            )
        return self._kind.give_back(self.model_.leave_one_out_probs)

    @on_snapshot
    def summary(self) -> dict[str, str]:
        """Return the main results of the fit for display, label to text."""
        check_is_fitted(self)
        return {
            "support": f"{self.support_size_:,} {self.compression_ or 'samples'}",
            "dimension": f"{self.n_features_in_:,} → {self.dimension_:,}",
            "bandwidth": f"{self.bandwidth_:.4g}",
            **self._loss_summary(),
        }

    def _loss_summary(self) -> dict[str, str]:
        """Return the log-loss on the calibration set by leaving out samples, groups or folds."""
        model, curve = self.model_, self.bandwidth_curve_
        if curve is not None and curve.n_folds is not None:
            return {f"log-loss over {curve.n_folds} folds": f"{curve.loss:.4f}"}
        name = "leave-one-out log-loss" if model.groups is None else "leave-one-group-out log-loss"
        return {name: f"{model.leave_one_out_score()[1] if curve is None else curve.loss:.4f}"}

    @on_snapshot
    def as_module(self) -> KCalModule:
        """Return the prediction as a torch module of embeddings."""
        check_is_fitted(self)
        return KCalModule(self.model_)

    def _model_state(self) -> tuple[dict[str, Any], Tensors]:
        values, tensors = super()._model_state()
        values |= {
            "bandwidth_curve": None if self.bandwidth_curve_ is None else asdict(self.bandwidth_curve_),
            "training_curve": None if self.training_curve_ is None else asdict(self.training_curve_),
            "checkpoint_step": self.checkpoint_step_,
            "checkpoint_losses": self.checkpoint_losses_,
        }
        return values, tensors

    def _restore(self, state: CalibratorState) -> Self:
        points = self.model_.support.points
        self._kind = ArrayKind(is_torch=False, device=points.device, dtype=points.dtype)
        self.bandwidth_curve_, self.training_curve_ = read_curves(state.values)
        self.checkpoint_step_ = state.values["checkpoint_step"]
        self.checkpoint_losses_ = tuple(state.values["checkpoint_losses"])
        return super()._restore(state)

    def _probabilities(self, inputs: torch.Tensor) -> torch.Tensor:
        warn_of_known_rows(self._knows(inputs), "Or use leave_one_out_proba_.")
        return self.model_.probs(self.as_embeddings(inputs))

    def _attribute(self, inputs: torch.Tensor, block: slice, probs: torch.Tensor, k: int) -> Attribution:
        return attribute_kcal(self.model_, self.as_embeddings(inputs[block]), probs, k)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        get_recipe(self.recipe)
        check_learned_projection(self.projection, self.dimension)
        get_kernel(self.kernel)
        if self.smoothing == 1:
            raise InvalidInputError("smoothing", "must be less than 1", got="1")
        if self.support == "merged" and isinstance(self.bandwidth, str) and self.bandwidth == "published":
            raise InvalidInputError("support", 'must be "all" with bandwidth="published"', got='"merged"')
        check_bandwidth(self.bandwidth, self.bandwidth_reference)
        if self.bandwidth_interval is not None and not self.bandwidth_interval[0] < self.bandwidth_interval[1]:
            expected, got = "must be (low, high) with 0 < low < high", shown(self.bandwidth_interval)
            raise InvalidInputError("bandwidth_interval", expected, got=got)

    def _check_fit_data(
        self, rows: torch.Tensor, y: Any, embeddings: Any, labels: Any, train_groups: Any, **options: Any
    ) -> tuple[Samples, Samples | None]:
        """Return the checked samples of a fit, and its training set; ``options`` are those of ``check_samples``."""
        columns, names = column_names(embeddings), getattr(self, "feature_names_in_", [])
        if columns and len(names) and columns != list(names):
            raise InvalidInputError("train_embeddings", "must have the columns of X, in the same order")
        given, logits = (embeddings, labels, train_groups), self.inputs == "logits"
        train = check_training_set(*given, rows, self.projection, columns=self.n_features_in_, logits=logits)
        known = [self.projection.classes] if isinstance(self.projection, TrainedProjection) else []
        known += [] if train is None else [train[1]]  # classes of the training set get columns too
        samples, training = check_samples(self.as_embeddings(rows), y, known_labels=known, **options), None
        if train is not None:
            own: dict[str, Any] = {"classes": samples.classes, "names": ("train_labels", "train_groups")}
            training = check_samples(self.as_embeddings(train[0]), train[1], groups=train_groups, **own)
        check_at_least_two(samples.classes, type(self).__name__)
        return samples, training

    def _check_support(self, samples: Samples, training: Samples | None) -> None:
        """Check the prior against the classes of the support; warn of missing classes and of training rows."""
        frequencies = samples.frequencies()
        check_prior_reaches(check_prior(self.prior, samples.classes), torch.from_numpy(frequencies))
        if not self.smoothing:
            warn_of_missing_classes(
                samples.classes, frequencies, "Or pass smoothing=1e-3 to give them some probability."
            )
        warn_of_shared_rows(samples, training, self.projection)
