"""``kcal demo``: its numbers, its files and the commands that it says to type."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import kcal
import kcal.datasets
from kcal.calibrators import calibrator_state
from kcal.cli import app
from kcal.cli.demonstration import CODE


def load_small_example(train: int = 1500, others: int = 1000) -> kcal.datasets.Example:
    """Return the first rows of every part of the example."""
    example = kcal.datasets.load_example()
    sizes = {"train": train, "calibration": others, "test": others}
    parts = {
        name: replace(part, **{key: getattr(part, key)[:n] for key in ("embeddings", "logits", "labels", "rows")})
        for name, n in sizes.items()
        for part in [getattr(example, name)]
    }
    return replace(example, **parts)


@pytest.fixture(scope="module", autouse=True)
def _small(short_trainings: None) -> Iterator[None]:
    """Let the demo take the first rows of the example, and train with few steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kcal, "load_example", load_small_example)
        yield


def run_demo(folder: Path, *options: str) -> str:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["demo", "--out", str(folder), *options])
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, dict[str, Any]]:
    """What a quick demo printed, the folder that it wrote, and its metrics."""
    folder = tmp_path_factory.mktemp("demo") / "my demo"
    output = run_demo(folder, "--json", str(folder.parent / "figures.json"))
    return output, folder, json.loads((folder.parent / "figures.json").read_text())


def test_the_blend_improves_the_probabilities(shown):
    figures = shown[2]
    losses = {name: metrics["negative_log_likelihood"] for name, metrics in figures.items()}
    assert min(losses, key=losses.get) == "KCalBlend"
    errors = {name: metrics["expected_calibration_error"] for name, metrics in figures.items()}
    assert errors["KCalBlend"] < errors["uncal"]
    assert f"{losses['KCalBlend']:.4f}" in shown[0]


def test_the_commands_to_type_next_give_the_model_of_the_demo(shown):
    output, folder, figures = shown
    lines = output.partition("What to run next")[2].splitlines()
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("  ")]
    assert [words[0] for words in commands] == ["fit", "evaluate", "predict"]
    results = [CliRunner(env={"COLUMNS": "80"}).invoke(app, words) for words in commands]
    assert [result.exit_code for result in results] == [0, 0, 0]
    assert f"{figures['KCalBlend']['negative_log_likelihood']:.4f}" in results[1].stdout
    mine, theirs = (calibrator_state(kcal.load(folder / name)) for name in ("mine.kcal", "model.kcal"))
    assert mine.values == theirs.values
    assert all(torch.equal(tensor, theirs.tensors[name]) for name, tensor in mine.tensors.items())
    assert np.load(folder / "probabilities.npz")["probabilities"].shape == (1000, 10)
    assert (folder / "reliability.png").read_bytes().startswith(b"\x89PNG")


def test_the_printed_lines_run_and_give_the_row_that_they_name(shown):
    names: dict[str, Any] = {}
    assert CODE in shown[0]
    exec(CODE, names)
    evaluation = kcal.evaluate(names["probs"], names["example"].test.labels)
    assert evaluation.negative_log_likelihood == pytest.approx(shown[2]["KCalBlend"]["negative_log_likelihood"])


def test_the_saved_model_is_loaded_with_the_network_by_the_line_that_is_printed(shown):
    output, folder, _ = shown
    example = load_small_example()
    names: dict[str, Any] = {"kcal": kcal, "network": example.network()}
    exec(next(line for line in output.splitlines() if "CalibratedClassifier.load" in line), names)
    with torch.inference_mode():
        probs = names["model"](example.test.inputs())
    with np.load(folder / "test.npz", allow_pickle=False) as stored:
        expected = names["model"].calibrator.predict_proba(stored["embeddings"], logits=stored["logits"])
    np.testing.assert_allclose(probs, expected, atol=1e-5)


def test_without_matplotlib_and_with_quiet(tmp_path, monkeypatch):
    monkeypatch.setattr(kcal, "load_example", lambda: load_small_example(600, 520))  # enough for no warning of few
    for name in [name for name in sys.modules if name.startswith(("matplotlib", "kcal.plots"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "kcal[plots]" in run_demo(tmp_path / "demo")
    assert not (tmp_path / "demo" / "reliability.png").exists()
    assert run_demo(tmp_path / "deep" / "demo", "--quiet") == ""
    assert (tmp_path / "deep" / "demo" / "model.kcal").exists()
