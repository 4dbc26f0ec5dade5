"""What was forgotten is nowhere: not in the calibrator, not in its pickle, not in its file."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from kcal import KCal, KCalBlend, Updates, save
from kcal.validation import row_fingerprints

pytestmark = pytest.mark.filterwarnings("ignore::kcal.FewSamplesWarning")

GENERATOR = np.random.default_rng(0)
ROWS = GENERATOR.normal(size=(160, 5)).astype(np.float32)
LOGITS = GENERATOR.normal(size=(160, 3)).astype(np.float32)
LABELS = np.arange(160) % 3
ROWS[np.arange(160), LABELS] += 2.0
LOGITS[np.arange(160), LABELS] += 2.0
LOGITS[40, 2] = -31.0  # the lowest of all
SECRET = [3, 40, 130]
"""Rows of the fit, of a batch and of the last batch."""


def reachable(root: Any) -> Iterator[Any]:
    """Yield every object that can be reached from ``root``, but for code."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, type | ModuleType | FunctionType):
            continue
        seen.add(id(value))
        yield value
        waiting.extend(gc.get_referents(value))
        if isinstance(value, dict):
            waiting.extend(value)  # keys of text are not among the referents
        elif isinstance(value, np.ndarray) and value.dtype.kind == "O":
            waiting.extend(value.tolist())  # nor are the entries of arrays


def contents(root: Any) -> bytes:
    """Return the bytes of all arrays, tensors, numbers and texts that can be reached, arrays with what lies behind."""
    parts = []
    for value in reachable(root):
        if isinstance(value, torch.Tensor):
            parts.append(bytes(value.untyped_storage()))
        elif isinstance(value, np.ndarray) and value.dtype.kind != "O":
            parts.append(value.tobytes())
        elif isinstance(value, str):
            parts.append(value.encode())
        elif isinstance(value, float):
            parts.append(np.float64(value).tobytes())
    return b"|".join(parts)


def traces(row: int, points: Any) -> dict[str, bytes]:
    """Return what would show that a row is still there."""
    length = torch.linalg.vector_norm(torch.from_numpy(ROWS[row]).double()).log()
    return {
        "embedding": ROWS[row].tobytes(),
        "projected point": np.asarray(points[row], dtype=np.float32).tobytes(),
        "fingerprint": row_fingerprints(torch.from_numpy(ROWS[[row]])).tobytes(),
        "length": length.numpy().tobytes(),
        "logits": LOGITS[row].tobytes(),
        "id": f"patient-{row}-secret".encode(),
        "group": f"ward-{row}-secret".encode(),
    }


def living(kind: type[Any], **parameters: Any) -> Any:
    """Return a calibrator after updates and predictions of every kind, and the ids of all rows."""
    ids, groups = (np.array([f"{word}-{row}-secret" for row in range(160)]) for word in ("patient", "ward"))
    logits = {"logits": LOGITS} if kind is KCalBlend else {}

    def part(rows: slice) -> dict[str, Any]:
        given = {"ids": ids[rows], "groups": groups[rows], "sample_weight": np.linspace(0.5, 2.0, 160)[rows]}
        return given | {name: values[rows] for name, values in logits.items()}

    live = kind(**parameters).fit(ROWS[:30], LABELS[:30], **part(slice(0, 30)))
    live.partial_fit(ROWS[30:120], LABELS[30:120], **part(slice(30, 120)))
    query = {name: values[:2] + 1 for name, values in logits.items()}
    live.predict_proba(ROWS[:2] + 1, **query)
    live.evidence(ROWS[:2] + 1)
    live.partial_fit(ROWS[120:], LABELS[120:], **part(slice(120, 160)))
    live.correct([ids[40]], [0])
    live.predict_proba(ROWS[:2] + 1, **query)
    return live, ids


@pytest.mark.parametrize("kind", [KCal, KCalBlend])
def test_nothing_of_forgotten_rows_is_left(kind: type[Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = torch.nn.Linear(5, 4).requires_grad_(False)
    options: dict[str, Any] = {"projection": module} if kind is KCal else {}
    live, ids = living(kind, progress=False, updates=Updates(growth=1.2), **options)
    # Of few features, the blend compares the embeddings themselves.
    points = module(torch.from_numpy(ROWS)).numpy() if kind is KCal else ROWS
    kept = [row for row in range(160) if row not in SECRET]
    found = contents(live)
    for row in (*SECRET, kept[7]):  # the search finds what is there
        present = [name for name, trace in traces(row, points).items() if trace in found]
        expected = {"projected point", "fingerprint", "length", "id", "group"}
        assert expected | ({"logits"} if kind is KCalBlend else set()) <= set(present)
    live.forget(ids[SECRET])
    lowest = np.float64(torch.log_softmax(torch.from_numpy(LOGITS[40]).double(), 0).min()).tobytes()
    saved = save(live, tmp_path / "live.kcal").read_bytes()
    evidence = live.evidence(ROWS[:2] + 1)
    for where, content in (("object", contents(live)), ("pickle", pickle.dumps(live)), ("file", saved)):
        for row in SECRET:
            left = [name for name, trace in traces(row, points).items() if trace in content]
            assert not left, (where, row, left)
        assert lowest not in content, where
        assert traces(kept[7], points)["projected point"] in content
    assert len(live.ids_) == 157
    assert np.isfinite(evidence).all()


def test_rows_that_left_a_window_or_were_replaced_go_with_the_next_erasure() -> None:
    live = KCal(projection="identity", bandwidth=1.0, updates=Updates(window=40)).fit(ROWS[:40], LABELS[:40])
    live.partial_fit(ROWS[40:50], LABELS[40:50])
    live.partial_fit(ROWS[50:51], LABELS[50:51], ids=[45])
    assert ROWS[3].tobytes() in contents(live)
    live.forget([49])
    found = contents(live)
    assert all(ROWS[row].tobytes() not in found for row in (3, 45, 49))
    assert ROWS[48].tobytes() in found
