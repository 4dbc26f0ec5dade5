"""A support in shards: each is held by an actor and returns its class sums, which add up to those of all points.

Shards are ranges of the support sorted by class: a class is in one shard, or in neighbours if it is larger than one.
An actor that dies is started again, loads its shard as before and answers again; nothing else has to be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kcal.distributed.parts import open_parquet
from kcal.distributed.tables import matrix_of
from kcal.kernels import (
    KERNELS,
    ClassSums,
    LeaveOut,
    MotherKernel,
    PreparedSupport,
    SortedSupport,
    add_sums,
    sum_of_points,
)
from kcal.projection import log_lengths, project
from kcal.threads import threads_for
from kcal.validation import check_matrix

Index = NDArray[np.int64]
READ_ROWS = 65_536
"""Rows of a file that an actor reads at once."""
NEAREST = 1e-5
"""Share of the spread of the points that is so narrow a bandwidth that only the nearest points count."""


def load_rows(paths: Sequence[str], features: Sequence[str], rows: Index) -> torch.Tensor:
    """Return embeddings from columns of parquet files, (n, h), in the order of ``rows``, which count over all files.

    Beside them only a block of a file is held.
    """
    import pyarrow

    order = np.argsort(rows, kind="stable")
    ascending, start, embeddings = rows[order], 0, torch.empty(0)
    for path in paths:
        if start > ascending[-1]:
            break
        with open_parquet(path) as file:
            for batch in file.iter_batches(READ_ROWS, columns=list(features)):
                first, last = np.searchsorted(ascending, [start, start + batch.num_rows])
                if last > first:
                    chosen = pyarrow.Table.from_batches([batch]).take(ascending[first:last] - start)
                    values = check_matrix(matrix_of(chosen, features), path)
                    if first == 0:
                        embeddings = values.new_empty(len(rows), values.shape[1])
                    embeddings[torch.from_numpy(order[first:last])] = values
                start += batch.num_rows
    return embeddings


class Range(NamedTuple):
    """Positions of a shard in the sorted support, and its classes."""

    start: int
    stop: int
    first_class: int
    stop_class: int


def cut(codes: Index, n_shards: int) -> list[Range]:
    """Return ranges of about equal size of ascending ``codes``, cut between classes where one is near."""
    n, ends = len(codes), [0]
    for shard in range(1, n_shards):
        wanted = shard * n // n_shards
        boundaries = np.searchsorted(codes, [codes[min(wanted, n - 1)], codes[min(wanted, n - 1)] + 1])
        nearest = int(min(boundaries, key=lambda place: abs(int(place) - wanted)))
        is_near = abs(nearest - wanted) <= n // (4 * n_shards)
        ends.append(max(nearest if is_near else wanted, ends[-1]))
    ends.append(n)
    pairs = [(start, stop) for start, stop in pairwise(ends) if stop > start]
    return [Range(start, stop, int(codes[start]), int(codes[stop - 1]) + 1) for start, stop in pairs]


class Hidden(NamedTuple):
    """What queries that are samples must not see: the sample itself, or all of its group or fold."""

    kind: str  # "sample", "group" or "fold"
    keys: torch.Tensor  # (n_query,); of samples, their positions in the sorted support

    def select(self, queries: torch.Tensor) -> Hidden:
        """Return the same for some of the queries."""
        return self._replace(keys=self.keys[queries])


@dataclass(frozen=True, eq=False)
class ShardContent:
    """What an actor needs to load its shard, as often as it is started."""

    load: Callable[[], torch.Tensor]  # returns the embeddings, (n, h)
    codes: torch.Tensor  # (n,), ascending
    log_weights: torch.Tensor | None
    keys: Mapping[str, torch.Tensor]  # groups and folds by kind, where there are some
    place: Range
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
            self.log_lengths = torch.cat([log_lengths(rows) for rows in torch.split(embeddings, READ_ROWS)])
        self.place, self.keys = content.place, content.keys
        weights = None if content.log_weights is None else content.log_weights.to(points)
        n_classes = self.place.stop_class - self.place.first_class
        codes = content.codes - self.place.first_class
        self.support = SortedSupport(points, codes, weights, torch.arange(len(points)), n_classes)

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
    ) -> ClassSums:
        """Return the class sums of queries over this shard, of its own classes."""
        prepared = PreparedSupport(self._centred(centre), bandwidths, KERNELS[kernel], is_part=True)
        with threads_for(0), torch.inference_mode():
            return prepared.class_sums(queries, leave_out=None if hidden is None else self._rule(hidden))

    def _rule(self, hidden: Hidden) -> LeaveOut:
        if hidden.kind == "sample":
            return LeaveOut(hidden.keys - self.place.start, self.support.order, grouped=False)
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
    places: Sequence[Range]
    n_classes: int

    def __len__(self) -> int:
        return self.places[-1].stop

    @cached_property
    def centre(self) -> torch.Tensor:
        """Mean of all points, (d,)."""
        totals, dtypes = zip(*self._ask("total"), strict=True)
        return (torch.stack(totals).sum(dim=0) / len(self)).to(dtypes[0])

    @cached_property
    def mean_square(self) -> float:
        """Mean squared distance of two points, averaged over the dimensions."""
        return float(sum(self._ask("square", self.centre)) / len(self))

    def samples(self, positions: Index) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return points by their ascending positions in the sorted support, and log lengths if Π ignores them."""
        import ray

        parts = np.split(positions, np.searchsorted(positions, [place.stop for place in self.places[:-1]]))
        asked = zip(self.actors, parts, self.places, strict=True)
        answers = ray.get([actor.samples.remote(part - place.start) for actor, part, place in asked])
        points, lengths = zip(*answers, strict=True)
        return torch.cat(points), None if lengths[0] is None else torch.cat(lengths)

    def class_sums(
        self, queries: torch.Tensor, bandwidths: Sequence[float], kernel: MotherKernel, hidden: Hidden | None = None
    ) -> ClassSums:
        """Return the class sums of queries over all shards; where no point is reached, the nearest count."""
        sums = self._added(queries, bandwidths, kernel.name, hidden)
        unreached = torch.isneginf(sums.offsets)
        some = unreached.any(dim=0).nonzero().squeeze(1)
        if kernel.is_compact and len(some):
            narrow = NEAREST * self.mean_square**0.5
            nearest = self._added(queries[some], [narrow], "rbf", None if hidden is None else hidden.select(some))
            where = unreached[:, some][:, None]
            sums.sums[:, :, some] = torch.where(where, nearest.sums, sums.sums[:, :, some])
        return sums

    def _added(
        self, queries: torch.Tensor, bandwidths: Sequence[float], kernel: str, hidden: Hidden | None
    ) -> ClassSums:
        import ray

        whole = []
        parts = self._ask("class_sums", ray.put(queries), list(bandwidths), kernel, self.centre, hidden)
        for part, place in zip(parts, self.places, strict=True):
            sums = part.sums.new_zeros(len(bandwidths), self.n_classes, len(queries))
            sums[:, place.first_class : place.stop_class] = part.sums
            whole.append(ClassSums(sums, part.offsets))
        return add_sums(whole)

    def _ask(self, method: str, *arguments: Any) -> list[Any]:
        """Return the answers of all actors."""
        import ray

        answers: list[Any] = ray.get([getattr(actor, method).remote(*arguments) for actor in self.actors])
        return answers


def start_shards(ray: Any, contents: Sequence[ShardContent], n_classes: int, *, num_cpus: float) -> ShardedSupport:
    """Start an actor for each shard; one that dies is started again, for as long as the cluster has room."""
    actor = ray.remote(num_cpus=num_cpus, max_restarts=-1, max_task_retries=-1)(Shard)
    references = [ray.put(content) for content in contents]
    actors = [actor.remote([reference]) for reference in references]  # Ray would log an argument that is in its store
    return ShardedSupport(actors, references, [content.place for content in contents], n_classes)
