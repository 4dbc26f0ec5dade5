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
from experiments.paper.published import DIFFERENCES, METRICS, PAPER_METHODS, published
from experiments.paper.results import comparison_tables
from kcal.benchmark import Plan, Results, read_tasks, run
from kcal.benchmark.tables import as_json
from kcal.errors import InvalidInputError
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
    assert "| method | paper, PN2017 | pn2017-toy | pn2017-toy (by group) |" in text
    assert "| uncal | 54.67±0.14 |" in text
    assert all(f"| {method} | – |" in text for method in ("kcal", "vector"))
    assert "| mmce | 51.90±0.07 | – | – |" in text
    assert "smooth |" not in text  # not in the paper, not run
    assert all(line in text for line in DIFFERENCES["pn2017"])
    assert "60.36±0.61" in shown
    results = Results.read(folder / "bench" / "results.json")
    tables = comparison_tables(results, "pn2017")
    for table, metric in ((tables[0], "accuracy"), (tables[1], "classwise_calibration_error_min")):
        ours = {row[0].text: row[2].text for row in table.transposed().rows}
        values = results.values(results.rows[0], metric, "focal")
        assert values is not None
        assert ours["focal"].startswith(f"{100 * np.mean(values):.2f}")
        assert ours["kcal-paper"] == "–"
        assert ours["kcal"] != "–"
    with pytest.raises(InvalidInputError, match="tasks whose names begin with it"):
        comparison_tables(results, "cifar10")


def test_published_tables_are_complete() -> None:
    for name in METRICS:
        table = published(name)
        assert table.shape == (12, len(PAPER_METHODS))
        entries = [entry for row in table.to_numpy() for entry in row]
        assert all(re.fullmatch(r"\d+\.\d\d±\d+\.\d\d|–", entry) for entry in entries)
        assert entries.count("–") == 2  # ImageNet's network was not trained with other losses
    assert published("CECE").loc["PN2017", "KCal"] == "4.25±1.26"
    assert published("NLL").loc["ImageNet", "GP"] == "0.75±0.01"
    ranks = published("rank").map(lambda entry: float(entry.split("±")[0]))
    np.testing.assert_allclose(ranks.loc[["ECE", "Accuracy", "CECE", "Brier"]].mean(), ranks.loc["Average"], atol=0.011)


@pytest.mark.parametrize(("name", "metric"), [("accuracy", "Accuracy"), ("CECE", "CECE"), ("ECE", "ECE")])
def test_printed_ranks_follow_from_the_printed_means(name: str, metric: str) -> None:
    """Without ImageNet, which lacks two methods; the paper ranks every split, so that its ranks are a little closer."""
    means = published(name).drop("ImageNet").map(lambda entry: float(entry.split("±")[0]))
    ranks = means.rank(axis=1, ascending=name != "accuracy").mean()
    printed = published("rank").loc[metric].map(lambda entry: float(entry.split("±")[0]))
    np.testing.assert_allclose(ranks, printed, atol=0.75)
