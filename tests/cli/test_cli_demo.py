from __future__ import annotations

import shlex
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from animals import assert_same_model
from typer.testing import CliRunner

import kcal
import kcal.datasets
from kcal.cli import app
from kcal.cli.demonstration import program


def make_quick(name: str) -> kcal.calibrators.Calibrator:
    """Return a KCal that learns no projection, which takes most of the demo's time; other methods as they are."""
    quick = {"projection": "identity", "bandwidth": 1.0} if name == "kcal" else {}
    return kcal.calibrators.make_calibrator(name, **quick)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["kcal.cli.demonstration"], "make_calibrator", make_quick)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What a quick demo printed, and the folder that it wrote."""
    folder = tmp_path_factory.mktemp("demo") / "new"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["kcal.cli.demonstration"], "make_calibrator", make_quick)
        return run_demo(folder), folder


def run_demo(folder: Path, *options: str) -> str:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["demo", "--out", str(folder), *options])
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def follow_up(output: str) -> list[list[str]]:
    """The commands that the demo says to type, split as a shell would."""
    lines = output.partition("What to run next")[2].splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("  ")]


def row(output: str, title: str) -> list[float]:
    """The numbers in the row of the table that has the title."""
    line = next(line for line in output.splitlines() if title in line)
    return [float(cell) for cell in line.partition("↓" if "↓" in line else "↑")[2].split()]


def load_small_example() -> kcal.datasets.Example:
    """Return the first rows of every part of the example."""
    example = kcal.load_example()
    parts = {"train": 2000, "calibration": 1500, "test": 1500}
    return replace(example, **{name: first_rows(getattr(example, name), n) for name, n in parts.items()})


def first_rows(part: kcal.datasets.ExamplePart, n: int) -> kcal.datasets.ExamplePart:
    return replace(part, **{field.name: getattr(part, field.name)[:n] for field in fields(part)})


@pytest.mark.usefixtures("short_trainings")
def test_kcal_repairs_the_probabilities_and_the_commands_to_type_next_agree(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["kcal.cli.demonstration"], "load_example", load_small_example)
    folder = tmp_path / "my demo"
    output = run_demo(folder)
    for title in ("class-wise", "expected calibration", "Brier", "log-likelihood"):
        before, _, after = row(output, title)
        assert after < before
    assert row(output, "class-wise")[2] < row(output, "class-wise")[1]
    assert row(output, "accuracy")[2] > row(output, "accuracy")[0] - 0.5

    results: list[Any] = []
    for words in follow_up(output):
        results.append(CliRunner(env={"COLUMNS": "80"}).invoke(app, words))
        assert results[-1].exit_code == 0, results[-1].output
    assert row(results[1].stdout, "class-wise") == row(output, "class-wise")[::2]
    assert_same_model(folder / "mine.kcal", folder / "model.kcal")
    assert (folder / "probabilities.csv").read_text().count("\n") == 1501


def test_no_line_of_prose_or_table_is_wider_than_the_terminal(shown):
    lines = shown[0].partition("What to run next")[0].splitlines()
    assert max(len(line) for line in lines if not line.startswith("In ")) <= 80


def test_times_and_meaning_are_told(shown):
    output = " ".join(shown[0].split())
    for text in ("mean confidence", "The demo took", "Time per prediction", "µs", "diagonal"):
        assert text in output


def test_the_commands_to_type_next_are_fit_evaluate_and_predict(shown):
    assert [words[0] for words in follow_up(shown[0])] == ["fit", "evaluate", "predict"]


def test_the_folder_holds_a_picture_a_model_and_data(shown):
    _, folder = shown
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["calibration.npz", "model.kcal", "reliability.png", "test.npz"]
    assert (folder / "reliability.png").read_bytes().startswith(b"\x89PNG")
    assert isinstance(kcal.load(folder / "model.kcal"), kcal.KCal)


def test_the_data_are_the_example_without_loss(shown):
    example = kcal.load_example()
    with np.load(shown[1] / "calibration.npz", allow_pickle=False) as stored:
        np.testing.assert_array_equal(stored["embeddings"].astype(np.float32), example.calibration.embeddings)
        np.testing.assert_array_equal(stored["train_embeddings"].astype(np.float32), example.train.embeddings)


@pytest.mark.usefixtures("quick")
def test_without_matplotlib_the_demo_says_so_and_goes_on(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("matplotlib", "kcal.plots"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'kcal[plots]'" in run_demo(tmp_path / "demo")
    assert not (tmp_path / "demo" / "reliability.png").exists()


@pytest.mark.usefixtures("quick")
def test_quiet_writes_the_files_and_prints_nothing(tmp_path):
    assert run_demo(tmp_path / "deep" / "demo", "--quiet") == ""
    assert (tmp_path / "deep" / "demo" / "model.kcal").exists()


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "file")])
    assert result.exit_code == 1
    assert "is not a folder" in result.stderr


def test_commands_name_the_program_so_that_a_shell_finds_it(monkeypatch, tmp_path):
    elsewhere = tmp_path / "a b" / "kcal"
    elsewhere.parent.mkdir()
    elsewhere.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(elsewhere)])
    monkeypatch.setenv("PATH", "")
    assert program() == f"'{elsewhere}'"
    monkeypatch.setenv("PATH", str(elsewhere.parent))
    assert program() == "kcal"
