"""The container file and the compose example agree with the command and with each other."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from kcal.cli import app
from kcal.serving import app as server
from kcal.serving.app import GRACE_SECONDS
from kcal.serving.tokens import create_token

DEPLOY = Path(__file__).parents[2] / "deploy"
CONTAINERFILE = (DEPLOY / "Containerfile").read_text(encoding="utf-8")


def instruction(name: str) -> list[str]:
    """Return the list of words of an instruction of the last stage."""
    (text,) = re.findall(rf"^(?:{name}|    {name}) (\[.*\])$", CONTAINERFILE.rpartition("\nFROM ")[2], re.M)
    words: list[str] = json.loads(text)
    return words


@pytest.fixture
def compose():
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]["kcal"]


def test_the_command_of_the_container_is_one_that_kcal_understands(monkeypatch):
    served = []
    monkeypatch.setattr(server, "serve", lambda settings, on_started: served.append(settings))
    program, *words = [*instruction("ENTRYPOINT"), *re.findall(r'"([^"]+)"', CONTAINERFILE.rpartition("\nCMD ")[2])]
    assert program == "kcal"
    assert CliRunner().invoke(app, words).exit_code == 0
    (settings,) = served
    assert (settings.host, settings.port, str(settings.path), str(settings.store)) == (
        "0.0.0.0",
        8000,
        "/models",
        "/store",
    )
    assert str(settings.tokens) == "/tokens/tokens.json"


def test_the_container_has_no_root_and_asks_for_its_health():
    assert re.search(r"^USER 10001:10001$", CONTAINERFILE, re.M)
    assert CONTAINERFILE.index("USER 10001") < CONTAINERFILE.index("ENTRYPOINT")
    (code,) = re.findall(r'CMD \["python", "-c", "(.*)"\]', CONTAINERFILE)
    compile(code, "health", "exec")
    assert ":8000/readyz" in code


@pytest.mark.parametrize("wheels", [["kcal-0.2.0-py3-none-any.whl"], ["kcal-0.1.0.whl", "kcal-0.2.0.whl"]])
def test_a_wheel_is_installed_if_it_is_the_only_one(tmp_path, wheels):
    for name in wheels:
        (tmp_path / name).touch()
    (command,) = re.findall(r"^RUN (python -m venv .*?[^\\])$", CONTAINERFILE, re.M | re.S)
    command = command.replace("python -m venv /opt/kcal", "true").replace("/opt/kcal/bin/pip", "echo")
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    if len(wheels) == 1:
        assert (done.returncode, done.stdout.split()[-2:]) == (0, [f"{wheels[0]}[serve]", "onnxruntime"])
    else:
        assert (done.returncode, done.stdout) == (1, "")
        assert "dist/ must hold one wheel of kcal; it holds kcal-0.1.0.whl kcal-0.2.0.whl" in done.stderr


def test_the_compose_example_is_read_only_but_for_its_store(compose):
    assert compose["read_only"] is True
    assert compose["user"] == "10001:10001"
    assert compose["cap_drop"] == ["ALL"]
    assert compose["security_opt"] == ["no-new-privileges:true"]
    mounts = [volume.split(":") for volume in compose["volumes"]]
    assert [target for _, target, *_ in mounts] == ["/models", "/tokens", "/store"]
    assert [target for _, target, *options in mounts if "ro" not in ",".join(options).split(",")] == ["/store"]
    assert compose["ports"] == ["127.0.0.1:8000:8000"]


def test_the_compose_example_stops_the_service_as_it_wants_to_be_stopped(compose):
    assert int(compose["stop_grace_period"].removesuffix("s")) > GRACE_SECONDS
    assert compose["init"] is True  # process 1 of a container ignores SIGTERM until it has a handler for it


def test_the_folder_of_the_token_file_is_mounted_so_that_a_revoked_token_ends_at_once(compose, tmp_path):
    """A file that is mounted alone is the file of the time of the mount, and ``kcal token`` writes a new file."""
    path = tmp_path / "tokens.json"
    create_token(path, "me", ["admin"])
    before = path.stat().st_ino
    create_token(path, "you", ["predict"])
    assert path.stat().st_ino != before
    (folder,) = [volume.split(":")[1] for volume in compose["volumes"] if "tokens" in volume]
    assert f'"--tokens", "{folder}/tokens.json"' in CONTAINERFILE
    assert "secrets" not in compose
