"""The checks of the distributions notice what should not be released."""

from __future__ import annotations

import tarfile
import tomllib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from scripts.distribution import (
    MAX_WHEEL,
    ROOT,
    DistributionError,
    check_description,
    check_metadata,
    check_source,
    check_wheel,
)
from scripts.missing_extras import REQUESTS, Request, complaint

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TRACKED = {"src/kcal/__init__.py", "src/kcal/py.typed", "tests/conftest.py"}
WHEEL = {"kcal/__init__.py": b"1", "kcal/py.typed": b"", "kcal-1.dist-info/licenses/LICENSE": b"MIT"}
DESCRIPTION = "# kcal\n\n[paper](https://arxiv.org/abs/2202.07679)\n\n|a|b|\n|---|---|\n|1|2|\n"


def metadata(**changes: str) -> bytes:
    """Return metadata as the build writes them for pyproject.toml, with fields changed."""
    extras = PROJECT["optional-dependencies"]
    single = {
        "Metadata-Version": "2.4",
        "Name": "kcal",
        "Version": PROJECT["version"],
        "License-Expression": "MIT",
        "Requires-Python": PROJECT["requires-python"],
        "Description-Content-Type": "text/markdown",
    } | {name.replace("_", "-"): value for name, value in changes.items() if name != "Description"}
    lines = [f"{name}: {value}" for name, value in single.items()]
    lines += [f"Requires-Dist: {line}" for line in PROJECT["dependencies"]]
    lines += [f"Requires-Dist: {line}; extra == '{extra}'" for extra, needed in extras.items() for line in needed]
    lines += [f"Provides-Extra: {extra}" for extra in extras] + [f"Classifier: {c}" for c in PROJECT["classifiers"]]
    return ("\n".join(lines) + "\n\n" + changes.get("Description", DESCRIPTION)).encode()


def test_a_complete_wheel_passes() -> None:
    check_wheel(WHEEL, TRACKED, MAX_WHEEL)


@pytest.mark.parametrize(
    ("changes", "size", "message"),
    [
        ({"tests/conftest.py": b""}, 1, r"contains \['tests/conftest.py'\]"),
        ({"kcal/notes.txt": b""}, 1, r"contains \['kcal/notes.txt'\]"),
        ({"kcal/py.typed": None}, 1, r"lacks \['kcal/py.typed'\]"),
        ({"kcal-1.dist-info/licenses/LICENSE": None}, 1, "lacks the license"),
        ({"kcal/__init__.py": bytes(5_000_001)}, 1, "more than 5,000,000 bytes"),
        ({}, 12_000_001, "12,000,001 bytes"),
    ],
)
def test_foreign_missing_and_large_files_are_noticed(changes: dict[str, Any], size: int, message: str) -> None:
    contents = {name: content for name, content in (WHEEL | changes).items() if content is not None}
    with pytest.raises(DistributionError, match=message):
        check_wheel(contents, TRACKED, size)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"README.md", "src/kcal/py.typed", "PKG-INFO"}, ""),
        ({"README.md", "PKG-INFO"}, r"lacks \['src/kcal/py.typed'\]"),
        ({"README.md", "src/kcal/py.typed", "notes.txt"}, r"contains \['notes.txt'\]"),
    ],
)
def test_the_sdist_has_the_files_of_git(changed: set[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with tarfile.open(tmp_path / "kcal.tar.gz", "w:gz") as archive:
        for name in changed:
            archive.add(tmp_path / "file", f"kcal-1/{name}")
    with pytest.raises(DistributionError, match=message) if message else nullcontext():
        check_source(tmp_path / "kcal.tar.gz", {"README.md", "src/kcal/py.typed"}, "1")


def test_the_metadata_of_the_project_pass() -> None:
    check_metadata(metadata(), PROJECT)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Version": "0.0.1"}, "the version is 0.0.1"),
        ({"License_Expression": "Apache-2.0"}, "the license is Apache-2.0"),
        ({"Requires_Python": ">=3.9"}, "Python is >=3.9"),
        ({"Provides_Extra": "unknown"}, "the extras are"),
        ({"Requires_Dist": "another>=1"}, "required without an extra are"),
        ({"Classifier": "Framework :: Another"}, "the classifiers differ"),
        ({"Project_URL": "Home, http://example.org"}, "not all of"),
        ({"Description_Content_Type": "text/plain"}, "no Markdown"),
    ],
)
def test_metadata_that_differ_from_the_project_are_noticed(changes: dict[str, str], message: str) -> None:
    with pytest.raises(DistributionError, match=message):
        check_metadata(metadata(**changes), PROJECT)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no title", "does not begin with a title"),
        (DESCRIPTION + "\n[guide](docs/guide.md)\n", r"outside a checkout: \['docs/guide.md'\]"),
        (DESCRIPTION + "\n![picture](docs/a.png)\n", r"outside a checkout: \['docs/a.png'\]"),
        ("# kcal\n\n[paper](https://arxiv.org)\n", "lost its tables"),
    ],
)
def test_a_description_that_breaks_outside_a_checkout_is_noticed(text: str, message: str) -> None:
    with pytest.raises(DistributionError, match=message):
        check_description(text)


def test_every_extra_of_users_is_asked_for() -> None:
    asked = {request.install.strip("'").partition("[")[2].rstrip("]") for request in REQUESTS} - {""}
    assert asked == set(PROJECT["optional-dependencies"]) - {"docs", "dev", "all"}


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("raise ImportError(\"Run: pip install 'kcal[plots]'\")", ""),
        ("pass", "it succeeds"),
        ("import no_such_package", "does not say"),
    ],
)
def test_an_answer_without_the_remedy_is_a_complaint(code: str, problem: str, tmp_path: Path) -> None:
    answer = complaint(Request(("no_such_package",), "'kcal[plots]'", ("-c", code)), tmp_path)
    assert problem in answer
    assert bool(problem) == bool(answer)
    assert "must not be installed" in complaint(Request(("numpy",), "'kcal[plots]'", ("-c", code)), tmp_path)
