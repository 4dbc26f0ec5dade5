"""An output that cannot be written: one line, with the name that was typed, before the work where possible."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from animals import blobs

from kcal.cli.files import TableFile
from kcal.cli.output import write_table

QUICK = ("-m", "kcal", "--projection", "identity")
WRITERS = ("fit", "predict", "evaluate", "demo")


def words_of(command, model, calibration, test_set, folder):
    return {
        "fit": ("fit", calibration, *QUICK, "-o", f"{folder}/new.kcal"),
        "predict": ("predict", model, test_set, "-o", f"{folder}/new.csv"),
        "evaluate": ("evaluate", model, test_set, "--json", f"{folder}/new.json"),
        "demo": ("demo", "-o", folder, "-q"),
    }[command]


def refuse(path: Path, flags: int, mode: int) -> None:
    raise PermissionError(13, "Permission denied", str(path))


@pytest.mark.parametrize("command", WRITERS)
def test_a_folder_without_the_right_to_write_is_named_before_the_work(
    run, model, calibration, test_set, monkeypatch, command
):
    Path("locked").mkdir()
    monkeypatch.setattr(os, "open", refuse)
    result = run(*words_of(command, model, calibration, test_set, "locked"), code=1)
    assert result.stderr.startswith("error: locked/")
    assert result.stderr.endswith(": Permission denied.\n")
    assert result.stderr.count("\n") == 1
    assert "/." not in result.stderr  # the temporary name
    assert result.stdout == ""


@pytest.mark.parametrize("command", ["fit", "predict", "evaluate"])
def test_a_disk_that_fills_up_is_told_by_the_name_that_was_typed(
    run, model, calibration, test_set, monkeypatch, command
):
    def fill(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fill)
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


FORMULAS = np.array(["=cmd()", "+1", "-x", "@sum", "\ttab", "\rreturn", "'quoted", "'=marked", "plain", "", "a=b"])


def test_text_that_a_spreadsheet_would_run_is_marked_in_csv_and_read_back(tmp_path):
    path = tmp_path / "table.csv"
    write_table(path, {"=name": FORMULAS[:9], "number": np.linspace(-4, 4, 9)})
    cells = [line.split(",")[0] for line in path.read_text().split("\n")]
    assert cells[:5] == ['"\'=name"', '"\'=cmd()"', '"\'+1"', '"\'-x"', '"\'@sum"']
    assert ",-4" in path.read_text()
    table = TableFile(path)
    assert table.columns == ("=name", "number")
    assert table.get("=name", "").tolist() == FORMULAS[:9].tolist()
    assert table.get("number", "").tolist() == np.linspace(-4, 4, 9).tolist()


def test_text_among_objects_is_marked_too(tmp_path):
    path = tmp_path / "table.csv"
    write_table(
        path, {"name": np.array(["=1+1", None, "cat"], dtype=object), "count": np.array([-1, 2, 3], dtype=object)}
    )
    assert path.read_text().split("\n")[1:4] == ['"\'=1+1",-1', ",2", '"cat",3']


def test_parquet_holds_text_as_it_is(tmp_path):
    write_table(tmp_path / "table.parquet", {"name": FORMULAS})
    assert TableFile(tmp_path / "table.parquet").get("name", "").tolist() == FORMULAS.tolist()


def test_classes_that_look_like_formulas_go_through_fit_predict_and_evaluate(run):
    names = np.array(["=1+1", "-dog", "@owl"])
    for name, seed, n in (("calibration", 1, 90), ("test", 2, 60)):
        np.savez(f"{name}.npz", **blobs(n, seed) | {"labels": names[np.arange(n) % 3], "classes": names})
    run("fit", "calibration.npz", "-o", "m.kcal", *QUICK, "-q")
    run("predict", "m.kcal", "test.npz", "-o", "p.csv")
    assert ",\"'" in Path("p.csv").read_text()
    run("evaluate", "p.csv", "--labels", "test.npz", "--no-intervals", "--json", "one.json")
    run("evaluate", "m.kcal", "test.npz", "--no-intervals", "--json", "other.json")
    found, expected = (json.loads(Path(name).read_text())["metrics"] for name in ("one.json", "other.json"))
    assert found["probabilities"] == pytest.approx(expected["kcal"], rel=1e-4)


@pytest.mark.parametrize("name", ["p.csv", "p.npz", "p.npy", "p.parquet"])
def test_outputs_keep_the_mode_of_a_file_and_follow_links(run, model, test_set, name):
    Path("real").mkdir()
    target, link = Path("real") / name, Path(name)
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target)
    run("predict", model, test_set, "-o", link)
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    assert target.read_bytes() != b"old"
    assert [path.name for path in Path("real").iterdir()] == [name]
