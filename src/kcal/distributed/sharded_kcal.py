"""KCal whose calibration set is too large for one machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import nn

from kcal.calibrators.kcal import check_bandwidth, check_pair
from kcal.calibrators.kernel_model import COMPARED_ROWS, evidence_share
from kcal.calibrators.prior import apply_prior, check_prior, check_prior_reaches, smooth
from kcal.distributed.engine import connect, count_workers
from kcal.distributed.parts import InputFile, find_files, open_parquet
from kcal.distributed.shards import Index, cut, load_rows, start_shards
from kcal.distributed.sorted_samples import SortedSamples
from kcal.distributed.tables import NOT_FEATURES, Columns
from kcal.errors import InvalidInputError, KcalError
from kcal.kernels import (
    MAX_PREDICTED,
    BandwidthChoice,
    ClassSums,
    PredictedLoss,
    check_parts,
    get_kernel,
    sampled_positions,
)
from kcal.projection import UNTRAINED, frozen_copy, ignores_length, log_lengths, project
from kcal.samples import MAX_FOLDS, fold_codes
from kcal.validation import (
    check_choice,
    check_groups,
    check_integer,
    check_labels,
    check_matrix,
    check_number,
    check_weights,
    checked_parameters,
    collect_classes,
    encode_labels,
    kind_of,
    parameter,
)

QUERY_ROWS = 8_192
"""Queries that are sent to the shards at once."""


@dataclass(kw_only=True, eq=False, repr=False)
class ShardedKCal(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """KCal over a support that actors of a Ray cluster hold in shards.

    S_k(q) = Σ_shards S_k(q; shard), p_k = S_k / Σ_j S_j: each shard returns its class sums with an offset, which are
    added in log space. Bandwidth search and probabilities are those of :class:`kcal.KCal` with the same parameters, up
    to 1e-6 (in single precision, up to a few times that for rows far from all samples). The labels, weights and groups
    are in the memory of this process; the embeddings of :meth:`fit_files` are only in the shards.

    Parameters
    ----------
    projection : "identity", "unit" or nn.Module
        Π: nothing is learned. A module is used as it is; :func:`kcal.train_projection` trains one on a sample.
    kernel, bandwidth, prior, smoothing, folds, bandwidth_interval, seed, progress
        As in :class:`kcal.KCal`; ``bandwidth`` is "cv", "published" or a number.
    n_predicted : int
        Samples that the search predicts from all others, at most; 5,000 as in :class:`kcal.KCal`. The standard error of
        the loss, in ``bandwidth_curve_``, tells how precise fewer are.
    n_shards : int, optional
        By default as many as the cluster has room for.
    num_cpus : float
        Cores of each shard's actor.
    address : str, optional
        As in :func:`kcal.distributed.connect`.

    Attributes
    ----------
    classes_, bandwidth_, bandwidth_curve_
        As in :class:`kcal.KCal`.
    support_size_ : int
        Number of support points.
    shard_sizes_ : tuple of int
        Support points of each shard.
    """

    projection: str | nn.Module = "identity"
    kernel: str = "rbf"
    bandwidth: str | float = "cv"
    prior: Any = None
    smoothing: float | None = parameter(None, check_number, minimum=0, maximum=1)
    folds: int | None = parameter(None, check_integer, minimum=2, maximum=MAX_FOLDS)
    bandwidth_interval: tuple[float, float] | None = None
    seed: int = parameter(0, check_integer, minimum=0, maximum=2**64 - 1)
    n_predicted: int = parameter(MAX_PREDICTED, check_integer, minimum=1, maximum=10**9)
    n_shards: int | None = parameter(None, check_integer, minimum=1, maximum=100_000)
    num_cpus: float = parameter(1.0, check_number, minimum=0)
    address: str | None = None
    progress: bool | None = None

    def fit(self, X: Any, y: Any, *, sample_weight: Any = None, groups: Any = None, classes: Any = None) -> Self:
        """Distribute embeddings (n, h) with their labels over shards, and choose the bandwidth."""
        rows = check_matrix(X)

        def loader(chosen: Index) -> Callable[[], torch.Tensor]:
            return partial(torch.clone, rows[torch.from_numpy(chosen)])

        return self._fit(loader, rows[:COMPARED_ROWS], check_labels(y, len(rows)), sample_weight, groups, classes)

    def fit_files(
        self,
        data: Any,
        *,
        features: Sequence[str] | None = None,
        label: str = "label",
        weight: str | None = None,
        group: str | None = None,
        classes: Any = None,
    ) -> Self:
        """Let the shards read their embeddings from parquet files, which all machines see, and choose the bandwidth.

        Parameters
        ----------
        data : path, pattern, folder or sequence of them
            Parquet files.
        features : sequence of str, optional
            Columns of embeddings, or one column of lists; by default all columns but ``label``, ``weight``, ``group``
            and those called label, group, weight or id.
        label, weight, group : str
            Columns of labels and, optionally, of weights and groups.
        classes : sequence, optional
            As in ``fit``.
        """
        files = [InputFile.read(path) for path in find_files(data)]
        others = [name for name in (label, weight, group) if name is not None]
        names = tuple(features or (name for name in files[0].columns if name not in {*NOT_FEATURES, *others}))
        for file in files:
            Columns((*names, *others)).check(list(file.columns), file.path)
        paths = [file.path for file in files]
        values = {name: np.concatenate([_column(path, name) for path in paths]) for name in others}
        labels = check_labels(values[label], len(values[label]))
        first = load_rows(paths, names, np.arange(min(len(labels), COMPARED_ROWS)))
        weights, groups = (None if name is None else values[name] for name in (weight, group))
        return self._fit(lambda rows: partial(load_rows, paths, names, rows), first, labels, weights, groups, classes)

    def _fit(
        self, loader: Any, first: torch.Tensor, labels: NDArray[Any], weight: Any, groups: Any, classes: Any
    ) -> Self:
        """Start the shards and choose the bandwidth.

        ``loader`` is that of :meth:`SortedSamples.content`, ``first`` are the embeddings of the first rows.
        """
        self._check_parameters()
        self.classes_ = collect_classes([labels], classes)
        codes = encode_labels(labels, self.classes_, "y")
        weights = None if weight is None else check_weights(weight, len(codes))
        totals = np.bincount(codes, weights=weights, minlength=len(self.classes_)).astype(np.float64)
        self._frequencies = torch.from_numpy(totals / totals.sum())
        n_samples = len(codes) if weights is None else int(np.count_nonzero(weights))
        self._even_share = 1 / (n_samples + 2) if self.smoothing is None else float(self.smoothing)
        self._prior = check_prior(self.prior, self.classes_)
        check_prior_reaches(self._prior, self._frequencies)
        keys = {} if groups is None else {"group": check_groups(groups, len(codes))}
        if self.folds is not None:
            keys["fold"] = fold_codes(codes, self.folds, keys.get("group"), self.seed)
        samples = SortedSamples.sort(codes, weights, keys, len(self.classes_))
        untrained = UNTRAINED[self.projection]() if isinstance(self.projection, str) else self.projection
        self._projection = frozen_copy(untrained, first[:1])
        keeps_lengths = ignores_length(self._projection, first)
        self.n_features_in_, self._dtype = first.shape[1], first.dtype
        places = cut(samples.support.codes.numpy(), self._count())
        contents = [samples.content(place, loader, self._projection, keeps_lengths=keeps_lengths) for place in places]
        self.shard_sizes_ = tuple(len(content.codes) for content in contents)
        self.support_size_ = len(codes)
        self._support = start_shards(connect(self.address), contents, len(self.classes_), num_cpus=self.num_cpus)
        self._references = samples.references()
        self._reference: tuple[torch.Tensor, torch.Tensor | None] | None = None  # densities, lengths
        self._choose_bandwidth(samples)
        return self

    def _choose_bandwidth(self, samples: SortedSamples) -> None:
        """Search with the loss of at most as many samples as a KCal predicts, each given all others in all shards."""
        self.bandwidth_curve_ = None
        if not isinstance(self.bandwidth, str):
            self.bandwidth_ = float(self.bandwidth)
            return
        choice, kernel = BandwidthChoice(self.bandwidth, self.bandwidth_interval), get_kernel(self.kernel)
        kind = next((kind for kind in ("fold", "group") if kind in samples.keys), "sample")
        check_parts(len(samples.support), samples.keys.get(kind))
        chosen = sampled_positions(len(samples.support), self.n_predicted)
        points, _ = self._support.samples(chosen.numpy())
        own, hidden = samples.support.codes[chosen], samples.hidden(kind, chosen)

        def own_shares(bandwidths: Sequence[float]) -> list[torch.Tensor]:
            sums = self._support.class_sums(points, bandwidths, kernel, hidden)
            return [part.gather(1, own[:, None]).squeeze(1) for part in sums.posteriors()]

        log_weights = samples.support.log_weights
        loss = PredictedLoss(own_shares, None if log_weights is None else log_weights[chosen], choice.min_prob)
        self.bandwidth_curve_ = choice.search(loss, mean_square=self._support.mean_square, progress=self.progress)
        self.bandwidth_ = self.bandwidth_curve_.bandwidth

    def predict_proba(self, X: Any) -> Any:
        """Return class probabilities, (n, n_classes), as the kind of array that was given."""
        rows, sums = self._class_sums(X)
        posteriors = torch.cat([part.posteriors()[0] for part in sums])
        probs = smooth(apply_prior(posteriors, self._prior, self._frequencies), self._even_share)
        return kind_of(X, rows).give_back(probs)

    def log_evidence(self, X: Any) -> Any:
        """Return the log density of the calibration set at each row, (n,), as :meth:`kcal.KCal.log_evidence`."""
        rows, sums = self._class_sums(X)
        return kind_of(X, rows).give_back(self._log_densities(sums, self._references.log_weight))

    def evidence(self, X: Any) -> Any:
        """Return the share of calibration samples that have less evidence than each row, as :meth:`kcal.KCal.evidence`.

        The first call computes the evidence of up to 1,000 calibration samples.
        """
        rows, sums = self._class_sums(X)
        if self._reference is None:
            chosen = self._references
            points, lengths = self._support.samples(chosen.positions)
            own = self._support.class_sums(points, [self.bandwidth_], get_kernel(self.kernel), chosen.hidden)
            densities = self._log_densities([own], chosen.log_visible_weights)
            self._reference = densities.sort().values, None if lengths is None else lengths.sort().values
        densities, lengths = self._log_densities(sums, self._references.log_weight), log_lengths(rows.double())
        return kind_of(X, rows).give_back(evidence_share(densities, lengths, *self._reference))

    def _class_sums(self, X: Any) -> tuple[torch.Tensor, list[ClassSums]]:
        """Return rows as a tensor and their class sums, block by block."""
        check_is_fitted(self)
        rows = check_matrix(X, columns=self.n_features_in_, owner="ShardedKCal")
        blocks = torch.split(project(self._projection, rows.to(self._dtype)), QUERY_ROWS)
        kernel = get_kernel(self.kernel)
        return rows, [self._support.class_sums(block, [self.bandwidth_], kernel) for block in blocks]

    def _log_densities(self, sums: Sequence[ClassSums], log_weights: torch.Tensor) -> torch.Tensor:
        """Return log densities, (n,), from class sums of blocks and the log weight of the samples that a row sees."""
        log_volume = get_kernel(self.kernel).log_volume(self.bandwidth_, len(self._support.centre))
        return torch.cat([part.log_densities(log_weights + log_volume)[0] for part in sums])

    def state(self) -> NoReturn:
        """Raise: the samples are too many for this process, which :func:`kcal.save` would gather them in."""
        check_is_fitted(self)
        raise KcalError(
            "A fitted ShardedKCal cannot be saved: its samples are in processes of the cluster. Fit again with "
            f"bandwidth={self.bandwidth_!r}, which only loads the shards; or save a KCal of a sample."
        )

    def __getstate__(self) -> Any:
        return self.state() if "bandwidth_" in vars(self) else super().__getstate__()

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each row."""
        labels: NDArray[Any] = self.classes_[np.asarray(self.predict_proba(X)).argmax(axis=1)]
        return labels

    def close(self) -> None:
        """End the actors, and free their memory."""
        check_is_fitted(self)
        ray = connect(self.address)
        for actor in self._support.actors:
            ray.kill(actor)

    def _count(self) -> int:
        return self.n_shards or count_workers(connect(self.address), num_cpus=self.num_cpus)

    def _check_parameters(self) -> None:
        checked_parameters(self)
        get_kernel(self.kernel)
        if isinstance(self.projection, str):
            check_choice(self.projection, "projection", tuple(UNTRAINED))
        check_bandwidth(self.bandwidth, None)
        check_pair(self.bandwidth_interval, "bandwidth_interval")
        if self.bandwidth == "published" and self.folds is None:
            raise InvalidInputError("folds", 'must be given with bandwidth="published"', got="None", remedy="Pass 20.")


def _column(path: str, name: str) -> NDArray[Any]:
    """Return one column of a parquet file."""
    with open_parquet(path) as file:
        column = file.read([name]).column(name)
    if column.null_count:
        expected = f"must have a value in every row of the column {name!r}"
        raise InvalidInputError("data", expected, got=f"{column.null_count:,} missing values in {path}")
    values: NDArray[Any] = column.to_numpy()
    return values.astype(str) if values.dtype == object else values
