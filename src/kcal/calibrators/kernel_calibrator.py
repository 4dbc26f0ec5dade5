"""What KCal and its blend share: predictions, evidence, explanations, and samples that change after the fit."""

from __future__ import annotations

import threading
from abc import abstractmethod
from contextlib import nullcontext
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from kcal.calibrators.base import (
    EXAMPLE_ROWS,
    CalibrationModel,
    Calibrator,
    Prediction,
    Tags,
    prediction_mode,
)
from kcal.calibrators.compress import MAX_SUPPORT_SIZE, FindSize, compress_model, size_rule
from kcal.calibrators.explain import Explanation, explain_rows
from kcal.calibrators.fit_warnings import warn_known_rows
from kcal.calibrators.kernel_model import example_rows
from kcal.calibrators.online import (
    BandwidthRecord,
    Counters,
    SampleTable,
    Updates,
    check_given_classes,
    check_updates,
    is_current,
    with_record,
)
from kcal.calibrators.prior import check_prior, check_prior_reaches
from kcal.calibrators.state import CalibratorState, decode_classes, encode_classes, from_json
from kcal.errors import FileFormatError, InvalidInputError, KcalError
from kcal.kernels import BandwidthCurve
from kcal.modes import with_gradients
from kcal.projection import TrainingCurve, log_lengths
from kcal.samples import Samples, check_samples, code_groups, relative_weights
from kcal.threads import threads_for
from kcal.validation import (
    ArrayKind,
    check_device,
    check_groups,
    check_ids,
    check_integer,
    check_labels,
    collect_classes,
    row_fingerprints,
    shown,
)

Index = NDArray[np.int64]
STORED_VALUES = ("history", "counters", "curve", "training_curve")
"""What a file has of a :class:`Fit` beside model and samples."""
STORED_COLUMNS = ("indices", "log_weights", "log_lengths", "fingerprints", "logits")
"""Columns of samples in a file; labels and points are those of the model."""


@dataclass(eq=False)
class Fit:
    """What a fit or an update leaves. It is replaced in one assignment: a reader sees all of it."""

    model: Any  # a KernelModel
    classes: NDArray[Any]
    fingerprints: NDArray[np.uint64]  # of the rows of the fit, ascending
    samples: Samples | None  # of the support, in the order of the fit, without embeddings; None if points are others
    counters: Counters
    history: tuple[BandwidthRecord, ...]
    curve: BandwidthCurve | None = None
    training_curve: TrainingCurve | None = None
    version: int = 0  # of the table of samples; −1 if too few samples are left
    is_search_due: bool = False

    @classmethod
    def of(cls, model: Any, samples: Samples, record: BandwidthRecord, **others: Any) -> Fit:
        """Return the results of a fit to samples, with how its bandwidth was chosen."""
        return cls(
            model=model,
            classes=samples.classes,
            fingerprints=np.sort(samples.fingerprints),
            samples=samples.without_rows(),
            counters=Counters.of(samples),
            history=(record,),
            **others,
        )

    def complete(self) -> Any:
        """Return the model with the reference of its evidence, which predictions do not need; it is computed once."""
        if self.samples is not None and not len(self.model.log_densities):
            with torch.inference_mode(False), torch.no_grad():
                self.model = self.model.with_reference(self.samples)
        return self.model


@dataclass(kw_only=True, eq=False, repr=False)
class KernelCalibrator(Calibrator):
    """Base class of the methods with a kernel density estimate over projected embeddings.

    A method declares its parameters as fields, names its ``_model_class``, assigns a :class:`Fit` at the end of
    ``fit``, and returns another one of changed samples in ``_rebuild``. Attributes follow updates at once: reading
    one builds the model if samples have changed; those of the bandwidth are of the latest model that was built.
    """

    _tags: ClassVar[Tags] = Tags(
        has_evidence=True, has_prior=True, has_explanations=True, learns_online=True, has_support=True
    )
    _private_results: ClassVar[tuple[str, ...]] = ("_fit", "_table")
    _opening: ClassVar[Any] = threading.Lock()
    prior: Any = None
    seed: int = 0
    progress: bool | None = None
    updates: Updates | None = None
    _fit: Fit = field(init=False)
    _table: SampleTable | None = field(init=False)  # from the first update on

    # Results of the fit

    @property
    def model_(self) -> CalibrationModel:  # type: ignore[override]
        """The fitted model: everything that predictions and evidence need."""
        model: CalibrationModel = self._latest().complete()
        return model

    @property
    def classes_(self) -> NDArray[Any]:  # type: ignore[override]
        """Labels, in the order of the columns of the probabilities."""
        return self._latest().classes

    @property
    def ids_(self) -> NDArray[Any] | None:
        """Identifiers of the support rows, as ``correct`` and ``forget`` take them; None if the fit was given none."""
        samples = self._latest().samples
        return None if samples is None else samples.ids

    @property
    def support_indices_(self) -> Index:
        """Rows of ``X`` that became support; −1 after updates, and none where points stand for several samples."""
        samples = self._latest().samples
        return np.empty(0, dtype=np.int64) if samples is None else samples.indices

    @property
    def support_size_(self) -> int:
        """Number of support points."""
        return len(self._latest().model.points)

    @property
    def bandwidth_(self) -> float:
        """The bandwidth b in use."""
        return float(self._built().model.bandwidth)

    @property
    def bandwidth_history_(self) -> tuple[BandwidthRecord, ...]:
        """Every search, and the bandwidth in use."""
        return self._built().history

    @property
    def bandwidth_curve_(self) -> BandwidthCurve | None:
        """Every bandwidth that the latest search tried, with its loss; None between searches."""
        return self._built().curve

    @property
    def calibration_log_evidence_(self) -> NDArray[np.float64]:
        """The log evidence of calibration samples given the others (other groups), ascending: at most 1,000 of them.

        New rows like the calibration set have a :meth:`log_evidence` of the same distribution.
        """
        log_densities: NDArray[np.float64] = self._latest().complete().log_densities.cpu().numpy().copy()
        return log_densities

    @property
    def prior_(self) -> NDArray[np.float64]:
        """Class frequencies that the probabilities assume: the prior, or those of the calibration set."""
        model = self._latest().model
        frequencies: NDArray[np.float64] = (model.frequencies if model.prior is None else model.prior).cpu().numpy()
        return frequencies.copy()

    @property
    def _fingerprints(self) -> NDArray[np.uint64]:  # type: ignore[override]
        return self._latest().fingerprints

    def __sklearn_is_fitted__(self) -> bool:
        return "_fit" in vars(self)

    def _built(self) -> Fit:
        if not self.__sklearn_is_fitted__():  # asked first, since scikit-learn takes its time
            check_is_fitted(self)
        return self._fit

    def _check_samples(self, rows: torch.Tensor, embeddings: torch.Tensor, y: Any, **given: Any) -> Samples:
        """Return the samples of a fit, with what updates and evidence need of them."""
        samples = check_samples(embeddings, y, **given)
        check_at_least_two(samples.classes, type(self).__name__)
        lengths = log_lengths(embeddings).cpu().numpy()
        samples = replace(samples, fingerprints=row_fingerprints(rows), log_lengths=lengths)
        return samples.select(samples.counted)

    # Predictions, evidence, explanations

    def _predict(self, X: Any, logits: Any) -> Prediction:
        fit = self._latest()
        *inputs, kind = self._check_inputs(fit, X, logits)
        warn_known_rows(fit.fingerprints, *inputs)
        return Prediction(fit.model.in_blocks(*inputs), fit.classes, kind)

    @abstractmethod
    def _check_inputs(
        self, fit: Fit, X: Any, logits: Any
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, ArrayKind]:
        """Return checked embeddings and logits, None for what the method does not take, and the kind of ``X``."""

    @prediction_mode()
    def log_evidence(self, X: Any) -> Any:
        """Return the log density of the calibration set at each row, (n,).

        Low values mark queries far from all calibration samples; :meth:`evidence` puts them on a scale from 0 to 1.
        """
        model = self._latest().model
        rows, kind = self._check_rows(X)
        return kind.restore(model.log_density(model.class_sums(rows, rows)[0]))

    @prediction_mode()
    def evidence(self, X: Any) -> Any:
        """Return the share of calibration samples that have less evidence than each row, (n,), from 0 to 1.

        A calibration sample has the log density of the others (of other groups) at it.
        Rows of the distribution of the calibration set get roughly uniform values, rows far from it values near 0:
        with ``evidence(X) < 0.01`` about 1 % of ordinary rows are rejected. Where the metric divides embeddings by
        their length, a length unlike those of the calibration samples lowers the evidence too: s, the smaller of the
        shares of the density and of the length, 2·min(F, 1 − F), becomes 1 − (1 − s)². Rows of the calibration set see
        themselves, and get too much.
        """
        model = self._latest().complete()
        rows, kind = self._check_rows(X)
        return kind.restore(model.evidence_of(rows, rows))

    @prediction_mode()
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
        *inputs, _ = self._check_inputs(fit, X, logits)
        k = check_integer(k, "k", minimum=1, maximum=10**9)
        warn_known_rows(fit.fingerprints, *inputs)
        with threads_for(0):
            return explain_rows(fit.complete(), fit.samples, fit.classes, *inputs, k=k, progress=self.progress)

    def example_inputs(self, n_rows: int = EXAMPLE_ROWS) -> dict[str, torch.Tensor]:
        """Return made-up rows like those of the calibration set; their projections lie among the support points."""
        return {"embeddings": example_rows(self._latest().complete(), n_rows, self.n_features_in_)}

    # Other calibrators made from this one

    def with_prior(self, prior: Any) -> Self:
        """Return a calibrator for other class frequencies of deployment, without a new fit; this one stays as it is.

        ``prior`` is "uniform", a sequence, a mapping, or None for the frequencies of the calibration set.
        """
        other = self.snapshot()
        fit = other._fit
        checked = check_prior(prior, fit.classes)
        check_prior_reaches(checked, fit.model.frequencies.cpu())
        model = fit.model.changed(prior=checked)
        other.prior, other._fit = prior, replace(fit, model=model)
        return other

    def compress(
        self,
        size: int | float | None = None,
        *,
        max_loss_increase: float | None = None,
        min_cluster_size: int = 1,
        groups: Any = None,
    ) -> Self:
        """Return a fitted calibrator with fewer support points, means of samples of a class; this one stays as it is.

        Size and bandwidth are chosen by out-of-fold predictions: samples are predicted from the smaller support of the
        other folds, since a merged support contains every sample. The pool weights of a blend stay. With as many points
        as there are samples, nothing changes.

        Merged points are means, which store no single sample's embedding, with limits: a cluster of one sample is that
        sample, one of few samples is close to each (``compression.fewest`` of the model is the smallest, and
        ``min_cluster_size`` bounds it), and fingerprints of the rows stay, by which a known embedding can be recognised
        as one of the calibration set.

        Parameters
        ----------
        size : int or float
            Number of support points, at least one per class, or their share of the samples.
        max_loss_increase : float
            In place of a size: the smallest one is taken whose out-of-fold log-loss is higher than that of all samples
            by at most this share, such as 0.005, the standard error of the difference included.
        min_cluster_size : int
            Samples that a centroid stands for at least, where its class has as many.
        groups : (n,) array, optional
            Groups of the support samples, in the order of ``support_indices_``; by default those of the fit.
        """
        other = self.snapshot()
        rule = size_rule(size, max_loss_increase)
        least = check_integer(min_cluster_size, "min_cluster_size", minimum=1, maximum=MAX_SUPPORT_SIZE)
        other._fit = other._compressed(other._fit, rule, groups, min_cluster_size=least)
        return other

    def _compressed(self, fit: Fit, find_size: FindSize, groups: Any = None, **options: Any) -> Fit:
        """Return the fit with a smaller support; the same one if that has all samples."""
        complete, samples = fit.complete(), fit.samples
        if groups is not None and samples is not None:
            samples = replace(samples, groups=check_groups(groups, len(samples)))
        with threads_for(0):
            options |= {"seed": self.seed, "progress": self.progress}
            model, trial = compress_model(complete, samples, find_size, **options)
        if model is complete:
            return fit
        record = replace(fit.history[-1], bandwidth=model.bandwidth, source="search", loss=trial.curve.loss)
        history = fit.history if options.get("fixed_bandwidth") else with_record(fit.history, record)
        return replace(fit, model=model, samples=None, curve=trial.curve, history=history)

    def to(self, device: str | torch.device) -> Self:
        """Move the fitted calibrator to a device; kernel sums then run there."""
        place, _ = check_device(device), self._latest(wait=True)
        with nullcontext() if self._table is None else self._table.building:
            self._fit = replace(self._fit, model=deepcopy(self._fit.complete()).to(place))
        return self

    def snapshot(self, *, search: bool = True, ids: Any = None) -> Self:
        """Return a fitted calibrator with the present samples that later updates do not change.

        Without ``search``, a search (of a blend: a fit) that is due is left out. ``ids`` are new identifiers of the
        samples, in the order of their arrival.
        """
        fit = self._latest(search=search, wait=True)
        fit = replace(fit, is_search_due=False) if fit.is_search_due else fit  # otherwise shared, with what it computed
        other = copy(self)
        other._fit, other._table = fit, None
        if ids is not None:
            samples = self._samples_of(fit)
            names = check_ids(ids, len(samples))
            counters = replace(fit.counters, own_ids=True)
            other._fit = replace(fit, samples=replace(samples, ids=names), counters=counters)
        return other

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
        table, names = self._open_table(), _names(ids)
        given = check_labels(labels, len(names), "labels")
        with table.lock:
            table.rows_of(names)
            self._check_new_classes(table, given, "labels")
            lost = table.relabel(names, given, check_updates(self.updates))
        self._warn_lost_classes(lost, table.classes)
        return self

    def forget(self, ids: Any) -> Self:
        """Erase samples: nothing of them is left in the calibrator, nor in the next file that it is saved to.

        What was learned from them together with others stays until it is learned anew: a projection, a bandwidth, the
        weights of a blend. Snapshots that you keep, earlier files and copies are yours to delete.

        A class whose last sample is forgotten stays in ``classes_``: a KCal warns, and gives it no probability but that
        of ``smoothing`` until samples of it come.
        """
        table, names, updates = self._open_table(), _names(ids), check_updates(self.updates)
        with table.lock:
            table.prune(updates)
            is_known = all(name in table.row_of for name in names)
            lost = table.erase(names if is_known else [], updates)  # with what is left of samples that were evicted
        with table.building:  # other threads predict as before meanwhile
            try:
                self._fit = self._build(table, search=False)
            except KcalError:  # too few samples are left: predictions raise
                model = self._fit.model
                empty = model.with_support(model.support.empty())
                no_samples = self._samples_of(self._fit).select(np.empty(0, dtype=np.int64))
                nothing = {"samples": no_samples, "fingerprints": no_samples.fingerprints}
                self._fit = replace(self._fit, model=empty, version=-1, **nothing)
        self._warn_lost_classes(lost, table.classes)
        table.rows_of([] if is_known else names)
        return self

    def refresh(self, *, search: bool = True) -> Self:
        """Build the model of the present samples, in this thread; other threads predict as before meanwhile.

        Otherwise the next prediction does so. Without ``search``, a search (of a blend: a fit) that is due is left for
        later, and the parameters are those of the last one, as between two searches.
        """
        self._latest(search=search)
        return self

    def _add(self, X: Any, y: Any, *, logits: Any, classes: Any, ids: Any, groups: Any, sample_weight: Any) -> Self:
        """Add samples to a fitted calibrator."""
        table, fit = self._open_table(), self._fit
        embeddings, scores, _ = self._check_inputs(fit, X, logits)
        rows: Any = scores if embeddings is None else embeddings
        labels = check_labels(y, len(rows))
        names = None if ids is None else check_ids(ids, len(rows)).tolist()
        with prediction_mode():
            projected = fit.model.rows(embeddings, scores)
            columns = {
                "embeddings": fit.model.project(projected).cpu().numpy(),
                "fingerprints": row_fingerprints(rows),
                "log_lengths": log_lengths(projected.cpu()).numpy(),
            }
        if "logits" in table.columns and scores is not None:
            columns["logits"] = scores.cpu().numpy()
        with table.lock:
            self._check_new_classes(table, labels, "y")
            check_given_classes(classes, table, labels)
            options = {"ids": names, "groups": groups, "sample_weight": sample_weight}
            table.add(columns, labels, check_updates(self.updates), **options)
        return self

    def _check_new_classes(self, table: SampleTable, labels: NDArray[Any], name: str) -> None:
        """Raise if labels that are new cannot become classes."""
        new = table.is_new(labels)
        if new.any():
            check_prior(self.prior, collect_classes([table.classes, labels[new]], name=name))

    def _warn_lost_classes(self, lost: list[Any], classes: NDArray[Any]) -> None:
        """Warn of classes whose last sample has left, where that changes what can be predicted."""

    def _samples_of(self, fit: Fit) -> Samples:
        """Return the samples of a fit; raise if it keeps no samples that can be updated."""
        if fit.samples is None:
            raise InvalidInputError(
                "calibrator",
                "has a support that is not made of single samples, so that they cannot be updated",
                remedy="Update the calibrator that it was made from.",
            )
        return fit.samples

    def _open_table(self) -> SampleTable:
        """Return the table of samples, made at the first update from those of the fit and the points of its model."""
        fit = self._built()
        if self._table is None:
            with self._opening:
                if self._table is None:
                    samples, support = self._samples_of(fit), fit.model.support
                    points = support.in_original_order(support.points)
                    samples, version = replace(samples, embeddings=points), max(fit.version, 0)
                    self._table = SampleTable(samples, fit.counters, version=version)
        return self._table

    def _latest(self, *, search: bool = True, wait: bool = False) -> Fit:
        """Return the fit of the present samples: built here, unless another thread does, which is not waited for.

        The thread that made the latest change waits: it sees what it did.
        """
        fit = self._built()
        if self._table is None and fit.version >= 0 and not (search and fit.is_search_due):
            return fit
        table = self._open_table()
        if is_current(fit, table, search=search):
            return fit
        wait = wait or fit.version < 0 or table.author is threading.current_thread()
        if not table.building.acquire(blocking=wait):
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
            samples, counters, version = table.samples(check_updates(self.updates)), table.counters, table.version
        on_device = replace(samples, embeddings=samples.embeddings.to(self._fit.model.device))
        fit = self._rebuild(self._fit, on_device, counters.n_updates, search=search)
        return replace(
            fit,
            classes=samples.classes,
            fingerprints=np.sort(samples.fingerprints),
            samples=samples.without_rows(),
            counters=counters,
            version=version,
        )

    @abstractmethod
    def _rebuild(self, fit: Fit, samples: Samples, n_updates: int, *, search: bool) -> Fit:
        """Return a fit with the model of other samples, whose embeddings are projected; with a search if one is due."""

    # Copies and files

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        if self.__sklearn_is_fitted__():
            fit = self._fit if self._fit.version < 0 else self._latest(search=False, wait=True)
            state = {**state, "_fit": fit, "_table": None}
        return state

    def _state(self) -> CalibratorState:
        return super(KernelCalibrator, self.snapshot())._state()

    def _stored_parameters(self) -> dict[str, Any]:
        prior = check_prior(self.prior, self.classes_)
        by_number = self.prior if prior is None or isinstance(self.prior, str) else prior.tolist()
        return {**super()._stored_parameters(), "prior": by_number}  # a mapping would need text as keys

    def _extra_state(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        fit, samples = self._fit, self._fit.samples
        values: dict[str, Any] = {name: getattr(fit, name) for name in STORED_VALUES}
        if samples is None:
            return values | {"samples": None}, {}
        named = {"ids": samples.ids, "groups": samples.group_names}
        values["samples"] = {name: None if part is None else encode_classes(part) for name, part in named.items()}
        columns = {name: getattr(samples, name) for name in STORED_COLUMNS if getattr(samples, name) is not None}
        columns["fingerprints"] = columns["fingerprints"].view(np.int64)
        return values, {f"samples.{name}": torch.as_tensor(column) for name, column in columns.items()}

    def _restore_fit(self, state: CalibratorState, model: Any, classes: NDArray[Any]) -> None:
        values = state.values
        self.prior = state.parameters["prior"]  # a list
        model.check()
        samples = None if values["samples"] is None else read_samples(state, model.support, classes)
        found = {name: from_json(values.get(name)) for name in STORED_VALUES}
        curve = found["curve"]
        if curve is not None:
            found["curve"] = replace(curve, bandwidths=np.array(curve.bandwidths), losses=np.array(curve.losses))
        are_records = all(isinstance(record, BandwidthRecord) for record in found["history"])
        if not are_records or not isinstance(found["counters"], Counters):
            raise FileFormatError("the stored history of the bandwidth is damaged.")
        self._fit = Fit(
            model=model,
            classes=classes,
            fingerprints=np.sort(state.tensors["fingerprints"].numpy().view(np.uint64)),
            samples=samples,
            **found,
        )
        self._table = None

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_updates(self.updates)


def check_at_least_two(classes: NDArray[Any], owner: str) -> None:
    """Raise if there is only one class: there is nothing to calibrate."""
    if len(classes) < 2:
        raise InvalidInputError(
            "classes",
            f"must be at least two for {owner}",
            got=f"1 class, {classes.tolist()[0]!r}",
            remedy="Pass classes= with every class of the problem if the calibration set holds only one of them.",
        )


def read_samples(state: CalibratorState, support: Any, classes: NDArray[Any]) -> Samples:
    """Return the samples of a support from a file."""
    named = {name: part and decode_classes(part) for name, part in state.values["samples"].items()}
    columns: dict[str, Any] = {name: state.tensors.get(f"samples.{name}") for name in STORED_COLUMNS}
    given = [part for part in (*columns.values(), *named.values()) if part is not None]
    if any(len(part) != len(support) for part in given) or columns["indices"].dtype != torch.int64:
        raise FileFormatError("the stored samples do not fit the support.")
    columns |= {name: columns[name].numpy() for name in STORED_COLUMNS if name != "logits"}
    columns["fingerprints"] = columns["fingerprints"].view(np.uint64)
    return Samples(
        **columns,
        codes=support.in_original_order(support.codes).numpy(),
        classes=classes,
        weights=relative_weights(columns["log_weights"]),
        ids=named["ids"],
        groups=None if named["groups"] is None else code_groups(named["groups"]),
        group_names=named["groups"],
    )


def _names(ids: Any) -> list[Any]:
    try:
        length = len(ids)
    except TypeError:
        raise InvalidInputError("ids", "must be a sequence of ids", got=shown(ids)) from None
    names: list[Any] = check_ids(ids, length).tolist()
    return names
