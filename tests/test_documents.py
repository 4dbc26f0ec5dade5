"""The documents are true: their code runs, and their links lead somewhere."""

from __future__ import annotations

import json
import re
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import kcal.datasets
from deployment.service.running_service import running
from kcal.persistence import CalibrationStore
from scripts.figures import between_markers, with_content

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md")),
]


def code_of(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)


CHECKED = {
    "README.md",
    "docs/distributed.md",  # in tests/distributed, which has a cluster
    "docs/first-steps.md",
    "docs/hospital.md",
    "docs/how-to/compression.md",
    "docs/how-to/embeddings.md",
    "docs/how-to/explanations.md",
    "docs/how-to/export.md",
    "docs/how-to/monitoring.md",
    "docs/how-to/shift.md",
    "docs/serving.md",
}
"""Pages whose code has a test of its own."""


class Network(nn.Module):
    """A small network with a head, as in the README."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh())
        self.head = nn.Linear(16, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(inputs))


def loader(seed: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    """Inputs that are shifted by their labels, in batches with them."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(240) % 3
    inputs = torch.randn(240, 6, generator=generator) + torch.eye(3, 6)[labels]
    return DataLoader(TensorDataset(inputs, labels), batch_size=50)


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
    network, new_loader = Network(), loader(2)
    inputs, labels = new_loader.dataset.tensors
    names: dict[str, Any] = {
        "network": network,
        "calibration_loader": loader(1),
        "new_loader": new_loader,
        "new_labels": labels,
        "inputs": inputs,
    }
    first, *others = code_of("README.md")
    assert len([line for line in first.splitlines() if line.strip()]) == 3
    exec(first, names)
    probs = names["probs"]
    assert probs.shape == (240, 3)
    for code in others:
        exec(code, names)
    np.testing.assert_allclose(names["probs"], probs.detach(), atol=1e-5)  # from arrays as from the network
    with torch.no_grad():
        np.testing.assert_array_equal(names["new"].embeddings[:50], network.body(inputs[:50]))
    assert "accuracy" in capsys.readouterr().out


def run(page: str) -> dict[str, Any]:
    """Run the code of a page from its first line to its last, and return what it has defined."""
    names: dict[str, Any] = {}
    for code in code_of(page):
        exec(code, names)
    return names


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("page", [page for page in PAGES if page not in CHECKED and code_of(page)])
def test_the_code_of_a_page_runs_to_probabilities(page):
    assert run(page)["probs"].shape == (600, 10)


@pytest.mark.usefixtures("quick")
def test_the_code_of_the_first_steps_runs_to_better_probabilities(capsys):
    names = run("docs/first-steps.md")
    labels = names["new_labels"]
    losses = [kcal.evaluate(names[name], labels).negative_log_likelihood for name in ("before", "probs")]
    assert losses[1] < losses[0]
    assert "class-wise calibration error" in capsys.readouterr().out
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["model.kcal", "model.pt", "reliability.png"]


@pytest.mark.usefixtures("quick")
def test_the_code_of_the_page_on_embeddings_runs():
    names = run("docs/how-to/embeddings.md")
    assert names["outputs"].embeddings.shape == (600, 64)
    assert len(names["model"].classes_) == 10


@pytest.mark.usefixtures("quick")
def test_the_shares_on_the_page_on_explanations_sum_to_the_probability():
    names = run("docs/how-to/explanations.md")
    shares = names["frame"].groupby(["row", "class"])["share"].sum().unstack()[list(names["example"].classes)]
    probs = names["blend"].predict_proba(names["test"].embeddings, logits=names["test"].logits)
    np.testing.assert_allclose(shares, probs, atol=1e-6)
    assert len(names["explanation"]) == 600


@pytest.mark.usefixtures("quick")
def test_the_code_of_the_page_on_export_runs(monkeypatch):
    for name in ("to_onnx", "to_exported", "network_to_onnx"):  # slow, and tested elsewhere
        export = create_autospec(getattr(kcal.CalibratedClassifier, name))
        monkeypatch.setattr(kcal.CalibratedClassifier, name, export)
    names = run("docs/how-to/export.md")
    exported = names["program"].module()(names["embeddings"][:3], names["logits"][:3])
    torch.testing.assert_close(exported, names["probs"][:3], atol=1e-5, rtol=0)


@pytest.mark.usefixtures("quick")
def test_the_page_on_shift_finds_the_new_class_frequencies():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kcal.IdentifiabilityWarning)  # of 600 rows
        names = run("docs/how-to/shift.md")
    frequencies = np.bincount(names["test"].labels[names["field"]], minlength=10) / len(names["field"])
    before = np.bincount(names["cal"].labels, minlength=10) / len(names["cal"].labels)
    assert np.abs(names["estimate"].prior - frequencies).sum() < 0.5 * np.abs(before - frequencies).sum()


@pytest.mark.usefixtures("quick")
def test_the_code_of_the_page_on_monitoring_raises_its_alarms(capsys):
    names = run("docs/how-to/monitoring.md")
    assert names["report"].alarm
    assert not names["first"].alarm
    printed = capsys.readouterr().out
    assert "samples without labels, 10 classes" in printed
    assert "ALARM after" in printed


@pytest.mark.usefixtures("quick")
def test_the_code_of_the_page_on_compression_runs():
    assert run("docs/how-to/compression.md")["small"].support_size_ == 60


@pytest.mark.usefixtures("quick")
def test_the_story_of_a_ward_runs_to_its_end(capsys):
    run("docs/hospital.md")
    printed = capsys.readouterr().out
    assert "ALARM" not in printed[: printed.index("BandwidthRecord")]
    assert "ALARM after" in printed
    assert "499 → 125 support points" in printed
    assert kcal.load("ward.kcal").support_size_ == 125


@pytest.mark.usefixtures("quick")
def test_the_code_of_the_page_on_serving_runs_against_a_server(capsys, tmp_path):
    names: dict[str, Any] = {}
    first, *others = code_of("docs/serving.md")
    exec(first, names)
    page = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
    (shell,) = re.findall(r"^```bash\n(.*?)^```", page, re.M | re.S)
    with running(tmp_path / "fashion.kcal", store=tmp_path / "feedback.db") as service:
        said = subprocess.run(
            ["bash", "-c", shell.replace("127.0.0.1:8000", service.address)], capture_output=True, check=True
        )
        assert len(json.loads(said.stdout)["probabilities"][0]) == 10
        with ExitStack() as servers:
            for code in others:
                if "127.0.0.1:8001" in code:
                    network = running(tmp_path / "clothes.kcal", store=tmp_path / "clothes.db")
                    code = code.replace("127.0.0.1:8001", servers.enter_context(network).address)
                exec(code.replace("127.0.0.1:8000", service.address), names)
    blend, test = names["blend"], names["test"]
    expected = blend.predict_proba(test.embeddings[:5], logits=test.logits[:5])
    np.testing.assert_allclose(names["result"].as_numpy("probabilities"), expected, atol=1e-6)
    assert names["answer"].json()["results"] == [{"id": "scan-17", "status": "stored"}]
    assert "kcal_estimated_accuracy" in capsys.readouterr().out
    assert names["seen"].json()["labels"] == names["classifier"].predict(test.inputs()[:2]).tolist()
    with CalibrationStore(tmp_path / "feedback.db") as store, CalibrationStore(tmp_path / "clothes.db") as learnt:
        assert len(store) == 0
        assert learnt.ids() == ["photo-1", "photo-0"]


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
