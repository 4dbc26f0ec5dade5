"""constraints-lowest.txt is what pyproject.toml allows."""

from __future__ import annotations

import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from scripts.lowest_versions import EXTRAS, ROOT, TARGET, current, lowest_bound, lowest_versions

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pins() -> dict[str, Version]:
    """Read the file without the code that writes it."""
    lines = [line.partition("==") for line in TARGET.read_text(encoding="utf-8").splitlines() if "==" in line]
    return {name.partition("[")[0].lower(): Version(version) for name, _, version in lines}


def test_the_file_is_up_to_date() -> None:
    assert TARGET.read_text(encoding="utf-8") == current(), "run python -m scripts.lowest_versions"


def test_every_pin_is_allowed_and_nothing_lower_is() -> None:
    extras = PROJECT["optional-dependencies"]
    for line in [*PROJECT["dependencies"], *(line for extra in EXTRAS for line in extras[extra])]:
        requirement, pinned = Requirement(line), pins()[Requirement(line).name.lower()]
        assert requirement.specifier.contains(pinned)
        assert not requirement.specifier.contains(f"{pinned}.dev0", prereleases=True)


def test_a_raised_bound_and_a_new_dependency_are_followed() -> None:
    extras = {extra: ["extra>=3"] for extra in EXTRAS} | {"dev": ["other"]}
    project = {"dependencies": ["numpy>=2", "new>=0.1,<1"], "optional-dependencies": extras}
    newest = ["# heading", *(f"{name}==9" for name in ("pytest", "Pytest_XDist", "hypothesis", "httpx", "PyYAML"))]
    written = lowest_versions(project, [*newest, "torchmetrics==9", "tritonclient==9", "other==9"]).splitlines()
    assert {"numpy==2", "new==0.1", "extra==3", "pytest==9", "tritonclient[http]==9"} < set(written)
    assert not any(line.startswith("other") for line in written)


@pytest.mark.parametrize("requirement", ["numpy", "numpy<2", "numpy==1.26"])
def test_a_requirement_without_a_lower_bound_is_refused(requirement: str) -> None:
    with pytest.raises(ValueError, match="must have one lower bound"):
        lowest_bound(requirement)
