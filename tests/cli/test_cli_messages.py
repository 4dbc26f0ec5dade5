"""Help, errors, warnings and files: one line, with the name that was typed, before the work where possible."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from animals import blobs
from typer.testing import CliRunner

import kcal
from kcal.cli import COMMANDS, app, main
from kcal.cli.messages import readable_messages
from kcal.errors import InvalidInputError, KcalWarning, warn

QUICK = ("-m", "kcal", "--projection", "identity")
NAMES = [command.__name__ for commands in COMMANDS.values() for command in commands]


def stopped(capsys, error: BaseException, **options: str) -> tuple[int, str]:
    """The exit code and the line of an error that a command raises."""
    with pytest.raises(typer.Exit) as exit_, readable_messages(options):
        raise error
    return exit_.value.exit_code, capsys.readouterr().err


def test_an_error_about_a_parameter_names_its_option_and_is_a_usage_error(capsys):
    error = InvalidInputError("folds", "must be at least 2", got="1", remedy="Pass folds=5, or bins=3.")
    expected = "error: --folds must be at least 2; got 1. Pass --folds 5, or bins=3.\n"
    assert stopped(capsys, error, folds="--folds") == (2, expected)
    error = InvalidInputError("labels", "must be in classes", remedy="Pass classes=[..., 'fox'], or logits=.")
    expected = "error: labels must be in classes. Pass --classes ...,fox, or --logits.\n"
    assert stopped(capsys, error, labels="--labels", classes="--classes", logits="--logits") == (1, expected)
    assert stopped(capsys, InvalidInputError("y", "must be known")) == (1, "error: labels must be known.\n")


def test_warnings_are_lines_and_those_of_others_name_their_place(capsys):
    with readable_messages({"x": "--x"}):
        warnings.filterwarnings("always", category=DeprecationWarning)
        warn("Something is odd.", KcalWarning, remedy="Pass x=3.")
        warnings.warn("old habit", DeprecationWarning, stacklevel=1)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "warning: Something is odd. Pass --x 3."
    assert second.startswith("warning: old habit (test_cli_messages.py, line ")


def test_errors_of_the_file_system_are_lines_and_bugs_are_not_hidden(capsys):
    error = OSError(28, "No space left on device", "model.kcal")
    assert stopped(capsys, error) == (1, "error: model.kcal: No space left on device.\n")
    with pytest.raises(ZeroDivisionError), readable_messages():
        _ = 1 / 0


def test_ctrl_c_ends_with_130_and_says_what_is_kept(run, calibration, capsys, monkeypatch):
    assert stopped(capsys, KeyboardInterrupt())[0] == 130

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(kcal, "fit_on", stop)
    result = run("fit", calibration, "-o", "new.kcal", code=130)
    assert result.stderr.startswith("stopped: ")
    assert not Path("new.kcal").exists()
    monkeypatch.setattr("kcal.benchmark.run", stop)
    message = run("bench", "--methods", "ts", "--splits", "1", "--out", "out", code=130).stderr
    assert message == "stopped: results so far are kept in out; the same command resumes.\n"


def test_names_from_files_cannot_control_the_terminal(run):
    names = np.array(["\x1b[31mcat", "dog\x1b]0;owned\x07", "owl\u202e"])
    np.savez("\x1b[1mdata.npz", **blobs(90, 1) | {"labels": names[np.arange(90) % 3], "classes": names})
    results = [
        run("fit", "\x1b[1mdata.npz", "-o", "\x1b[2Jm.kcal", *QUICK),
        run("evaluate", "\x1b[2Jm.kcal", "\x1b[1mdata.npz", code=3),
        run("predict", "\x1b[2Jm.kcal", "\x1b[1mdata.npz", "-o", "\x1b[3m.csv"),
        run("fit", "\x1b[1mno.npz", "-o", "x.kcal", code=2),
    ]
    for result in results:
        assert "\x1b" not in result.output
        assert "\\x1b" in result.output


def test_help_lists_the_commands_in_panels_and_the_exit_codes(run):
    output = run("--help").stdout
    for text in (*NAMES, *COMMANDS, "Exit codes"):
        assert text in output
    assert CliRunner().invoke(app, []).exit_code == 2


@pytest.mark.parametrize("command", NAMES)
def test_every_command_explains_itself_with_an_example(run, command):
    output = " ".join(run(command, "--help").stdout.split())
    assert f"kcal {command}" in output.partition("Example")[2]
    assert "bool" not in output
    if command not in ("serve", "token"):
        assert "--json" in output
        assert "--quiet" in output


@pytest.mark.parametrize("words", [["--nonsense"], ["nonsense"], ["fit", "--nonsense"], ["fit"], ["token"]])
def test_a_wrong_command_or_option_is_one_line(run, words):
    result = run(*words, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_a_terminal_without_arrows_is_no_reason_to_fail(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    monkeypatch.setattr(sys, "argv", ["kcal", "fit", "--help"])
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 0
    typer.echo("↑", file=stream)
    assert stream.buffer.getvalue().endswith(b"?\n")


def modules_after(*commands: list[str]) -> str:
    """The large libraries that commands import."""
    code = f"""
import sys
from typer.testing import CliRunner
from kcal.cli import app
for words in {commands!r}:
    CliRunner().invoke(app, words)
print([name for name in ("torch", "sklearn", "scipy", "numpy", "pyarrow", "matplotlib") if name in sys.modules])
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_help_waits_for_no_large_library():
    commands = [["--help"], ["--version"], ["nonsense"], [], *([name, "--help"] for name in NAMES)]
    assert modules_after(*commands) == "[]\n"


def test_paths_are_checked_before_torch_is_imported(model, test_set):
    paths = [
        ["fit", "no.npz", "-o", "m.kcal"],
        ["fit", str(test_set), "-o", "no/m.kcal"],
        ["fit", str(test_set), "-o", "m.kcal", "--json", "no/figures.json"],
        ["predict", "no.kcal", str(test_set), "-o", "p.npy"],
        ["predict", str(model), "no.npz", "-o", "p.npy"],
        ["predict", str(model), str(test_set), "-o", "p.txt"],
        ["evaluate", str(model), "no.npz"],
        ["evaluate", str(model), str(test_set), "--before", "no.npz"],
        ["compress", str(model), "--size", "3", "-o", "no/s.kcal"],
        ["export", str(model), "-o", "head.txt"],
        ["explain", str(model), str(test_set), "--plot", "why.gif"],
        ["bench", "no"],
    ]
    assert "torch" not in modules_after(*paths)


WRITERS = {
    "fit": "fit calibration.npz -m kcal --projection identity -o {}/new.kcal",
    "predict": "predict model.kcal test.npz -o {}/new.csv",
    "evaluate": "evaluate model.kcal test.npz --no-intervals --json {}/new.json",
    "demo": "demo -q -o {}",
}


@pytest.mark.parametrize("command", WRITERS)
def test_a_folder_without_the_right_to_write_is_named_before_the_work(run, model, test_set, monkeypatch, command):
    def reject(path: Path, flags: int, mode: int) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    Path("locked").mkdir()
    monkeypatch.setattr(os, "open", reject)
    result = run(*WRITERS[command].format("locked").split(), code=1)
    assert result.stderr.startswith("error: locked/")
    assert result.stderr.endswith(": Permission denied.\n")
    assert "/." not in result.stderr  # the temporary name


@pytest.mark.parametrize("command", ["fit", "predict", "evaluate"])
def test_an_output_is_in_an_existing_folder_and_no_input(run, model, test_set, command):
    assert "Make the folder" in run(*WRITERS[command].format("nowhere").split(), code=2).stderr
    *words, _last = WRITERS[command].split()
    replaced = {"fit": "calibration.npz", "predict": "test.npz", "evaluate": "test.npz"}[command]
    before = Path(replaced).read_bytes()
    run(*words, replaced, code=2)
    assert Path(replaced).read_bytes() == before


FORMULAS = np.array(["=1+1", "-dog", "@owl"])


def test_text_that_a_spreadsheet_would_run_is_marked_in_csv_and_read_back(run):
    for name, seed, n in (("calibration", 1, 90), ("test", 2, 60)):
        arrays = blobs(n, seed) | {"labels": FORMULAS[np.arange(n) % 3], "classes": FORMULAS}
        np.savez(f"{name}.npz", **arrays | {"ids": np.array([f"=a{i}" for i in range(n)])})
    run("fit", "calibration.npz", "-o", "m.kcal", *QUICK, "-q")
    run("predict", "m.kcal", "test.npz", "-o", "p.csv")
    assert Path("p.csv").read_text().splitlines()[1].startswith('"\'=a0","\'')
    found = kcal.read_outputs("p.csv", logits="p_*")
    assert found.ids.tolist() == [f"=a{i}" for i in range(60)]
    assert found.classes.tolist() == FORMULAS.tolist()
    run("predict", "m.kcal", "test.npz", "-o", "p.parquet")
    assert kcal.read_outputs("p.parquet", logits="p_*").ids.tolist() == found.ids.tolist()


def test_tables_without_pyarrow_say_how_to_install_it(run, monkeypatch, model, test_set):
    Path("data.csv").write_text("label,embedding_0\na,1\nb,2\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'kcal[tables]'" in run("fit", "data.csv", "-o", "m.kcal", code=1).stderr
    assert "kcal[tables]" in run("predict", model, test_set, "-o", "p.csv", code=1).stderr
    assert "kcal[tables]" in run("predict", model, "*.parquet", "-o", "scores", code=1).stderr
    run("predict", model, test_set, "-o", "p.npz")
