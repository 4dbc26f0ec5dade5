"""Outputs of a classifier from files: every format gives the same, and a wrong file is an error that names it."""

from __future__ import annotations

import contextlib
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kcal
from kcal import FileFormatError, InvalidInputError, read_outputs

pa = pytest.importorskip("pyarrow")
csv = pytest.importorskip("pyarrow.csv")
parquet = pytest.importorskip("pyarrow.parquet")

ANIMALS = np.array(["cat", "dog", "owl"])


def arrays(n: int = 30) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {
        "embeddings": generator.normal(size=(n, 4)).astype(np.float32),
        "logits": generator.normal(size=(n, 3)).astype(np.float32),
        "labels": ANIMALS[np.arange(n) % 3],
        "groups": np.arange(n) // 5,
        "weights": generator.uniform(0.5, 2, n),
        "ids": np.array([f"row-{i}" for i in range(n)]),
    }


def columns() -> dict[str, Any]:
    """The same as columns of a table."""
    data = arrays()
    table = {key[:-1]: data[key] for key in ("labels", "groups", "weights", "ids")}
    table |= {f"e_{i}": column for i, column in enumerate(data["embeddings"].T)}
    return table | {f"logit_{name}": column for name, column in zip(ANIMALS, data["logits"].T, strict=True)}


def write(path: Path, content: dict[str, Any]) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **content)
    elif path.suffix == ".npy":
        np.save(path, content["embeddings"])
    else:
        (csv.write_csv if path.suffix == ".csv" else parquet.write_table)(pa.table(content), path)
    return path


def assert_same(found: Any, expected: dict[str, np.ndarray]) -> None:
    for part, values in expected.items():
        if values.dtype.kind == "f":
            np.testing.assert_allclose(getattr(found, part), values, rtol=1e-6)
        else:
            assert getattr(found, part).tolist() == values.tolist()


def test_npz_csv_and_parquet_give_the_same(tmp_path):
    assert_same(read_outputs(write(tmp_path / "a.npz", arrays())), arrays())
    for suffix in (".csv", ".parquet"):
        found = read_outputs(write(tmp_path / f"a{suffix}", columns()), embeddings="e_*")
        assert_same(found, arrays())
        assert found.classes.tolist() == ANIMALS.tolist()
        assert found.columns["embeddings"] == ("e_0", "e_1", "e_2", "e_3")
        assert found.columns["labels"] == ("label",)
        some = found.select([4, 2])
        assert_same(some, {part: values[[4, 2]] for part, values in arrays().items()})
        assert (some.columns, some.classes.tolist()) == (found.columns, ANIMALS.tolist())


def test_columns_of_lists_are_matrices(tmp_path):
    data = arrays()
    path = write(tmp_path / "a.parquet", {"embedding": list(data["embeddings"]), "logits": list(data["logits"])})
    found = read_outputs(path)
    assert_same(found, {part: data[part] for part in ("embeddings", "logits")})
    assert found.classes is None
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(data["embeddings"].ravel()), 4)
    assert_same(read_outputs(write(tmp_path / "c.parquet", {"embedding": fixed})), {"embeddings": data["embeddings"]})
    uneven = write(tmp_path / "b.parquet", {"embedding": [[1.0, 2.0], [1.0]]})
    with pytest.raises(InvalidInputError, match="one length"):
        read_outputs(uneven)


def test_a_star_takes_all_columns_that_are_nothing_else(tmp_path):
    path = write(tmp_path / "a.csv", columns())
    assert read_outputs(path, embeddings="*").embeddings.shape == (30, 4)
    assert read_outputs(path, embeddings="*", logits=None, labels=None).embeddings.shape == (30, 7)
    assert read_outputs(path, embeddings=["e_3", "e_1"]).columns["embeddings"] == ("e_3", "e_1")


def test_an_npy_file_holds_embeddings_or_logits_and_parts_may_be_in_other_files(tmp_path):
    data, path = arrays(), write(tmp_path / "a.npy", arrays())
    table, labels = write(tmp_path / "t.csv", columns()), tmp_path / "labels.npy"
    np.save(labels, data["labels"])
    found = read_outputs(path, labels=str(labels), logits=f"{table}:logit_*", ids=f"{table}:id")
    assert_same(found, {part: data[part] for part in ("embeddings", "labels", "logits", "ids")})
    assert found.classes.tolist() == ANIMALS.tolist()
    assert read_outputs(path, embeddings=None).logits.shape == (30, 4)


def test_names_may_begin_with_a_prefix_and_parts_may_have_other_names(tmp_path):
    data = arrays()
    path = write(tmp_path / "a.npz", {f"train_{part}": values for part, values in data.items()} | {"x": data["groups"]})
    assert_same(read_outputs(path, prefix="train_"), data)
    assert (
        read_outputs(path, embeddings="train_embeddings", labels=None, groups="x").groups.tolist()
        == data["groups"].tolist()
    )
    assert read_outputs(path).embeddings is None


def test_a_part_of_another_name_must_be_there(tmp_path):
    for suffix, content in ((".npz", arrays()), (".csv", columns())):
        path = write(tmp_path / f"a{suffix}", content)
        for option in ({"labels": "diagnosis"}, {"embeddings": "x_*"}, {"logits": "z"}):
            with pytest.raises(InvalidInputError, match=next(iter(option))) as error:
                read_outputs(path, **option)
            assert str(path) in str(error.value)


@pytest.mark.parametrize("given", [None, ["cat", "dog", "owl"]])
def test_integers_are_positions_among_classes_of_the_same_file_or_the_caller(tmp_path, given):
    codes = np.arange(30) % 3
    stored = {} if given else {"classes": ANIMALS}
    path = write(tmp_path / "a.npz", arrays() | {"labels": codes} | stored)
    found = read_outputs(path, classes=given)
    assert found.labels.tolist() == ANIMALS[codes].tolist()
    assert found.classes.tolist() == ANIMALS.tolist()
    with pytest.raises(InvalidInputError, match="positions"):
        read_outputs(write(tmp_path / "b.npz", arrays() | {"labels": codes + 1} | stored), classes=given)


def test_integers_are_not_guessed_to_be_positions(tmp_path):
    codes = np.arange(30) % 3
    table = write(tmp_path / "a.csv", columns() | {"label": codes})
    with pytest.raises(InvalidInputError, match="integers, but the classes have names"):
        read_outputs(table)
    np.save(tmp_path / "labels.npy", codes)
    path = write(tmp_path / "a.npz", {"logits": arrays()["logits"], "classes": ANIMALS})
    with pytest.raises(InvalidInputError, match="integers, but the classes have names"):
        read_outputs(path, labels=str(tmp_path / "labels.npy"))


def test_files_that_are_not_data_and_classes_that_are_not_theirs_are_named(tmp_path):
    (tmp_path / "a.txt").write_text("1 2 3")
    np.savez(tmp_path / "a.npz", **arrays() | {"labels": np.array(["a", "b"], dtype=object)})
    write(tmp_path / "a.csv", columns())
    for name, text in (
        ("no.npz", "does not exist"),
        ("a.txt", "must end in .npz"),
        ("a.npz", "labels contains Python objects"),
        ("a.csv", "must follow the columns"),
    ):
        with pytest.raises(kcal.KcalError, match=text):
            read_outputs(tmp_path / name, classes=["owl", "dog", "cat"] if name == "a.csv" else None)


def test_numbered_columns_are_classes_by_number(tmp_path):
    logits = arrays()["logits"]
    for order, classes in (((0, 1, 2), None), ((2, 0, 1), [2, 0, 1])):
        path = write(tmp_path / "a.csv", {f"z{k}": logits[:, k] for k in order} | {"label": np.arange(30) % 3})
        found = read_outputs(path, logits="z*").classes
        assert (found if classes is None else found.tolist()) == classes


@pytest.mark.parametrize("compressed", [True, False])
def test_an_array_larger_than_its_file_is_rejected_before_it_is_allocated(tmp_path, compressed):
    """1 TB of zeros that the header declares; and 512 MB that 500 kB expand to."""
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("embeddings.npy", "w") as entry:
        shape = (2**16, 2**10) if compressed else (2**20, 2**17)
        np.lib.format.write_array_header_1_0(entry, {"descr": "<f8", "fortran_order": False, "shape": shape})
        for _ in range(64 if compressed else 1):
            entry.write(bytes(2**23))
    assert path.stat().st_size < 10**6
    with pytest.raises(FileFormatError, match="declares"):
        read_outputs(path)


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".parquet", ".csv"])
def test_damaged_files_are_read_or_rejected_but_never_a_crash(tmp_path, suffix):
    path = write(tmp_path / f"a{suffix}", columns() if suffix in (".parquet", ".csv") else arrays())
    content, generator = path.read_bytes(), np.random.default_rng(0)
    for near in np.resize([200, len(content)], 150):
        changed = bytearray(content)
        for place in generator.integers(0, min(near, len(content)), 3):
            changed[place] = generator.integers(256)
        path.write_bytes(changed)
        with contextlib.suppress(kcal.KcalError):
            read_outputs(path, embeddings="e_*" if suffix in (".parquet", ".csv") else "embeddings")
    for share in (0, 0.1, 0.5, 0.99):
        path.write_bytes(content[: int(len(content) * share)])
        if suffix != ".csv" or share == 0:
            with pytest.raises(FileFormatError, match="cannot be read"):
                read_outputs(path, embeddings="e_*" if suffix in (".parquet", ".csv") else "embeddings")


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"embeddings": np.zeros(30)}, "embeddings"),
        ({"embeddings": np.full((30, 2), "a")}, "embeddings"),
        ({"embeddings": np.full((30, 2), np.nan)}, "embeddings"),
        ({"logits": np.zeros((29, 3))}, "logits"),
        ({"labels": np.arange(29)}, "labels"),
        ({"labels": np.full(30, 0.5)}, "labels"),
        ({"labels": np.full(30, "")}, "labels"),
        ({"weights": np.full(30, "a")}, "weights"),
        ({"groups": np.zeros((30, 2))}, "groups"),
    ],
)
def test_arrays_of_another_shape_or_type_are_named(tmp_path, change, name):
    with pytest.raises(InvalidInputError, match=f"a.npz: {name}"):
        read_outputs(write(tmp_path / "a.npz", arrays() | change))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("label,a,a\nx,1,2\ny,3,4\n", "more than one column called a"),
        ("label,a\n", "has no rows"),
        ("label,a\nx,1\ny,2,3\n", "cannot be read as csv"),
        ("label,a\nx,1\ny,\n", "NaN at row 1"),
        ("label,a\n1,1\n,2\n", "none in row 1"),
        ("label,a\nx,1\ny,b\n", "must be numbers"),
        ("label;a\nx;1\n", "label;a"),
        ("group,a\n1,1\nNA,2\n3,4\n", "none in row 1"),
        ("label,a\nx,1,2\ny,2,3\n", "cannot be read as csv"),
        ("label,a\nx,1\ny\n", "NaN at row 1"),
        ("label,a\nx,0.0\ny,x\n", "column 'a' must be numbers.*got 'x'"),
        ('label,a\nx,1\n"y,2\n', "cannot be read as csv"),
        ("", "cannot be read as csv"),
    ],
)
def test_tables_that_are_not_what_they_should_be_are_named(tmp_path, content, text):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(kcal.KcalError, match=text):
        read_outputs(tmp_path / "a.csv", embeddings="a")


def test_the_text_na_is_a_label_and_no_missing_one(tmp_path):
    (tmp_path / "a.csv").write_text("label,a\nx,1\nNA,2\n")
    assert read_outputs(tmp_path / "a.csv", embeddings="a").labels.tolist() == ["x", "NA"]


def test_text_is_utf8_with_or_without_a_byte_order_mark(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("\ufefflabel,a_0\nä,1\nö,2\n".encode())
    assert read_outputs(path, embeddings="a").labels.tolist() == ["ä", "ö"]
    path.write_bytes("label,a_0\nä,1\nö,2\n".encode("latin-1"))
    with pytest.raises(FileFormatError, match="not UTF-8"):
        read_outputs(path, embeddings="a")


def test_what_pandas_writes_is_read(tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(columns())
    frame["label"] = frame["label"].astype("category")
    frame.index = frame.index + 5
    frame.to_parquet(tmp_path / "a.parquet")
    assert_same(read_outputs(tmp_path / "a.parquet", embeddings="*"), arrays())


@pytest.mark.parametrize("option", [{"labels": 3}, {"embeddings": [1]}, {"prefix": None}, {"classes": 3}])
def test_names_that_are_not_text_raise_by_name(tmp_path, option):
    with pytest.raises(InvalidInputError, match=next(iter(option))):
        read_outputs(write(tmp_path / "a.npz", arrays()), **option)


def test_a_csv_file_has_the_numbers_of_its_text(tmp_path):
    values = np.random.default_rng(0).normal(size=(200, 2)) * 10.0 ** np.linspace(-17, 17, 200)[:, None]
    path = tmp_path / "a.csv"
    path.write_text("label,e_0,e_1\n" + "".join(f"None,{a!r},{b!r}\n" for a, b in values.tolist()))
    found = read_outputs(path, embeddings="e_*")
    exact = int(version("pandas").partition(".")[0]) >= 3  # pandas before rounds the last digits
    np.testing.assert_allclose(found.embeddings, values, rtol=1e-15 if exact else 2e-12, atol=0)
    assert set(found.labels.tolist()) == {"None"}


def test_of_a_parquet_file_only_wanted_columns_are_read_and_not_more_than_it_may_hold(tmp_path):
    zeros, labels = pa.array(np.zeros(2**20)), pa.array(np.zeros(2**20, np.int8))
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"label": labels} | {f"z{k}": zeros for k in range(80)}), path)
    assert path.stat().st_size < 2**20
    found = read_outputs(path, embeddings=None)
    assert (found.logits, len(found.labels), len(found.available)) == (None, 2**20, 81)
    with pytest.raises(FileFormatError, match="declares"):
        read_outputs(path, embeddings="z*")
