"""Files that name a version agree with the project."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


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


def test_the_workflow_runs_the_checks_of_every_change_on_every_version_of_python() -> None:
    workflow = content(".github/workflows/ci.yml")
    assert True in workflow  # YAML 1.1 reads the key "on" as a boolean
    assert workflow["permissions"] == {"contents": "read"}
    test = workflow["jobs"]["test"]
    versions = test["strategy"]["matrix"]["python"]
    assert set(versions) == python_versions()
    assert all(SpecifierSet(PROJECT["requires-python"]).contains(version) for version in versions)
    commands = [step["run"] for step in test["steps"] if "run" in step]
    assert ".ci/run" in commands
    assert "chromium" in (ROOT / ".ci/run").read_text(encoding="utf-8")
