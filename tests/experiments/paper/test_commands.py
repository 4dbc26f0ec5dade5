"""The commands train, embed and results, one after the other, and the paper's rows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments.paper.__main__ import app
from experiments.paper.prepared import write_prepared
from experiments.paper.published import DIFFERENCES, PAPER_COLUMNS, PUBLISHED
from experiments.paper.results import comparison_tables
from kcal.benchmark import PAPER_METHODS, Plan, Results, read_tasks, run
from kcal.benchmark.tables import as_json
from kcal.errors import InvalidInputError
from kcal.metrics.registry import METRICS
from toy_data import toy_data

NETWORK = ("--short", "--network", "signal-resnet", "--epochs", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with prepared data, runs, a task with a companion, and results of the benchmark."""
    place = tmp_path_factory.mktemp("paper")
    write_prepared(toy_data(n=96), place / "data")
    for name, loss in (("net", "cross-entropy"), ("focal", "focal")):
        command("train", place / "data", "--out", place / f"{name}.pt", "--loss", loss, *NETWORK)
    (place / "tasks").mkdir()
    command(
        "embed", place / "data", place / "net.pt", "--companion", place / "focal.pt", "--share", "0.4",
        "--out", place / "tasks" / "pn2017-toy.npz",
    )  # fmt: skip
    plan = Plan(("uncal", "ts", "focal", "vector", "dircal", "kcal", "smooth"), 2, 0, 1)
    results = Results.of(run(read_tasks(place / "tasks"), plan, place / "bench"), plan.methods)
    (place / "bench" / "results.json").write_text(json.dumps(as_json(results, plan)))
    return place


def command(*words: str | Path) -> str:
    outcome = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def test_finished_training_is_not_repeated(folder: Path) -> None:
    before = (folder / "net.pt").read_bytes()
    command("train", folder / "data", "--out", folder / "net.pt", *NETWORK)
    assert (folder / "net.pt").read_bytes() == before


def test_results_stand_beside_the_paper_s_rows(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    shown = command("results", folder / "bench", "--out", page)
    text = page.read_text()
    assert "| method | paper, MINA | pn2017-toy | pn2017-toy (by group) |" in text
    assert "| uncal | 54.67±0.14 |" in text
    assert all(f"| {method} | – |" in text for method in ("kcal", "dircal", "vector"))
    assert "| mmce | 51.90±0.07 | – | – |" in text
    assert "smooth |" not in text  # not in the paper, not run
    assert all(line in text for line in DIFFERENCES["pn2017"])
    assert "60.36±0.61" in shown
    results, _ = Results.read(folder / "bench" / "results.json")
    tables = comparison_tables(results, "pn2017")
    for table, metric in ((tables[0], "accuracy"), (tables[1], "classwise_calibration_error_min")):
        ours = {row[0].text: row[2].text for row in table.transposed().rows}
        values = results.values(results.rows[0], metric, "focal")
        assert values is not None
        assert ours["focal"].startswith(f"{100 * np.mean(values):.2f}")
        assert ours["kcal-paper-pn2017"] == "–"
        assert ours["kcal"] != "–"
        assert table.title.startswith(METRICS[metric].title)
    with pytest.raises(InvalidInputError, match="tasks whose names begin with it"):
        comparison_tables(results, "cifar10")


def test_published_rows_are_complete() -> None:
    as_published = {"dircal": "dircal-paper", "kcal": "kcal-paper-pn2017"}
    assert tuple(as_published.get(method, method) for method in PAPER_METHODS) == PAPER_COLUMNS
    rows = PUBLISHED["pn2017"]
    assert len(rows) == 5
    assert all(re.fullmatch(r"\d+\.\d\d±\d\.\d\d", entry) for row in rows.values() for entry in row.values())
    assert rows["classwise_calibration_error_min"]["kcal-paper-pn2017"] == "4.25±1.26"
    assert rows["expected_calibration_error"]["dircal-paper"] == "5.64±0.75"
