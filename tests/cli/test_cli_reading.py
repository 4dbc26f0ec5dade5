from __future__ import annotations

import contextlib
import io
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from animals import blobs, columns_of, write_columns

from kcal.cli.data import Request, Source, load
from kcal.errors import KcalError

QUICK = ("-o", "m.kcal", "-m", "kcal", "--projection", "identity")


def message(run, *words: object) -> str:
    """The one line that a failed fit prints."""
    text = run("fit", *words, *QUICK, code=1).stderr
    assert text.startswith("error: ")
    assert text.count("\n") == 1
    assert not Path("m.kcal").exists()
    return text


def test_a_missing_file_a_folder_an_empty_file_and_a_wrong_suffix_are_named(run, tmp_path):
    Path("empty.npz").touch()
    Path("data.txt").write_text("1 2 3")
    assert "nowhere.npz does not exist" in message(run, "nowhere.npz")
    assert "is a folder, not a file" in message(run, tmp_path)
    assert "empty.npz is empty" in message(run, "empty.npz")
    assert "must end in .npz, .npy, .parquet, .csv" in message(run, "data.txt")


def test_missing_arrays_are_named_with_those_present(run):
    np.savez("data.npz", x=np.zeros((4, 2)), labels=[0, 1, 0, 1])
    text = message(run, "data.npz")
    assert "no array called embeddings or calibration_embeddings" in text
    assert "it has x, labels" in text
    np.savez("data.npz", embeddings=np.zeros((4, 2)))
    assert "no array called labels; it has embeddings" in message(run, "data.npz")


def test_objects_are_not_read(run):
    np.savez("data.npz", embeddings=np.zeros((2, 2)), labels=np.array(["a", "b"], dtype=object))
    text = message(run, "data.npz")
    assert "array labels contains Python objects" in text
    assert "astype(str)" in text


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("suffix", [".npz", ".npy", ".parquet"])
def test_truncated_files_are_named(run, tmp_path, suffix, share):
    path, arrays = tmp_path / f"data{suffix}", blobs(90, 1)
    if suffix == ".npz":
        np.savez(path, **arrays)
    elif suffix == ".npy":
        np.save(path, arrays["embeddings"])
    else:
        write_columns(path, columns_of(arrays))
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    np.save("labels.npy", arrays["labels"])
    assert f"data{suffix} cannot be read" in message(run, path, "--labels", "labels.npy")


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".parquet"])
def test_files_that_are_something_else_are_named(run, suffix):
    Path(f"data{suffix}").write_bytes(b"something else entirely, and rather longer than a header")
    np.save("labels.npy", np.zeros(3))
    assert f"data{suffix} cannot be read" in message(run, f"data{suffix}", "--labels", "labels.npy")


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".parquet", ".csv"])
def test_bytes_changed_at_random_are_read_or_refused_but_never_a_crash(tmp_path, suffix):
    path, arrays, generator = tmp_path / f"data{suffix}", blobs(30, 1), np.random.default_rng(0)
    if suffix == ".npz":
        np.savez(path, **arrays)
    elif suffix == ".npy":
        np.save(path, arrays["embeddings"])
    else:
        write_columns(path, columns_of(arrays))
    content = path.read_bytes()
    for near in np.resize([200, len(content)], 200):
        changed = bytearray(content)
        for place in generator.integers(0, min(near, len(content)), 3):
            changed[place] = generator.integers(256)
        path.write_bytes(changed)
        with contextlib.suppress(KcalError):
            load(Source(path), Request("embeddings"))


def test_damage_inside_an_npz_file_is_named_with_its_array(run):
    arrays = blobs(90, 1)
    with zipfile.ZipFile("data.npz", "w") as archive:
        buffer = io.BytesIO()
        np.save(buffer, arrays["labels"])
        archive.writestr("labels.npy", buffer.getvalue())
        archive.writestr("embeddings.npy", b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape'")
    assert "array embeddings is truncated" in message(run, "data.npz")


def test_an_npy_file_called_npz_and_the_reverse_are_named(run):
    np.save("array.npy", np.zeros((3, 2)))
    Path("array.npy").rename("array.npz")
    assert "rename it to array.npy" in message(run, "array.npz")
    np.savez("arrays.npz", embeddings=np.zeros((3, 2)))
    Path("arrays.npz").rename("arrays.npy")
    np.save("labels.npy", np.zeros(3))
    assert "rename it to arrays.npz" in message(run, "arrays.npy", "--labels", "labels.npy")


def test_an_npy_file_needs_labels_from_elsewhere(run):
    np.save("data.npy", np.zeros((3, 2)))
    assert "--labels FILE" in message(run, "data.npy")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"embeddings": np.zeros(4)}, "embeddings must have"),
        ({"embeddings": np.zeros((0, 3))}, "0 sample(s)"),
        (
            {"embeddings": np.array([["a", "b"]] * 4)},
            "embeddings must be real numbers; got text, 'a'. Convert it with embeddings.astype(float)",
        ),
        ({"embeddings": np.array([[0.0, 1], [np.nan, 1], [2, 3], [4, 5]])}, "row 1"),
        ({"labels": np.arange(3)}, "labels must have one entry per sample; got 3 entries for 4 samples"),
        ({"labels": np.eye(4)}, "one-hot"),
        ({"labels": np.array([0.5, 1, 2, 3])}, "labels must be class labels; got 0.5 at row 0"),
        ({"labels": np.array([np.nan, 1, 2, 3])}, "NaN at row 0"),
        ({"labels": np.array(["a", "", "b", "a"])}, "a blank at row 1"),
        (
            {"labels": np.array(["2020-01-01"] * 4, dtype="datetime64[D]")},
            "labels must be text, truth values or numbers",
        ),
        ({"labels": np.array([0, 5, 0, 1]), "classes": ["a", "b"]}, "indices of classes, 0 to 1; got 5 at row 1"),
        ({"weights": np.array(["a"] * 4)}, "weights must be real numbers"),
        ({"groups": np.zeros((4, 2))}, "groups must be one-dimensional; got shape (4, 2)"),
        ({"ids": np.array([1, 1, 2, 3])}, "unique"),
    ],
)
def test_arrays_that_are_not_what_they_should_be_are_named(run, change, text):
    arrays = {"embeddings": np.arange(8.0).reshape(4, 2), "labels": np.array([0, 1, 0, 1])}
    np.savez("data.npz", **arrays | change)
    assert text in message(run, "data.npz")


def test_text_as_bytes_and_labels_in_one_column_are_read(run):
    arrays = blobs(90, 1)
    del arrays["classes"]
    np.savez("data.npz", **arrays | {"labels": arrays["labels"].astype("S")[:, None]})
    assert "cat, dog, owl" in run("fit", "data.npz", *QUICK).stdout


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_missing_label_column_is_named_with_those_present(run, tmp_path, suffix):
    columns = columns_of(blobs(90, 1))
    columns["species"] = columns.pop("label")
    path = write_columns(tmp_path / f"data{suffix}", columns)
    text = message(run, path)
    assert "no column called 'label'; it has id, e_0" in text
    assert "--label-column" in text
    run("fit", path, *QUICK, "--label-column", "species", "--feature-columns", "e_*")


def test_columns_that_were_named_must_be_there(run, tmp_path):
    path = write_columns(tmp_path / "data.csv", columns_of(blobs(90, 1)))
    assert "no column called 'patient'" in message(run, path, "--group-column", "patient")
    assert "matches no column" in message(run, path, "--feature-columns", "x_*")


def test_a_feature_that_is_text_is_named_with_the_remedy(run, tmp_path):
    path = write_columns(tmp_path / "data.csv", columns_of(blobs(90, 1)) | {"site": ["north"] * 90})
    text = message(run, path, "--feature-columns", "*")
    assert "column 'site' must be numbers to be a feature; it contains text, such as 'north'" in text
    assert "--feature-columns" in text


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("label,a,a\nx,1,2\ny,3,4\n", "more than one column called a"),
        (",label,a\n0,x,1\n1,y,3\n", "no name for column 1"),
        ("0.5,1.25,0\n0.1,0.2,1\n", "its first row looks like data"),
        ("label,a\n", "no rows below its header"),
        ("label,a\nx,1\ny,2,3\n", "cannot be read as csv"),
        ("label,a\nx,1\ny,\n", "row 1"),
        ("label,a\n,1\ny,2\n", "a blank at row 0"),
        ("label\nx\ny\n", "no columns left for features"),
        ("label,a\n1,1\n,2\n", "no value in row 1"),
    ],
)
def test_tables_that_are_not_what_they_should_be_are_named(run, content, text):
    Path("data.csv").write_text(content)
    assert text in message(run, "data.csv")


def test_text_that_is_not_utf8_is_named(run):
    Path("data.csv").write_bytes("label,a\nä,1\nö,2\n".encode("latin-1"))
    assert "column 'label' contains text that is not UTF-8" in message(run, "data.csv")


def test_the_mark_that_some_programs_put_before_utf8_is_no_part_of_a_name(run):
    Path("data.csv").write_bytes("\ufefflabel,a\nx,1\ny,2\nx,3\n".encode())
    run("fit", "data.csv", *QUICK, "--bandwidth", "1")


def test_what_pandas_writes_is_read(run, tmp_path):
    import pandas as pd

    frame = pd.DataFrame(columns_of(blobs(90, 1)))
    frame["label"] = frame["label"].astype("category")
    frame.index = frame.index + 5
    frame.to_parquet("data.parquet")
    assert "5 → 5" in run("fit", "data.parquet", *QUICK, "--feature-columns", "e_*").stdout
    whole = pd.DataFrame(blobs(90, 1)["embeddings"]).assign(label=np.arange(90) % 3)
    whole.to_csv("data.csv", index=False)
    assert "5 → 5" in run("fit", "data.csv", *QUICK).stdout
    frame.to_csv("data.csv")
    assert "row index" in run("fit", "data.csv", *QUICK, code=1).stderr


def test_lists_in_a_column_are_named(run):
    pyarrow.parquet.write_table(pyarrow.table({"label": [0, 1], "embedding": [[0.1, 0.2], [0.3, 0.4]]}), "data.parquet")
    assert "it contains list<" in message(run, "data.parquet")


def test_an_unreadable_file_is_named(run, tmp_path, monkeypatch, calibration):
    def refuse(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    assert "calibration.npz: Permission denied" in message(run, calibration)


def test_tables_without_pyarrow_say_how_to_install_it(run, tmp_path, monkeypatch, model, test_set):
    path = write_columns(tmp_path / "data.csv", columns_of(blobs(90, 1)))
    model.rename("model-kept.kcal")
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    assert "pip install 'kcal[tables]'" in message(run, path)
    assert "kcal[tables]" in run("predict", "model-kept.kcal", test_set, "-o", "p.csv", code=1).stderr
    for engine, extra in {"local": "tables", "ray": "ray"}.items():
        several = ("predict", "model-kept.kcal", "*.parquet", "--engine", engine, "-o", "scores")
        assert f"pip install 'kcal[{extra}]'" in run(*several, code=1).stderr
    run("predict", "model-kept.kcal", test_set, "-o", "p.npz")
