from __future__ import annotations

import io
import subprocess
import sys
import warnings

import pytest
import typer
from animals import option_help
from typer.testing import CliRunner

import kcal
from kcal.calibrators import METHODS
from kcal.calibrators.base import REPRESENTATIONS
from kcal.cli import app, main
from kcal.cli.messages import readable_messages
from kcal.kernels import KERNELS
from kcal.projection import ARCHITECTURES, RECIPES, UNTRAINED

COMMANDS = ("demo", "fit", "predict", "evaluate", "explain", "compress", "bench", "task", "serve", "token")


def test_the_version_is_that_of_the_package(run):
    assert run("--version").stdout == f"kcal {kcal.__version__}\n"


def test_help_lists_the_commands_and_the_exit_codes(run):
    output = run("--help").stdout
    for text in (*COMMANDS, "Exit codes", "3 evaluate refused"):
        assert text in output


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(run, command):
    output = " ".join(run(command, "--help").stdout.split())
    assert f"kcal {command} " in output.partition("Example")[2]
    assert "Exit codes" in output


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("method", METHODS),
        ("kernel", KERNELS),
        ("projection", (*ARCHITECTURES, *UNTRAINED)),
        ("recipe", RECIPES),
        ("representation", REPRESENTATIONS),
    ],
)
def test_help_lists_the_names_that_an_option_takes(option, names):
    assert ", ".join(names) in option_help("fit", option)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nonsense"], "No such option: --nonsense"),
        (["nonsense"], "No such command 'nonsense'."),
        (["fit", "--nonsense"], "No such option: --nonsense"),
        (["fit"], "Missing argument 'DATA'."),
        (["fit", "data.npz"], "Missing option '--out' / '-o'."),
    ],
)
def test_a_wrong_command_or_option_is_one_line(run, words, message):
    result = run(*words, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.count("\n") == 1


def test_no_command_shows_the_help(monkeypatch):
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 2
    assert "Usage" in result.output


def test_warnings_of_others_are_kept_with_their_place(capsys):
    with readable_messages():
        warnings.filterwarnings("always", category=DeprecationWarning)
        warnings.warn("old habit", DeprecationWarning, stacklevel=1)
    assert capsys.readouterr().err.startswith("warning: old habit (test_cli_help.py, line ")


def test_errors_that_are_bugs_are_not_hidden():
    with pytest.raises(ZeroDivisionError), readable_messages():
        _ = 1 / 0


def test_errors_of_the_file_system_are_readable(capsys):
    with pytest.raises(typer.Exit) as exit_, readable_messages():
        raise OSError(28, "No space left on device", "model.kcal")
    assert exit_.value.exit_code == 1
    assert capsys.readouterr().err == "error: model.kcal: No space left on device.\n"


def test_a_terminal_without_arrows_is_no_reason_to_fail(monkeypatch, tmp_path):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    monkeypatch.setattr(sys, "argv", ["kcal", "fit", "--help"])
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 0
    typer.echo("↑", file=stream)
    assert stream.buffer.getvalue().endswith(b"?\n")


HEAVY = ("torch", "sklearn", "scipy", "numpy", "pyarrow", "matplotlib")


def test_help_waits_for_no_large_library():
    code = f"""
import sys
from typer.testing import CliRunner
from kcal.cli import app
for words in (["--help"], ["--version"], ["nonsense"], [], *([name, "--help"] for name in {COMMANDS!r})):
    CliRunner().invoke(app, words)
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_a_command_and_calibrators_import_only_what_they_need():
    names = ("kcal.benchmark", "kcal.report", "kcal.plots", "matplotlib", "gpytorch")
    code = f"""
import sys
from typer.testing import CliRunner
from kcal.cli import app
CliRunner().invoke(app, ["predict", "missing.kcal", "data.npz", "--out", "p.npy"])
assert "kcal.persistence" in sys.modules
from kcal import KCal, load_example, save
print([name for name in {names!r} if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
