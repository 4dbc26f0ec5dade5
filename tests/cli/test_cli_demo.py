from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import kcal
import kcal.datasets
from kcal.cli import app
from kcal.cli.demonstration import CODE, program


@pytest.fixture(scope="module", autouse=True)
def _small(short_trainings: None) -> Iterator[None]:
    """Let the demo take the first rows of the example, and train with few steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kcal, "load_example", load_small_example)
        yield


@pytest.fixture
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the demo take fewer rows still, where its numbers do not matter."""
    tiny = partial(load_small_example, 600, 400)
    monkeypatch.setattr(kcal, "load_example", tiny)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What a quick demo printed, and the folder that it wrote."""
    folder = tmp_path_factory.mktemp("demo") / "my demo"
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


def printed_code(output: str) -> str:
    """The lines of Python that the demo prints first."""
    return "import kcal\n" + output.partition("\nimport kcal\n")[2].partition("\nThis is")[0]


def row(output: str, title: str) -> list[float]:
    """The numbers in the row of the table that begins with the title."""
    line = next(line for line in output.splitlines() if line.startswith(f" {title}"))
    return [float(cell) for cell in re.findall(r"\d+\.\d+", line)]


def load_small_example(train: int = 1500, others: int = 1000) -> kcal.datasets.Example:
    """Return the first rows of every part of the example."""
    example = kcal.datasets.load_example()
    parts = {"train": train, "calibration": others, "test": others}
    return replace(example, **{name: first_rows(getattr(example, name), n) for name, n in parts.items()})


def first_rows(part: kcal.datasets.ExamplePart, n: int) -> kcal.datasets.ExamplePart:
    return replace(part, **{name: getattr(part, name)[:n] for name in ("embeddings", "logits", "labels", "rows")})


def test_the_blend_repairs_the_probabilities(shown):
    before, after = row(shown[0], "no calibration"), row(shown[0], "KCalBlend ")
    assert len(before) == len(after) == 5
    assert after[0] > before[0] - 0.5
    assert all(repaired < raw for raw, repaired in zip(before[1:], after[1:], strict=True))
    others = ("temperature", "structured matrix", "Dirichlet", "KCal ")
    assert after[-1] < min(row(shown[0], title)[-1] for title in others)  # the log-loss


def test_the_commands_to_type_next_agree_with_the_table(shown):
    output, folder = shown
    results: list[Any] = []
    assert [words[0] for words in follow_up(output)] == ["fit", "evaluate", "predict"]
    for words in follow_up(output):
        results.append(CliRunner(env={"COLUMNS": "80"}).invoke(app, words))
        assert results[-1].exit_code == 0, results[-1].output
    assert "Method kcal-blend, because there are embeddings and logits" in " ".join(results[0].stdout.split())
    *_, log_loss = row(output, "KCalBlend ")
    assert f"{log_loss:.4f}" in results[1].stdout
    mine, theirs = (kcal.load(folder / name).state() for name in ("mine.kcal", "model.kcal"))
    assert mine.values == theirs.values
    assert all(torch.equal(tensor, theirs.tensors[name]) for name, tensor in mine.tensors.items())
    assert (folder / "probabilities.csv").read_text().count("\n") == 1001
    for name in ("mine.kcal", "probabilities.csv"):
        (folder / name).unlink()


def test_no_line_of_prose_or_table_is_wider_than_the_terminal(shown):
    lines = shown[0].partition("KCalBlend is saved")[0].splitlines()
    assert max(len(line) for line in lines if not line.startswith("In ")) <= 80


def test_the_folder_holds_a_picture_a_model_and_data(shown):
    _, folder = shown
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["calibration.npz", "model.kcal", "reliability.png", "test.npz"]
    assert (folder / "reliability.png").read_bytes().startswith(b"\x89PNG")
    assert isinstance(kcal.load(folder / "model.kcal"), kcal.KCalBlend)


def test_the_printed_lines_run_and_give_the_row_of_the_table_that_they_name(shown, monkeypatch):
    monkeypatch.setattr(kcal, "load_example", load_small_example)
    names: dict[str, Any] = {}
    code = printed_code(shown[0])
    exec(code, names)
    assert code == CODE
    assert len(code.partition("\n\n")[2].splitlines()) == 3
    evaluation = kcal.evaluate(names["probs"], names["example"].test.labels)
    assert round(evaluation.negative_log_likelihood, 4) == row(shown[0], "KCalBlend ")[-1]


def test_the_saved_model_is_loaded_with_the_network_by_the_line_that_is_printed(shown):
    output, folder = shown
    example = load_small_example()
    names: dict[str, Any] = {"kcal": kcal, "network": example.network()}
    exec(next(line for line in output.splitlines() if "CalibratedClassifier.load" in line), names)
    model = names["model"]
    assert model.classes_.tolist() == list(example.classes)
    with torch.inference_mode():
        probs = model(example.test.inputs())
    with np.load(folder / "test.npz", allow_pickle=False) as stored:
        expected = model.calibrator.predict_proba(stored["embeddings"], logits=stored["logits"])
    np.testing.assert_allclose(probs, expected, atol=1e-5)
    with pytest.raises(kcal.InvalidInputError, match="other weights"):
        kcal.CalibratedClassifier.load(folder / "model.kcal", kcal.datasets.SmallCNN())


def test_the_data_are_the_outputs_of_the_network(shown):
    example = load_small_example()
    outputs = kcal.extract(example.network(), example.calibration.loader())
    with np.load(shown[1] / "calibration.npz", allow_pickle=False) as stored:
        np.testing.assert_array_equal(stored["embeddings"], outputs.embeddings)
        np.testing.assert_array_equal(stored["logits"], outputs.logits)
        np.testing.assert_array_equal(stored["labels"], np.array(example.classes)[example.calibration.labels])
        np.testing.assert_array_equal(stored["train_embeddings"].astype(np.float32), example.train.embeddings)


@pytest.mark.usefixtures("_tiny")
def test_without_matplotlib_the_demo_says_so_and_goes_on(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("matplotlib", "kcal.plots"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'kcal[plots]'" in run_demo(tmp_path / "demo")
    assert not (tmp_path / "demo" / "reliability.png").exists()


@pytest.mark.usefixtures("_tiny")
def test_quiet_writes_the_files_and_prints_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["kcal.cli.demonstration"], "draw", lambda *_: None)
    assert run_demo(tmp_path / "deep" / "demo", "--quiet") == ""
    assert (tmp_path / "deep" / "demo" / "model.kcal").exists()


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "file")])
    assert result.exit_code == 2
    assert "--out must be a folder" in result.stderr


def test_commands_name_the_program_so_that_a_shell_finds_it(monkeypatch, tmp_path):
    elsewhere = tmp_path / "a b" / "kcal"
    elsewhere.parent.mkdir()
    elsewhere.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(elsewhere)])
    monkeypatch.setenv("PATH", "")
    assert program() == f"'{elsewhere}'"
    monkeypatch.setenv("PATH", str(elsewhere.parent))
    assert program() == "kcal"
