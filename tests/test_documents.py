"""The documents are true: their code runs, and their links lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
import torch
from torch import nn

import kcal.datasets
from scripts.figures import between_markers, with_content

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md"))]


class Network(nn.Module):
    """A small network with a head, as in the README."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh())
        self.head = nn.Linear(16, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(inputs))


def batches(seed: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Labels, and inputs that they shift, in batches."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(240) % 3
    inputs = torch.randn(240, 6, generator=generator) + torch.eye(3, 6)[labels]
    return labels, list(inputs.split(50))


def code_of(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)


def load_small_example() -> kcal.datasets.Example:
    """Return the first rows of every part of the example."""
    example = kcal.datasets.load_example()
    arrays = ("embeddings", "logits", "labels", "rows")
    parts = {name: getattr(example, name) for name in ("train", "calibration", "test")}
    cut = {name: replace(part, **{a: getattr(part, a)[:600] for a in arrays}) for name, part in parts.items()}
    return replace(example, **cut)


@pytest.fixture
def quick(short_trainings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kcal, "load_example", load_small_example)
    yield
    plt.close("all")


@pytest.mark.usefixtures("quick")
def test_the_code_of_the_readme_runs_from_a_torch_model_to_metrics(capsys):
    torch.manual_seed(0)
    calibration_labels, calibration_batches = batches(1)
    new_labels, new_batches = batches(2)
    names: dict[str, Any] = {
        "model": Network(),
        "calibration_labels": calibration_labels,
        "calibration_batches": calibration_batches,
        "new_labels": new_labels,
        "new_batches": new_batches,
    }
    first, *others = code_of("README.md")
    assert len([line for line in first.splitlines() if line.strip()]) <= 16
    for code in (first, *others):
        exec(code, names)
    assert names["probs"].shape == (240, 3)
    with torch.no_grad():
        hidden = torch.cat([names["model"].body(batch) for batch in new_batches])
    torch.testing.assert_close(names["embeddings"], hidden)
    assert "accuracy" in capsys.readouterr().out


@pytest.mark.usefixtures("quick")
def test_the_code_of_the_guide_runs():
    names: dict[str, Any] = {}
    for code in code_of("docs/guide.md"):
        exec(code, names)
    assert names["probs"].shape == (600, 10)


def test_writing_a_table_changes_nothing_else():
    assert with_content(README, between_markers(README)) == README
    assert between_markers(with_content(README, "new\n")) == "new\n"
    with pytest.raises(ValueError, match="has no lines"):
        with_content("nothing", "new\n")


def test_the_readme_is_short():
    assert len(README.split()) < 900


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page):
    folder = (ROOT / page).parent
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", (ROOT / page).read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = folder / name if name else ROOT / page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}, link
