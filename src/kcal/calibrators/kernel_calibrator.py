"""What KCal and its blend share: predictions, evidence, explanations, and samples that change after the fit."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import nn

from kcal.calibrators.base import (
    EXAMPLE_ROWS,
    CalibrationModel,
    Calibrator,
    CalibratorState,
    LoadArgumentError,
    Prediction,
    Tensors,
)
from kcal.calibrators.compress import CompressionOptions, FindSize, check_target
from kcal.calibrators.example_rows import example_rows
from kcal.calibrators.explain import BLOCK_ENTRIES, BLOCK_ROWS, Attribution, Explanation, point_names, to_explanation
from kcal.calibrators.fit_warnings import warn_of_known_rows
from kcal.calibrators.kernel_model import KernelModel
from kcal.calibrators.online import BandwidthRecord, SampleTable, Updates, check_updates
from kcal.calibrators.prior import check_prior, check_prior_reaches
from kcal.errors import FileFormatError, InvalidInputError, KcalError
from kcal.kernels import BandwidthCurve
from kcal.modes import with_gradients, without_autocast
from kcal.progress import progress_bar
from kcal.projection import OWN_MODULE, frozen_copy, log_lengths
from kcal.samples import Samples
from kcal.threads import threads_for
from kcal.validation import (
    check_device,
    check_ids,
    check_integer,
    check_labels,
    collect_classes,
    row_fingerprints,
    shown,
)

Index = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Fit:
    """What a fit or an update leaves. It is replaced in one assignment: a reader sees all of it."""

    model: CalibrationModel
    classes: NDArray[Any]
    fingerprints: NDArray[np.uint64]  # of the rows of the fit, ascending
    history: tuple[BandwidthRecord, ...]
    curve: BandwidthCurve | None = None
    ids: NDArray[Any] | None = None
    indices: Index = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # rows of X; none if merged
    log_lengths: NDArray[np.float64] | None = None  # of the embeddings; None if the evidence has its reference
    groups: Index | None = None  # of the samples, in the order of the fit
    version: int = 0  # of the table of samples
    is_search_due: bool = False


def of_fit(name: str) -> Any:
    """Declare a fitted attribute that follows updates at once: reading it builds the model if samples have changed."""
    return property(lambda calibrator: getattr(calibrator._latest(), name))


def of_last_fit(name: str) -> Any:
    """Declare a fitted attribute of the latest model that was built; reading it costs nothing."""
    return property(lambda calibrator: getattr(calibrator._built(), name))


@dataclass(kw_only=True, eq=False, repr=False)
class KernelCalibrator(Calibrator):
    """Base class of the methods with a kernel density estimate over projected embeddings.

    A method declares its parameters as fields, names its ``model_class``, builds a :class:`Fit` in ``fit``, and
    another one of changed samples in ``_rebuild``.
    """

    has_evidence: ClassVar[bool] = True
    has_explanations: ClassVar[bool] = True
    learns_online: ClassVar[bool] = True
    _keeps_zero_weights: ClassVar[bool] = True
    """Whether samples of weight 0 are support points."""
    _private_results: ClassVar[tuple[str, ...]] = ("_fit", "_table", "_kind")
    prior: Any = None
    seed: int = 0
    progress: bool | None = None
    updates: Updates | None = None

    classes_ = of_fit("classes")
    ids_ = of_fit("ids")
    support_indices_ = of_fit("indices")
    bandwidth_history_ = of_last_fit("history")
    bandwidth_curve_ = of_last_fit("curve")
    _fingerprints = of_fit("fingerprints")
    _fit: Fit = field(init=False)
    _table: SampleTable | None = field(init=False)  # None if the support is not made of single samples

    @property
    def model_(self) -> CalibrationModel:  # type: ignore[override]
        """The fitted model, with the reference of its evidence."""
        return self._complete().model

    def __sklearn_is_fitted__(self) -> bool:
        return "_fit" in vars(self)

    @property
    def support_size_(self) -> int:
        """Number of support points."""
        return len(self._estimate_of(self._latest().model).points)

    # Predictions, evidence, explanations

    def _predict(self, X: Any, logits: Any) -> Prediction:
        fit = self._latest()
        rows, scores, kind = self._check_inputs(fit, X, logits)
        warn_of_known_rows(known_rows(fit, rows), self._known_rows_remedy)
        with torch.no_grad():
            return Prediction(self._log_probs(fit.model, rows, scores), fit.classes, kind)

    _known_rows_remedy: ClassVar[str] = ""

    def _log_probs(self, model: CalibrationModel, rows: torch.Tensor, scores: torch.Tensor | None) -> torch.Tensor:
        return model.in_blocks(None if self.inputs == "logits" else rows, rows if self.inputs == "logits" else scores)

    def _check_inputs(self, fit: Fit, X: Any, logits: Any) -> tuple[torch.Tensor, torch.Tensor | None, Any]:
        """Return the checked rows of ``X``, the logits beside them, and the kind of array of ``X``."""
        if logits is not None:
            expected = f"are not an argument of {type(self).__name__}"
            raise InvalidInputError("logits", expected, remedy="Leave them out.")
        rows, kind = self._check_rows(X)
        return rows, None, kind

    @abstractmethod
    def _estimate_of(self, model: Any) -> KernelModel:
        """Return the kernel density estimate of a model."""

    def as_embeddings(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the embeddings that the projection works on, (n, h), from rows of ``X``."""
        return rows

    @without_autocast()
    def log_evidence(self, X: Any) -> Any:
        """Return the log density of the calibration set at each row, (n,).

        Low values mark queries far from all calibration samples; :meth:`evidence` puts them on a scale from 0 to 1.
        """
        estimate = self._estimate_of(self._latest().model)
        rows, kind = self._check_rows(X)
        with torch.no_grad():
            return kind.give_back(estimate.log_density(estimate.class_sums(self.as_embeddings(rows))))

    @without_autocast()
    def evidence(self, X: Any) -> Any:
        """Return the share of calibration samples that have less evidence than each row, (n,), from 0 to 1.

        A calibration sample has the log density of the others (of other groups) at it.
        Rows of the distribution of the calibration set get roughly uniform values, rows far from it values near 0:
        with ``evidence(X) < 0.01`` about 1 % of ordinary rows are rejected. Where the metric divides embeddings by
        their length, a length unlike those of the calibration samples lowers the evidence too: s, the smaller of the
        shares of the density and of the length, 2·min(F, 1 − F), becomes 1 − (1 − s)². Rows of the calibration set see
        themselves, and get too much.
        """
        estimate = self._estimate_of(self._complete().model)
        rows, kind = self._check_rows(X)
        embeddings = self.as_embeddings(rows)
        with torch.no_grad():
            return kind.give_back(estimate.evidence(estimate.class_sums(embeddings), embeddings))

    @without_autocast()
    def explain(self, X: Any, k: int = 5, *, logits: Any = None) -> Explanation:
        """Return the ``k`` most influential calibration samples of each prediction, with their shares and distances.

        Shares of the samples, of all other samples and of what is not a sample sum to the probabilities of
        :meth:`predict_proba`; :class:`~kcal.calibrators.Explanation` says how they are defined. Of a blend there are
        also the contributions of its parts to the log-odds of the two most probable classes.

        Parameters
        ----------
        X, logits
            As in :meth:`predict_proba`. Rows of the calibration set are explained by themselves.
        k : int
            Number of samples; fewer if the calibration set has fewer.
        """
        fit = self._latest()
        estimate = self._estimate_of(fit.model)
        rows, scores, _ = self._check_inputs(fit, X, logits)
        check_integer(k, "k", minimum=1, maximum=10**9)
        warn_of_known_rows(known_rows(fit, rows), self._known_rows_remedy)
        n_points = len(estimate.points)
        step = max(min(BLOCK_ROWS, BLOCK_ENTRIES // (min(k, n_points) * self.n_features_in_)), 1)
        blocks = [slice(start, start + step) for start in range(0, len(rows), step)]
        attributions = []
        with (
            torch.no_grad(),
            progress_bar("Explaining", len(blocks), show=self.progress if len(blocks) > 1 else False) as advance,
        ):
            probs = self._log_probs(fit.model, rows, scores).exp().cpu().double()
            for block in blocks:
                some = None if scores is None else scores[block]
                attributions.append(self._attribute(fit.model, rows[block], some, probs[block], k))
                advance("")
        indices, ids = fit.indices, fit.indices if fit.ids is None else fit.ids
        if len(indices) != n_points:  # the points stand for several samples
            indices, ids = np.full(n_points, -1), point_names(estimate)
        return to_explanation(attributions, probs, fit.classes, rows=indices, ids=ids)

    @abstractmethod
    def _attribute(
        self, model: Any, rows: torch.Tensor, scores: torch.Tensor | None, probs: torch.Tensor, k: int
    ) -> Attribution:
        """Return what the samples contribute to the probabilities ``probs`` of checked rows."""

    @property
    def calibration_log_evidence_(self) -> NDArray[np.float64]:
        """The log evidence of calibration samples given the others (other groups), ascending: at most 1,000 of them.

        New rows like the calibration set have a :meth:`log_evidence` of the same distribution.
        """
        log_densities: NDArray[np.float64] = self._estimate_of(self.model_).log_densities.cpu().numpy().copy()
        return log_densities

    def example_inputs(self, n_rows: int = EXAMPLE_ROWS) -> dict[str, torch.Tensor]:
        """Return made-up rows like those of the calibration set; their projections lie among the support points."""
        estimate, n_features = self._estimate_of(self.model_), self.n_features_in_
        if self.inputs != "logits":
            return {"embeddings": example_rows(estimate, n_rows, n_features, self.as_embeddings)}
        rows = example_rows(estimate, n_rows, max(n_features, 2), self.as_embeddings)
        return {"logits": rows[:, 1:] - rows[:, :1] if n_features == 1 else rows}  # one column: the log-odds

    # Other calibrators made from this one

    @property
    def prior_(self) -> NDArray[np.float64]:
        """Class frequencies that the probabilities assume: the prior, or those of the calibration set."""
        model: Any = self._latest().model
        assumed = model.frequencies if model.prior is None else model.prior
        frequencies: NDArray[np.float64] = assumed.cpu().numpy().copy()
        return frequencies

    def with_prior(self, prior: Any) -> Self:
        """Return a calibrator for other class frequencies of deployment, without a new fit; this one stays as it is.

        ``prior`` is "uniform", a sequence, a mapping, or None for the frequencies of the calibration set.
        """
        other = self.snapshot()
        fit = other._fit
        checked = check_prior(prior, fit.classes)
        check_prior_reaches(checked, fit.model.get_buffer("frequencies").cpu())
        model = fit.model.changed({"prior": checked}, has_prior=checked is not None)
        other.prior, other._fit = prior, replace(fit, model=model)
        return other

    def compress(
        self,
        size: int | float | None = None,
        *,
        max_loss_increase: float | None = None,
        method: str = "kmeans",
        min_cluster_size: int = 1,
        groups: Any = None,
    ) -> Self:
        """Return a fitted calibrator with fewer support points; this one stays as it is.

        Size and bandwidth are chosen by out-of-fold predictions: samples are predicted from the smaller support of the
        other folds, since a merged support contains every sample. The pool weights of a blend stay. With as many points
        as there are samples, nothing changes.

        Merged points are means, which store no single sample's embedding, with limits: a cluster of one sample is that
        sample, one of few samples is close to each (``compression.fewest`` of the model is the smallest, and
        ``min_cluster_size`` bounds it), and fingerprints of the rows stay, by which a known embedding can be recognised
        as one of the calibration set. The other methods keep samples as they are.

        Parameters
        ----------
        size : int or float
            Number of support points, at least one per class, or their share of the samples.
        max_loss_increase : float
            In place of a size: the smallest one is taken whose out-of-fold log-loss is higher than that of all samples
            by at most this share, such as 0.005, the standard error of the difference included.
        method : "kmeans", "kernel-thinning", "herding" or "random"
            Merge points into weighted centroids within each class, or keep some of the points: those that preserve the
            kernel mean of their class, or random ones. Merging is the most accurate at every size.
        min_cluster_size : int
            Samples that a centroid stands for at least, where its class has as many.
        groups : (n,) array, optional
            Groups of the calibration samples of positive weight, in the order of the fit; by default those of the fit.
        """
        other = self.snapshot()
        find_size = check_target(size, max_loss_increase)
        options = CompressionOptions(method, min_cluster_size, self.seed, self.progress).checked()
        with threads_for(0):
            compressed = other._compressed(other._fit, find_size, options, groups)
        if compressed is not other._fit:
            other._fit, other._table = compressed, None
        return other

    @abstractmethod
    def _compressed(self, fit: Fit, find_size: FindSize, options: CompressionOptions, groups: Any) -> Fit:
        """Return the fit with a smaller support; the same one if that has all samples."""

    def to(self, device: str | torch.device) -> Self:
        """Move the fitted calibrator to a device; kernel sums then run there."""
        fit, place = self._complete(), check_device(device)
        self._fit = replace(fit, model=deepcopy(fit.model).to(place))
        return self

    def snapshot(self, *, search: bool = True, ids: Any = None) -> Self:
        """Return a fitted calibrator with the present samples that later updates do not change.

        Without ``search``, a search (of a blend: a fit) that is due is left out. ``ids`` are new identifiers of the
        samples, in the order of ``current_ids_``.
        """
        fit, table = self._complete(search=search), self._table
        other = copy(self)
        if table is not None:
            with table.lock:
                if fit.version != table.version:  # samples have changed meanwhile
                    fit = self._build(table, search=False)
                table = table.copy()
        other._fit, other._table = replace(self._with_reference(fit), is_search_due=False), table
        return other if ids is None else other._rename(ids)

    def _rename(self, ids: Any) -> Self:
        """Give the samples other ids; for a calibrator that no other thread has."""
        table, fit = self._checked_table(), self._fit
        names = check_ids(ids, len(table)).tolist()
        new = dict(zip(table.current_ids(), names, strict=True))
        before = fit.indices if fit.ids is None else fit.ids
        self._fit = replace(fit, ids=np.array([new[name] for name in before.tolist()]))
        table.rename(names)
        return self

    # Samples that change

    def correct(self, ids: Any, labels: Any) -> Self:
        """Replace the labels of samples.

        Parameters
        ----------
        ids : (n,) array
            Identifiers of samples, as ``fit`` or ``partial_fit`` was given them; else ``ids_`` holds them.
        labels : (n,) array
            Their new labels, of known or new classes.
        """
        table = self._open_table()
        names = check_ids(ids, _length(ids)).tolist()
        given = check_labels(labels, len(names), "labels")
        with table.lock:
            rows = table.rows_of(names)
            self._check_new_classes(table, given, "labels")
            lost = table.relabel(rows, given, check_updates(self.updates))
        self._warn_lost_classes(lost, table.classes)
        return self

    def forget(self, ids: Any) -> Self:
        """Erase samples: nothing of them is left in the calibrator, nor in the next file that it is saved to.

        What was learned from them together with others stays until it is learned anew: a projection, a bandwidth, the
        weights of a blend. Snapshots that you keep, earlier files and copies are yours to delete.

        A class whose last sample is forgotten stays in ``classes_``: a KCal warns, and gives it no probability but that
        of ``smoothing`` until samples of it come.
        """
        table = self._open_table()
        names = check_ids(ids, _length(ids)).tolist()
        with table.lock:
            unknown = [name for name in names if name not in table]
            lost = table.erase(table.rows_of([] if unknown else names))  # and what is left of samples that were evicted
        with table.building:  # other threads predict as before meanwhile
            try:
                built = self._build(table, search=False)
            except KcalError:  # too few samples are left: predictions raise
                model, nothing = self._without_samples(self._fit.model), np.empty(0, dtype=np.int64)
                columns: dict[str, Any] = {"ids": nothing, "indices": nothing, "groups": None, "log_lengths": None}
                fingerprints = np.sort(table.other_fingerprints)
                built = replace(self._fit, model=model, fingerprints=fingerprints, **columns, version=-1)
            self._fit = built
        self._warn_lost_classes(lost, table.classes)
        table.rows_of(unknown)
        return self

    def refresh(self, *, search: bool = True) -> Self:
        """Build the model of the present samples, in this thread; other threads predict as before meanwhile.

        Otherwise the next prediction does so. Without ``search``, a search (of a blend: a fit) that is due is left for
        later, and the parameters are those of the last one, as between two searches.
        """
        self._latest(search=search)
        return self

    @property
    def is_search_due_(self) -> bool:
        """Whether the latest model waits for a search, which :meth:`refresh` makes."""
        return self._built().is_search_due

    @property
    def has_groups_(self) -> bool:
        """Whether the samples have groups: new ones need them too."""
        return self._checked_table().groups is not None

    @property
    def has_own_ids_(self) -> bool:
        """Whether the fit was given ids; otherwise samples are known by the numbers of their rows."""
        return self._checked_table().has_own_ids

    @property
    def current_ids_(self) -> list[Any]:
        """Identifiers of the samples after all updates."""
        table = self._checked_table()
        with table.lock:
            return table.current_ids()

    @property
    def samples_(self) -> Samples:
        """The samples after all updates, in the order of their arrival; their ``embeddings`` are projected."""
        table = self._open_table()
        with table.lock:
            return table.samples()

    def _add(self, X: Any, y: Any, *, logits: Any, classes: Any, ids: Any, groups: Any, sample_weight: Any) -> Self:
        """Add samples to a fitted calibrator."""
        table, fit = self._open_table(), self._fit
        rows, scores, _ = self._check_inputs(fit, X, logits)
        labels = check_labels(y, len(rows))
        names = None if ids is None else check_ids(ids, len(rows)).tolist()
        columns = self._columns(fit.model, rows, scores)
        with table.lock:
            self._check_new_classes(table, labels, "y")
            check_given_classes(classes, table, labels)
            options = {"ids": names, "groups": groups, "sample_weight": sample_weight}
            table.add(columns, labels, check_updates(self.updates), **options)
            if not self._keeps_zero_weights and sample_weight is not None:
                table.drop_weightless(len(labels))
        return self

    @without_autocast()
    def _columns(self, model: CalibrationModel, rows: torch.Tensor, scores: torch.Tensor | None) -> dict[str, Any]:
        """Return what the table keeps of checked rows."""
        embeddings = self.as_embeddings(rows)
        points = self._estimate_of(model).project(embeddings)
        columns = {
            "points": points.cpu().numpy(),
            "fingerprints": row_fingerprints(rows),
            "log_lengths": log_lengths(embeddings.cpu().double()).numpy(),
        }
        return columns if scores is None else {**columns, "logits": scores.cpu().numpy()}

    def _check_new_classes(self, table: SampleTable, labels: NDArray[Any], name: str) -> None:
        """Raise if labels that are new cannot become classes."""
        if new := table.new_classes(labels):
            check_prior(self.prior, np.append(table.classes, np.array(new)))

    def _warn_lost_classes(self, lost: list[Any], classes: NDArray[Any]) -> None:
        """Warn of classes whose last sample has left, where that changes what can be predicted."""

    def _checked_table(self) -> SampleTable:
        """Return the samples of the fit; raise if there are none that could change."""
        self._built()
        if self._table is None:
            raise InvalidInputError(
                "calibrator",
                "has a support that is not made of single samples, so that they cannot be updated",
                remedy="Update the calibrator that it was made from.",
            )
        return self._table

    def _open_table(self) -> SampleTable:
        """Return the table; at the first update it gets the points of the model."""
        table = self._checked_table()
        with table.lock:
            if "points" not in table.columns:
                support = self._estimate_of(self._fit.model).support
                table.columns["points"] = support.in_original_order(support.points).cpu().numpy().copy()
        return table

    def _built(self) -> Fit:
        if not self.__sklearn_is_fitted__():  # asked first, since scikit-learn takes its time
            check_is_fitted(self)
        return self._fit

    def _latest(self, *, search: bool = True) -> Fit:
        """Return the fit of the present samples: built here, unless another thread does, which is not waited for.

        The thread that made the latest change waits: it sees what it did.
        """
        fit, table = self._built(), self._table
        if table is None or is_current(fit, table, search=search):
            return fit
        if not table.building.acquire(blocking=fit.version < 0 or table.author == threading.get_ident()):
            return fit
        try:
            while not is_current(self._fit, table, search=search):
                self._fit = self._build(table, search=search)
            return self._fit
        finally:
            table.building.release()

    @with_gradients()
    def _build(self, table: SampleTable, *, search: bool) -> Fit:
        """Return the fit of the present samples."""
        with table.lock:
            samples, version, n_updates = table.samples(), table.version, table.n_updates
            fingerprints = np.concatenate([table.other_fingerprints, table.column("fingerprints")])
            log_lengths, groups = table.column("log_lengths"), table.column("groups") if self.has_groups_ else None
        if not self._keeps_zero_weights and len(samples.counted) < len(samples):
            log_lengths, groups = log_lengths[samples.counted], None if groups is None else groups[samples.counted]
            samples = samples.select(samples.counted)
        fit = self._rebuild(self._fit, samples, n_updates, search=search)
        columns: dict[str, Any] = {
            "ids": samples.ids,
            "indices": samples.indices,
            "log_lengths": log_lengths,
            "groups": groups,
        }
        return replace(fit, fingerprints=np.sort(fingerprints), version=version, **columns)

    @abstractmethod
    def _rebuild(self, fit: Fit, samples: Samples, n_updates: int, *, search: bool) -> Fit:
        """Return a fit with other samples, whose embeddings are projected; with a search, if one is due."""

    @abstractmethod
    def _without_samples(self, model: Any) -> CalibrationModel:
        """Return a model from which no sample can be learned."""

    def _complete(self, *, search: bool = True) -> Fit:
        """Return the latest fit with the reference of its evidence, which predictions do not need."""
        fit = self._latest(search=search)
        complete = self._with_reference(fit)
        if complete is not fit and self._table is not None and self._table.building.acquire(blocking=False):
            if self._fit is fit:  # nobody has changed it meanwhile, as an erasure does
                self._fit = complete
            self._table.building.release()
        return complete

    def _with_reference(self, fit: Fit) -> Fit:
        if fit.log_lengths is None:
            return fit
        groups = None if fit.groups is None else torch.from_numpy(fit.groups)
        model = self._referenced(fit.model, torch.from_numpy(fit.log_lengths), groups)
        return replace(fit, model=model, log_lengths=None)

    @abstractmethod
    def _referenced(self, model: Any, lengths: torch.Tensor, groups: torch.Tensor | None) -> CalibrationModel:
        """Return a model with the reference of its evidence; ``lengths`` are logarithms, in the order of the fit."""

    # Files

    def state(self) -> CalibratorState:
        """Return the content of the fitted calibrator."""
        return super(KernelCalibrator, self.snapshot()).state()

    def _stored_parameters(self) -> dict[str, Any]:
        stored = dict(self.get_params(deep=False))
        stored["updates"] = None if self.updates is None else asdict(self.updates)
        prior = check_prior(self.prior, self.classes_)
        if prior is not None and not isinstance(self.prior, str):
            stored["prior"] = prior.tolist()  # a mapping would need text as keys
        return stored

    @classmethod
    def _read_parameters(cls, stored: dict[str, Any], model: Any) -> dict[str, Any]:
        updates = None if stored["updates"] is None else Updates(**stored["updates"])
        return {**stored, "updates": updates}

    @classmethod
    def _model_parts(
        cls, config: Mapping[str, Any], tensors: Tensors, parts: Mapping[str, Any]
    ) -> dict[str, nn.Module]:
        super()._model_parts(config, tensors, {name: part for name, part in parts.items() if name != "projection"})
        architecture = config.get("estimate", config)["projection"]
        if architecture == OWN_MODULE and "projection" not in parts:
            raise LoadArgumentError(
                "projection",
                "is needed: the projection is a module of your own, of which only the tensors are stored",
                remedy="Build the module again and pass it: kcal.load(path, projection=module).",
            )
        if architecture != OWN_MODULE and "projection" in parts:
            expected = f'is not needed: "{architecture}" is stored whole'
            raise LoadArgumentError("projection", expected, remedy="Leave it out.")
        return {"module": frozen_copy(parts["projection"], tensors["points"])} if architecture == OWN_MODULE else {}

    def _extra_state(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        fit, table = self._fit, self._table
        samples, columns = (None, {}) if table is None else table.to_state()
        curve = None if fit.curve is None else asdict(fit.curve)
        values = {"bandwidth_history": [asdict(record) for record in fit.history], "bandwidth_curve": curve}
        tensors = {f"samples.{name}": column for name, column in columns.items()}
        return values | {"samples": samples}, tensors | {"indices": torch.from_numpy(fit.indices)}

    def _restore_fit(self, state: CalibratorState, model: Any, classes: NDArray[Any]) -> None:
        values, estimate = state.values, self._estimate_of(model)
        self._check_features(self.n_features_in_, estimate.config["n_features"])
        estimate.check()
        prints, indices = (state.tensors[name].numpy() for name in ("fingerprints", "indices"))
        fingerprints, n_points = np.sort(prints.view(np.uint64)), len(estimate.points)
        self._table, ids, groups = None, None, None
        if values["samples"] is not None:
            stored = {name: part for name, part in state.tensors.items() if name.startswith("samples.")}
            columns = {name.removeprefix("samples."): part for name, part in stored.items()}
            self._table = SampleTable.from_state(values["samples"], columns, classes, n_points)
            self._table.other_fingerprints = np.setdiff1d(fingerprints, self._table.columns["fingerprints"])
            ids = np.array(self._table.ids) if self._table.has_own_ids or (indices < 0).any() else None
            groups = self._table.columns.get("groups")
        if len(indices) != (0 if self._table is None else n_points):
            raise FileFormatError("the stored row numbers do not fit the support.")
        self._fit = Fit(
            model=model,
            classes=classes,
            fingerprints=fingerprints,
            history=read_history(values["bandwidth_history"]),
            curve=None if values["bandwidth_curve"] is None else read_curve(values["bandwidth_curve"]),
            ids=ids,
            indices=indices,
            groups=groups,
        )

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_updates(self.updates)


def is_current(fit: Fit, table: SampleTable, *, search: bool) -> bool:
    """Return whether a fit is of the present samples and, with ``search``, no search is due."""
    return fit.version == table.version and not (search and fit.is_search_due)


def known_rows(fit: Fit, rows: torch.Tensor) -> NDArray[np.bool_]:
    """Return for each row whether it is one of the fit."""
    prints = row_fingerprints(rows)
    places = np.searchsorted(fit.fingerprints, prints).clip(max=len(fit.fingerprints) - 1)
    known: NDArray[np.bool_] = fit.fingerprints[places] == prints
    return known


def check_given_classes(classes: Any, table: SampleTable, labels: NDArray[Any]) -> None:
    """Raise if classes of ``partial_fit`` are not known; a class that appears in the labels is added by itself."""
    if classes is None:
        return
    known = set(table.labels) | set(labels.tolist())
    unknown = [label for label in collect_classes([], classes).tolist() if label not in known]
    if unknown:
        expected = "must be those of the first call; a class that appears in y is added by itself"
        raise InvalidInputError("classes", expected, got=repr(unknown[0]))


def read_curve(stored: Mapping[str, Any]) -> BandwidthCurve:
    """Return the curve of a bandwidth search from a file."""
    arrays = {name: np.array(stored[name], dtype=np.float64) for name in ("bandwidths", "losses")}
    return BandwidthCurve(**{**stored, **arrays})


def read_history(stored: Sequence[Mapping[str, Any]]) -> tuple[BandwidthRecord, ...]:
    """Return the records of the bandwidths from a file."""
    history = tuple(BandwidthRecord(**{**record, "classes": tuple(record["classes"])}) for record in stored)
    for record in history:
        counts = (record.n_samples, record.n_classes, record.n_updates)
        numbers = (record.bandwidth, record.size)
        valid = all(type(count) is int for count in counts) and all(type(number) in (int, float) for number in numbers)
        if not valid or min(*counts, *numbers) < 0 or record.source not in ("search", "law", "given"):
            raise FileFormatError("the stored history of the bandwidth is damaged.")
    return history


def _length(ids: Any) -> int:
    try:
        return len(ids)
    except TypeError:
        raise InvalidInputError("ids", "must be a sequence of ids", got=shown(ids)) from None
