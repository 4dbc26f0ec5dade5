"""Files for those who cite, report and contribute are well formed and agree with the project."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FORMS = sorted(path.name for path in ROOT.glob(".github/ISSUE_TEMPLATE/*.yml") if path.name != "config.yml")


def content(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def python_versions() -> set[str]:
    """Return the versions that the classifiers name."""
    return {line.split(" :: ")[-1] for line in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", line)}


def test_the_newest_entry_of_the_changelog_is_the_version() -> None:
    entries = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert next(entry for entry in entries if entry != "Unreleased") == PROJECT["version"]


def test_the_citation_names_this_version_and_the_paper() -> None:
    citation = content("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == PROJECT["version"]
    assert (citation["license"], citation["type"]) == (PROJECT["license"], "software")
    assert {"message", "title", "authors"} <= citation.keys()
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in PROJECT["authors"]]
    paper = citation["preferred-citation"]
    assert [person["family-names"] for person in paper["authors"]] == ["Lin", "Trivedi", "Sun"]
    assert paper["url"] == PROJECT["urls"]["Paper"]
    assert paper["url"] in (ROOT / "README.md").read_text(encoding="utf-8")


def test_security_fixes_are_for_this_version() -> None:
    minor = PROJECT["version"].rpartition(".")[0]
    assert f"| {minor}.x | yes |" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", FORMS)
def test_issue_forms_have_what_a_form_needs(name: str) -> None:
    form = content(f".github/ISSUE_TEMPLATE/{name}")
    assert form.keys() == {"name", "description", "labels", "body"}
    fields = [part for part in form["body"] if part["type"] != "markdown"]
    assert {part["type"] for part in fields} <= {"textarea", "input", "dropdown", "checkboxes"}
    assert len({part["id"] for part in fields}) == len(fields)
    assert all({"label", "description"} <= part["attributes"].keys() for part in fields)
    assert any(part.get("validations", {}).get("required") for part in fields)


def test_there_is_a_form_for_bugs_features_and_questions() -> None:
    assert FORMS == ["bug.yml", "feature.yml", "question.yml"]


def test_the_workflow_runs_the_checks_of_every_change_on_every_version_of_python() -> None:
    workflow = content(".github/workflows/ci.yml")
    assert True in workflow  # YAML 1.1 reads the key "on" as a truth value
    assert workflow["permissions"] == {"contents": "read"}
    test = workflow["jobs"]["test"]
    versions = test["strategy"]["matrix"]["python"]
    assert set(versions) == python_versions()
    assert all(SpecifierSet(PROJECT["requires-python"]).contains(version) for version in versions)
    commands = [step["run"] for step in test["steps"] if "run" in step]
    assert ".ci/run" in commands
    assert "chromium" in (ROOT / ".ci/run").read_text(encoding="utf-8")


@pytest.mark.parametrize("job", ["lowest", "distribution"])
def test_the_workflow_runs_targets_that_exist(job: str) -> None:
    command = content(".github/workflows/ci.yml")["jobs"][job]["steps"][-1 if job == "lowest" else -2]["run"]
    target = command.removeprefix("make ")
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)


def test_hooks_are_local_and_cover_the_checks() -> None:
    repositories = content(".pre-commit-config.yaml")["repos"]
    assert {repository["repo"] for repository in repositories} == {"local"}
    hooks = {hook["id"]: hook for repository in repositories for hook in repository["hooks"]}
    assert all({"id", "name", "entry", "language"} <= hook.keys() for hook in hooks.values())
    checks = subprocess.run(
        ["make", "--dry-run", "--always-make", "check"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    tools = set(re.findall(r"^\.venv/bin/(ruff|mypy|lint-imports)", checks, re.M))
    assert tools == {"ruff", "mypy", "lint-imports"}
    for tool in tools:
        assert any(hook["entry"].startswith(f".venv/bin/{tool}") for hook in hooks.values())
