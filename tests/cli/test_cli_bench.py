"""The commands ``kcal bench`` and ``kcal task``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from animals import blobs

from kcal.benchmark import read_task, tables
from kcal.files import LOCK_FILE, locked_folder


@pytest.fixture
def tasks(run, tmp_path) -> Path:
    np.savez(tmp_path / "train.npz", **blobs(120, 3))
    np.savez(tmp_path / "pool.npz", **blobs(150, 4))
    (tmp_path / "tasks").mkdir()
    output = run("task", "tasks/birds.npz", "--train", "train.npz", "--pool", "pool.npz", "--share", "0.4").stdout
    assert "birds: 3 classes" in output
    return tmp_path / "tasks"


@pytest.fixture
def no_figures(monkeypatch):
    """Draw no figures: drawing takes far longer than the rest of a small run."""
    monkeypatch.setattr(tables, "draw_reliability", lambda *_: None)


@pytest.mark.usefixtures("no_figures")
def test_a_task_is_made_checked_and_run(run, tasks):
    assert "120 training and 150 unseen samples" in " ".join(run("task", "tasks/birds.npz").stdout.split())
    words = ("bench", "tasks", "--methods", "ts,focal,vector", "--splits", "2", "--jobs", "1", "--out", "out")
    output = run(*words).stdout
    for text in ("accuracy, % ↑", "log-loss ↓", "Average rank ↓", "birds", "vector", "files in out"):
        assert text in output
    assert "focal" in Path("out/tables.md").read_text()
    before = Path("out/results.jsonl").read_text()
    assert run(*words).stdout == output
    assert Path("out/results.jsonl").read_text() == before
    assert run(*words, "--quiet").stdout == ""


def test_inputs_of_no_class_can_be_given(run, tasks, tmp_path):
    outside = {name: values for name, values in blobs(30, 9).items() if name in ("embeddings", "logits")}
    np.savez(tmp_path / "others.npz", **outside)
    files = ("--train", "train.npz", "--pool", "pool.npz", "--out-of-scope", "others.npz")
    assert "30 out of scope" in " ".join(run("task", "tasks/more.npz", *files).stdout.split())
    np.testing.assert_allclose(read_task("tasks/more.npz").out_of_scope.logits, outside["logits"], atol=0.02)
    run("task", "others.npz", *files, code=1)
    np.savez(tmp_path / "others.npz", embeddings=outside["embeddings"])
    assert "logits" in " ".join(run("task", "tasks/more.npz", *files, code=1).output.split())


QUICK = ("--methods", "ts", "--splits", "1", "--jobs", "1")


def test_a_bad_file_of_the_folder_is_told_before_anything_is_run(run, tasks):
    (tasks / "worms.npz").write_bytes(b"PK nothing")
    message = " ".join(run("bench", "tasks", *QUICK, code=1).stderr.split())
    assert "tasks/worms.npz cannot be read" in message
    assert "Nothing was run: repair the file, or remove it from tasks." in message
    run("bench", "taks", *QUICK, code=2)
    assert not Path("kcal-bench").exists()


@pytest.mark.usefixtures("no_figures")
def test_without_a_terminal_lines_tell_how_far_a_run_is(run, tasks):
    np.savez(tasks / "birds@foo.npz", pool_logits=np.zeros((150, 3)))
    told = run("bench", "tasks", *QUICK, "--out", "out").stderr
    assert "birds@foo.npz is not used" in told
    assert "birds, 0 of 2\nbirds: done, 2 of 2\n" in told
    assert "birds: done, 2 of 2\n" in run("bench", "tasks", *QUICK, "--out", "out").stderr
    assert "of 2" not in run("bench", "tasks", *QUICK, "--out", "out", "--quiet").stderr


def test_a_folder_in_use_by_another_run_is_left_alone(run, tasks):
    Path("out").mkdir()
    with locked_folder(Path("out")):
        assert "in use by process" in " ".join(run("bench", "tasks", *QUICK, "--out", "out", code=1).stderr.split())
    assert [path.name for path in Path("out").iterdir()] == [LOCK_FILE]
