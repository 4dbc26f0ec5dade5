"""The container file and the compose example agree with the command and with each other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from kcal.cli import app
from kcal.serving import app as server
from kcal.serving.app import GRACE_SECONDS

DEPLOY = Path(__file__).parents[1] / "deploy"
CONTAINERFILE = (DEPLOY / "Containerfile").read_text(encoding="utf-8")


def instruction(name: str) -> list[str]:
    """Return the list of words of an instruction of the last stage."""
    (text,) = re.findall(rf"^(?:{name}|    {name}) (\[.*\])$", CONTAINERFILE.rpartition("\nFROM ")[2], re.M)
    words: list[str] = json.loads(text)
    return words


@pytest.fixture
def compose():
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]["kcal"]


def test_the_command_of_the_container_is_one_that_kcal_understands(monkeypatch, tmp_path):
    served, mounted = [], {"/models": tmp_path, "/tokens/tokens.json": tmp_path / "tokens.json"}  # these must exist
    (tmp_path / "tokens.json").write_text("[]")
    monkeypatch.setattr(server, "serve", lambda settings, on_started: served.append(settings))
    program, *words = [*instruction("ENTRYPOINT"), *re.findall(r'"([^"]+)"', CONTAINERFILE.rpartition("\nCMD ")[2])]
    assert program == "kcal"
    assert mounted.keys() <= set(words)
    assert CliRunner().invoke(app, [str(mounted.get(word, word)) for word in words]).exit_code == 0
    (settings,) = served
    expected = ("0.0.0.0", 8000, mounted["/models"], "/store")
    assert (settings.host, settings.port, settings.path, str(settings.store)) == expected
    assert settings.tokens == mounted["/tokens/tokens.json"]
    assert CONTAINERFILE.index("USER 10001:10001") < CONTAINERFILE.index("ENTRYPOINT")
    (code,) = re.findall(r'CMD \["python", "-c", "(.*)"\]', CONTAINERFILE)
    compile(code, "health", "exec")
    assert ":8000/readyz" in code


def test_compose_example_has_few_rights_and_stops_the_service_gracefully(compose):
    assert compose["read_only"] is True
    assert compose["user"] == "10001:10001"
    assert compose["cap_drop"] == ["ALL"]
    assert compose["security_opt"] == ["no-new-privileges:true"]
    mounts = [volume.split(":") for volume in compose["volumes"]]
    assert [target for _, target, *_ in mounts] == ["/models", "/tokens", "/store"]
    assert [target for _, target, *options in mounts if "ro" not in ",".join(options).split(",")] == ["/store"]
    assert compose["ports"] == ["127.0.0.1:8000:8000"]
    assert int(compose["stop_grace_period"].removesuffix("s")) > GRACE_SECONDS
    assert compose["init"] is True  # process 1 of a container ignores SIGTERM until it has a handler for it
