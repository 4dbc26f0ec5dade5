"""The page shows ranks, main metrics and one figure per study; the pages behind it have all tables and reasons."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments import __main__ as command
from experiments import convexity, remedies
from experiments.output import LOG_LOSS
from experiments.page import PAPER_RANKS, first_places, results_pages, where_not_first, write_page
from experiments.runner import run_study
from experiments.study import Study
from kcal.benchmark import PAPER_METHODS, Plan, Result, ResultKey, Results, Task, run, write_task
from kcal.benchmark.results import MAIN_METRICS, TABLE_METRICS
from kcal.benchmark.tables import write_results

NOISE = (0.0, 0.0, *(0.002, -0.002) * 4)
ECE = "expected_calibration_error"


def result(method: str, split: int, **numbers: float) -> Result:
    every = dict.fromkeys(TABLE_METRICS, 0.5) | numbers
    return Result(ResultKey("ta_sk", False, split, method), every, 1.0, 0.5)


def ten(method: str, accuracy: float, ece: float, spread: float = 1.0) -> list[Result]:
    """Ten splits of a method."""
    return [
        result(method, index, accuracy=accuracy + noise, **{ECE: ece + spread * noise})
        for index, noise in enumerate(NOISE)
    ]


BASE = [*ten("uncal", 0.9, 0.1), *ten("ts", 0.9, 0.05), *ten("imax", 0.7, 0.01)]
"""ts is as accurate as uncal and better calibrated; imax is best of all, but far less accurate."""


def test_page_says_where_kcal_is_not_first(tmp_path: Path) -> None:
    results = Results.of([*BASE, *ten("kcal", 0.9, 0.2)], ("uncal", "ts", "imax", "kcal"))
    text, tables, reasons = results_pages(results, 10, 0, tmp_path, {}).values()
    assert "| ta_sk | ECE | 10.00±0.19 | **5.00±0.19** | 20.00±0.19 |" in text
    assert first_places(results, "kcal") == "kcal is first in 4 of 5 rows and metrics, and tied with the first in 0."
    assert first_places(results, "kcal") in text
    assert "- ta_sk, ECE: 20.00, ts 5.00" in reasons
    assert "- ta_sk, accuracy" not in reasons
    assert "| ECE | 8.42 | 6.68 | 7.73 | 3.84 |" in tables
    inaccurate = Results.of([*BASE, *ten("kcal", 0.5, 0.01, 0.1)], ("uncal", "ts", "imax", "kcal"))
    assert "- ta_sk, ECE: 1.00†, ts 5.00" in where_not_first(inaccurate, "kcal")


def test_the_ranks_of_the_paper_average_to_those_that_it_prints() -> None:
    printed = (7.16, 6.51, 3.76, 7.09, 9.46, 4.47, 4.81, 4.20, 4.51, 2.61)
    for place, (method, value) in enumerate(zip(PAPER_METHODS, printed, strict=True)):
        overall = np.mean([ranks[place] for ranks in PAPER_RANKS.values()])
        assert overall == pytest.approx(value, abs=0.0051), method


@pytest.fixture(scope="module")
def folder(task: Task, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and two studies, one of them without its own measurements."""
    out = tmp_path_factory.mktemp("run")
    plan = Plan(("ts",), n_splits=2, jobs=1)
    write_results(Results.of(run([task], plan, out), plan.methods), plan, out)
    run_study(convexity.STUDY, lambda: [task], n_splits=1, folder=out)
    losses = {"default": 1.0, "800 steps": 0.95}
    study: Study = replace(
        remedies.STUDY,
        variants=lambda _: {
            name: lambda _, loss=loss: dict.fromkeys(MAIN_METRICS, 0.5) | {LOG_LOSS: loss}
            for name, loss in losses.items()
        },
    )
    run_study(study, lambda: [task], n_splits=2, folder=out)
    return out


def test_page_links_the_studies_and_pictures_of_its_folder(folder: Path, tmp_path: Path) -> None:
    files = write_page(tmp_path / "page.md", folder)
    names = {path.name for path in files}
    assert {"page.md", "convexity.md", "convexity.png", "not-first.md", "reliability-small.png", "tables.md"} <= names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in files if path.suffix == ".png")
    for page in (path for path in files if path.suffix == ".md"):
        for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            assert (page.parent / link).is_file(), link
    text = (tmp_path / "page.md").read_text()
    assert "- everywhere: 800 steps" in text
    assert "Measured with python " in text


def test_commands_run_studies_and_write_the_page(
    folder: Path, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks").mkdir()
    write_task("tasks/birds.npz", task.train, task.pool, calibration_share=0.4)
    words = ["convexity", "tasks", "--splits", "1", "--out", "studies"]
    output = CliRunner().invoke(command.app, words)
    assert output.exit_code == 0, output.output
    assert "local minima" in output.stdout
    assert "convexity is in studies" in output.stdout
    first = Path("studies/convexity.jsonl").read_text()
    assert CliRunner().invoke(command.app, [*words, "--quiet"]).stdout == "convexity is in studies\n"
    assert Path("studies/convexity.jsonl").read_text() == first
    output = CliRunner().invoke(command.app, ["page", str(folder), "--out", "page.md"])
    assert output.stdout.splitlines()[0] == "page.md"
    assert "# Results" in Path("page.md").read_text()
