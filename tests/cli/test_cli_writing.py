"""An output that cannot be written: one line, with the name that was typed, before the work where possible."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kcal.persistence import atomic

QUICK = ("--projection", "identity")
WRITERS = ("fit", "predict", "evaluate", "demo")


def words_of(command, model, calibration, test_set, folder):
    return {
        "fit": ("fit", calibration, *QUICK, "-o", f"{folder}/new.kcal"),
        "predict": ("predict", model, test_set, "-o", f"{folder}/new.csv"),
        "evaluate": ("evaluate", model, test_set, "--json", f"{folder}/new.json"),
        "demo": ("demo", "-o", folder, "-q"),
    }[command]


def refuse(target: Path, mode: int) -> None:
    raise PermissionError(13, "Permission denied", f"{target.parent}/.new.x7wq2k")


@pytest.mark.parametrize("command", WRITERS)
def test_a_folder_without_the_right_to_write_is_named_before_the_work(
    run, model, calibration, test_set, monkeypatch, command
):
    Path("locked").mkdir()
    monkeypatch.setattr(atomic, "_create_beside", refuse)
    result = run(*words_of(command, model, calibration, test_set, "locked"), code=1)
    assert result.stderr.startswith("error: locked/")
    assert result.stderr.endswith(": Permission denied.\n")
    assert result.stderr.count("\n") == 1
    assert "x7wq2k" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("command", ["fit", "predict", "evaluate"])
def test_a_disk_that_fills_up_is_told_by_the_name_that_was_typed(
    run, model, calibration, test_set, monkeypatch, command
):
    def fill(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.os, "fsync", fill)
    result = run(*words_of(command, model, calibration, test_set, "."), code=1)
    assert result.stderr.startswith("error: new.")
    assert "No space left on device." in result.stderr
    assert not [path for path in Path().iterdir() if "new" in path.name]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that nobody can write to")
@pytest.mark.parametrize("command", WRITERS)
def test_not_even_the_owner_of_the_machine_writes_to_proc(run, model, calibration, test_set, command):
    result = run(*words_of(command, model, calibration, test_set, "/proc"), code=1)
    assert result.stderr.startswith("error: /proc/")
    assert "/proc/." not in result.stderr


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_refused(run, model, test_set):
    Path("locked").mkdir(mode=0o500)
    assert "locked/p.csv" in run("predict", model, test_set, "-o", "locked/p.csv", code=1).stderr


@pytest.mark.parametrize("command", ["fit", "predict", "evaluate"])
def test_a_missing_folder_is_named_with_the_file(run, model, calibration, test_set, command):
    message = run(*words_of(command, model, calibration, test_set, "nowhere"), code=2).stderr
    assert "must be in an existing folder; got nowhere/new." in message
    assert "Make the folder" in message


def test_a_name_that_is_too_long_is_refused_before_the_work(run, model, test_set):
    assert "File name too long" in run("predict", model, test_set, "-o", f"{'a' * 300}.csv", code=1).stderr


def test_figures_never_replace_what_they_are_computed_from(run, model, test_set):
    before = test_set.read_bytes()
    assert "--json must not replace an input" in run("evaluate", model, test_set, "--json", test_set, code=2).stderr
    assert test_set.read_bytes() == before


def test_checking_leaves_nothing_behind(run, model, test_set):
    run("predict", model, test_set, "-o", "p.csv")
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]
