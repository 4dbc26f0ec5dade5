"""The commands ``kcal bench`` and ``kcal task``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from animals import blobs, columns_of, write_columns

from kcal.benchmark import read_task


@pytest.fixture
def tasks(run, tmp_path) -> Path:
    np.savez(tmp_path / "train.npz", **blobs(120, 3))
    np.savez(tmp_path / "pool.npz", **blobs(150, 4))
    (tmp_path / "tasks").mkdir()
    output = run("task", "tasks/birds.npz", "--train", "train.npz", "--pool", "pool.npz", "--share", "0.4").stdout
    assert "birds: 3 classes" in output
    return tmp_path / "tasks"


def test_a_task_is_made_checked_and_run(run, tasks):
    assert "120 training and 150 unseen samples" in " ".join(run("task", "tasks/birds.npz").stdout.split())
    words = ("bench", "tasks", "--methods", "ts,focal,vector", "--reshuffles", "2", "--jobs", "1", "--out", "out")
    output = run(*words).stdout
    for text in (
        "Accuracy ↑",
        "CECE ↓",
        "NLL ↓",
        "Average rank ↓",
        "Seconds to fit",
        "birds",
        "vector",
        "files in out",
    ):
        assert text in output
    assert "focal" in Path("out/tables.md").read_text()
    before = Path("out/cells.jsonl").read_text()
    assert run(*words).stdout == output
    assert Path("out/cells.jsonl").read_text() == before
    assert run(*words, "--quiet").stdout == ""


def test_tables_make_a_task_too(run, tmp_path):
    for name, rows, seed in (("train", 90, 1), ("pool", 60, 2)):
        write_columns(tmp_path / f"{name}.csv", columns_of(blobs(rows, seed)))
    options = ["--feature-columns", "e_*", "--logit-columns", "z_*"]
    run("task", "made.npz", "--train", "train.csv", "--pool", "pool.csv", *options)
    found, arrays = read_task("made.npz"), blobs(60, 2)
    np.testing.assert_allclose(found.pool.logits, arrays["logits"], atol=0.02)
    np.testing.assert_array_equal(
        np.array(found.classes)[found.pool.labels], np.array(found.classes)[np.arange(60) % 3]
    )


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["bench", "tasks", "--methods", "hal"], 2, "'hal' is not one of all"),
        (["bench", "tasks", "--methods", "ts,ts"], 2, "more than once"),
        (["bench", "nowhere"], 1, "is not a folder"),
        (["bench", "tasks", "--reshuffles", "0"], 2, "--reshuffles"),
        (["task", "new.npz", "--train", "train.npz"], 2, "both --train and --pool"),
        (["task", "new.npz", "--train", "train.npz", "--pool", "pool.npz", "--share", "2"], 2, "between 0 and 1"),
        (["task", "train.npz"], 1, "train_embeddings, train_logits, train_labels missing"),
        (["task", "train.npz", "--train", "train.npz", "--pool", "pool.npz"], 1, "train.npz"),
    ],
)
def test_what_cannot_be_run_or_made_is_told(run, tasks, words, code, message):
    output = run(*words, code=code).output
    assert message in " ".join(output.replace("│", " ").split())


def test_studies_print_their_tables_and_write_them(run, tasks):
    output = run("ablate", "sizes", "tasks", "--reshuffles", "1", "--out", "studies").stdout
    assert "KCal by calibration samples" in output
    assert "| uncalibrated |" in Path("studies/sizes.md").read_text()
    assert "local minima" in run("ablate", "convexity", "tasks").stdout
    assert "is not one of variants, remedies, dimension" in " ".join(
        run("ablate", "colours", code=2).output.replace("│", " ").split()
    )


def test_a_page_about_the_run_can_be_written(run, tasks):
    words = ("bench", "tasks", "--methods", "ts,kcal-untrained", "--reshuffles", "2", "--jobs", "1", "--quiet")
    run(*words, "--page", "page.md")
    assert "# Results" in Path("page.md").read_text()
    assert "kcal-untrained" in Path("page.md").read_text()
    run(*words, "--page", "page.html", code=2)
