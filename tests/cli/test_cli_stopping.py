"""Ctrl-C ends a command with one line that says what was kept, and with exit code 130."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def stop(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def said(run, *words: object) -> str:
    result = run(*words, code=130)
    assert result.stdout == ""
    assert result.stderr.startswith("stopped: ")
    return " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("kcal.cli.samples.fit_on", ("fit", "calibration.npz", "-o", "new.kcal")),
        ("kcal.persistence.archive.write_whole", ("fit", "calibration.npz", "-o", "new.kcal", "-m", "ts")),
        ("kcal.cli.samples.predict_on", ("predict", "model.kcal", "test.npz", "-o", "new.csv")),
        ("kcal.cli.samples.predict_on", ("evaluate", "model.kcal", "test.npz", "--json", "new.json")),
        ("kcal.cli.comparison.measure", ("evaluate", "model.kcal", "test.npz", "--json", "new.json")),
    ],
)
def test_what_is_stopped_writes_nothing_and_says_so(run, model, test_set, monkeypatch, place, words):
    before = sorted(Path().iterdir())
    monkeypatch.setattr(place, stop)
    assert said(run, *words) == "stopped: nothing was written."
    assert sorted(Path().iterdir()) == before


def test_an_older_file_of_the_same_name_is_not_taken_for_a_new_one(run, model, calibration, monkeypatch):
    content = model.read_bytes()
    monkeypatch.setattr("kcal.cli.samples.fit_on", stop)
    assert said(run, "fit", calibration, "-o", model) == "stopped: nothing was written."
    assert model.read_bytes() == content


def test_files_that_were_complete_before_are_named(run, model, test_set, monkeypatch):
    monkeypatch.setattr("kcal.cli.report.write_evaluations", stop)
    words = ("evaluate", model, test_set, "--no-intervals", "--json", "new.json", "--report", "page")
    result = run(*words, code=130)
    assert "stopped: complete and kept: new.json." in result.stderr
    assert Path("new.json").exists()


def test_a_stopped_benchmark_keeps_its_results_and_says_how_to_resume(run, monkeypatch):
    monkeypatch.setattr("kcal.benchmark.run", stop)
    message = said(run, "bench", "--methods", "ts", "--splits", "1", "--out", "out")
    assert message == "stopped: results so far are kept in out; the same command resumes."
