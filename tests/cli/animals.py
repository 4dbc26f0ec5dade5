"""Three animals: embeddings, logits that are too sure, labels; as arrays and as columns of tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import torch

import kcal
from kcal.calibrators import calibrator_state

ANIMALS = np.array(["cat", "dog", "owl"])


def blobs(n: int, seed: int, *, names: bool = True) -> dict[str, np.ndarray]:
    """Embeddings of three animals, logits that are too sure, labels and ids."""
    generator = np.random.default_rng(seed)
    codes = np.arange(n) % 3
    embeddings = (np.eye(3, 5)[codes] * 2 + generator.normal(size=(n, 5))).astype(np.float32)
    return {
        "embeddings": embeddings,
        "logits": (embeddings[:, :3] * 4).astype(np.float32),
        "labels": ANIMALS[codes] if names else codes,
        "ids": np.array([f"row-{seed}-{i}" for i in range(n)]),
        "classes": ANIMALS,
    }


def columns_of(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same as columns of a table: e_0…, z_cat…, label, id."""
    columns = {"id": arrays["ids"], "label": arrays["labels"]}
    columns |= {f"e_{i}": column for i, column in enumerate(arrays["embeddings"].T)}
    return columns | {f"z_{name}": column for name, column in zip(ANIMALS, arrays["logits"].T, strict=True)}


def write_columns(path: Path, columns: dict[str, Any]) -> Path:
    table = pyarrow.table(columns)
    (pyarrow.csv.write_csv if path.suffix == ".csv" else pyarrow.parquet.write_table)(table, path)
    return path


def read_columns(path: Path) -> dict[str, np.ndarray]:
    table = pyarrow.csv.read_csv(path) if path.suffix == ".csv" else pyarrow.parquet.read_table(path)
    return {name: np.asarray(table.column(name).to_pylist()) for name in table.column_names}


def assert_same_model(first: Path | str, second: Path | str) -> None:
    """Check that two files hold the same calibrator; the order of their metadata may differ."""
    one, other = (calibrator_state(kcal.load(path)) for path in (first, second))
    assert (one.method, one.parameters, one.values) == (other.method, other.parameters, other.values)
    assert one.tensors.keys() == other.tensors.keys()
    for name, tensor in one.tensors.items():
        assert torch.equal(tensor, other.tensors[name]), name
