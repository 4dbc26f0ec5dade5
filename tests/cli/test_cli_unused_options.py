"""An option changes what a command does, or is refused: for every command and every kind of file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from animals import ANIMALS, write_columns
from torch import nn
from typer.testing import CliRunner

import kcal
from kcal.cli import app
from kcal.cli.options import COLUMN_PANEL, FILE_PANEL

KINDS = ("npz", "npy", "csv", "folder")
COMMANDS = ("fit kcal", "fit ts", "predict kcal", "predict ts", "evaluate kcal", "evaluate ts", "explain kcal", "task")
COLUMNS = {"labels": "label", "groups": "group", "weights": "weight", "ids": "id"}
NAMED = {"label_column": "diagnosis", "group_column": "patient", "weight_column": "w", "id_column": "name"}
VALUES = NAMED | {"feature_columns": "f*", "logit_columns": "y*", "classes": "a,b"}
"""Values of options; all of them are other than what is read without the option."""
CLASSES = ("--classes", "cat,dog,owl")
METHODS = {"kcal": ("-m", "kcal", "--projection", "identity"), "ts": ("-m", "ts", *CLASSES), "": ()}


def outputs(seed: int) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    codes = generator.permutation(np.arange(60) % 3)
    embeddings = (np.eye(3, 5)[codes] * 2 + generator.normal(size=(60, 5))).astype(np.float32)
    return {
        "embeddings": embeddings,
        "logits": 4 * embeddings[:, :3],
        "labels": ANIMALS[codes],
        "groups": generator.integers(0, 9, 60),
        "weights": generator.uniform(0.5, 2, 60),
        "ids": generator.permutation(60),
    }


def write_data(kind: str, seed: int, option: str, *matrices: str) -> Path:
    """Write samples, with what the option may name beside what is read without it."""
    arrays, others, path = outputs(seed), outputs(seed + 100), Path(f"data-{seed}.{kind}")
    named = {name: others[key] for name, key in zip(NAMED.values(), COLUMNS, strict=True)}
    if kind == "npz":
        np.savez(path, **arrays, **named, **{"f*": others["embeddings"], "y*": others["logits"]})
    elif kind == "npy":
        np.save(path, arrays[matrices[0]])
    elif kind == "folder":
        network = nn.Linear(5, 3)
        network.weight.data, network.bias.data = 4 * torch.eye(3, 5), torch.zeros(3)
        kcal.extract(network, [(torch.from_numpy(arrays["embeddings"]), torch.arange(60) % 3)], to=path)
    else:
        parts = {matrix[0]: arrays[matrix] for matrix in matrices}
        parts |= {"f": others["embeddings"]} if option == "feature_columns" else {}
        parts |= {"y": others["logits"]} if option == "logit_columns" else {}
        columns = {f"{start}{k}": values for start, part in parts.items() for k, values in enumerate(part.T)}
        columns |= {column: arrays[key] for key, column in COLUMNS.items()}
        write_columns(path, columns | {name: named[name] for key, name in NAMED.items() if key == option})
    return path


def words_without(command: str, kind: str, option: str, models: Path) -> list[Any]:
    """Return a command on a file of some kind, without the option; it writes the file "result"."""
    name, _, method = command.partition(" ")
    matrices = {"kcal": ("embeddings",), "ts": ("logits",)}.get(method, ("embeddings", "logits"))
    data, model = write_data(kind, 1, option, *matrices), models / f"{method}.kcal"
    pool = write_data(kind, 2, option, *matrices)
    np.save("labels.npy", outputs(1)["labels"])
    labels = ("--labels", "labels.npy") if kind in ("npy", "folder") else ()
    patterns = ("--feature-columns", "e*", "--logit-columns", "l*") if kind == "csv" else ()
    return {
        "fit": ["fit", data, "-o", "result.kcal", *METHODS[method], *labels],
        "predict": ["predict", model, data, "-o", "result.npz"],
        "evaluate": ["evaluate", model, data, "--json", "result.json", "--resamples", 20, *CLASSES, *labels],
        "explain": ["explain", model, data, "--json", "result.json"],
        "task": ["task", "result.npz", "--train", data, "--pool", pool, *CLASSES, *patterns],
    }[name]


def words_of(option: str) -> list[str]:
    flag = f"--{option.replace('_', '-')}"
    if option == "labels_are_positions":
        return [flag]
    np.save("other.npy", outputs(500).get("embeddings" if option == "train" else option.removeprefix("train_"), 0))
    return [flag, VALUES.get(option, "other.npy")]


def result_of(words: list[Any]) -> tuple[int, dict[str, bytes]]:
    """Run a command, and return its exit code and what it wrote."""
    code = CliRunner().invoke(app, [str(word) for word in words]).exit_code
    written = {path.name: path.read_bytes() for path in Path().glob("result*")}
    for name in written:
        Path(name).unlink()
    return code, written


def data_options() -> list[tuple[str, str, str]]:
    """Every command with every kind of file and every option about data that it declares."""
    commands = typer.main.get_command(app).commands
    cases = [
        (command, kind, option.name)
        for command in COMMANDS
        for option in commands[command.split()[0]].params
        if getattr(option, "rich_help_panel", None) in (FILE_PANEL, COLUMN_PANEL)
        for kind in KINDS
    ]
    cases.remove(("task", "folder", "labels_are_positions"))  # its labels are integers, and the classes are listed
    return cases


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    np.savez(folder / "calibration.npz", **outputs(7))
    for method in ("kcal", "ts"):
        words = ["fit", folder / "calibration.npz", "-o", folder / f"{method}.kcal", *METHODS[method]]
        assert result_of(words)[0] == 0
    return folder


@pytest.mark.parametrize(("command", "kind", "option"), data_options())
def test_an_option_about_data_is_used_or_refused(tmp_path, monkeypatch, models, command, kind, option) -> None:
    monkeypatch.chdir(tmp_path)
    words = words_without(command, kind, option, models)
    before, after = result_of(words), result_of([*words, *words_of(option)])
    assert after[0] != 0 or after != before


@pytest.mark.parametrize("method", ["kcal", "kcal-blend"])
def test_arrays_of_an_npz_file_may_have_any_name(run, method: str) -> None:
    arrays, rest = outputs(1), ("-m", method, *(CLASSES if method == "kcal-blend" else METHODS["kcal"][2:]))
    np.savez("default.npz", **arrays)
    names = ("emb", "z", "diagnosis", "patient", "w", "who")
    np.savez("named.npz", **dict(zip(names, arrays.values(), strict=True)))
    options = ["--label-column", "diagnosis", "--group-column", "patient", "--weight-column", "w", "--id-column", "who"]
    options += ["--feature-columns", "emb", *(("--logit-columns", "z") if method == "kcal-blend" else ())]
    run("fit", "default.npz", "-o", "default.kcal", *rest)
    run("fit", "named.npz", "-o", "named.kcal", *rest, *options)
    assert Path("named.kcal").read_bytes() == Path("default.kcal").read_bytes()
    missing = run("fit", "named.npz", "-o", "m.kcal", *rest, *options, "--label-column", "diagnose", code=1).stderr
    assert "has no array called diagnose or calibration_diagnose; it has emb, z, diagnosis" in missing


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("evaluate kcal.kcal calibration.npz --allow-overlap --classes a,b", "--classes must be those of the model"),
        (
            "fit calibration.npz -o m.kcal -m kcal --projection identity --bandwidth 1 --folds 5",
            "--folds has no effect",
        ),
        ("fit calibration.npz -o m.kcal -m ts --classes cat,dog,owl --group-column groups", "--group-column"),
        ("fit calibration.npz -o m.kcal -m ts --classes cat,dog,owl --ids labels.npy", "--ids"),
        ("evaluate calibration.npz calibration.npz --methods ts,sms --train calibration.npz", "--train and"),
        ("predict kcal.kcal calibration.npz -o p.npy --id-column ids", "--id-column"),
        ("predict kcal.kcal calibration.npz -o p.csv --label-column labels", "--label-column"),
        ("task task.npz --share 0.5 --classes a,b", "--share, --classes would have no effect"),
        ("token list tokens.json --name ward", "--name is for create and revoke"),
        ("token revoke tokens.json --name ward --scope predict", "--scope is for create"),
        ("serve kcal.kcal --complete-store", "--complete-store needs --store"),
    ],
)
def test_an_option_without_effect_exits_with_2(run, models, monkeypatch, words: str, message: str) -> None:
    monkeypatch.chdir(models)
    np.save("labels.npy", outputs(7)["labels"])
    assert message in run(*words.split(), code=2).stderr
