"""KCal whose calibration set is too large for one machine: a support in shards, each held by an actor of Ray.

Shards are ranges of the support sorted by class. Each returns its class sums, which add up to those of all points. An
actor that dies is started again, loads its shard as before and responds again; nothing else has to be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import nn

from kcal.calibrators import calibrator_state
from kcal.calibrators.kernel_model import (
    COMPARED_ROWS,
    check_bandwidth,
    check_positive_pair,
    evidence_share,
    reference_rows,
)
from kcal.calibrators.prior import apply_prior, check_prior, check_prior_reaches, smooth
from kcal.distributed.engine import connect, count_workers
from kcal.distributed.tables import NOT_FEATURES, Columns, find_files
from kcal.embeddings.read import matrix_of, reading_parquet
from kcal.errors import InvalidInputError, KcalError
from kcal.kernels import (
    KERNELS,
    MAX_PREDICTED,
    BandwidthChoice,
    ClassSums,
    LeaveOut,
    MotherKernel,
    PredictedLoss,
    PreparedSupport,
    SortedSupport,
    add_sums,
    check_parts,
    get_kernel,
    sampled_positions,
    sort_support,
    sum_of_points,
)
from kcal.projection import UNTRAINED, frozen_copy, ignores_length, log_lengths, project
from kcal.samples import MAX_FOLDS, fold_codes
from kcal.threads import threads_for
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

Index = NDArray[np.int64]
Loader = Callable[[Index], Callable[[], torch.Tensor]]
"""Maps rows to a function that loads their embeddings in an actor."""
QUERY_ROWS = 8_192
"""Queries that are sent to the shards at once."""
NARROW_SHARE = 1e-5
"""Share of the spread of the points that is so narrow a bandwidth that only the nearest points count."""


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
        import pyarrow.dataset

        paths = [str(path.resolve()) for path in find_files(data)]
        with reading_parquet(", ".join(paths)):
            dataset = pyarrow.dataset.dataset(paths, format="parquet")
        others = [name for name in (label, weight, group) if name is not None]
        names = tuple(features or (name for name in dataset.schema.names if name not in {*NOT_FEATURES, *others}))
        types = dict.fromkeys(dataset.schema.names, "")
        Columns((*names, *others)).check(types, ", ".join(paths), like=types)
        table = dataset.to_table(columns=others)
        for name in others:
            if n_missing := table.column(name).null_count:
                expected = f"must have a value in every row of the column {name!r}"
                raise InvalidInputError("data", expected, got=f"{n_missing:,} missing")
        values = {name: table.column(name).to_numpy() for name in others}
        labels = check_labels(values[label], len(table))
        first = load_rows(paths, names, np.arange(min(len(labels), COMPARED_ROWS)))
        weights, groups = (None if name is None else values[name] for name in (weight, group))
        return self._fit(lambda rows: partial(load_rows, paths, names, rows), first, labels, weights, groups, classes)

    def _fit(
        self, loader: Loader, first: torch.Tensor, labels: NDArray[Any], weight: Any, groups: Any, classes: Any
    ) -> Self:
        """Start the shards and choose the bandwidth; ``first`` are the embeddings of the first rows."""
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
        ray = connect(self.address)
        n_shards = min(self.n_shards or count_workers(ray, num_cpus=self.num_cpus), len(codes))
        ends = np.linspace(0, len(codes), n_shards + 1).astype(int).tolist()
        parts = [samples.shard(slice(*ends), loader, self._projection, keeps_lengths) for ends in pairwise(ends)]
        self.shard_sizes_ = tuple(len(part.codes) for part in parts)
        self.support_size_ = len(codes)
        self._support = ShardedSupport.start(ray, parts, len(self.classes_), num_cpus=self.num_cpus)
        self._references = samples.references()
        self._log_weight = torch.tensor(samples.support.log_total_weight, dtype=torch.float64)
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
        return kind_of(X, rows).restore(probs)

    def log_evidence(self, X: Any) -> Any:
        """Return the log density of the calibration set at each row, (n,), as :meth:`kcal.KCal.log_evidence`."""
        rows, sums = self._class_sums(X)
        return kind_of(X, rows).restore(self._log_densities(sums, self._log_weight))

    def evidence(self, X: Any) -> Any:
        """Return the share of calibration samples that have less evidence than each row, as :meth:`kcal.KCal.evidence`.

        The first call computes the evidence of up to 1,000 calibration samples.
        """
        rows, sums = self._class_sums(X)
        if self._reference is None:
            positions, hidden, log_weights = self._references
            points, lengths = self._support.samples(positions)
            own = self._support.class_sums(points, [self.bandwidth_], get_kernel(self.kernel), hidden)
            densities = self._log_densities([own], log_weights)
            self._reference = densities.sort().values, None if lengths is None else lengths.sort().values
        densities, lengths = self._log_densities(sums, self._log_weight), log_lengths(rows.double())
        return kind_of(X, rows).restore(evidence_share(densities, lengths, *self._reference))

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

    def __getstate__(self) -> Any:
        return raise_if_saved(self) if "bandwidth_" in vars(self) else super().__getstate__()

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

    def _check_parameters(self) -> None:
        checked_parameters(self)
        get_kernel(self.kernel)
        if isinstance(self.projection, str):
            check_choice(self.projection, "projection", tuple(UNTRAINED))
        check_bandwidth(self.bandwidth, None)
        check_positive_pair(self.bandwidth_interval, "bandwidth_interval")
        if self.bandwidth == "published" and self.folds is None:
            raise InvalidInputError("folds", 'must be given with bandwidth="published"', got="None", remedy="Pass 20.")


@calibrator_state.register
def raise_if_saved(calibrator: ShardedKCal) -> NoReturn:
    """Raise: the samples are too many for this process, which :func:`kcal.save` would gather them in."""
    check_is_fitted(calibrator)
    raise KcalError(
        "A fitted ShardedKCal cannot be saved: its samples are in processes of the cluster. Fit again with "
        f"bandwidth={calibrator.bandwidth_!r}, which only loads the shards; or save a KCal of a sample."
    )


class Hidden(NamedTuple):
    """What queries that are samples must not see: the sample itself, or all of its group or fold."""

    kind: str  # "sample", "group" or "fold"
    keys: torch.Tensor  # (n_query,); of samples, their positions in the sorted support


@dataclass(frozen=True, eq=False)
class SortedSamples:
    """Samples in the order of the shards."""

    support: SortedSupport  # its points have no coordinates: shards hold them
    keys: Mapping[str, torch.Tensor]  # "group" and "fold" of each sample, where there are some

    @classmethod
    def sort(cls, codes: Index, weights: Any, keys: Mapping[str, Index], n_classes: int) -> SortedSamples:
        """Sort samples by class; their largest weight becomes 1, so that sums in single precision stay small."""
        scaled = None if weights is None else torch.from_numpy(weights / weights.max())
        nothing = torch.empty(len(codes), 0, dtype=torch.float64)
        support = sort_support(nothing, torch.from_numpy(codes), n_classes, scaled)
        return cls(support, {kind: torch.from_numpy(values)[support.order] for kind, values in keys.items()})

    def shard(self, rows: slice, loader: Loader, projection: nn.Module, keeps_lengths: bool) -> ShardContent:
        """Return what the actor of some rows needs; a view of a tensor would be sent as the whole."""
        weights = None if self.support.log_weights is None else self.support.log_weights[rows].clone()
        keys = {kind: values[rows].clone() for kind, values in self.keys.items()}
        load, codes = loader(self.support.order[rows].numpy()), self.support.codes[rows].clone()
        return ShardContent(load, codes, weights, keys, rows.start, projection, keeps_lengths)

    def hidden(self, kind: str, positions: torch.Tensor) -> Hidden:
        """Return what samples must not see: themselves, their group or their fold."""
        return Hidden(kind, positions if kind == "sample" else self.keys[kind][positions])

    def references(self) -> tuple[Index, Hidden, torch.Tensor]:
        """Return the positions of samples that a KCal would compare queries with, each given the others.

        Also what each must not see, and the log weight of what it sees.
        """
        positions = reference_rows(self.support).sort().values
        kind = "group" if len(torch.unique(self.keys.get("group", torch.empty(0)))) > 1 else "sample"
        hidden = self.hidden(kind, positions)
        rule = LeaveOut(hidden.keys, self.keys.get(kind, torch.arange(len(self.support))), grouped=kind == "group")
        return positions.numpy(), hidden, rule.log_visible_weights(self.support)


@dataclass(frozen=True, eq=False)
class ShardContent:
    """What an actor needs to load its shard, as often as it is started."""

    load: Callable[[], torch.Tensor]  # returns the embeddings, (n, h)
    codes: torch.Tensor  # (n,), ascending
    log_weights: torch.Tensor | None
    keys: Mapping[str, torch.Tensor]  # groups and folds by kind, where there are some
    start: int  # position of the first point in the sorted support
    projection: nn.Module
    keeps_lengths: bool  # whether Π ignores the lengths of embeddings, which the evidence needs then


class Shard:
    """An actor that holds a shard. It keeps nothing that a caller would have to repeat after a restart."""

    def __init__(self, references: Sequence[Any]) -> None:
        import ray

        content: ShardContent = ray.get(references[0])
        embeddings = content.load()
        with threads_for(0):
            points = project(content.projection, embeddings)
        self.log_lengths = None
        if content.keeps_lengths:
            self.log_lengths = torch.cat([log_lengths(rows) for rows in torch.split(embeddings, QUERY_ROWS)])
        self.start, self.keys, self.first_class = content.start, content.keys, int(content.codes[0])
        weights = None if content.log_weights is None else content.log_weights.to(points)
        codes = content.codes - self.first_class
        self.support = SortedSupport(points, codes, weights, torch.arange(len(points)), int(codes[-1]) + 1)

    def total(self) -> tuple[torch.Tensor, torch.dtype]:
        """Return the sum of the points, (d,) in float64, and their precision."""
        return sum_of_points(self.support.points), self.support.points.dtype

    def square(self, centre: torch.Tensor) -> float:
        """Return the mean squared distance of two points of this shard, times their number, about a common centre."""
        return self._centred(centre).mean_square * len(self.support)

    def samples(self, positions: Index) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return points by their positions in the shard, and the log lengths of embeddings if Π ignores them."""
        chosen = torch.from_numpy(positions)
        return self.support.points[chosen], None if self.log_lengths is None else self.log_lengths[chosen]

    def class_sums(
        self,
        queries: torch.Tensor,
        bandwidths: Sequence[float],
        kernel: str,
        centre: torch.Tensor,
        hidden: Hidden | None,
    ) -> tuple[int, ClassSums]:
        """Return the first class of this shard, and the class sums of queries over the shard from that class on."""
        prepared = PreparedSupport(self._centred(centre), bandwidths, KERNELS[kernel], is_part=True)
        with threads_for(0), torch.inference_mode():
            sums = prepared.class_sums(queries, leave_out=None if hidden is None else self._rule(hidden))
        return self.first_class, sums

    def _rule(self, hidden: Hidden) -> LeaveOut:
        if hidden.kind == "sample":
            return LeaveOut(hidden.keys - self.start, self.support.order, grouped=False)
        return LeaveOut(hidden.keys, self.keys[hidden.kind], grouped=True)

    def _centred(self, centre: torch.Tensor) -> SortedSupport:
        """Return the shard about a centre; what was computed for the same centre before is kept."""
        if self.support.given_centre is None:
            self.support = replace(self.support, given_centre=centre)
        return self.support


@dataclass(frozen=True, eq=False)
class ShardedSupport:
    """The actors of all shards."""

    actors: Sequence[Any]
    contents: Sequence[Any]  # references to what the actors load: they must last as long as an actor may start again
    starts: Sequence[int]  # of the shards in the sorted support
    n_points: int
    n_classes: int

    @classmethod
    def start(cls, ray: Any, contents: Sequence[ShardContent], n_classes: int, *, num_cpus: float) -> ShardedSupport:
        """Start an actor for each shard; one that dies is started again, for as long as the cluster has room."""
        actor = ray.remote(num_cpus=num_cpus, max_restarts=-1, max_task_retries=-1)(Shard)
        references = [ray.put(content) for content in contents]
        actors = [actor.remote([reference]) for reference in references]  # Ray would log an argument that is stored
        n_points = sum(len(content.codes) for content in contents)
        return cls(actors, references, [content.start for content in contents], n_points, n_classes)

    @cached_property
    def centre(self) -> torch.Tensor:
        """Mean of all points, (d,)."""
        totals, dtypes = zip(*self._ask("total"), strict=True)
        return (torch.stack(totals).sum(dim=0) / self.n_points).to(dtypes[0])

    @cached_property
    def mean_square(self) -> float:
        """Mean squared distance of two points, averaged over the dimensions."""
        return float(sum(self._ask("square", self.centre)) / self.n_points)

    def samples(self, positions: Index) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return points by their ascending positions in the sorted support, and log lengths if Π ignores them."""
        import ray

        parts = np.split(positions, np.searchsorted(positions, self.starts[1:]))
        asked = zip(self.actors, parts, self.starts, strict=True)
        parts_found = ray.get([actor.samples.remote(part - start) for actor, part, start in asked])
        points, lengths = zip(*parts_found, strict=True)
        return torch.cat(points), None if lengths[0] is None else torch.cat(lengths)

    def class_sums(
        self, queries: torch.Tensor, bandwidths: Sequence[float], kernel: MotherKernel, hidden: Hidden | None = None
    ) -> ClassSums:
        """Return the class sums of queries over all shards; where no point is reached, the nearest count."""
        sums = self._added(queries, bandwidths, kernel.name, hidden)
        unreached = torch.isneginf(sums.offsets)
        some = unreached.any(dim=0).nonzero().squeeze(1)
        if kernel.is_compact and len(some):
            narrow = NARROW_SHARE * self.mean_square**0.5
            shadow = None if hidden is None else hidden._replace(keys=hidden.keys[some])
            nearest = self._added(queries[some], [narrow], "rbf", shadow)
            where = unreached[:, some][:, None]
            sums.sums[:, :, some] = torch.where(where, nearest.sums, sums.sums[:, :, some])
        return sums

    def _added(
        self, queries: torch.Tensor, bandwidths: Sequence[float], kernel: str, hidden: Hidden | None
    ) -> ClassSums:
        import ray

        whole = []
        for first, part in self._ask("class_sums", ray.put(queries), list(bandwidths), kernel, self.centre, hidden):
            sums = part.sums.new_zeros(len(bandwidths), self.n_classes, len(queries))
            sums[:, first : first + part.sums.shape[1]] = part.sums
            whole.append(ClassSums(sums, part.offsets))
        return add_sums(whole)

    def _ask(self, method: str, *arguments: Any) -> list[Any]:
        """Return the results of all actors."""
        import ray

        results: list[Any] = ray.get([getattr(actor, method).remote(*arguments) for actor in self.actors])
        return results


def load_rows(paths: Sequence[str], features: Sequence[str], rows: Index) -> torch.Tensor:
    """Return embeddings from columns of parquet files, (n, h), in the order of ``rows``, which count over all files."""
    import pyarrow.dataset

    dataset = pyarrow.dataset.dataset(list(paths), format="parquet")
    few = {"batch_size": QUERY_ROWS, "batch_readahead": 1, "fragment_readahead": 1}  # beside the rows that are taken
    return check_matrix(matrix_of(dataset.take(rows, columns=list(features), **few), features), "data")
