"""A limit to the samples of each class: which rows leave, in constant time per sample."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush


class ClassCaps:
    """Rows of each class, the oldest first; those that have left are skipped when their turn comes.

    Parameters
    ----------
    limit : int
        Rows of a class, at most.
    rows, codes : iterables of int
        Rows that are there, and their class codes.
    """

    def __init__(self, limit: int, rows: Iterable[int], codes: Iterable[int]) -> None:
        self.limit, self._queues = limit, defaultdict[int, list[int]](list)
        for row, code in zip(rows, codes, strict=True):
            self._queues[code].append(row)
        for queue in self._queues.values():
            heapify(queue)
        self._counts = Counter({code: len(queue) for code, queue in self._queues.items()})
        self._crowded = {code for code, count in self._counts.items() if count > limit}

    def add(self, row: int, code: int) -> None:
        """Note that a row is of a class now."""
        heappush(self._queues[code], row)
        self._counts[code] += 1
        if self._counts[code] > self.limit:
            self._crowded.add(code)

    def remove(self, code: int) -> None:
        """Note that a row of a class has left it."""
        self._counts[code] -= 1

    def excess(self, is_of_class: Callable[[int, int], bool]) -> Iterator[int]:
        """Yield the oldest rows of the classes that have too many; ``is_of_class(row, code)`` says which are there.

        They count until :meth:`remove` is called for them.
        """
        for code in self._crowded:
            queue, n_excess = self._queues[code], self._counts[code] - self.limit
            while n_excess > 0:
                row = heappop(queue)
                while queue and queue[0] == row:  # relabelled, and back again
                    heappop(queue)
                if is_of_class(row, code):
                    n_excess -= 1
                    yield row
        self._crowded.clear()
