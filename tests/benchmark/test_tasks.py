"""Tasks survive the file, and what is wrong with one is said by name."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmark.conftest import make_task
from kcal.benchmark import Task, check_tasks, example_task, read_task, read_tasks, write_task
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
    assert "150 unseen samples, 5 groups, 40% of them to calibrate" in str(again)


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
        (lambda a: a.pop("out_of_scope_logits"), "out_of_scope_embeddings is there alone"),
        (
            lambda a: a.update(out_of_scope_logits=a["out_of_scope_logits"][:, :2]),
            "has 2 columns, but the pool's have 3",
        ),
        (lambda a: a.update(out_of_scope_embeddings=np.zeros((20, 5))), "has 5 columns, but the pool's have 6"),
        (lambda a: a.update(out_of_scope_embeddings=np.zeros((19, 6))), "has 19 rows, but out_of_scope_logits has 20"),
        (lambda a: a.update(out_of_scope_logits=np.full((20, 3), np.inf)), "out_of_scope_logits must be finite"),
    ],
)
def test_what_is_wrong_with_inputs_out_of_scope_is_said(change: Any, words: str, tmp_path: Path) -> None:
    check_refusal(written(make_task(n_out_of_scope=20), tmp_path), change, words)


def test_companions_lie_beside_and_must_be_of_the_same_rows(task: Task, tmp_path: Path) -> None:
    path = written(task, tmp_path)
    np.savez(tmp_path / "small@focal.npz", pool_logits=task.pool.logits, pool_labels=task.pool.labels)
    assert list(read_task(path).companions) == ["focal"]
    assert [found.name for found in read_tasks(tmp_path)] == ["small"]
    np.savez(tmp_path / "small@focal.npz", pool_logits=task.pool.logits[:-1])
    with pytest.raises(FileFormatError, match="for the same rows and classes"):
        read_task(path)
    np.savez(tmp_path / "small@focal.npz", pool_logits=task.pool.logits, pool_labels=task.pool.labels[::-1])
    with pytest.raises(FileFormatError, match="not those of the task"):
        read_task(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a.pop("pool_logits"), "pool_logits missing"),
        (lambda a: a.pop("calibration_share"), "calibration_share is missing"),
        (lambda a: a.update(calibration_share=np.array(1.5)), "between 0 and 1"),
        (lambda a: a.update(pool_labels=a["pool_labels"] + 3), "0 to 2"),
        (lambda a: a.update(train_labels=a["train_labels"][:-1]), "120 of them"),
        (lambda a: a.update(pool_embeddings=a["pool_embeddings"][:-1]), "149 rows, but pool_logits has 150"),
        (lambda a: a.update(pool_embeddings=np.full((150, 6), np.nan)), "must be finite; row 0 is not"),
        (lambda a: a.update(train_logits=a["train_logits"][:, :2]), "0 to 1"),
        (lambda a: a.update(train_embeddings=a["train_embeddings"][:, :2]), "have 2 and 6 columns"),
        (lambda a: a.update(classes=np.array(["a"])), "name all 3 columns"),
        (lambda a: a.pop("train_groups"), "for one of train and pool only"),
        (lambda a: a.update(pool_logits=a["pool_logits"].astype(int)), "matrix of floats"),
    ],
)
def test_what_is_wrong_is_said_by_name(change: Any, words: str, task: Task, tmp_path: Path) -> None:
    check_refusal(written(task, tmp_path), change, words)


def test_a_bad_task_is_not_written_and_files_that_are_none_are_told(task: Task, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="between 0 and 1"):
        write_task(tmp_path / "bad.npz", task.train, task.pool, calibration_share=2.0)
    with pytest.raises(InvalidInputError, match="without @"):
        write_task(tmp_path / "a@b.npz", task.train, task.pool, calibration_share=0.5)
    assert not list(tmp_path.iterdir())
    (tmp_path / "broken.npz").write_bytes(b"PK nothing")
    with pytest.raises(FileFormatError, match="damaged"):
        read_task(tmp_path / "broken.npz")
    with pytest.raises(FileFormatError, match="is not there"):
        read_task(tmp_path / "absent.npz")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(InvalidInputError, match="holds no task"):
        list(read_tasks(tmp_path / "nothing"))
    with pytest.raises(InvalidInputError, match="is not a folder"):
        list(read_tasks(tmp_path / "broken.npz"))


@pytest.mark.parametrize("name", ["small.npz", "small@focal.npz"])
@pytest.mark.parametrize("damage", ["npy", "zlib", "words"])
def test_damaged_files_are_told_of_by_name(name: str, damage: str, task: Task, tmp_path: Path) -> None:
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
    with pytest.raises(FileFormatError, match=f"{name} is no npz file of arrays, or a damaged one"):
        read_task(path)
    with pytest.raises(FileFormatError, match=rf"{name} .*Nothing was run: mend the file, or remove it"):
        check_tasks(tmp_path)


def test_companions_that_nobody_uses_are_told(task: Task, tmp_path: Path) -> None:
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


def test_large_values_keep_their_precision(tmp_path: Path) -> None:
    task = make_task(companions=False)
    large = np.where(np.eye(3)[task.pool.labels] > 0, 1e5, 0.0).astype(np.float32)
    pool = replace(task.pool, logits=large)
    found = write_task(tmp_path / "large.npz", task.train, pool, calibration_share=0.5)
    np.testing.assert_array_equal(found.pool.logits, large)


def test_the_embedded_example_is_a_task_with_companions() -> None:
    task = example_task()
    assert task.calibration_share == pytest.approx(0.3)
    assert set(task.companions) == {"focal", "mmce", "smooth"}
    assert all(logits.shape == task.pool.logits.shape for logits in task.companions.values())
