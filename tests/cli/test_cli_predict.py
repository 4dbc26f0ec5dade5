from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from animals import ANIMALS, blobs, columns_of, read_columns, write_columns

import kcal

TABLES = (".csv", ".parquet")
QUICK = ("-m", "kcal", "--projection", "identity")


@pytest.fixture
def expected(model) -> np.ndarray:
    return kcal.load(model).predict_proba(blobs(60, 2)["embeddings"])


@pytest.mark.parametrize("suffix", [".npz", *TABLES])
def test_predictions_have_ids_classes_and_evidence(run, suffix):
    names = np.array(['a,b"c', "line\nbreak", "[bold]"])
    for name, seed, n in (("calibration", 1, 90), ("new", 2, 60)):
        np.savez(f"{name}.npz", **blobs(n, seed) | {"labels": names[np.arange(n) % 3], "classes": names})
    run("fit", "calibration.npz", "--out", "m.kcal", *QUICK)
    run("predict", "m.kcal", "new.npz", "--out", f"p{suffix}", "--evidence")
    model, new = kcal.load("m.kcal"), blobs(60, 2)
    expected = model.predict_proba(new["embeddings"])
    if suffix == ".npz":
        found = dict(np.load("p.npz", allow_pickle=False))
        assert sorted(found) == ["classes", "evidence", "ids", "prediction", "probabilities"]
        probs, ids = found["probabilities"], found["ids"]
        assert found["classes"].tolist() == names.tolist()
    else:
        found = read_columns(Path(f"p{suffix}"))
        assert list(found) == ["id", "prediction", *(f"p_{name}" for name in names.tolist()), "evidence"]
        probs, ids = np.column_stack([found[f"p_{name}"] for name in names.tolist()]), found["id"]
    assert ids.tolist() == new["ids"].tolist()
    assert found["prediction"].tolist() == model.classes_[expected.argmax(axis=1)].tolist()
    np.testing.assert_allclose(probs, expected, rtol=1e-6)
    np.testing.assert_allclose(found["evidence"], model.evidence(new["embeddings"]), rtol=1e-5)


def test_a_model_finds_its_columns_in_a_table_by_name(run, tmp_path, expected):
    calibration, new = columns_of(blobs(90, 1)), columns_of(blobs(60, 2))
    write_columns(tmp_path / "calibration.parquet", calibration)
    del new["label"]
    write_columns(tmp_path / "new.parquet", {"extra": np.zeros(60), **dict(reversed(new.items()))})
    run("fit", "calibration.parquet", "-o", "m.kcal", *QUICK, "--embeddings", "e_*")
    run("predict", "m.kcal", "new.parquet", "-o", "p.npy")
    np.testing.assert_allclose(np.load("p.npy"), expected, rtol=1e-5)


@pytest.mark.parametrize("method", ["kcal", "kcal-logits"])
def test_columns_chosen_by_a_pattern_are_put_in_the_order_of_the_model(run, tmp_path, method):
    calibration, new = (columns_of(blobs(n, seed)) for n, seed in ((90, 1), (60, 2)))
    write_columns(tmp_path / "calibration.csv", calibration)
    write_columns(tmp_path / "new.csv", new)
    write_columns(tmp_path / "turned.csv", dict(reversed(new.items())))
    options = ("--embeddings", "e_*") if method == "kcal" else ("--logits", "z_*")
    run("fit", "calibration.csv", "-o", "m.kcal", "-m", method, "--projection", "identity", *options)
    for name in ("new", "turned"):
        run("predict", "m.kcal", f"{name}.csv", "-o", f"{name}.npy", *options)
    np.testing.assert_array_equal(np.load("new.npy"), np.load("turned.npy"))


def test_a_failed_run_leaves_the_old_output_alone(run, model, test_set):
    run("predict", model, test_set, "-o", "p.csv")
    before = Path("p.csv").read_bytes()
    Path("broken.npz").write_bytes(test_set.read_bytes()[:500])
    run("predict", model, "broken.npz", "-o", "p.csv", code=1)
    assert Path("p.csv").read_bytes() == before
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


def write_several(folder: Path, columns: dict[str, Any], n_files: int = 2) -> None:
    """Write the rows of columns to several parquet files."""
    n_rows = len(next(iter(columns.values())))
    for place in range(n_files):
        rows = slice(place * n_rows // n_files, (place + 1) * n_rows // n_files)
        table = pa.table({name: values[rows] for name, values in columns.items()})
        pq.write_table(table, folder / f"new-{place}.parquet")


def test_several_files_get_the_predictions_of_one(run, tmp_path):
    arrays, new = blobs(90, 1), blobs(60, 2)
    features = {f"e{index}": column for index, column in enumerate(new["embeddings"].T)}
    names = [f"z_{name}" for name in ANIMALS]
    logits = {name: new["logits"][:, index] for index, name in reversed(list(enumerate(names)))}
    columns = {"key": np.arange(60), **features, **logits}
    np.savez("calibration.npz", **arrays)
    run("fit", "calibration.npz", "--out", "m.kcal", "-m", "kcal-blend", "-q")
    write_several(tmp_path, columns)
    pq.write_table(pa.table(columns), tmp_path / "all.parquet")
    options = ("--embeddings", "e*", "--logits", "z_*", "--ids", "key", "--evidence")
    run("predict", "m.kcal", "all.parquet", "--out", "one.parquet", *options)
    shown = run("predict", "m.kcal", tmp_path / "new-*.parquet", "--out", "scores", *options).stdout
    assert "60 rows in 2 parts" in shown
    one, several = pq.read_table("one.parquet"), pq.read_table("scores")
    assert several.column_names == one.column_names
    assert several.column("key").equals(one.column("key"))
    for name in ("p_cat", "p_dog", "p_owl", "evidence"):
        np.testing.assert_allclose(several.column(name), one.column(name), rtol=1e-5)


def test_several_files_may_be_a_folder_may_hold_lists_and_the_first_no_rows(run, model, tmp_path):
    rows = blobs(60, 2)["embeddings"]
    for name, part in (("a", rows[:0]), ("b", rows)):
        lists = pa.array(list(part), pa.list_(pa.from_numpy_dtype(rows.dtype)))
        pq.write_table(pa.table({"id": np.arange(len(part)), "embedding": lists}), tmp_path / f"{name}.parquet")
    run("predict", model, tmp_path / "[ab].parquet", "--out", "lists")
    wrong = run("predict", model, tmp_path / "[ab].parquet", "--out", "wrong", "--ids", "who", code=1)
    assert "ids must name what is there, id, embedding; got 'who'" in wrong.stderr
    assert not Path("wrong").exists()
    (tmp_path / "folder").mkdir()
    write_several(tmp_path / "folder", {f"e{index}": column for index, column in enumerate(rows.T)}, 1)
    run("predict", model, tmp_path / "folder", "--out", "wide", "--embeddings", "e*")
    lists, wide = pq.read_table("lists"), pq.read_table("wide")
    assert lists.column("id").to_pylist() == list(range(60))
    assert lists.drop_columns("id").equals(wide)
