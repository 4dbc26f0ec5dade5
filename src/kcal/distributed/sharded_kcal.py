"""KCal whose calibration set is too large for one machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import nn

from kcal.calibrators.holdout import MAX_FOLDS, fold_codes
from kcal.calibrators.kcal.bandwidth import BandwidthChoice, check_parts
from kcal.calibrators.kcal.parameters import check_bandwidth
from kcal.calibrators.prior import apply_prior, check_prior, check_prior_reaches, smooth
from kcal.distributed.engine import connect, count_workers
from kcal.distributed.parts import find_files, open_parquet
from kcal.distributed.shards import (
    Index,
    Range,
    Rows,
    RowsInFiles,
    RowsInMemory,
    ShardContent,
    cut,
    start_shards,
)
from kcal.errors import InvalidInputError
from kcal.kernels import MAX_PREDICTED, PredictedLoss, get_kernel, sampled_positions
from kcal.projection import UNTRAINED, frozen_copy, project
from kcal.validation import (
    check_choice,
    check_groups,
    check_integer,
    check_labels,
    check_matrix,
    check_number,
    check_weights,
    collect_classes,
    encode_labels,
    kind_of,
)

QUERY_ROWS = 8_192
"""Queries that are sent to the shards at once."""


class ShardedKCal(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """KCal over a support that actors of a Ray cluster hold in shards.

    S_k(q) = Σ_shards S_k(q; shard), p_k = S_k / Σ_j S_j: each shard returns its class sums with an offset, which are
    added in log space. Bandwidth search and probabilities are those of :class:`kcal.KCal` with the same parameters, up
    to 1e-6. The labels, weights and groups are in the memory of this process, the embeddings only in the shards.

    Parameters
    ----------
    projection : "identity", "unit" or nn.Module
        Π: nothing is learned. A module is used as it is; :func:`kcal.train_projection` trains one on a sample.
    kernel, bandwidth, prior, smoothing, folds, bandwidth_interval, seed, progress
        As in :class:`kcal.KCal`; ``bandwidth`` is "cv", "published" or a number.
    n_predicted : int
        Samples that the search predicts from all others, at most; 5,000 as in :class:`kcal.KCal`. The standard error of
        the loss, in ``bandwidth_curve_``, says what fewer are worth.
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

    def __init__(
        self,
        *,
        projection: str | nn.Module = "identity",
        kernel: str = "rbf",
        bandwidth: str | float = "cv",
        prior: Any = None,
        smoothing: float = 0.0,
        folds: int | None = None,
        bandwidth_interval: tuple[float, float] | None = None,
        seed: int = 0,
        n_predicted: int = MAX_PREDICTED,
        n_shards: int | None = None,
        num_cpus: float = 1.0,
        address: str | None = None,
        progress: bool | None = None,
    ) -> None:
        self.projection = projection
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.prior = prior
        self.smoothing = smoothing
        self.folds = folds
        self.bandwidth_interval = bandwidth_interval
        self.seed = seed
        self.n_predicted = n_predicted
        self.n_shards = n_shards
        self.num_cpus = num_cpus
        self.address = address
        self.progress = progress

    def fit(self, X: Any, y: Any, *, sample_weight: Any = None, groups: Any = None, classes: Any = None) -> Self:
        """Distribute embeddings (n, h) with their labels over shards, and choose the bandwidth."""
        rows = check_matrix(X)

        def source(order: Index) -> Rows:
            return RowsInMemory(rows[torch.from_numpy(order)])

        return self._fit(source, rows[:1], y, sample_weight, groups, classes)

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
        paths = tuple(str(path.resolve()) for path in find_files(data))
        with open_parquet(paths[0]) as file:
            reserved = {label, weight, group, "label", "group", "weight", "id"}
            names = tuple(features or (name for name in file.schema_arrow.names if name not in reserved))
        source = RowsInFiles(paths, names)
        columns = {
            name: np.concatenate([_column(path, name) for path in paths]) for name in (label, weight, group) if name
        }
        first = source.load(np.zeros(1, dtype=np.int64))
        given = (columns[label], columns.get(weight or ""), columns.get(group or ""))
        return self._fit(lambda _: source, first, *given, classes)

    def _fit(self, source: Any, first: torch.Tensor, y: Any, weight: Any, groups: Any, classes: Any) -> Self:
        """Start the shards and choose the bandwidth; ``source`` maps rows to where an actor gets them from."""
        self._check_parameters()
        labels = np.asarray(y)
        labels = check_labels(labels, len(labels))
        self.classes_ = collect_classes([labels], classes)
        codes = encode_labels(labels, self.classes_, "y")
        weights = None if weight is None else check_weights(weight, len(codes))
        keys = None if groups is None else check_groups(groups, len(codes))
        totals = np.bincount(codes, weights=weights, minlength=len(self.classes_)).astype(np.float64)
        self._frequencies = torch.from_numpy(totals / totals.sum())
        self._prior = check_prior(self.prior, self.classes_)
        check_prior_reaches(self._prior, self._frequencies)
        if self.folds is not None:
            keys = fold_codes(codes, self.folds, keys, self.seed)
        untrained = UNTRAINED[self.projection]() if isinstance(self.projection, str) else self.projection
        self._projection = frozen_copy(untrained, first)
        self.n_features_in_, self._dtype = first.shape[1], first.dtype
        order = np.argsort(codes, kind="stable")
        contents = [
            self._content(source(order[place.start : place.stop]), place, order, codes, weights, keys)
            for place in cut(codes[order], self._count())
        ]
        self.shard_sizes_ = tuple(content.place.stop - content.place.start for content in contents)
        ray = connect(self.address)
        self._support = start_shards(ray, contents, len(self.classes_), num_cpus=self.num_cpus)
        self.support_size_ = len(codes)
        self._choose_bandwidth(codes[order], weights, order, keys)
        return self

    def _content(
        self, source: Rows, place: Range, order: Index, codes: Index, weights: Any, keys: Index | None
    ) -> ShardContent:
        rows = order[place.start : place.stop]
        scaled = None if weights is None else weights[rows] / weights.max()  # sums in single precision stay small
        return ShardContent(
            source, rows, codes[rows], scaled, None if keys is None else keys[rows], place, self._projection
        )

    def _choose_bandwidth(self, codes: Index, weights: Any, order: Index, keys: Index | None) -> None:
        """Search with the loss of at most as many samples as a KCal predicts, each given all others in all shards."""
        choice = BandwidthChoice(self.bandwidth, self.bandwidth_interval)
        self.bandwidth_curve_ = None
        if not isinstance(self.bandwidth, str):
            self.bandwidth_ = float(self.bandwidth)
            return
        check_parts(len(codes), None if keys is None else torch.from_numpy(keys))
        chosen = sampled_positions(len(codes), self.n_predicted).numpy()
        points, own = self._support.points(chosen), torch.from_numpy(codes[chosen])
        query_keys = torch.from_numpy(chosen if keys is None else keys[order[chosen]])

        def own_shares(bandwidths: Sequence[float]) -> list[torch.Tensor]:
            sums = self._support.class_sums(points, bandwidths, get_kernel(self.kernel), query_keys)
            return [part.gather(1, own[:, None]).squeeze(1) for part in sums.posteriors()]

        log_weights = None if weights is None else torch.from_numpy(weights[order[chosen]]).log()
        loss = PredictedLoss(own_shares, log_weights, choice.least_prob)
        self.bandwidth_curve_ = choice.search(loss, mean_square=self._support.mean_square, progress=self.progress)
        self.bandwidth_ = self.bandwidth_curve_.bandwidth

    def predict_proba(self, X: Any) -> Any:
        """Return class probabilities, (n, n_classes), as the kind of array that was given."""
        check_is_fitted(self)
        rows = check_matrix(X, columns=self.n_features_in_, owner="ShardedKCal")
        points = project(self._projection, rows.to(self._dtype))
        kernel, parts = get_kernel(self.kernel), []
        for block in torch.split(points, QUERY_ROWS):
            posteriors = self._support.class_sums(block, [self.bandwidth_], kernel).posteriors()[0]
            parts.append(smooth(apply_prior(posteriors, self._prior, self._frequencies), self.smoothing))
        return kind_of(X, rows).give_back(torch.cat(parts))

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each row."""
        labels: NDArray[Any] = self.classes_[np.asarray(self.predict_proba(X)).argmax(axis=1)]
        return labels

    def close(self) -> None:
        """End the actors, and free their memory."""
        ray = connect(self.address)
        for actor in self._support.actors:
            ray.kill(actor)

    def _count(self) -> int:
        return self.n_shards or count_workers(connect(self.address), num_cpus=self.num_cpus, num_gpus=0.0)

    def _check_parameters(self) -> None:
        get_kernel(self.kernel)
        if isinstance(self.projection, str):
            check_choice(self.projection, "projection", tuple(UNTRAINED))
        check_bandwidth(self.bandwidth, None)
        check_number(self.smoothing, "smoothing", minimum=0, maximum=1)
        if self.folds is not None:
            check_integer(self.folds, "folds", minimum=2, maximum=MAX_FOLDS)
        elif self.bandwidth == "published":
            raise InvalidInputError("folds", 'must be given with bandwidth="published"', got="None", remedy="Pass 20.")
        check_integer(self.n_predicted, "n_predicted", minimum=1, maximum=10**9)
        if self.n_shards is not None:
            check_integer(self.n_shards, "n_shards", minimum=1, maximum=100_000)


def _column(path: str, name: str) -> NDArray[Any]:
    """Return one column of a parquet file."""
    with open_parquet(path) as file:
        if name not in file.schema_arrow.names:
            raise InvalidInputError(path, f"has no column {name!r}")
        values: NDArray[Any] = file.read([name]).column(name).to_numpy()
    return values.astype(str) if values.dtype == object else values
