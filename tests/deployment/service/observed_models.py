"""A small fitted calibrator, streams of its predictions, and what an object holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kcal
from kcal.deployment.service.observer import Observer

CLASSES = np.array(["cat", "dog", "owl"])
CENTRES = np.array([[0.0, 0.0, 0.0], [1.8, 0.0, 0.0], [0.0, 1.8, 0.0]])


def draw(n_rows: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """Return embeddings of three overlapping classes and their codes."""
    generator = np.random.default_rng(seed)
    codes = generator.integers(3, size=n_rows)
    return (CENTRES[codes] + generator.standard_normal((n_rows, 3))).astype(np.float32), codes


@cache
def calibrator() -> Any:
    """Return a fitted calibrator; no test may change it."""
    rows, codes = draw(300, 0)
    names = np.array([f"sample-{row}" for row in range(300)])
    return kcal.KCal(projection="identity", progress=False).fit(rows, CLASSES[codes], ids=names)


@dataclass(frozen=True)
class Stream:
    """Predictions of rows, with their true labels."""

    ids: list[str]
    embeddings: NDArray[np.float32]
    probs: NDArray[np.float64]
    evidence: NDArray[np.float64]
    codes: NDArray[np.intp]

    @property
    def labels(self) -> list[str]:
        return CLASSES[self.codes].tolist()


@cache
def stream(n_rows: int = 600, seed: int = 1, shift: float = 0.0) -> Stream:
    rows, codes = draw(n_rows, seed)
    rows = rows + np.float32(shift)
    model = calibrator()
    probs = np.asarray(model.predict_proba(rows), dtype=np.float64)
    ids = [f"row-{seed}-{place}" for place in range(n_rows)]
    return Stream(ids, rows, probs, np.asarray(model.evidence(rows), dtype=np.float64), codes)


def observed(rows: Stream, *, batch: int = 50, labelled: bool = True, groups: Any = None, **options: Any) -> Observer:
    """Return an observer that has seen a stream in batches, with a snapshot after each."""
    observer = Observer(calibrator(), **options)
    for start in range(0, len(rows.ids), batch):
        part = slice(start, start + batch)
        names = None if groups is None else groups[part]
        given = {"evidence": rows.evidence[part], "embeddings": rows.embeddings[part]}
        observer.predicted(rows.ids[part], rows.probs[part], groups=names, **given)
        if labelled:
            observer.labelled(rows.ids[part], rows.labels[part])
        observer.snapshot(max_age=0)
    return observer


def contents(thing: Any, skipped: tuple[Any, ...] = ()) -> Iterator[Any]:
    """Yield every array, text and number that an object holds, however deep; each object once."""
    seen, waiting = {id(each) for each in skipped}, [thing]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str | int | float | np.generic):
            yield each
            continue
        if id(each) in seen or each is None or isinstance(each, type | type(Lock())):
            continue
        seen.add(id(each))
        if isinstance(each, np.ndarray):
            yield each
            waiting += each.ravel().tolist() if each.dtype.kind == "O" else []
        elif isinstance(each, dict):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple | set | frozenset):
            waiting += each
        elif hasattr(each, "__dict__"):
            waiting += vars(each).values()


def numbers_held(observer: Observer) -> NDArray[np.float64]:
    """Return every number that an observer holds, but for those of its calibrator."""
    held = [np.ravel(each) for each in contents(observer, (observer.calibrator,)) if not isinstance(each, str)]
    return np.concatenate([part.astype(np.float64) for part in held if part.dtype.kind in "biuf"])


def texts_held(observer: Observer) -> set[str]:
    return {each for each in contents(observer, (observer.calibrator,)) if isinstance(each, str)}
