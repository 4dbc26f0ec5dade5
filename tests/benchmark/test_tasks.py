"""Tasks survive the file, and errors name the file and the array, or the argument."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmark.conftest import make_task
from kcal.benchmark import Task, check_tasks, example_task, read_task, read_tasks, write_task
from kcal.benchmark.tasks import in_least_precision
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

    check_refusal(path, without_groups, "group_calibration_share is given without groups")


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


def test_unused_companions_are_a_warning(task: Task, tmp_path: Path) -> None:
    written(task, tmp_path)
    np.savez(tmp_path / "small@foo.npz", pool_logits=task.pool.logits)
    with pytest.warns(KcalWarning, match=r"small@foo.npz is not used.*focal, mmce, smooth"):
        check_tasks(tmp_path)
    assert not read_task(tmp_path / "small.npz").companions
    (tmp_path / "small@foo.npz").rename(tmp_path / "large@focal.npz")
    with pytest.warns(KcalWarning, match=r"large@focal.npz is not used: there is no task large.npz"):
        check_tasks(tmp_path)


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


def test_text_groups_and_the_mode_of_an_existing_file_are_kept(task: Task, tmp_path: Path) -> None:
    names = np.array([f"site {group}" for group in task.pool.groups], dtype=object)
    pool = replace(task.pool, groups=names)
    path = tmp_path / "a.npz"
    path.touch(mode=0o600)
    path.chmod(0o640)
    assert write_task(path, task.train, pool, calibration_share=0.5).pool.groups.tolist() == names.tolist()
    assert path.stat().st_mode & 0o777 == 0o640


def test_the_embedded_example_is_a_task_with_companions() -> None:
    task = example_task()
    assert task.calibration_share == pytest.approx(0.3)
    assert set(task.companions) == {"focal", "mmce", "smooth"}
    assert all(logits.shape == task.pool.logits.shape for logits in task.companions.values())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a.pop("pool_logits"), "pool_logits missing"),
        (lambda a: a.pop("calibration_share"), "calibration_share is missing"),
        (lambda a: a.update(group_calibration_share=np.array(1.5)), "group_calibration_share must be"),
        (lambda a: a.update(pool_labels=a["pool_labels"] + 3), "pool_labels .*0 to 2"),
        (lambda a: a.update(train_labels=a["train_labels"][:-1]), "train_labels must have one entry per row, 120"),
        (lambda a: a.update(pool_embeddings=a["pool_embeddings"][:-1]), "pool_embeddings must have the shape"),
        (lambda a: a.update(pool_embeddings=np.full((150, 6), np.nan)), "pool_embeddings contains NaN"),
        (lambda a: a.update(train_embeddings=a["train_embeddings"][:, :2]), "train_embeddings must have the shape"),
        (lambda a: a.update(out_of_scope_logits=np.zeros((20, 2))), "out_of_scope_logits must have the shape"),
        (lambda a: a.pop("out_of_scope_logits"), "out_of_scope_logits missing"),
        (lambda a: a.update(classes=np.array(["a"])), "classes must name all 3 columns"),
        (lambda a: a.pop("train_groups"), "for only one of train and pool"),
        (lambda a: a.update(pool_logits=a["pool_logits"][0]), "pool_logits|Expected 2D array"),
    ],
)
def test_errors_name_the_array(change, words, tmp_path):
    check_refusal(written(make_task(n_out_of_scope=20), tmp_path), change, words)


@pytest.mark.parametrize(
    ("part", "kind", "change"),
    [
        ("pool", "labels", lambda y: y + 0.9),
        ("pool", "labels", lambda y: y + 2**32),
        ("pool", "labels", lambda y: -y),
        ("pool", "labels", lambda y: y.astype(str)),
        ("train", "labels", lambda y: None),
        ("train", "logits", lambda x: None),
        ("pool", "embeddings", lambda x: x.astype(np.float64) * 1e300),
        ("pool", "groups", lambda g: g[:-1]),
    ],
)
def test_unusable_arrays_are_not_written(part, kind, change, task, tmp_path):
    outputs = replace(getattr(task, part), **{kind: change(getattr(getattr(task, part), kind))})
    given = {"train": task.train, "pool": task.pool} | {part: outputs}
    with pytest.raises(FileFormatError, match=f"bad.npz: .*{part}_{kind}"):
        write_task(tmp_path / "bad.npz", **given, calibration_share=0.5)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("train", 3),
        ("out_of_scope", "far"),
        ("calibration_share", 2.0),
        ("calibration_share", True),
        ("path", "a@b.npz"),
    ],
)
def test_wrong_arguments_are_named(parameter, value, task, tmp_path):
    given = {"path": tmp_path / "bad.npz", "train": task.train, "pool": task.pool, "calibration_share": 0.5}
    with pytest.raises(InvalidInputError, match=parameter):
        write_task(**given | {parameter: value})


@pytest.mark.parametrize("name", ["small.npz", "small@focal.npz"])
def test_damaged_files_are_named(name, task, tmp_path):
    path = written(task, tmp_path)
    np.savez_compressed(tmp_path / "small@focal.npz", pool_logits=task.pool.logits)
    broken = tmp_path / name
    content = bytearray(broken.read_bytes())
    content[100:140] = bytes(40)
    with zipfile.ZipFile(tmp_path / "words", "w") as archive:
        archive.writestr("pool_logits", "words")
    for damaged in (bytes(content), (tmp_path / "words").read_bytes(), b"PK nothing"):
        broken.write_bytes(damaged)
        with pytest.raises(FileFormatError, match=f"{name} is not an npz file of arrays, or is damaged"):
            read_task(path)
        with pytest.raises(FileFormatError, match=rf"{name} .*Nothing was run"):
            check_tasks(tmp_path)


def test_folders_without_tasks_are_named(tmp_path):
    with pytest.raises(FileFormatError, match="does not exist"):
        read_task(tmp_path / "absent.npz")
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InvalidInputError, match="folder must"):
            list(read_tasks(folder))
