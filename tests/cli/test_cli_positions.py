"""Integer labels are positions among named classes only if somebody says so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from animals import ANIMALS, blobs, columns_of, write_columns

import kcal

REFUSED = "labels are integers, but the classes have names: "
ORDER = ["owl", "cat", "dog"]


def said(result) -> str:
    return " ".join(result.output.split())


def accuracy(run, *words: object) -> float:
    run("evaluate", *words, "--no-intervals", "--json", "figures.json")
    return list(json.loads(Path("figures.json").read_text())["metrics"].values())[-1]["accuracy"]


@pytest.fixture
def probabilities(tmp_path) -> np.ndarray:
    """Write probabilities whose columns are owl, cat, dog, and labels that count cat, dog, owl; return the labels."""
    codes = np.arange(60) % 3
    probs = np.full((60, 3), 0.1) + 0.7 * np.eye(3)[codes]
    columns = {f"p_{name}": probs[:, ANIMALS.tolist().index(name)] for name in ORDER}
    write_columns(tmp_path / "p.parquet", columns)
    np.savez(tmp_path / "p.npz", probabilities=np.stack(list(columns.values()), axis=1), classes=ORDER)
    np.save(tmp_path / "numbers.npy", codes)
    np.save(tmp_path / "names.npy", ANIMALS[codes])
    np.save(tmp_path / "positions.npy", np.array([ORDER.index(name) for name in ANIMALS[codes]]))
    return codes


@pytest.mark.parametrize("file", ["p.parquet", "p.npz"])
def test_probabilities_of_named_classes_refuse_integers(run, probabilities, file):
    message = said(run("evaluate", file, "--labels", "numbers.npy", code=1))
    assert f"{REFUSED}owl, cat, dog" in message
    assert "--labels-are-positions if 0 is the first of these classes" in message
    assert accuracy(run, file, "--labels", "names.npy") == 1
    assert accuracy(run, file, "--labels", "positions.npy", "--labels-are-positions") == 1
    assert accuracy(run, file, "--labels", "numbers.npy", "--labels-are-positions") == 0
    assert accuracy(run, file, "--labels", "positions.npy", "--classes", "owl,cat,dog") == 1


def test_numbered_columns_take_integers_by_number_not_by_position(run, tmp_path, probabilities):
    probs = np.full((60, 3), 0.1) + 0.7 * np.eye(3)[probabilities]
    write_columns(tmp_path / "turned.csv", {f"prob_{k}": probs[:, k] for k in (2, 0, 1)})
    assert accuracy(run, "turned.csv", "--labels", "numbers.npy") == 1


def test_text_labels_for_numbered_columns_are_refused(run, tmp_path, probabilities):
    probs = np.full((60, 3), 1 / 3)
    write_columns(tmp_path / "numbered.csv", {f"p_{k}": probs[:, k] for k in range(3)})
    assert "are text, but no column" in said(run("evaluate", "numbered.csv", "--labels", "names.npy", code=1))


@pytest.mark.parametrize("method", ["ts", "kcal-blend"])
def test_fit_refuses_integers_for_named_columns_of_logits(run, tmp_path, method):
    columns = columns_of(blobs(90, 1, names=False))
    write_columns(tmp_path / "data.csv", columns)
    words = ("fit", "data.csv", "-m", method, "-o", "m.kcal", "--feature-columns", "e_*", "--logit-columns", "z_*")
    assert f"{REFUSED}cat, dog, owl" in said(run(*words, code=1))
    run(*words, "--labels-are-positions")
    assert kcal.load("m.kcal").classes_.tolist() == ["cat", "dog", "owl"]


def test_a_model_of_named_classes_takes_integers_only_as_positions(run, model, tmp_path):
    arrays = blobs(60, 2, names=False)
    np.savez("bare.npz", embeddings=arrays["embeddings"], labels=arrays["labels"])
    assert "labels must" in said(run("evaluate", model, "bare.npz", code=1))
    named = {"embeddings": arrays["embeddings"], "labels": ANIMALS[arrays["labels"]]}
    np.savez("named.npz", **named)
    expected = accuracy(run, model, "named.npz")
    assert accuracy(run, model, "bare.npz", "--labels-are-positions") == expected
    np.save("labels.npy", arrays["labels"])
    np.savez("classes.npz", embeddings=arrays["embeddings"], classes=ANIMALS)
    assert REFUSED in said(run("evaluate", model, "classes.npz", "--labels", "labels.npy", code=1))
    words = (model, "classes.npz", "--labels", "labels.npy", "--labels-are-positions")
    assert accuracy(run, *words) == expected


def test_integers_beside_the_names_of_the_same_npz_file_are_positions(run, model):
    np.savez("test.npz", **blobs(60, 2, names=False))
    np.savez("named.npz", **blobs(60, 2))
    assert accuracy(run, model, "test.npz") == accuracy(run, model, "named.npz")


def test_a_model_of_numbered_classes_does_not_guess_which_named_column_is_which(run, tmp_path):
    arrays = blobs(90, 1, names=False)
    np.savez("data.npz", embeddings=arrays["embeddings"], labels=arrays["labels"])
    run("fit", "data.npz", "-m", "kcal", "--projection", "identity", "-o", "m.kcal")
    write_columns(tmp_path / "test.csv", columns_of(blobs(60, 2, names=False)))
    words = ("evaluate", "m.kcal", "test.csv", "--feature-columns", "e_*", "--logit-columns", "z_*", "--no-intervals")
    assert "it is unknown which column of the logits is which class" in said(run(*words))
    assert "unknown" not in said(run(*words, "--labels-are-positions"))
