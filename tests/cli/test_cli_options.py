"""An option changes what a command does or is rejected; what is typed wrongly is one line and an exit code."""

from __future__ import annotations

from itertools import product
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
from kcal.cli.options import PARTS

SOURCES = (("npz", "name"), ("npz", "file"), ("csv", "name"), ("npy", "file"), ("folder", "file"))
COMMANDS = ("fit kcal", "fit ts", "predict kcal", "predict ts", "evaluate kcal", "evaluate ts", "explain kcal", "task")
CLASSES = ("--classes", "cat,dog,owl")
METHODS = {"kcal": ("-m", "kcal", "--projection", "identity"), "ts": ("-m", "ts", *CLASSES), "": ()}
COMMAND_GROUP: Any = typer.main.get_command(app)


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


def write_data(kind: str, seed: int, matrices: tuple[str, ...]) -> Path:
    """Write samples, with what an option may name (``other_PART``) beside what is read without it."""
    arrays, others, path = outputs(seed), outputs(seed + 100), Path(f"data-{seed}.{kind}")
    if kind == "npz":
        np.savez(path, **arrays, **{f"other_{part}": values for part, values in others.items()})
    elif kind == "npy":
        np.save(path, arrays[matrices[0]])
    elif kind == "folder":
        network = nn.Linear(5, 3)
        network.weight.data, network.bias.data = 4 * torch.eye(3, 5), torch.zeros(3)
        kcal.extract(network, [(torch.from_numpy(arrays["embeddings"]), torch.arange(60) % 3)], to=path)
    else:
        columns: dict[str, Any] = {}
        for start, part in (("", arrays), ("other_", others)):
            for name, values in part.items():
                columns |= (
                    {f"{start}{name}_{k}": column for k, column in enumerate(values.T)}
                    if values.ndim == 2
                    else {f"{start}{name}": values}
                )
        write_columns(path, columns)
    return path


def words_without(command: str, kind: str, models: Path) -> list[Any]:
    """Return a command on a file of some kind, without the option; it writes the file "result"."""
    name, _, method = command.partition(" ")
    matrices = {"kcal": ("embeddings",), "ts": ("logits",)}.get(method, ("embeddings", "logits"))
    data, pool, model = write_data(kind, 1, matrices), write_data(kind, 2, matrices), models / f"{method}.kcal"
    np.save("labels.npy", outputs(1)["labels"])
    labels = ("--labels", "labels.npy") if kind in ("npy", "folder") else ()
    return {
        "fit": ["fit", data, "-o", "result.kcal", *METHODS[method], *labels],
        "predict": ["predict", model, data, "-o", "result.npz"],
        "evaluate": ["evaluate", model, data, "--json", "result.json", "--resamples", 20, *CLASSES, *labels],
        "explain": ["explain", model, data, "--json", "result.json"],
        "task": ["task", "result.npz", "--train", data, "--pool", pool, *CLASSES],
    }[name]


def words_of(option: str, source: str) -> list[str]:
    """Return an option that names something else in the data, or another file."""
    if option == "classes":
        return ["--classes", "a,b"]
    if source == "name":
        return [f"--{option}", f"other_{option}"]
    np.save("other.npy", outputs(500)[option])
    return [f"--{option}", "other.npy"]


def result_of(words: list[Any]) -> tuple[int, dict[str, bytes]]:
    """Run a command, and return its exit code and what it wrote."""
    code = CliRunner().invoke(app, [str(word) for word in words]).exit_code
    written = {path.name: path.read_bytes() for path in Path().glob("result*")}
    for name in written:
        Path(name).unlink()
    return code, written


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    np.savez(folder / "calibration.npz", **outputs(7))
    for method in ("kcal", "ts"):
        words = ["fit", folder / "calibration.npz", "-o", folder / f"{method}.kcal", *METHODS[method]]
        assert result_of(words)[0] == 0
    return folder


@pytest.mark.parametrize(("kind", "source"), SOURCES)
@pytest.mark.parametrize("command", COMMANDS)
def test_options_about_data_are_used_or_rejected(tmp_path, monkeypatch, models, command, kind, source):
    monkeypatch.chdir(tmp_path)
    words = words_without(command, kind, models)
    before = result_of(words)
    for option in COMMAND_GROUP.commands[command.split()[0]].params:
        if option.name in (*PARTS, "classes"):
            after = result_of([*words, *words_of(option.name, source)])
            assert after[0] != 0 or after != before, option.name


VALUES = ("", "-1", "nan", "1e999", "no.npz", "text.txt", "broken.npz", ".", "cat,dog", "x" * 300, "\x1b[31m", "=")
"""What options get that is wrong for most of them."""
FILES = {
    "fit": ("calibration.npz", "-o", "new.kcal"),
    "predict": ("kcal.kcal", "calibration.npz", "-o", "new.npz"),
    "evaluate": ("kcal.kcal", "calibration.npz", "--allow-overlap", "--no-intervals"),
    "compare": ("calibration.npz", "calibration.npz", "--allow-overlap", "--methods", "uncal", *CLASSES),
    "explain": ("kcal.kcal", "calibration.npz"),
    "compress": ("kcal.kcal", "-o", "new.kcal"),
    "export": ("kcal.kcal", "-o", "new.onnx"),
    "task": ("new.npz",),
    "bench": ("tasks",),
    "methods": (),
}


def bad_commands() -> list[tuple[str, ...]]:
    """Commands whose last words are wrong: an input that cannot be used, or an option with a value that none takes."""
    commands: list[tuple[str, ...]] = []
    for name, words in FILES.items():
        inputs = [place for place, word in enumerate(words) if word in ("calibration.npz", "kcal.kcal")]
        for place, value in product(inputs, ("no.npz", "text.txt", "broken.npz", "", "new/x.npz")):
            commands.append((name, *words[:place], value, *words[place + 1 :]))
        commands += [(name, *words, "--nonsense"), (name, *words, "one", "too", "many")]
        for option in COMMAND_GROUP.commands[name].params:
            if option.param_type_name == "option" and not option.is_flag:
                flag = max(option.opts, key=len)
                commands.append((name, *words, flag))
                commands += [(name, *words, flag, value) for value in VALUES]
    return commands


ACCEPTED = ("--json", "--csv", "--out", "--report", "--address")
"""Options that take text of many kinds: what they do with the values is not wrong."""


@pytest.fixture
def prepared(run, models, monkeypatch, tmp_path) -> None:
    for file in models.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    Path("text.txt").write_text("nothing")
    Path("broken.npz").write_bytes((models / "calibration.npz").read_bytes()[:700])
    Path("tasks").mkdir()


@pytest.mark.parametrize("name", FILES)
def test_bad_command_lines_are_one_message_and_no_traceback(prepared, name):
    """Every sixteenth of some thousand generated lines."""
    commands = [words for words in bad_commands() if words[0] == name][::16]
    for words in commands:
        result = CliRunner().invoke(app, list(words))
        assert result.exception is None or isinstance(result.exception, SystemExit), (words, result.exception)
        assert "Traceback" not in result.output, words
        if words[-2] not in ACCEPTED:
            assert result.exit_code in (1, 2), (words, result.output)
            errors = [line for line in result.stderr.splitlines() if not line.startswith("warning: ")]
            assert len(errors) == 1, (words, result.stderr)
            assert errors[0].startswith("error: "), words
