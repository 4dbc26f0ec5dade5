"""The container file and the compose example agree with the command and with each other."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
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


def test_the_build_gets_the_wheel_and_the_constraints_alone():
    lines = (DEPLOY.parent / ".dockerignore").read_text(encoding="utf-8").splitlines()
    everything, *exceptions = [line for line in lines if not line.startswith("#")]
    copied = re.findall(r"^COPY (?!--from)(.*) \./$", CONTAINERFILE, re.M)
    assert everything == "*"
    assert sorted(exception.removeprefix("!") for exception in exceptions) == sorted(" ".join(copied).split())


def test_bytecode_of_every_stage_goes_by_the_content_of_files(tmp_path):
    """Layers change the times of files, and a container cannot replace bytecode that is out of date."""
    (tmp_path / "module.py").touch()
    (command,) = re.findall(r"^RUN (python -m compileall .*)$", CONTAINERFILE, re.M)
    command = command.replace("python", sys.executable, 1).replace("/usr/local/lib", str(tmp_path))
    (epoch,) = re.findall(r"^ENV (SOURCE_DATE_EPOCH)=(\d+)$", CONTAINERFILE, re.M)
    subprocess.run(["sh", "-c", command], check=True)
    by_pip = tmp_path / "pip.pyc"
    code = f"import py_compile; py_compile.compile({str(tmp_path / 'module.py')!r}, {str(by_pip)!r})"
    subprocess.run([sys.executable, "-c", code], env=os.environ | dict([epoch]), check=True)
    (by_command,) = (tmp_path / "__pycache__").iterdir()
    flags = [int.from_bytes(path.read_bytes()[4:8], "little") for path in (by_command, by_pip)]
    assert flags == [0b11, 0b11]  # PEP 552: by a hash, which is checked
    assert re.findall(r"^FROM (\S+)", CONTAINERFILE, re.M)[1:] == ["base", "base"]


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


def test_the_store_of_the_compose_example_belongs_to_a_project_with_a_name_of_its_own():
    whole = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    assert whole["name"] == "kcal"  # not that of the folder: any other project has a folder deploy/
    assert list(whole["volumes"]) == ["store"]


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


def test_the_compose_example_builds_the_container_file(compose):
    assert (DEPLOY / compose["build"]["context"] / compose["build"]["dockerfile"]).resolve() == DEPLOY / "Containerfile"
