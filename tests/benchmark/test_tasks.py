"""Tasks survive the file, and errors name the file and the array, or the argument."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmark.conftest import make_task
from kcal.benchmark import Task, check_tasks, example_task, read_task, read_tasks, write_task
from kcal.benchmark.tasks import KINDS
from kcal.errors import FileFormatError, InvalidInputError, KcalWarning


def write(task: Task, folder: Path) -> Path:
    path = folder / f"{task.name}.npz"
    shares = {"calibration_share": task.calibration_share, "group_calibration_share": task.group_calibration_share}
    write_task(path, task.train, task.pool, classes=task.classes, out_of_scope=task.out_of_scope, **shares)
    return path


def test_a_task_survives_the_file(tmp_path):
    task = replace(make_task(companions=False, n_out_of_scope=20), group_calibration_share=0.6)
    again = read_task(write(task, tmp_path))
    for part in ("train", "pool", "out_of_scope"):
        for kind in ("embeddings", "logits", "labels", "groups"):
            np.testing.assert_array_equal(getattr(getattr(again, part), kind), getattr(getattr(task, part), kind))
    assert (again.name, again.classes, again.companions) == ("small", ("cat", "dog", "owl"), {})
    assert (again.calibration_share, again.group_calibration_share) == (0.4, 0.6)
    assert "5 groups (60% of them to calibrate), 40% of the samples to calibrate; 20 out of scope" in str(again)
    (by_row,), (by_group,) = again.splits(1, 0), again.splits(1, 0, by_group=True)
    assert len(by_row.calibration) == 60
    assert len(np.unique(task.pool.groups[by_group.calibration])) == 3


def test_companions_lie_beside_and_must_be_of_the_same_rows(task, tmp_path):
    path, companion = write(task, tmp_path), tmp_path / "small@focal.npz"
    np.savez(companion, pool_logits=task.pool.logits, pool_labels=task.pool.labels)
    assert list(read_task(path).companions) == ["focal"]
    assert [found.name for found in read_tasks(tmp_path)] == ["small"]
    for arrays in (
        {"pool_logits": task.pool.logits[:-1]},
        {"pool_logits": task.pool.logits, "pool_labels": task.pool.labels[::-1]},
        {"other": task.pool.logits},
    ):
        np.savez(companion, **arrays)
        with pytest.raises(
            FileFormatError, match=f"small@focal.npz: {list(arrays)[-1].replace('other', 'pool_logits')}"
        ):
            read_task(path)


@pytest.mark.parametrize("name", ["small@foo", "large@focal"])
def test_unused_companions_are_a_warning(name, task, tmp_path):
    write(task, tmp_path)
    np.savez(tmp_path / f"{name}.npz", pool_logits=task.pool.logits)
    with pytest.warns(KcalWarning, match=f"{name}.npz is not used"):
        check_tasks(tmp_path)


def test_the_embedded_example_is_a_task_with_companions():
    task = example_task()
    assert task.calibration_share == pytest.approx(0.3)
    assert set(task.companions) == {"focal", "mmce", "smooth"}
    assert all(logits.shape == task.pool.logits.shape for logits in task.companions.values())


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("pool_logits", None),
        ("calibration_share", None),
        ("group_calibration_share", lambda _: np.array(1.5)),
        ("pool_labels", lambda labels: labels + 1),
        ("pool_labels", lambda labels: labels - 1),
        ("train_labels", lambda labels: labels[:-1]),
        ("pool_logits", lambda rows: rows[:-1]),
        ("pool_embeddings", lambda rows: np.full_like(rows, np.nan)),
        ("train_embeddings", lambda rows: rows[:, :2]),
        ("out_of_scope_logits", lambda _: np.zeros((20, 2))),
        ("out_of_scope_logits", None),
        ("classes", lambda classes: classes[:1]),
        ("train_groups", None),
        ("pool_logits", lambda rows: rows[0]),
    ],
)
def test_errors_name_the_file_and_the_array(name, change, tmp_path):
    path = write(make_task(n_out_of_scope=20), tmp_path)
    with np.load(path) as stored:
        arrays = dict(stored)
    array = arrays.pop(name, None)
    if change is not None:
        arrays[name] = change(array)
    np.savez(path, **arrays)
    with pytest.raises(FileFormatError, match=rf"small\.npz: .*{name}"):
        read_task(path)


@pytest.mark.parametrize("name", ["small.npz", "small@focal.npz"])
def test_damaged_files_are_named(name, task, tmp_path):
    path = write(task, tmp_path)
    np.savez_compressed(tmp_path / "small@focal.npz", pool_logits=task.pool.logits)
    content = bytearray((tmp_path / name).read_bytes())
    content[100:140] = bytes(40)
    for damaged in (bytes(content), b"PK nothing"):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(FileFormatError, match=f"{name} cannot be read"):
            read_task(path)
        with pytest.raises(FileFormatError, match=rf"{name} .*Nothing was run"):
            check_tasks(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("train", 3),
        ("out_of_scope", "far"),
        ("calibration_share", 2.0),
        ("calibration_share", True),
        ("path", "a@b.npz"),
        ("pool_labels", [0.9] * 150),
        ("pool_labels", ["cat"] * 150),
        ("train_labels", None),
        ("train_logits", None),
        ("pool_embeddings", np.full((150, 6), 1e300)),
        ("pool_groups", np.arange(149)),
    ],
)
def test_what_cannot_be_a_task_is_named_and_not_written(name, value, task, tmp_path):
    given = {"path": tmp_path / "bad.npz", "train": task.train, "pool": task.pool, "calibration_share": 0.5}
    part, _, kind = name.partition("_")
    given |= {part: replace(given[part], **{kind: value})} if name not in given and kind in KINDS else {name: value}
    with pytest.raises(InvalidInputError, match=name):
        write_task(**given)
    assert not list(tmp_path.iterdir())


def test_folders_without_tasks_are_named(tmp_path):
    with pytest.raises(FileFormatError, match="does not exist"):
        read_task(tmp_path / "absent.npz")
    with pytest.raises(InvalidInputError, match="folder must"):
        list(read_tasks(tmp_path))
