"""Write constraints-lowest.txt: the lowest versions that pyproject.toml allows, for ``make test-lowest``.

    python -m scripts.lowest_versions

Covered are the dependencies and the extras in EXTRAS; what only the tests need has the versions of
constraints.txt. Dependencies of dependencies are not listed: they are as new as can be, as for a user who keeps an old
version of one package.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kcal.files import write_whole

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "constraints-lowest.txt"
EXTRAS = ("plots", "gp", "tables", "serve")
"""Not onnx, which needs a newer torch, and not ray, for its size; tests that need them are skipped."""
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "torchmetrics", "httpx", "tritonclient[http]", "pyyaml")
"""What the core tests need beside kcal."""
HEADING = "# The lowest versions that pyproject.toml allows, written by python -m scripts.lowest_versions.\n"


def lowest_bound(requirement: str) -> str:
    """Return the pin of a requirement to its lower bound: ``numpy>=1.26`` becomes ``numpy==1.26``."""
    parsed = Requirement(requirement)
    bounds = [bound.version for bound in parsed.specifier if bound.operator == ">="]
    if len(bounds) != 1:
        raise ValueError(f"{requirement} must have one lower bound, as in {parsed.name}>=1.0")
    return f"{parsed.name}=={bounds[0]}"


def _find(requirements: Iterable[str], names: Iterable[str]) -> list[Requirement]:
    """Return the requirements of these packages, with the extras of the names; a package without one is an error."""
    by_name = {canonicalize_name(each.name): each for each in map(Requirement, requirements)}
    found = []
    for wanted in map(Requirement, names):
        requirement = by_name[canonicalize_name(wanted.name)]
        requirement.extras |= wanted.extras
        found.append(requirement)
    return found


def lowest_versions(project: dict[str, Any], newest: Iterable[str]) -> str:
    """Return the content of the file.

    Parameters
    ----------
    project : dict
        The table ``project`` of pyproject.toml.
    newest : iterable of str
        The lines of constraints.txt.
    """
    extras = project["optional-dependencies"]
    required = [*project["dependencies"], *(line for extra in EXTRAS for line in extras[extra])]
    pins = [lowest_bound(line) for line in required]
    pins += map(str, _find((line for line in newest if "==" in line), TOOLS))
    return HEADING + "".join(f"{pin}\n" for pin in sorted(set(pins), key=str.lower))


def current() -> str:
    """Return the content of the file for the checkout."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return lowest_versions(project, (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines())


if __name__ == "__main__":
    write_whole(TARGET, current().encode())
