"""Tasks survive the file, and errors name the file and the array, or the argument."""

from __future__ import annotations

import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmark.conftest import make_task
from kcal.benchmark import Task, check_tasks, example_task, read_task, read_tasks, write_task
from kcal.benchmark.task_writing import in_least_precision
from kcal.errors import FileFormatError, InvalidInputError, KcalWarning


def written(task: Task, folder: Path) -> Path:
    path = folder / f"{task.name}.npz"
    write_task(
        path,
        task.train,
        task.pool,
        calibration_share=task.calibration_share,
        classes=task.classes,
        out_of_scope=task.out_of_scope,
    )
    return path


def check_refusal(path: Path, change: Any, words: str) -> None:
    """Change the arrays of a task's file; reading it then says what is wrong."""
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    change(arrays)
    np.savez(path, **arrays)
    with pytest.raises(FileFormatError, match=words):
        read_task(path)


def test_a_task_survives_the_file_in_half_precision(task: Task, tmp_path: Path) -> None:
    again = read_task(written(task, tmp_path))
    for part in ("train", "pool"):
        for what in ("embeddings", "logits"):
            expected = getattr(getattr(task, part), what)
            np.testing.assert_allclose(getattr(getattr(again, part), what), expected, rtol=1e-3, atol=1e-3)
        np.testing.assert_array_equal(getattr(again, part).labels, getattr(task, part).labels)
        np.testing.assert_array_equal(getattr(again, part).groups, getattr(task, part).groups)
    assert (again.name, again.classes, again.calibration_share) == ("small", ("cat", "dog", "owl"), 0.4)
    assert "150 unseen samples, 5 groups, 40% of the samples to calibrate" in str(again)


def test_groups_may_have_a_calibration_share_of_their_own(task: Task, tmp_path: Path) -> None:
    path = tmp_path / "shares.npz"
    shares = {"calibration_share": 0.1, "group_calibration_share": 0.6}
    again = write_task(path, task.train, task.pool, **shares)
    assert read_task(path).group_calibration_share == again.group_calibration_share == 0.6
    assert "5 groups (60% of them to calibrate), 10% of the samples to calibrate" in str(again)
    (by_row,), (by_group,) = again.splits(1, 0), again.splits(1, 0, by_group=True)
    assert len(by_row.calibration) == 15
    assert len(np.unique(task.pool.groups[by_group.calibration])) == 3

    def without_groups(arrays: dict[str, Any]) -> None:
        del arrays["train_groups"], arrays["pool_groups"]

    check_refusal(path, without_groups, "group_calibration_share is given, but there are no groups")


def test_inputs_out_of_scope_survive_the_file_without_labels(task: Task, tmp_path: Path) -> None:
    assert read_task(written(task, tmp_path)).out_of_scope is None
    with_some = make_task(n_out_of_scope=20)
    found = read_task(written(with_some, tmp_path))
    assert found.out_of_scope is not None
    assert with_some.out_of_scope is not None
    for what in ("embeddings", "logits"):
        expected = getattr(with_some.out_of_scope, what)
        np.testing.assert_allclose(getattr(found.out_of_scope, what), expected, rtol=1e-3, atol=1e-3)
    assert found.out_of_scope.labels is None
    assert str(found).endswith("; 20 out of scope")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a.pop("out_of_scope_logits"), "out_of_scope_logits missing"),
        (
            lambda a: a.update(out_of_scope_logits=a["out_of_scope_logits"][:, :2]),
            "has 2 columns, but those of the pool have 3",
        ),
        (lambda a: a.update(out_of_scope_embeddings=np.zeros((20, 5))), "has 5 columns, but those of the pool have 6"),
        (lambda a: a.update(out_of_scope_embeddings=np.zeros((19, 6))), "has 19 rows, but out_of_scope_logits has 20"),
        (lambda a: a.update(out_of_scope_logits=np.full((20, 3), np.inf)), "out_of_scope_logits must be finite"),
    ],
)
def test_errors_name_arrays_out_of_scope(change: Any, words: str, tmp_path: Path) -> None:
    check_refusal(written(make_task(n_out_of_scope=20), tmp_path), change, words)


def test_companions_lie_beside_and_must_be_of_the_same_rows(task: Task, tmp_path: Path) -> None:
    path = written(task, tmp_path)
    np.savez(tmp_path / "small@focal.npz", pool_logits=task.pool.logits, pool_labels=task.pool.labels)
    assert list(read_task(path).companions) == ["focal"]
    assert [found.name for found in read_tasks(tmp_path)] == ["small"]
    np.savez(tmp_path / "small@focal.npz", pool_logits=task.pool.logits[:-1])
    with pytest.raises(FileFormatError, match="the rows and classes of the task"):
        read_task(path)
    np.savez(tmp_path / "small@focal.npz", pool_logits=task.pool.logits, pool_labels=task.pool.labels[::-1])
    with pytest.raises(FileFormatError, match="differ from those of the task"):
        read_task(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a.pop("pool_logits"), "pool_logits missing"),
        (lambda a: a.pop("calibration_share"), "calibration_share is missing"),
        (lambda a: a.update(calibration_share=np.array(1.5)), "between 0 and 1"),
        (lambda a: a.update(group_calibration_share=np.array(1.5)), "group_calibration_share must be a number between"),
        (lambda a: a.update(pool_labels=a["pool_labels"] + 3), "0 to 2"),
        (lambda a: a.update(train_labels=a["train_labels"][:-1]), "one entry per row, 120"),
        (lambda a: a.update(pool_embeddings=a["pool_embeddings"][:-1]), "149 rows, but pool_logits has 150"),
        (
            lambda a: a.update(pool_embeddings=np.full((150, 6), np.nan)),
            "must be finite in single precision; row 0 is not",
        ),
        (lambda a: a.update(train_logits=a["train_logits"][:, :2]), "0 to 1"),
        (
            lambda a: a.update(train_embeddings=a["train_embeddings"][:, :2]),
            "train_embeddings has 2 columns, but those of the pool have 6",
        ),
        (lambda a: a.update(classes=np.array(["a"])), "name all 3 columns"),
        (lambda a: a.pop("train_groups"), "for only one of train and pool"),
        (lambda a: a.update(pool_logits=a["pool_logits"].astype(int)), "matrix of floats"),
    ],
)
def test_errors_name_the_array(change: Any, words: str, task: Task, tmp_path: Path) -> None:
    check_refusal(written(task, tmp_path), change, words)


def test_a_bad_task_is_not_written_and_other_files_are_an_error(task: Task, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="calibration_share must be a number strictly between 0 and 1"):
        write_task(tmp_path / "bad.npz", task.train, task.pool, calibration_share=2.0)
    with pytest.raises(InvalidInputError, match="without @"):
        write_task(tmp_path / "a@b.npz", task.train, task.pool, calibration_share=0.5)
    assert not list(tmp_path.iterdir())
    (tmp_path / "broken.npz").write_bytes(b"PK nothing")
    with pytest.raises(FileFormatError, match="damaged"):
        read_task(tmp_path / "broken.npz")
    with pytest.raises(FileFormatError, match="does not exist"):
        read_task(tmp_path / "absent.npz")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(InvalidInputError, match="folder must hold a task"):
        list(read_tasks(tmp_path / "nothing"))
    with pytest.raises(InvalidInputError, match="folder must be a folder of tasks"):
        list(read_tasks(tmp_path / "broken.npz"))


@pytest.mark.parametrize("name", ["small.npz", "small@focal.npz"])
@pytest.mark.parametrize("damage", ["npy", "zlib", "words"])
def test_errors_name_damaged_files(name: str, damage: str, task: Task, tmp_path: Path) -> None:
    path = written(task, tmp_path)
    np.savez_compressed(tmp_path / "small@focal.npz", pool_logits=task.pool.logits)
    broken = tmp_path / name
    if damage == "npy":
        with broken.open("wb") as stream:
            np.save(stream, task.pool.logits)
    elif damage == "zlib":
        content = bytearray(broken.read_bytes())
        content[100:140] = bytes(40)
        broken.write_bytes(content)
    else:
        with zipfile.ZipFile(broken, "w") as archive:
            archive.writestr("pool_logits", "words")
    with pytest.raises(FileFormatError, match=f"{name} is not an npz file of arrays, or is damaged"):
        read_task(path)
    with pytest.raises(FileFormatError, match=rf"{name} .*Nothing was run: repair the file, or remove it"):
        check_tasks(tmp_path)


def test_unused_companions_are_a_warning(task: Task, tmp_path: Path) -> None:
    written(task, tmp_path)
    np.savez(tmp_path / "small@foo.npz", pool_logits=task.pool.logits)
    with pytest.warns(KcalWarning, match=r"small@foo.npz is not used.*focal, mmce, smooth"):
        check_tasks(tmp_path)
    assert not read_task(tmp_path / "small.npz").companions
    (tmp_path / "small@foo.npz").rename(tmp_path / "large@focal.npz")
    with pytest.warns(KcalWarning, match=r"large@focal.npz is not used: there is no task large.npz"):
        check_tasks(tmp_path)


def test_a_pool_of_one_sample_is_no_task(task: Task, tmp_path: Path) -> None:
    pool = type(task.pool)(*(getattr(task.pool, what)[:1] for what in ("embeddings", "logits", "labels", "groups")))
    with pytest.raises(FileFormatError, match="the pool has 1 sample"):
        write_task(tmp_path / "one.npz", task.train, pool, calibration_share=0.5)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("logits", lambda x: np.where(x > 0, 1e5, 0.0)),  # beyond the range
        ("logits", lambda x: 100 * x),  # rounded by more than 0.01
        ("embeddings", lambda x: 1e-8 * x),  # rounded to zero
        ("embeddings", lambda x: 1000 + x),  # differences are rounded away
        ("embeddings", lambda x: x * np.where(np.arange(x.shape[1]) == 2, 1e-6, 1)),  # in one column
    ],
)
def test_what_half_precision_would_destroy_is_stored_in_single(kind: str, values: Any, tmp_path: Path) -> None:
    task = make_task(companions=False)
    exact = values(getattr(task.pool, kind).astype(np.float64)).astype(np.float32)
    written = write_task(tmp_path / "a.npz", task.train, replace(task.pool, **{kind: exact}), calibration_share=0.5)
    np.testing.assert_array_equal(getattr(written.pool, kind), exact)
    with np.load(tmp_path / "a.npz") as stored:
        assert stored[f"pool_{kind}"].dtype == np.float32
        assert stored["train_embeddings"].dtype == np.float16


def test_a_constant_column_and_a_sparse_one_need_no_more_than_half_precision() -> None:
    values = np.zeros((1000, 2), dtype=np.float32)
    values[:, 0], values[17, 1] = 0.1, 3.3
    assert in_least_precision(values).dtype == np.float16


@pytest.mark.parametrize(
    ("change", "parameter", "words"),
    [
        ({"labels": lambda y: y + 0.9}, "pool.labels", "continuous"),
        ({"labels": lambda y: y.astype(float)}, "pool.labels", "labels.astype"),
        ({"labels": lambda y: y + 2**32}, "pool.labels", "got 42949672"),
        ({"labels": lambda y: -y}, "pool.labels", "got -"),
        ({"labels": lambda y: y.astype(str)}, "pool.labels", "got dtype <U"),
        ({"labels": lambda y: y > 0}, "pool.labels", "got dtype bool"),
        ({"labels": lambda y: None}, "pool.labels", "y"),
        ({"labels": lambda y: y[:-1]}, "pool.labels", "149"),
        ({"logits": lambda x: None}, "pool.logits", "must be given"),
        ({"logits": lambda x: "text"}, "pool.logits", "must"),
        ({"embeddings": lambda x: x.astype(np.float64) * 1e300}, "pool.embeddings", "e"),
        ({"groups": lambda g: g[:-1]}, "pool.groups", "149"),
    ],
)
def test_what_cannot_be_stored_is_an_error_that_names_the_argument(
    change: dict[str, Any], parameter: str, words: str, task: Task, tmp_path: Path
) -> None:
    pool = replace(task.pool, **{name: make(getattr(task.pool, name)) for name, make in change.items()})
    with pytest.raises(InvalidInputError, match=re.escape(words)) as error:
        write_task(tmp_path / "bad.npz", task.train, pool, calibration_share=0.5)
    assert str(error.value).startswith(parameter)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", [3, None, b"a.npz", "a\0b.npz", object()])
def test_a_path_that_is_none_is_an_error(path: Any, task: Task) -> None:
    for call in (
        lambda: read_task(path),
        lambda: check_tasks(path),
        lambda: write_task(path, task.train, task.pool, calibration_share=0.5),
    ):
        with pytest.raises(InvalidInputError, match=r"^(path|folder) must be"):
            call()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"train": 3}, "train must be a kcal.ClassifierOutputs; got 3"),
        ({"pool": {"logits": 1}}, "pool must be a kcal.ClassifierOutputs"),
        ({"out_of_scope": "far"}, "out_of_scope must be a kcal.ClassifierOutputs"),
        ({"calibration_share": "half"}, "calibration_share must be"),
        ({"calibration_share": True}, "calibration_share must be"),
        ({"classes": "abc"}, "classes must be 3 names"),
        ({"classes": 3}, "classes must be 3 names"),
        ({"classes": np.array(3)}, "classes must be 3 names"),
        ({"classes": ["a", "b"]}, "classes must be 3 names"),
    ],
)
def test_wrong_objects_are_an_error_that_names_the_argument(
    change: dict[str, Any], words: str, task: Task, tmp_path: Path
) -> None:
    given = {"train": task.train, "pool": task.pool, "calibration_share": 0.5} | change
    with pytest.raises(InvalidInputError, match=words):
        write_task(tmp_path / "bad.npz", **given)


def test_text_groups_and_the_mode_of_an_existing_file_are_kept(task: Task, tmp_path: Path) -> None:
    names = np.array([f"site {group}" for group in task.pool.groups], dtype=object)
    pool = replace(task.pool, groups=names)
    path = tmp_path / "a.npz"
    path.touch(mode=0o600)
    path.chmod(0o640)
    assert write_task(path, task.train, pool, calibration_share=0.5).pool.groups.tolist() == names.tolist()
    assert path.stat().st_mode & 0o777 == 0o640


def test_the_name_of_a_task_is_shown_without_escape_sequences(task: Task) -> None:
    assert str(replace(task, name="\x1b[31mred")).startswith("\\x1b[31mred: 3 classes")


def test_the_embedded_example_is_a_task_with_companions() -> None:
    task = example_task()
    assert task.calibration_share == pytest.approx(0.3)
    assert set(task.companions) == {"focal", "mmce", "smooth"}
    assert all(logits.shape == task.pool.logits.shape for logits in task.companions.values())
