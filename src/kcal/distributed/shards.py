"""A support in shards: each is held by an actor and returns its class sums, which add up to those of all points.

Shards are ranges of the support sorted by class: a class is in one shard, or in neighbours if it is larger than one.
An actor that dies is started again, loads its shard as before and answers again; nothing else has to be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

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
from kcal.projection import project
from kcal.threads import one_thread
from kcal.validation import check_matrix

Index = NDArray[np.int64]
READ_ROWS = 65_536
"""Rows of a file that an actor reads at once."""
NEAREST = 1e-5
"""Share of the spread of the points that is so narrow a bandwidth that only the nearest points count."""


class Rows(Protocol):
    """Where an actor gets the embeddings of its shard from."""

    def load(self, rows: Index) -> torch.Tensor:
        """Return the embeddings of some rows, (n, h), in the order of ``rows``."""


@dataclass(frozen=True, eq=False)
class RowsInMemory:
    """Embeddings that were given as an array: those of one shard, in its order."""

    embeddings: torch.Tensor

    def load(self, rows: Index) -> torch.Tensor:
        """Return the embeddings."""
        return self.embeddings


@dataclass(frozen=True)
class RowsInFiles:
    """Embeddings in columns of parquet files; rows are counted over the files in their order."""

    paths: tuple[str, ...]
    features: tuple[str, ...]

    def load(self, rows: Index) -> torch.Tensor:
        """Return the embeddings of some rows; beside them only a block of a file is held."""
        import pyarrow

        order = np.argsort(rows, kind="stable")
        ascending, start, points = rows[order], 0, None
        for path in self.paths:
            if start > ascending[-1]:
                break
            with open_parquet(path) as file:
                for batch in file.iter_batches(READ_ROWS, columns=list(self.features)):
                    first, last = np.searchsorted(ascending, [start, start + batch.num_rows])
                    if last > first:
                        chosen = pyarrow.Table.from_batches([batch]).take(ascending[first:last] - start)
                        values = check_matrix(matrix_of(chosen, self.features), path)
                        points = values.new_empty(len(rows), values.shape[1]) if points is None else points
                        points[torch.from_numpy(order[first:last])] = values
                    start += batch.num_rows
        assert points is not None
        return points


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


@dataclass(frozen=True, eq=False)
class ShardContent:
    """What an actor needs to load its shard, as often as it is started."""

    source: Rows
    rows: Index  # of the source
    codes: Index  # ascending
    weights: NDArray[np.float64] | None
    keys: Index | None  # groups or folds
    place: Range
    projection: nn.Module


class Shard:
    """An actor that holds a shard. It keeps nothing that a caller would have to repeat after a restart."""

    def __init__(self, content: Any) -> None:
        import ray

        self.content: ShardContent = ray.get(content) if isinstance(content, ray.ObjectRef) else content
        with one_thread():
            points = project(self.content.projection, self.content.source.load(self.content.rows))
        weights, place = self.content.weights, self.content.place
        self._support = SortedSupport(
            points,
            torch.from_numpy(self.content.codes - place.first_class),
            None if weights is None else torch.from_numpy(weights).log().to(points),
            torch.arange(len(points)),
            place.stop_class - place.first_class,
        )
        self.points = points

    def total(self) -> tuple[int, torch.Tensor, torch.dtype]:
        """Return the number of points, their sum (d,) in float64, and their precision."""
        return len(self.points), sum_of_points(self.points), self.points.dtype

    def square(self, centre: torch.Tensor) -> float:
        """Return the mean squared distance of two points of this shard, times their number, about a common centre."""
        return self._centred(centre).mean_square * len(self.points)

    def some_points(self, positions: Index) -> torch.Tensor:
        """Return points by their positions in the shard."""
        return self.points[torch.from_numpy(positions)]

    def class_sums(
        self,
        queries: torch.Tensor,
        bandwidths: Sequence[float],
        kernel: str,
        centre: torch.Tensor,
        keys: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return sums and offsets of the classes of this shard; ``keys`` are those of queries that are samples."""
        support = self._centred(centre)
        with one_thread(), torch.inference_mode():
            prepared = PreparedSupport(support, list(bandwidths), KERNELS[kernel], is_part=True)
            sums = prepared.class_sums(queries, leave_out=self._rule(keys))
        return sums.sums, sums.offsets

    def _rule(self, keys: torch.Tensor | None) -> LeaveOut | None:
        if keys is None:
            return None
        if self.content.keys is None:
            return LeaveOut(keys - self.content.place.start, torch.arange(len(self.points)), grouped=False)
        return LeaveOut(keys, torch.from_numpy(self.content.keys), grouped=True)

    def _centred(self, centre: torch.Tensor) -> SortedSupport:
        """Return the shard about a centre; what was computed for the same centre before is kept."""
        given = self._support.given_centre
        if given is None or not torch.equal(given, centre):
            self._support = replace(self._support, given_centre=centre)
        return self._support


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
        parts = self._ask("total")
        return (torch.stack([part[1] for part in parts]).sum(dim=0) / len(self)).to(parts[0][2])

    @cached_property
    def mean_square(self) -> float:
        """Mean squared distance of two points, averaged over the dimensions."""
        return float(sum(self._ask("square", self.centre)) / len(self))

    def points(self, positions: Index) -> torch.Tensor:
        """Return points by their ascending positions in the sorted support."""
        import ray

        cuts = np.searchsorted(positions, [place.stop for place in self.places[:-1]])
        parts = np.split(positions, cuts)
        asked = zip(self.actors, parts, self.places, strict=True)
        return torch.cat(ray.get([actor.some_points.remote(part - place.start) for actor, part, place in asked]))

    def class_sums(
        self,
        queries: torch.Tensor,
        bandwidths: Sequence[float],
        kernel: MotherKernel,
        keys: torch.Tensor | None = None,
    ) -> ClassSums:
        """Return the class sums of queries over all shards; where no point is reached, the nearest count."""
        sums = self._added(queries, bandwidths, kernel.name, keys)
        unreached = torch.isneginf(sums.offsets)
        some = unreached.any(dim=0).nonzero().squeeze(1)
        if kernel.is_compact and len(some):
            narrow = NEAREST * self.mean_square**0.5
            nearest = self._added(queries[some], [narrow], "rbf", None if keys is None else keys[some])
            where = unreached[:, some][:, None]
            sums.sums[:, :, some] = torch.where(where, nearest.sums, sums.sums[:, :, some])
        return sums

    def _added(
        self, queries: torch.Tensor, bandwidths: Sequence[float], kernel: str, keys: torch.Tensor | None
    ) -> ClassSums:
        import ray

        parts = self._ask("class_sums", ray.put(queries), list(bandwidths), kernel, self.centre, keys)
        whole = []
        for (sums, offsets), place in zip(parts, self.places, strict=True):
            every = sums.new_zeros(sums.shape[0], self.n_classes, sums.shape[2])
            every[:, place.first_class : place.stop_class] = sums
            whole.append(ClassSums(every, offsets))
        return add_sums(whole)

    def _ask(self, method: str, *arguments: Any) -> list[Any]:
        """Return the answers of all actors."""
        import ray

        answers: list[Any] = ray.get([getattr(actor, method).remote(*arguments) for actor in self.actors])
        return answers


def start_shards(ray: Any, contents: Sequence[ShardContent], n_classes: int, *, num_cpus: float) -> ShardedSupport:
    """Start an actor for each shard; one that dies is started again, for as long as the cluster has room."""
    options = {"num_cpus": num_cpus, "max_restarts": -1, "max_task_retries": -1}
    actor = ray.remote(**options)(Shard)
    references = [ray.put(content) for content in contents]
    actors = [actor.remote(reference) for reference in references]
    return ShardedSupport(actors, references, [content.place for content in contents], n_classes)
