"""The commands ``kcal serve`` and ``kcal token``."""

from __future__ import annotations

import json
import socket
import stat
import subprocess
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

from kcal.serving import app as server
from kcal.serving.tokens import find_token, read_tokens


@pytest.fixture
def served(monkeypatch):
    """Options that the command would serve with."""
    options = []
    monkeypatch.setattr(server, "serve", lambda settings, on_started: options.append(settings))
    return options


def test_options_reach_the_service(run, served, tmp_path):
    model = tmp_path / "model.kcal"
    network = tmp_path / "n.onnx"
    model.touch()
    network.touch()
    words = "--port 0 --max-batch 8 --max-wait-ms 1.5 --max-queue 9 --max-body-mb 0.5 --recent 7 --store f.db"
    assert run("serve", str(model), *words.split(), "--network", network).exit_code == 0
    (settings,) = served
    assert (settings.path, settings.host, settings.port, str(settings.store)) == (model, "127.0.0.1", 0, "f.db")
    assert (settings.max_batch, settings.max_wait, settings.max_queue, settings.recent) == (8, 0.0015, 9, 7)
    assert settings.max_body == 2**19
    assert settings.network == network


def test_a_complete_store_must_be_given_and_have_samples(run, model, tmp_path):
    assert "needs --store" in run("serve", model, "--complete-store", code=2).stderr
    store = ("--store", str(tmp_path / "new.db"))
    result = run("serve", model, "--port", "0", "--complete-store", *store, code=1)
    assert "must have samples" in " ".join(result.stderr.split())


def test_a_missing_extra_says_how_to_install_it(run, model, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = run("serve", model, code=1)
    assert "pip install 'kcal[serve]'" in result.stderr


@pytest.mark.parametrize(
    "options",
    [
        ["--store", "damaged.db"],
        ["--network", "wrong.onnx"],
        pytest.param(["--grpc-port", "PORT"], marks=pytest.mark.skipif(find_spec("grpc") is None, reason="needs grpc")),
    ],
)
def test_service_that_cannot_start_says_why_once_and_no_address(run, model, tmp_path, options):
    for name in ("damaged.db", "wrong.onnx"):
        (tmp_path / name).write_bytes(b"nothing of the kind" * 100)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = [str(taken.getsockname()[1]) if word == "PORT" else word for word in options]
        result = run("serve", model, "--port", "0", *options, code=2 if "--grpc-port" in options else 1)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.strip().splitlines()) == 1


def test_tokens_are_made_shown_once_listed_and_revoked(run, tmp_path):
    file = tmp_path / "tokens.json"
    made = run("token", "create", str(file), "--name", "ward", "--scope", "feedback", "--scope", "predict")
    token = made.stdout.strip()
    assert find_token(read_tokens(file), token).scopes == ("predict", "feedback")
    listed = run("token", "list", str(file)).stdout
    assert listed.startswith("ward: predict, feedback; made 20")
    assert token not in listed
    assert run("token", "revoke", str(file), "--name", "ward").exit_code == 0
    assert json.loads(file.read_text())["tokens"] == []
    assert run("token", "list", str(file)).stdout == "no tokens\n"


def test_token_is_shown_when_the_command_is_quiet(run, tmp_path):
    file = tmp_path / "tokens.json"
    made = run("token", "create", str(file), "--name", "ward", "--scope", "predict", "-q")
    assert find_token(read_tokens(file), made.stdout.strip()).name == "ward"
    made = run("token", "create", str(file), "--name", "other", "--scope", "predict", "-q", "--json", "-")
    assert find_token(read_tokens(file), json.loads(made.stdout)["token"]).name == "other"


@pytest.mark.parametrize("name", ["missing/tokens.json", "."])
def test_token_file_that_cannot_be_written_is_named_as_in_the_help(run, name):
    words = ["token", "create", name, "--name", "ward", "--scope", "predict"]
    assert run(*words, code=1).stderr.startswith("error: FILE must be ")
    assert not Path("missing").exists()


def test_json_does_not_replace_the_token_file(run):
    run("token", "create", "tokens.json", "--name", "ward", "--scope", "predict")
    before = Path("tokens.json").read_bytes()
    for words in (["list"], ["revoke", "--name", "ward"], ["create", "--name", "other", "--scope", "admin"]):
        assert "--json" in run("token", words[0], "tokens.json", *words[1:], "--json", "tokens.json", code=2).stderr
    assert Path("tokens.json").read_bytes() == before


CHANGES = """
import sys
from kcal.cli import app

name, file = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
for row in range(20):
    app(["token", "create", file, "--name", f"{name}-{row}", "--scope", "predict"], standalone_mode=False)
    if row % 2:
        app(["token", "revoke", file, "--name", f"{name}-{row}", "-q"], standalone_mode=False)
"""


def test_no_token_is_lost_when_processes_change_the_file_at_once(tmp_path):
    file, names = tmp_path / "tokens.json", [f"process-{number}" for number in range(4)]
    (tmp_path / "link.json").symlink_to(file)
    pipe = subprocess.PIPE
    files = [tmp_path / "link.json" if name.endswith("0") else file for name in names]
    with ExitStack() as stack:
        commands = [[sys.executable, "-c", CHANGES, name, str(one)] for name, one in zip(names, files, strict=True)]
        processes = [stack.enter_context(subprocess.Popen(one, stdin=pipe, stdout=pipe, text=True)) for one in commands]
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        tokens = [process.communicate()[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    records = read_tokens(file)
    assert {record.name for record in records} == {f"{name}-{row}" for name in names for row in range(0, 20, 2)}
    for name, made in zip(names, tokens, strict=True):
        assert [find_token(records, token).name for token in made[::2]] == [f"{name}-{row}" for row in range(0, 20, 2)]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
