"""Help, errors, warnings and files: one line, with the name that was typed, before the work where possible."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from animals import blobs, columns_of, write_columns

import kcal
from kcal.cli import COMMANDS

QUICK = ("-m", "kcal", "--projection", "identity")
NAMES = [command.__name__ for commands in COMMANDS.values() for command in commands]


def test_ctrl_c_ends_with_130_and_says_what_is_kept(run, calibration, monkeypatch):
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


def test_help_lists_the_commands_and_each_has_an_example(run):
    output = run("--help").stdout
    for name in (*NAMES, *COMMANDS, "Exit codes"):
        assert name in output
    for name in NAMES:
        output = " ".join(run(name, "--help").stdout.split())
        assert f"kcal {name}" in output.partition("Example")[2]
        assert "--quiet" in output
        assert ("--json" in output) == (name != "serve")


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
        ["serve", "no.kcal"],
    ]
    assert "torch" not in modules_after(*paths)


WRITERS = {
    "calibration.npz": "fit calibration.npz -m kcal --projection identity -o",
    "test.npz": "predict model.kcal test.npz -o",
    "model.kcal": "evaluate model.kcal test.npz --no-intervals --json",
}
"""Commands that write a file, and one of their inputs."""


@pytest.mark.parametrize("file", WRITERS)
def test_an_output_is_writable_in_an_existing_folder_and_no_input(run, model, test_set, monkeypatch, file):
    def reject(path: Path, flags: int, mode: int) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    words, before = WRITERS[file].split(), Path(file).read_bytes()
    name = "new.kcal" if "fit" in words else "new.npz"
    assert "Make the folder" in run(*words, f"nowhere/{name}", code=2).stderr
    run(*words, file, code=2)
    assert Path(file).read_bytes() == before
    Path("locked").mkdir()
    monkeypatch.setattr(os, "open", reject)
    *_, error = run(*words, f"locked/{name}", code=1).stderr.splitlines()
    assert error == f"error: locked/{name}: Permission denied."  # not the temporary name


TWICE = """\
fit calibration.npz -m ts -o new.kcal --json new.kcal
fit calibration.npz -m ts -o new.kcal --json ./sub/../new.kcal
predict model.kcal test.npz -o new.npz --json new.npz
predict model.kcal test.npz -o linked.npz --json new.npz
explain model.kcal test.npz --csv new.csv --json new.csv
explain model.kcal test.npz --plot new.png --json new.png
compress model.kcal --size 9 -o new.kcal --json new.kcal
evaluate model.kcal test.npz --no-intervals --report new --json new/report.html
task new.npz --train calibration.npz --pool test.npz --json new.npz
predict model.kcal test.npz --ids other.npz:ids -o other.npz
demo --out new --json new"""


@pytest.mark.parametrize("line", TWICE.splitlines())
def test_a_file_is_written_once_and_is_no_input(run, model, test_set, line):
    Path("sub").mkdir()
    Path("linked.npz").symlink_to("new.npz")
    Path("other.npz").write_bytes(test_set.read_bytes())
    before = sorted(path.name for path in Path().iterdir())
    assert "must not replace an" in run(*line.split(), code=2).stderr
    assert sorted(path.name for path in Path().iterdir()) == before


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


def test_without_pyarrow_csv_works_and_parquet_says_how_to_install_it(run, monkeypatch, model, test_set):
    write_columns(Path("data.csv"), columns_of(blobs(90, 1)))
    write_columns(Path("new.csv"), columns_of(blobs(60, 2)))
    write_columns(Path("data.parquet"), columns_of(blobs(90, 1)))
    with monkeypatch.context() as patch:
        for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
            patch.delitem(sys.modules, name)
        patch.setitem(sys.modules, "pyarrow", None)
        for words in (
            ("fit", "data.parquet", "-o", "m.kcal"),
            ("predict", model, test_set, "-o", "p.parquet"),
            ("predict", model, "*.parquet", "-o", "scores"),
        ):
            assert "pip install 'kcal[tables]'" in run(*words, code=1).stderr
    commands = [
        ["fit", "data.csv", "-o", "m.kcal", *QUICK, "--embeddings", "e_*"],
        ["predict", "m.kcal", "new.csv", "-o", "p.csv"],
        ["explain", "m.kcal", "new.csv", "--row", "1", "--csv", "why.csv"],
    ]
    code = f"""
import sys
sys.modules["pyarrow"] = None
from typer.testing import CliRunner
from kcal.cli import app
for words in {commands!r}:
    assert CliRunner().invoke(app, words).exit_code == 0, words
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    expected = kcal.predict_on(kcal.load("m.kcal"), kcal.read_outputs("new.csv", embeddings="e_*"))
    np.testing.assert_allclose(kcal.read_outputs("p.csv", logits="p_*").logits, expected)


WRONG = """\
--nonsense | 2 | --nonsense
nonsense | 2 | nonsense
token | 2 |
fit C -o N | 2 | --out must end in
fit C -o N.kcal -m nonsense | 2 | --method
fit C -o N.kcal -m ts --kernel rbf | 2 | --kernel
fit C -o N.kcal --kernel rbf | 2 | --kernel: parameters of method kcal-blend
fit C -o N.kcal -m kcal --dimension many | 2 | --dimension
fit C -o N.kcal -m kcal --projection identity --bandwidth rule | 2 | --bandwidth "rule" needs bandwidth_reference
fit C -o N.kcal -m kcal --projection identity --bandwidth-reference 1,300 | 2 | --bandwidth-reference
fit C -o N.kcal -m kcal --projection identity --set bandwidth=1 --set folds=5 | 2 | --set folds has no effect
fit C -o N.kcal -m kcal --set projection=identity --set dimension=2 | 2 | --set dimension
fit C -o N.kcal -m kcal --projection identity --bandwidth rule --bandwidth-reference 1,inf | 2 | --bandwidth-reference
fit C -o N.kcal -m kcal --projection identity --bandwidth 1 --folds 5 | 2 | --folds
fit C -o N.kcal -m kcal --projection identity --folds 1000 | 2 | --folds
fit C -o N.kcal -m kcal --projection identity --dimension 2 | 2 | --dimension
fit C -o N.kcal -m kcal --projection identity --recipe paper | 2 | --recipe
fit C -o N.kcal -m ts --seed text | 2 | --seed
fit C -o N.kcal --prior cat | 2 | --prior
fit C -o N.kcal --prior cat=0.5,cat=0.5 | 2 | --prior
fit C -o N.kcal --prior cat=0.2,dog=0.2,owl=0 | 2 | --prior
fit C -o N.kcal -m imax --set form | 2 | --set
fit C -o N.kcal -m imax --set =3 | 2 | --set must be
fit C -o N.kcal -m imax --set bones=3 | 2 | --set bones
fit C -o N.kcal -m imax --set bins=many | 2 | --set bins
fit C -o N.kcal -m imax --set bins=3 --set bins=4 | 2 | --set bins
fit C -o N.kcal -m kcal --set updates=3 | 2 | --set updates
fit C -o N.kcal -m kcal-blend --train C | 2 | --train
fit C -o N.kcal -m kcal --projection identity --train C | 2 | --train
fit C -o N.kcal -m kcal --train-labels C | 2 | --train-labels
fit C -o N.kcal -m ts --classes cat,,owl | 2 | --classes
fit C -o N.kcal -m ts --groups ids | 2 | --groups would have no effect: method ts does not use groups
fit bare.npz -o N.kcal -m kcal-blend --representation probabilities | 2 | --representation
predict M no.npz -o N.npz | 2 | no.npz
predict foreign.kcal T -o N.npz | 1 | foreign.kcal is not a kcal file
predict projection.kcal T -o N.npz | 1 | projection
predict M T -o N.npy --evidence | 2 | --evidence
predict M none*.parquet -o N | 1 | DATA must be parquet files
predict M empty -o N | 1 | DATA must be parquet files
predict M *.parquet -o foreign.kcal --embeddings e* | 2 | --out must be a folder
predict M *.parquet -o N | 1 | --embeddings
predict M *.parquet -o N --logits e* | 2 | --logits
predict M *.parquet -o N --engine spark | 2 | --engine
predict M *.parquet -o N --workers 2 | 2 | --workers
evaluate M | 2 | needs DATA
evaluate C T | 2 | leave DATA out
evaluate T --allow-overlap | 2 | --allow-overlap
evaluate M C | 3 | rows of calibration.npz
evaluate M T --no-intervals --resamples 50 | 2 | --no-intervals
evaluate M T --no-intervals --groups ids | 2 | --no-intervals
evaluate M T --confidence 95 | 2 | --confidence
evaluate M T --resamples 5 | 2 | --resamples
evaluate M T --figures 3 | 2 | --report
evaluate M T --probabilities p | 2 | --probabilities
evaluate M T --classes a,b | 2 | --classes
evaluate M T --report M | 2 | --report
evaluate M unknown.npz | 1 | cow
compare C T --methods ts,hal | 2 | 'hal' is not one of all, uncal
compare C T --methods ts,ts | 2 | more than once
compare C T --methods ts,sms --embeddings embeddings | 2 | --embeddings would have no effect
compare C T --methods ts,sms --train C | 2 | --train
compare bare.npz T --methods ts | 1 | ts: bare.npz has no logits; it has embeddings, labels. Name them with
fit columns.csv -o N.kcal | 1 | columns.csv has no embeddings or logits; it has id, label, e_0, e_1, e_2, e_3, e_4,
fit columns.csv -o N.kcal -m kcal | 1 | columns.csv has no embeddings
fit strange.csv -o N.kcal -m ts --logits z_* | 1 | labels must be one of the 3 classes 'cat', 'dog', 'owl'; got 'cow'
fit columns.csv -o N.kcal -m ts | 1 | columns.csv has no logits
fit columns.csv -o N.kcal -m knn --embeddings e_* | 1 | columns.csv has no logits
explain M T --row 60 | 2 | --row must be a row of test.npz, 0 to 59; got 60
explain M T --row 1 --id x | 2 | --row and --id choose rows in two ways
explain M T --id nobody | 2 | --id must be an id that test.npz has once; got 'nobody', which it has 0 times
explain M bare.npz --id a | 2 | --id needs ids, and bare.npz has none
explain M T --plot N.gif | 2 | --plot must end in .png, .pdf, .svg
explain M T --csv N.parquet | 2 | --csv must end in .csv
explain M T --logits T | 2 | --logits would have no effect
explain M T --json T | 2 | --json must not replace an input
explain ts.kcal T | 1 | MODEL must predict from calibration samples; got ts.kcal, of method ts
compress ts.kcal --size 5 -o N.kcal | 1 | no support to compress
compress M -o N.kcal | 2 | --size or --max-loss-increase
compress M -o N.kcal --size 2 | 2 | --size
compress M -o N.kcal --size many | 2 | --size
compress M -o N.kcal --size nan | 2 | --size must be an integer, or a share of the samples
compress M -o N.kcal --size 9 --min-cluster-size 0 | 2 | --min-cluster-size
compress M -o N.kcal --max-loss-increase -1 | 2 | --max-loss-increase
bench empty | 1 | must be a folder with a task
bench --out T --methods ts | 2 | --out must be a folder
bench --methods hal | 2 | 'hal' is not one of all
bench --splits 0 | 2 | --splits
bench --address here | 2 | --address
task N.npz --train C | 2 | both --train and --pool
task N.npz --train C --pool T --share 2 | 2 | between 0 and 1
task missing.npz | 2 | NAME.npz does not exist; got missing.npz
task T | 1 | test.npz: pool_embeddings is missing
task C --train C --pool T | 1 | NAME.npz must not replace an input; got calibration.npz
serve M --complete-store | 2 | needs --store
serve M --network missing | 2 | 'missing' does not exist
serve M --tokens missing | 2 | 'missing' does not exist
serve M --max-body-mb inf | 2 | --max-body-mb
serve M --max-wait-ms nan | 2 | --max-wait-ms
token make x.json | 2 | make
token create N.json --scope admin | 2 | --name
token create N.json --name a --scope root | 2 | must be one of predict, feedback, metrics, admin
token list missing.json | 1 | No such file
token revoke missing.json --name a | 1 | No such file"""


def test_a_wrong_command_line_is_one_message_that_names_the_option_and_writes_nothing(run, model, test_set):
    run("fit", "calibration.npz", "-m", "ts", "-o", "ts.kcal", "-q")
    bare = blobs(90, 1)
    np.savez("bare.npz", embeddings=bare["embeddings"], labels=bare["labels"])
    np.savez("unknown.npz", **blobs(60, 2) | {"labels": np.full(60, "cow")})
    write_columns(Path("new.parquet"), {f"e{k}": column for k, column in enumerate(bare["embeddings"].T)})
    kcal.save(kcal.train_projection(bare["embeddings"], bare["labels"]), "projection.kcal")
    write_columns(Path("columns.csv"), columns_of(blobs(90, 1)))
    write_columns(Path("strange.csv"), columns_of(blobs(90, 1)) | {"label": ["cow"] * 90})
    Path("foreign.kcal").write_bytes(b"not a model")
    Path("empty").mkdir()
    names = {"C": "calibration.npz", "T": "test.npz", "M": "model.kcal"}
    before = {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    for line in WRONG.splitlines():
        command, code, message = (part.strip() for part in line.split("|"))
        result = run(*(names.get(word, word) for word in command.split()), code=int(code))
        errors = [text for text in result.stderr.splitlines() if not text.startswith("warning: ")]
        assert len(errors) == 1, (line, result.stderr)
        assert errors[0].startswith("error: "), line
        assert message in errors[0], (line, errors)
        assert result.stdout == "", line
    assert {path: path.read_bytes() for path in Path().iterdir() if path.is_file()} == before
    assert not Path("N").exists()
