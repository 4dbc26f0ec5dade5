"""Build wheel and sdist into dist/, check them, and try the wheel as a user without any extra would.

    python -m scripts.distribution
    python -m scripts.distribution --no-trial    # build and check only

The trial installs the wheel into a new environment with the versions of constraints.txt, runs ``kcal demo`` there, and
asks for everything that needs an extra (scripts/missing_extras.py). Nothing is uploaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Annotated, Any

import typer
from markdown_it import MarkdownIt
from packaging.metadata import Metadata
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
MAX_WHEEL, MAX_FILE = 12_000_000, 5_000_000
"""Bytes, at most: of a wheel, and of one file in it."""


class DistributionError(Exception):
    """Raise if a distribution is not what it should be."""


def require(holds: object, message: str) -> None:
    """Raise with the message unless the condition holds."""
    if not holds:
        raise DistributionError(message)


def run(*words: object, folder: Path = ROOT) -> str:
    """Run a command, and return its output; raise with the output if it fails."""
    environment = os.environ | {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run([str(word) for word in words], cwd=folder, env=environment, capture_output=True, text=True)
    require(not done.returncode, f"{' '.join(map(str, words))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def tracked_files() -> set[str]:
    """Return the files of the checkout that git knows."""
    return set(run("git", "ls-files", "-z").split("\0")) - {""}


def build(out: Path, *options: str) -> None:
    """Build in an environment of its own, which holds hatchling and what that needs."""
    run(sys.executable, "-m", "build", "--outdir", out, *options, ROOT)


def wheel_contents(wheel: Path) -> dict[str, bytes]:
    """Return the files of a wheel by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def check_wheel(contents: dict[str, bytes], tracked: set[str], size: int) -> None:
    """Check that the wheel holds the package as it is in git, whole and alone, and how large it is."""
    information = {name for name in contents if name.partition("/")[0].endswith(".dist-info")}
    package = {name.removeprefix("src/") for name in tracked if name.startswith("src/kcal/")}
    missing, foreign = package - contents.keys(), contents.keys() - information - package
    require(not missing, f"the wheel lacks {sorted(missing)}")
    require(not foreign, f"the wheel contains {sorted(foreign)}, which are no files of src/kcal in git")
    require(any(name.endswith("/licenses/LICENSE") for name in information), "the wheel lacks the license")
    require(size <= MAX_WHEEL, f"the wheel has {size:,} bytes, more than {MAX_WHEEL:,}")
    large = [name for name, content in contents.items() if len(content) > MAX_FILE]
    require(not large, f"files of more than {MAX_FILE:,} bytes are in the wheel: {large}")


def check_metadata(text: bytes, project: dict[str, Any]) -> None:
    """Check the metadata against the specification of Python packages and against pyproject.toml."""
    metadata = Metadata.from_email(text, validate=True)
    require(str(metadata.version) == project["version"], f"the version is {metadata.version}")
    require(metadata.license_expression == project["license"], f"the license is {metadata.license_expression}")
    require(str(metadata.requires_python) == project["requires-python"], f"Python is {metadata.requires_python}")
    extras, expected = set(metadata.provides_extra or ()), set(project["optional-dependencies"])
    require(extras == expected, f"the extras are {sorted(extras)}, not {sorted(expected)}")
    required = {canonicalize_name(each.name) for each in metadata.requires_dist or () if each.marker is None}
    require(len(required) == len(project["dependencies"]), f"required without an extra are {sorted(required)}")
    require(set(project["classifiers"]) == set(metadata.classifiers or ()), "the classifiers differ")
    urls = list((metadata.project_urls or {}).values())
    require(all(url.startswith("https://") for url in urls), f"not all of {urls} are https")
    require(metadata.description_content_type == "text/markdown", "the description is no Markdown")
    check_description(metadata.description or "")


def check_description(text: str) -> None:
    """Check that the description is rendered as a page whose links and figures work outside the checkout."""
    tokens = [
        token
        for block in MarkdownIt("commonmark").enable("table").parse(text)
        for token in [block, *(block.children or ())]
    ]
    require(tokens and tokens[0].tag == "h1", "the description does not begin with a title")
    links = [
        str(token.attrs.get("href") or token.attrs.get("src"))
        for token in tokens
        if token.type in ("link_open", "image")
    ]
    relative = [link for link in links if not link.startswith("https://")]
    require(links and not relative, f"links of the description lead nowhere outside a checkout: {relative}")
    require(any(token.type == "table_open" for token in tokens), "the description has lost its tables")


def check_source(sdist: Path, tracked: set[str], version: str) -> None:
    """Check that the sdist holds the files of git, all of them and no others."""
    with tarfile.open(sdist) as archive:
        names = {name.removeprefix(f"kcal-{version}/") for name in archive.getnames()} - {"PKG-INFO"}
    require(not tracked - names, f"the sdist lacks {sorted(tracked - names)[:10]}")
    require(not names - tracked, f"the sdist contains {sorted(names - tracked)[:10]}, which are not in git")


def build_and_check(project: dict[str, Any]) -> Path:
    """Build the sdist, and the wheel from it; check both; return the wheel."""
    shutil.rmtree(DIST, ignore_errors=True)
    build(DIST)
    tracked, version = tracked_files(), project["version"]
    wheel, sdist = DIST / f"kcal-{version}-py3-none-any.whl", DIST / f"kcal-{version}.tar.gz"
    require({wheel, sdist} == set(DIST.iterdir()) - {DIST / ".gitignore"}, f"dist holds {sorted(DIST.iterdir())}")
    contents = wheel_contents(wheel)
    check_wheel(contents, tracked, wheel.stat().st_size)
    check_metadata(contents[f"kcal-{version}.dist-info/METADATA"], project)
    check_source(sdist, tracked, version)
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder), "--wheel")
        require(contents == wheel_contents(Path(folder) / wheel.name), "wheels of checkout and sdist differ")
    print(f"{wheel.name}: {len(contents)} files, {wheel.stat().st_size:,} bytes; from the sdist as from the checkout")
    print(f"{sdist.name}: {sdist.stat().st_size:,} bytes")
    return wheel


def try_without_extras(wheel: Path) -> None:
    """Install the wheel alone into a new environment, run the demo, and ask for what is not installed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = folder / "environment/bin/python"
        run(sys.executable, "-m", "venv", "--without-pip", folder / "environment")
        print("Installing the wheel into a new environment …", flush=True)
        run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", wheel)
        require(
            run(python, "-m", "kcal", "--version", folder=folder) == f"kcal {wheel.name.split('-')[1]}\n", "--version"
        )
        demo = run(python, "-m", "kcal", "demo", "--out", "demo", folder=folder)
        require("KCalBlend" in demo and (folder / "demo/model.kcal").is_file(), f"the demo shows:\n{demo}")
        print("kcal demo: runs")
        print(run(python, "-I", ROOT / "scripts/missing_extras.py", folder / "demo", folder=folder), end="")


def main(
    trial: Annotated[bool, typer.Option(help="Install the wheel into a new environment and use it.")] = True,
) -> None:
    """Build, check and try the distributions of the checkout."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    try:
        wheel = build_and_check(project)
        if trial:
            try_without_extras(wheel)
    except DistributionError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from error


if __name__ == "__main__":
    typer.run(main)
