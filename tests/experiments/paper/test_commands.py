"""The commands train, embed and results, one after the other, and the paper's rows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments.paper.__main__ import app
from experiments.paper.checkpoints import read_checkpoint
from experiments.paper.prepared import read_prepared, write_prepared
from experiments.paper.published import DIFFERENCES, PAPER_COLUMNS, PUBLISHED
from experiments.paper.results import comparison_tables
from experiments.paper.settings import SETTINGS, SHORT, settings_for
from experiments.paper.training import train
from kcal.benchmark import PAPER_METHODS, Plan, Results, read_tasks, run
from kcal.benchmark.output import as_json
from kcal.errors import InvalidInputError
from kcal.losses import COEFFICIENT
from kcal.metrics.registry import METRICS
from kcal.projection import PaperRecipe
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


def refused(*words: str | Path) -> str:
    outcome = CliRunner().invoke(app, [str(word) for word in words])
    assert outcome.exit_code != 0
    return " ".join(outcome.output.split())


def test_train_shows_every_epoch_and_resumes_a_finished_run_at_once(folder: Path) -> None:
    before = (folder / "net.pt").read_bytes()
    text = command("train", folder / "data", "--out", folder / "net.pt", *NETWORK)
    assert (folder / "net.pt").read_bytes() == before
    assert "holds the network after epoch 1" in text
    shown = command("train", folder / "data", "--out", folder / "other.pt", "--seed", "5", *NETWORK)
    record = read_checkpoint(folder / "other.pt").history[0]
    assert f"macro-F1 {record['macro_f1']:.4f}" in shown
    assert f"training loss {record['train_loss']:.4f}" in shown
    assert command("train", folder / "data", "--out", folder / "quiet.pt", "--quiet", *NETWORK) == ""


def test_embed_shows_the_task_and_scores_and_refuses_an_unfinished_run(folder: Path) -> None:
    data = folder / "data"
    text = command("embed", data, folder / "net.pt", "--out", folder / "again.npz")
    assert "5% of the samples to calibrate" in text
    assert "18 groups (20% of them to calibrate)" in text
    assert re.search(r"cross-entropy, pool: Evaluation\(accuracy=0\.\d+", text)
    assert "cross-entropy: signal-resnet after epoch 1 of 1 (adamw, cosine, balance 0.5)" in text
    settings = settings_for("pn2017", short=True, network="signal-resnet", epochs=3)
    train(read_prepared(data), settings, folder / "begun.pt", until=1)
    message = refused("embed", data, folder / "begun.pt", "--out", folder / "begun.npz")
    assert "must have all 3 epochs; got 1 in" in message


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


def test_what_differs_holds_for_every_run() -> None:
    text = " ".join(DIFFERENCES["pn2017"])
    assert f"λ = {COEFFICIENT}" in text
    assert "short settings" not in text
    probs, label = np.array([[1.0, 0.0]]), [1]
    assert METRICS["negative_log_likelihood"](probs, label) == pytest.approx(-np.log(1e-12))
    assert "clips probabilities at 1e-12" in text
    rates = [f"{recipe.learning_rate:.0e}" for recipe in (PaperRecipe(), PaperRecipe.for_data_set("pn2017"))]
    assert " in place of ".join(rates).replace("e-0", "e-") in text
    for settings in (SETTINGS["pn2017"], SHORT["pn2017"]):
        assert settings.augment
        assert settings.balance is not None
        assert settings.balance > 0
