"""The commands train, embed and results, one after the other, and the paper's rows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments.paper.__main__ import app
from experiments.paper.prepared import read_prepared, write_prepared
from experiments.paper.published import METRICS, PAPER_METHODS, published
from experiments.paper.results import comparison_tables
from kcal.benchmark import Plan, Results, read_tasks, run
from kcal.benchmark.tables import as_json
from kcal.errors import InvalidInputError
from paper_data_files import write_cifar10
from toy_data import toy_data


def command(*words: str | Path) -> str:
    outcome = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def test_prepare_shows_the_numbers_of_samples(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(256, size=(60, 3072), dtype=np.uint8)
    write_cifar10(tmp_path / "in", pixels, np.arange(60) % 10, [f"class{k}" for k in range(10)], binary=True)
    words = ("prepare", "cifar10", tmp_path / "in", "--out", tmp_path / "out")
    lines = [line.split() for line in command(*words).splitlines()]
    assert ["samples", "train", "validation", "pool"] in lines
    assert ["all", "45", "0", "15"] in lines
    assert len(read_prepared(tmp_path / "out").labels) == 60
    assert command(*words, "--quiet").count("\n") == 1


def test_trained_networks_become_a_task_whose_results_stand_beside_the_paper_s_rows(tmp_path: Path) -> None:
    write_prepared(toy_data(n=96), tmp_path / "data")
    network = ("--short", "--network", "signal-resnet", "--epochs", "1")
    for name, loss in (("net", "cross-entropy"), ("focal", "focal")):
        command("train", tmp_path / "data", "--out", tmp_path / f"{name}.pt", "--loss", loss, *network)
    before = (tmp_path / "net.pt").read_bytes()
    command("train", tmp_path / "data", "--out", tmp_path / "net.pt", *network)
    assert (tmp_path / "net.pt").read_bytes() == before  # a finished training is not repeated
    (tmp_path / "tasks").mkdir()
    companion = ("--companion", tmp_path / "focal.pt", "--share", "0.4")
    task = tmp_path / "tasks" / "pn2017-toy.npz"
    command("embed", tmp_path / "data", tmp_path / "net.pt", *companion, "--out", task)
    plan = Plan(("uncal", "ts", "focal"), 2, 0, 1)
    results = Results.of(run(read_tasks(tmp_path / "tasks"), plan, tmp_path / "bench"), plan.methods)
    (tmp_path / "bench" / "results.json").write_text(json.dumps(as_json(results, plan)))
    shown = command("results", tmp_path / "bench", "--out", tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "| method | paper, PN2017 | pn2017-toy | pn2017-toy (by group) |" in text
    assert "| uncal | 54.67±0.14 |" in text
    assert "| mmce | 51.90±0.07 | – | – |" in text  # not run
    assert "60.36±0.61" in shown
    tables = comparison_tables(results, "pn2017")
    for table, metric in ((tables[0], "accuracy"), (tables[1], "classwise_calibration_error_min")):
        ours = {row[0].text: row[2].text for row in table.transposed().rows}
        values = results.values(results.rows[0], metric, "focal")
        assert ours["focal"].startswith(f"{100 * np.mean(values):.2f}")
    with pytest.raises(InvalidInputError, match="data_set"):
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
