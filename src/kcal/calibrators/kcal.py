"""KCal: class probabilities from a kernel density estimate over projected calibration embeddings.

p_k(x) = Σ_{i: y_i = k} w_i·φ_b(Π(x_i) − Π(x)) / Σ_i w_i·φ_b(Π(x_i) − Π(x)), corrected for the prior, smoothed

The projection Π is learned from the network's training set, the bandwidth b from the calibration set, the x_i.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kcal.calibrators.base import (
    EXAMPLE_ROWS,
    Tags,
    fitted,
)
from kcal.calibrators.compress import MAX_SUPPORT_SIZE, SIZE_FOLDS, select_one_se
from kcal.calibrators.fit_warnings import (
    too_few_samples,
    warn_missing_classes,
    warn_sparse_support,
    warn_training_rows,
    warn_untrained,
)
from kcal.calibrators.kernel_calibrator import Fit, KernelCalibrator
from kcal.calibrators.kernel_model import (
    COMPARED_ROWS,
    LOWEST_LOG_PROB,
    KCalModel,
    bounded_log_softmax,
    check_bandwidth,
    check_positive_pair,
    example_rows,
    support_values,
)
from kcal.calibrators.online import BandwidthRecord, bandwidth_record, check_updates, with_record
from kcal.calibrators.prior import check_prior, check_prior_reaches
from kcal.errors import BandwidthWarning, InvalidInputError, KcalWarning, warn, without_warnings
from kcal.kernels import (
    PUBLISHED_FOLDS,
    BandwidthChoice,
    BandwidthCurve,
    LeaveOutLoss,
    MotherKernel,
    SortedSupport,
    get_kernel,
    size_of_rarest_class,
    sorted_support,
)
from kcal.modes import with_gradients
from kcal.projection import (
    ARCHITECTURES,
    OWN_MODULE,
    FastRecipe,
    PaperRecipe,
    Recipe,
    TrainedProjection,
    TrainingCurve,
    check_dimension,
    check_projection,
    find_projection,
    get_recipe,
    ignores_length,
    needs_training,
    project,
)
from kcal.samples import MAX_FOLDS, Samples, check_samples
from kcal.threads import threads_for
from kcal.validation import (
    ArrayKind,
    check_choice,
    check_integer,
    check_matrix,
    check_number,
    check_scores,
    parameter,
    row_fingerprints,
    shown,
)

MAX_COMPARED = 6_000
"""Calibration samples on which checkpoints are compared, at most: more would cost time and not change the choice."""
MAX_ALONE = 0.3
"""Share of samples without another of their class above which searches scan: the others say little of the bandwidth."""


@dataclass(kw_only=True, eq=False, repr=False)
class KCal(KernelCalibrator):
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
    projection : "residual", "linear", "unit", "identity", TrainedProjection or nn.Module
        Π. "residual" is the paper's, r + V·ELU(r) of a linear map r; "linear" is KCal-Linear; "unit" learns nothing and
        compares directions. A module is copied, and trained unless it is frozen. A
        :class:`~kcal.projection.TrainedProjection` is used without further training: pass one in pipelines and
        cross-validation, where a training set cannot be passed to ``fit``.
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
        (b₀, m₀) for the rule: an earlier bandwidth, and the size of the rarest class at that time, as a record of
        ``bandwidth_history_`` has them.
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
    bandwidth_curve_ : BandwidthCurve or None
        Every bandwidth tried by the latest search, with its loss; None between searches.
    bandwidth_history_ : tuple of BandwidthRecord
        Every search, and the bandwidth in use: whether it is of a search, of the power law, or given.
    projection_ : nn.Module
        Π in use.
    training_curve_ : TrainingCurve or None
        Loss of the projection's training, and the checkpoint that was chosen.
    support_size_ : int
        Number of support points.
    compression_ : Compression or None
        How the samples became fewer support points, with the out-of-fold loss and the smallest cluster.
    support_indices_ : array
        Rows of ``X`` that became support: all of them; none if the support was merged or compressed. After updates −1:
        ``ids_`` tells the samples apart.
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

    _model_class = KCalModel
    projection_ = fitted("projection")
    compression_ = fitted("compression")
    projection: Any = "residual"
    dimension: int | str = "auto"
    recipe: str | Recipe = "fast"
    kernel: str = "rbf"
    bandwidth: str | float = "cv"
    folds: int | None = parameter(None, check_integer, minimum=2, maximum=MAX_FOLDS)
    bandwidth_interval: tuple[float, float] | None = None
    bandwidth_reference: tuple[float, float] | None = None
    bandwidth_exponent: float | None = parameter(None, check_number, minimum=-1, maximum=0)
    smoothing: float | None = parameter(None, check_number, minimum=0, maximum=1)
    support: str = parameter("all", check_choice, choices=("all", "merged"))
    min_cluster_size: int = parameter(1, check_integer, minimum=1, maximum=MAX_SUPPORT_SIZE)

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
            Embeddings and labels of the network's training set, to learn the projection from. Without them none is
            learned, and a warning says what is compared instead: directions of the embeddings ("unit"), or with fewer
            than 16 features, or on logits, the rows themselves ("identity").
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
        rows, _ = self._check_rows(X, fitting=True)
        embeddings = self._as_embeddings(rows)
        training = self._check_training_set(train_embeddings, train_labels, train_groups, embeddings)
        known_labels = [] if training is None else [training.labels]
        if isinstance(self.projection, TrainedProjection):
            known_labels = [self.projection.classes]
        given = {"classes": classes, "groups": groups, "sample_weight": sample_weight, "ids": ids}
        samples = self._check_samples(rows, embeddings, y, known_labels=known_labels, **given)
        self._check_support(samples, training)

        folds = self._n_folds(samples)
        has_one_class = np.count_nonzero(samples.class_weights()) == 1  # which every bandwidth predicts
        with without_warnings(BandwidthWarning) if has_one_class else nullcontext(), threads_for(0):
            model, training_curve, curve = self._fit_model(samples, training, samples.keys(folds, self.seed))
        if too_few_samples(len(samples), samples.n_classes):
            warn_sparse_support(len(samples), samples.n_classes, *model.leave_one_out_score(samples.keys()))
        chosen = (self._bandwidth_choice(samples).fixed_source,) if curve is None else ("search", curve.loss)
        fit = Fit.of(
            model,
            samples,
            bandwidth_record(samples, len(samples), model.bandwidth, *chosen),
            curve=None if curve is None else replace(curve, n_folds=folds),
            training_curve=training_curve,
        )
        if self.support == "merged":
            folds, fixed = self.folds or SIZE_FOLDS, self.bandwidth != "cv"
            options = {"min_cluster_size": self.min_cluster_size, "n_folds": folds, "fixed_bandwidth": fixed}
            fit = self._compressed(fit, select_one_se, **options)
        self._fit, self._table = fit, None
        return self

    def partial_fit(
        self, X: Any, y: Any, *, classes: Any = None, ids: Any = None, groups: Any = None, sample_weight: Any = None
    ) -> Self:
        """Add samples to the support; the projection stays as it is. Without a fit before, this is :meth:`fit`.

        It takes time O(d) per sample. The next prediction sorts the support anew and, where :class:`Updates` says so,
        searches for the bandwidth; between searches the bandwidth follows the power law. Other threads may predict
        meanwhile: they never see a part of an update.

        Parameters
        ----------
        X, y, groups, sample_weight
            New samples, as in :meth:`fit`. A label that is new adds a class. Groups are needed if ``fit`` had them.
            Weights count relative to those before; samples without weights have 1.
        classes : sequence, optional
            All classes, for the first call.
        ids : (n,) array, optional
            Identifiers; a sample with a known one replaces the earlier sample. By default the next integers.
        """
        given = {"classes": classes, "ids": ids, "groups": groups, "sample_weight": sample_weight}
        return self._add(X, y, logits=None, **given) if self.__sklearn_is_fitted__() else self.fit(X, y, **given)

    @property
    def tags(self) -> Tags:
        """What the calibrator takes and offers."""
        learns = needs_training(self.projection)
        return replace(super().tags, uses_training_set=learns, recipe=self._training_recipe())

    @property
    def training_curve_(self) -> TrainingCurve | None:
        """Loss of the projection's training, and the checkpoint that was chosen; None without a training."""
        return self._built().training_curve

    @property
    def leave_one_out_proba_(self) -> NDArray[np.floating]:
        """Probabilities of each support row given the others, (n, n_classes), in the order of ``support_indices_``."""
        fit = self._latest()
        if fit.samples is None:
            raise AttributeError(
                "a merged or compressed support has no leave_one_out_proba_: its points are not samples"
            )
        probs = fit.model.leave_one_out_probs(fit.samples.keys())
        ordered: NDArray[np.floating] = fit.model.support.in_original_order(probs).cpu().numpy()
        return ordered

    def summary(self) -> dict[str, str]:
        """Return the main results of the fit for display, label to text."""
        fit = self._latest()
        model, curve = fit.model, fit.curve
        if curve is not None and curve.n_folds is not None:
            name, loss = f"log-loss over {curve.n_folds} folds", curve.loss
        else:
            groups = None if fit.samples is None else fit.samples.keys()
            name = f"leave-{'one' if groups is None else 'one-group'}-out log-loss"
            loss = fit.model.leave_one_out_score(groups)[1]
        return {
            "support": f"{len(model.points):,} {model.compression or 'samples'}",
            "dimension": f"{self.n_features_in_:,} → {model.dimension:,}",
            "bandwidth": f"{model.bandwidth:.4g}",
            name: f"{loss:.4f}",
        }

    def _training_recipe(self) -> Recipe:
        """Return the recipe by which the projection is trained."""
        return get_recipe(self.recipe)

    def _as_embeddings(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the embeddings that the projection works on, (n, h), from rows of ``X``."""
        return rows

    def _bandwidth_choice(self, samples: Samples) -> BandwidthChoice:
        """Return how the bandwidth is chosen for some samples."""
        size = size_of_rarest_class(samples.codes, samples.weights, samples.n_classes)
        return BandwidthChoice(
            self.bandwidth, self.bandwidth_interval, self.bandwidth_reference, self.bandwidth_exponent, size
        )

    def _check_inputs(
        self, fit: Fit, X: Any, logits: Any
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, ArrayKind]:
        self._raise_unused_logits(logits)
        rows, kind = self._check_rows(X)
        return (None, rows, kind) if self.inputs == "logits" else (rows, None, kind)

    # Fit

    def _check_training_set(self, embeddings: Any, labels: Any, groups: Any, like: torch.Tensor) -> Samples | None:
        """Return the training set on the device and in the precision of the calibration rows; None without one."""
        if embeddings is None and labels is None and groups is None:
            return None
        if embeddings is None or labels is None:
            given, missing = sorted(("train_embeddings", "train_labels"), reverse=embeddings is None)
            raise InvalidInputError(given, f"need {missing}", remedy="Pass both, or neither.")
        self._check_same_columns(embeddings, "train_embeddings")
        if not needs_training(self.projection):
            expected = f"are of no use with projection={shown(self.projection)}: there is nothing to learn"
            raise InvalidInputError("train_embeddings", expected, remedy="Leave them out.")
        is_logits = self.inputs == "logits"
        options: dict[str, Any] = {"columns": self.n_features_in_, "owner": "the calibration set", "logits": is_logits}
        checked = check_matrix(embeddings, "train_embeddings", **options)
        checked = check_scores(embeddings, checked, "logits") if is_logits else checked
        rows = self._as_embeddings(checked).to(device=like.device, dtype=like.dtype)
        return check_samples(rows, labels, groups=groups, names=("train_labels", "train_groups"))

    def _check_support(self, samples: Samples, training: Samples | None) -> None:
        """Check the prior against the classes of the support; warn of missing classes and of training rows."""
        frequencies = samples.frequencies()
        check_prior_reaches(check_prior(self.prior, samples.classes), torch.from_numpy(frequencies))
        if not self.smoothing:
            remedy = "Or use KCalBlend, which takes their probability from the logits, or pass smoothing=1e-3."
            warn_missing_classes(samples.classes, frequencies, remedy)
        if isinstance(self.projection, TrainedProjection):
            warn_training_rows(samples.embeddings, self.projection.fingerprints)
        elif training is not None:
            warn_training_rows(samples.embeddings, row_fingerprints(training.embeddings))

    def _n_folds(self, samples: Samples) -> int | None:
        """Return the number of folds of the bandwidth search; None leaves out samples or groups one at a time."""
        if self.folds is not None or self.bandwidth != "published":
            return self.folds
        return min(PUBLISHED_FOLDS, samples.n_parts) if samples.n_parts > 1 else None

    def _fit_model(
        self, samples: Samples, training: Samples | None, keys: torch.Tensor | None
    ) -> tuple[KCalModel, TrainingCurve | None, BandwidthCurve | None]:
        """Return the model, the training of its projection, and the bandwidths that were tried by leaving out keys."""
        kernel, choice = get_kernel(self.kernel), self._bandwidth_choice(samples)
        projection, training_curve = self._find_projection(samples, training, keys, choice)
        support = sorted_support(replace(samples, embeddings=project(projection, samples.embeddings)))
        bandwidth, curve = choice.choose(support, kernel=kernel, keys=keys, progress=self.progress)
        compares_lengths = ignores_length(projection, samples.embeddings[:COMPARED_ROWS])
        smoothing = None if self.smoothing is None else float(self.smoothing)
        model = KCalModel(
            projection=projection,
            n_features=samples.embeddings.shape[1],
            bandwidth=bandwidth,
            kernel=kernel.name,
            smoothing=smoothing,
            inputs=self.inputs,
            **support_values(support, compares_lengths=compares_lengths),
            **self._class_frequencies(samples),
        )
        return model, training_curve, curve

    def _class_frequencies(self, samples: Samples) -> dict[str, torch.Tensor | None]:
        """Return the class frequencies of samples and of deployment, as buffers of the model."""
        prior = check_prior(self.prior, samples.classes)
        return {"frequencies": torch.from_numpy(samples.frequencies()), "prior": prior}

    def _find_projection(
        self, samples: Samples, training: Samples | None, keys: torch.Tensor | None, choice: BandwidthChoice
    ) -> tuple[nn.Module, TrainingCurve | None]:
        """Return projection and training; checkpoints are compared by the leave-out loss at their own bandwidths."""
        projection = self.projection
        if training is None and needs_training(projection):
            projection = self._untrained(samples.embeddings.shape[1])
        kernel, index = get_kernel(self.kernel), samples.spread_index(MAX_COMPARED)
        some, some_keys = samples.select(index), None if keys is None else keys[index]
        if training is not None:
            training = training.with_classes(samples.classes)

        def score(module: nn.Module) -> float:
            support = sorted_support(replace(some, embeddings=project(module, some.embeddings)))
            return choice.lowest_loss(LeaveOutLoss(support, kernel=kernel, keys=some_keys))

        return find_projection(
            projection,
            training,
            samples,
            dimension=self.dimension,
            recipe=self._training_recipe(),
            seed=self.seed,
            progress=self.progress,
            score=score,
        )

    def _untrained(self, n_features: int) -> str:
        """Return the projection that takes the place of one to be learned, and warn; raise if nothing can."""
        recipe = self._training_recipe()
        if isinstance(self.projection, nn.Module) or isinstance(recipe, PaperRecipe):
            what = "the module" if isinstance(self.projection, nn.Module) else "the paper's projection"
            expected, remedy = f"are needed to train {what}", 'Pass them, or projection="unit", which learns nothing.'
            raise InvalidInputError("train_embeddings", expected, remedy=remedy)
        metric = "unit" if recipe.takes_directions(n_features) else "identity"
        warn_untrained(metric)
        return metric

    # Updates

    def _rebuild(self, fit: Fit, samples: Samples, n_updates: int, *, search: bool) -> Fit:
        """Return the fit at a given bandwidth, at that of the power law of earlier searches, or of a new search."""
        support = sorted_support(samples)
        record, curve, is_due = self._next_bandwidth(fit, samples, support, n_updates, search=search)
        model = fit.model.with_support(support, bandwidth=record.bandwidth, **self._class_frequencies(samples))
        history = with_record(fit.history, record)
        return replace(fit, model=model, history=history, curve=curve, is_search_due=is_due)

    def _next_bandwidth(
        self, fit: Fit, samples: Samples, support: SortedSupport, n_updates: int, *, search: bool
    ) -> tuple[BandwidthRecord, BandwidthCurve | None, bool]:
        """Return the bandwidth of changed samples, the curve of its search, and whether a search is still due."""
        choice, updates, last = self._bandwidth_choice(samples), check_updates(self.updates), fit.history[-1]
        fixed = choice.without_search(support.dimension)
        if fixed is not None:
            return bandwidth_record(samples, n_updates, fixed, choice.fixed_source), None, False
        law = updates.law(fit.history, dimension=support.dimension, exponent=self.bandwidth_exponent)
        expected = None if law is None else law(choice.size)
        is_due = updates.is_due(fit.history, n_updates, samples.classes_seen)
        if is_due and search:
            is_due, curve = False, self._search(choice, samples, support, expected, get_kernel(fit.model.kernel))
            if curve is not None:
                return bandwidth_record(samples, n_updates, curve.bandwidth, "search", curve.loss), curve, False
        if last.n_updates == n_updates:
            return last, fit.curve, is_due
        bandwidth = last.bandwidth if expected is None else expected
        return bandwidth_record(samples, n_updates, bandwidth, "law"), None, is_due

    def _search(
        self,
        choice: BandwidthChoice,
        samples: Samples,
        support: SortedSupport,
        expected: float | None,
        kernel: MotherKernel,
    ) -> BandwidthCurve | None:
        """Return a search around the expected bandwidth, or of the usual interval; None if too few samples are left."""
        if samples.n_parts < 2:
            return None
        folds = self._n_folds(samples)
        keys = samples.keys(folds, self.seed)
        with without_warnings(BandwidthWarning), threads_for(0):
            if expected is None:
                curve = choice.choose(support, kernel=kernel, keys=keys, progress=False)[1]
            else:
                scan = samples.share_alone > MAX_ALONE
                curve = choice.choose_near(expected, support, kernel=kernel, keys=keys, scan=scan)
        return None if curve is None else replace(curve, n_folds=folds)

    def _warn_lost_classes(self, lost: list[Any], classes: NDArray[Any]) -> None:
        if lost and not self.smoothing:
            warn_missing_classes(classes, ~np.isin(classes, lost), "Or pass smoothing=1e-3 to KCal.")

    # Files and parameters

    def _stored_parameters(self) -> dict[str, Any]:
        stored = super()._stored_parameters()
        return stored if isinstance(self.projection, str) else {**stored, "projection": OWN_MODULE}

    @classmethod
    def _read_parameters(cls, stored: dict[str, Any], model: Any) -> dict[str, Any]:
        own = {"projection": model.projection} if stored["projection"] == OWN_MODULE else {}
        return stored | own

    def _check_parameters(self) -> None:
        super()._check_parameters()
        get_recipe(self.recipe)
        check_projection(self.projection)
        check_dimension(self.dimension)
        if self.dimension != "auto" and not (isinstance(self.projection, str) and self.projection in ARCHITECTURES):
            expected = f"applies to the projections {', '.join(ARCHITECTURES)} only"
            raise InvalidInputError("dimension", expected, remedy='Leave it at "auto".')
        get_kernel(self.kernel)
        if self.smoothing == 1:
            raise InvalidInputError("smoothing", "must be less than 1", got="1")
        is_published = isinstance(self.bandwidth, str) and self.bandwidth == "published"
        if self.support == "merged" and is_published:
            raise InvalidInputError("support", 'must be "all" with bandwidth="published"', got='"merged"')
        check_bandwidth(self.bandwidth, self.bandwidth_reference)
        for name in ("bandwidth_interval", "bandwidth_reference"):
            check_positive_pair(getattr(self, name), name)
        if self.bandwidth_interval is not None and not self.bandwidth_interval[0] < self.bandwidth_interval[1]:
            expected, got = "must be (low, high) with 0 < low < high", shown(self.bandwidth_interval)
            raise InvalidInputError("bandwidth_interval", expected, got=got)


class KCalLogits(KCal):
    """KCal on the network's logits in place of its embeddings.

    The log-softmax of the logits is the embedding, so that a constant added to a row changes nothing. ``X`` and
    ``train_embeddings`` are logits; everything else is as in :class:`KCal`: columns of the probabilities follow the
    labels or ``classes``, not the columns of the logits. The length of a row of logits is informative (it is the
    network's confidence), so that the fast recipe keeps it unless ``unit_length`` is set.
    """

    inputs: ClassVar[str] = "logits"
    method: ClassVar[str] = "kcal-logits"

    def example_inputs(self, n_rows: int = EXAMPLE_ROWS) -> dict[str, torch.Tensor]:
        """Return made-up logits like those of the calibration set; their projections lie among the support points."""
        rows = example_rows(self._latest().complete(), n_rows, max(self.n_features_in_, 2))
        return {"logits": rows[:, 1:] - rows[:, :1] if self.n_features_in_ == 1 else rows}  # one column: the log-odds

    def _as_embeddings(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the log-softmax of logits, (n, n_columns), bounded below."""
        return bounded_log_softmax(rows)

    def _check_support(self, samples: Samples, training: Samples | None) -> None:
        super()._check_support(samples, training)
        masked = samples.embeddings <= LOWEST_LOG_PROB
        if bool((masked != masked[0]).any()):
            n_masked = int(masked.any(dim=1).sum())
            warn(
                f"{n_masked:,} of {len(masked):,} rows of logits mask classes that others do not: KCalLogits compares "
                "rows by their distance, and masks put them far apart.",
                KcalWarning,
                remedy="Use KCal on the embeddings, or KCalBlend, which gives masked classes a probability of 0.",
            )

    def _training_recipe(self) -> Recipe:
        """Return the recipe of the projection; by default it keeps the length of the rows."""
        recipe = super()._training_recipe()
        if isinstance(recipe, FastRecipe) and recipe.unit_length == "auto":
            return replace(recipe, unit_length=False)
        return recipe
