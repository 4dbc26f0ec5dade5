"""The commands ``kcal bench`` and ``kcal task``."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from animals import blobs

from kcal.benchmark import read_task, tables
from kcal.benchmark.store import RESULTS_FILE
from kcal.calibrators import METHODS
from kcal.files import locked_folder


@pytest.fixture
def tasks(run, tmp_path) -> Path:
    np.savez(tmp_path / "train.npz", **blobs(120, 3))
    np.savez(tmp_path / "pool.npz", **blobs(150, 4))
    (tmp_path / "tasks").mkdir()
    output = run("task", "tasks/birds.npz", "--train", "train.npz", "--pool", "pool.npz", "--share", "0.4").stdout
    assert "birds: 3 classes" in output
    return tmp_path / "tasks"


@pytest.fixture
def no_pictures(monkeypatch):
    """Draw no pictures: drawing takes far longer than the rest of a small run."""
    monkeypatch.setattr(tables, "draw_reliability", lambda *_: None)


def test_a_task_is_made_checked_and_run(run, tasks):
    assert "120 training and 150 unseen samples" in " ".join(run("task", "tasks/birds.npz").stdout.split())
    words = ("bench", "tasks", "--methods", "ts,focal,vector", "--splits", "2", "--jobs", "1", "--out", "out")
    output = run(*words).stdout
    for text in (
        *(f"{title}, % ↓" for title in ("paper CECE", "paper ECE", "top-class Brier", "Brier / K")),
        "accuracy, % ↑",
        "log-loss ↓",
        "Average rank ↓",
        "Seconds to",
        "Median over splits",
        "* stands for bold",
        "birds",
        "vector",
        "files in out",
    ):
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


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["bench", "tasks", "--methods", "hal"], 2, "'hal' is not one of all"),
        (["bench", "tasks", "--methods", "ts,ts"], 2, "more than once"),
        (["bench", "nowhere"], 2, "nowhere"),
        (["bench", "tasks", "--splits", "0"], 2, "--splits"),
        (["task", "new.npz", "--train", "train.npz"], 2, "both --train and --pool"),
        (["task", "new.npz", "--train", "train.npz", "--pool", "pool.npz", "--share", "2"], 2, "between 0 and 1"),
        (["task", "missing.npz"], 2, "NAME.npz does not exist; got missing.npz"),
        (["task", "train.npz"], 1, "train.npz: pool_embeddings is missing"),
        (
            ["task", "train.npz", "--train", "train.npz", "--pool", "pool.npz"],
            1,
            "NAME.npz must not replace an input; got train.npz",
        ),
    ],
)
def test_what_cannot_be_run_or_made_is_told(run, tasks, words, code, message):
    output = run(*words, code=code).output
    assert message in " ".join(output.replace("│", " ").split())


QUICK = ("--methods", "ts", "--splits", "1", "--jobs", "1")


def test_a_bad_file_of_the_folder_is_told_before_anything_is_run(run, tasks):
    (tasks / "worms.npz").write_bytes(b"PK nothing")
    message = " ".join(run("bench", "tasks", *QUICK, code=1).stderr.split())
    assert "tasks/worms.npz cannot be read" in message
    assert "Nothing was run: repair the file, or remove it from tasks." in message
    run("bench", "taks", *QUICK, code=2)
    assert not Path("kcal-bench").exists()


@pytest.mark.usefixtures("no_pictures")
def test_without_a_terminal_lines_tell_how_far_a_run_is(run, tasks):
    np.savez(tasks / "birds@foo.npz", pool_logits=np.zeros((150, 3)))
    told = run("bench", "tasks", *QUICK, "--out", "out").stderr
    assert "birds@foo.npz is not used" in told
    assert "birds, 0 of 2\nbirds: done, 2 of 2\n" in told
    assert "birds: done, 2 of 2\n" in run("bench", "tasks", *QUICK, "--out", "out").stderr
    assert "of 2" not in run("bench", "tasks", *QUICK, "--out", "out", "--quiet").stderr


@pytest.mark.usefixtures("no_pictures")
def test_nothing_is_cut_off_in_a_narrow_terminal(run, tasks, monkeypatch):
    for name in ("birds-of-the-northern-woods", "fishes-of-the-southern-lakes", "trees-of-the-western-isles"):
        (tasks / f"{name}.npz").write_bytes((tasks / "birds.npz").read_bytes())
    reason = "neither fish nor fowl can be told apart by a vector of scales that is as short as this one"

    def fail(*_, **__):
        raise ValueError(reason)

    monkeypatch.setattr(METHODS["vector"].calibrator_class, "fit", fail)
    for columns in (80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        output = run("bench", "tasks", *QUICK, "--methods", "ts,vector", "--out", "out").stdout
        assert "…" not in output
        assert max(len(line) for line in output.splitlines()) <= columns
        assert "fishes-of-the-southern-lakes" in output
        assert set(reason.split()) <= set(output.split())
        assert "Average rank ↓" in output


@pytest.mark.usefixtures("no_pictures")
def test_a_folder_in_use_by_another_run_is_an_error(run, tasks):
    Path("out").mkdir()
    with locked_folder(Path("out")):
        message = run("bench", "tasks", *QUICK, "--out", "out", code=1).stderr
    assert f"out, in use by process {os.getpid()}. Wait until that run ends" in " ".join(message.split())
    assert not Path("out", RESULTS_FILE).exists()
