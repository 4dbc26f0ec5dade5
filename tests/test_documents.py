"""The code of the documents and of the examples runs."""

from __future__ import annotations

import json
import re
import runpy
import warnings
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import kcal.datasets
from kcal.persistence import CalibrationStore
from page_code import PAGES, ROOT, PageRun, SharedFolders, blocks_of, run_page, small_example
from page_models import PREPARED

ON_A_CLUSTER = "docs/distributed.md"  # runs in tests/distributed, which has one
CODED = [page for page in PAGES if blocks_of(page) and page != ON_A_CLUSTER]
RunPage = Callable[[str], PageRun]


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


def names_of_the_reader(page: str) -> dict[str, Any]:
    """Return what a page takes from its reader: the README has three lines for a network that the reader has."""
    if page != "README.md":
        return {}
    torch.manual_seed(0)
    new_loader = loader(2)
    inputs, labels = new_loader.dataset.tensors
    names = {"network": Network(), "calibration_loader": loader(1), "new_loader": new_loader}
    return {**names, "new_labels": labels, "inputs": inputs}


@pytest.fixture(scope="module")
def ran(short_trainings: None, shared_operators: None, tmp_path_factory: pytest.TempPathFactory) -> RunPage:
    """Run the code of a page, once for all tests that look at it."""
    shared = SharedFolders(tmp_path_factory.mktemp("shared"))
    runs: dict[str, PageRun] = {}

    def run(page: str) -> PageRun:
        if page not in runs:
            folder = tmp_path_factory.mktemp("page")
            with warnings.catch_warnings():
                if page in PREPARED:
                    warnings.simplefilter("ignore")  # of other libraries
                    torch.manual_seed(0)
                    PREPARED[page](folder)
                    warnings.simplefilter("error", kcal.KcalWarning)
                runs[page] = run_page(page, folder, names=names_of_the_reader(page), shared=shared)
        return runs[page]

    return run


@pytest.mark.parametrize("page", CODED)
def test_every_block_of_a_page_runs(ran, page):
    probs = ran(page).names.get("probs", [[1.0]])
    np.testing.assert_allclose(torch.as_tensor(probs).detach().sum(dim=1), 1, atol=1e-5)


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "gallery").glob("*.py")), ids=lambda path: path.stem)
def test_an_example_of_the_gallery_runs_and_draws(path):
    with small_example():
        names = runpy.run_path(str(path))
    assert plt.get_fignums()
    assert "example" in names
    plt.close("all")


def test_the_readme_leads_from_a_torch_model_to_metrics(ran):
    run = ran("README.md")
    probs = run.names["probs"]
    assert probs.shape == (240, 3)
    with torch.no_grad():
        inputs, network = run.names["inputs"], run.names["network"]
        np.testing.assert_allclose(probs, run.names["model"](inputs), atol=1e-5)  # from arrays as from the network
        np.testing.assert_array_equal(run.names["new"].embeddings[:50], network.body(inputs[:50]))
    assert "accuracy" in run.output


def test_the_first_steps_lead_to_better_probabilities(ran):
    run = ran("docs/first-steps.md")
    labels = run.names["new_labels"]
    losses = [kcal.evaluate(run.names[name], labels).negative_log_likelihood for name in ("before", "probs")]
    assert losses[1] < losses[0]
    assert "class-wise ECE" in run.output
    files = {"model.kcal", "model.pt", "reliability.png", "kcal-demo", "probabilities.csv", "report"}
    assert {path.name for path in run.folder.iterdir()} == files


def test_the_sets_of_the_page_on_prediction_sets_have_their_coverage(ran):
    run = ran("docs/how-to/prediction-sets.md")
    sets, labels = run.names["sets"], run.names["test"].labels
    covered = sets[np.arange(len(sets)), labels]
    assert covered.mean() == pytest.approx(0.9, abs=0.04)  # 600 sets of 300 samples
    marginal = float(re.search(r"coverage \[(.*?)\]", run.output).group(1))
    assert marginal == pytest.approx(0.9, abs=0.05)


def test_the_shares_on_the_page_on_explanations_sum_to_the_probability(ran):
    run = ran("docs/how-to/explanations.md")
    names = run.names
    shares = names["frame"].groupby(["row", "class"])["share"].sum().unstack()[list(names["example"].classes)]
    probs = names["blend"].predict_proba(names["test"].embeddings, logits=names["test"].logits)
    np.testing.assert_allclose(shares, probs, atol=1e-6)
    assert len(names["explanation"]) == 600
    assert (run.folder / "why.png").stat().st_size > 0


def test_the_exports_of_the_page_on_export_agree_with_torch(ran):
    run = ran("docs/how-to/export.md")
    names = run.names
    exported = names["program"].module()(names["embeddings"][:3], names["logits"][:3])
    torch.testing.assert_close(exported, names["probs"][:3], atol=1e-5, rtol=0)
    session = pytest.importorskip("onnxruntime").InferenceSession(run.folder / "model.onnx")
    probs = session.run(None, {session.get_inputs()[0].name: names["inputs"][:3].numpy()})[0]
    with torch.no_grad():
        np.testing.assert_allclose(probs, names["model"](names["inputs"][:3]), atol=1e-5)


def test_the_page_on_shift_finds_the_new_class_frequencies(ran):
    names = ran("docs/how-to/shift.md").names
    frequencies = np.bincount(names["test"].labels[names["field"]], minlength=10) / len(names["field"])
    before = np.bincount(names["cal"].labels, minlength=10) / len(names["cal"].labels)
    assert np.abs(names["estimate"].prior - frequencies).sum() < 0.5 * np.abs(before - frequencies).sum()


def test_the_page_on_monitoring_raises_its_alarms(ran):
    run = ran("docs/how-to/monitoring.md")
    assert run.names["report"].alarm
    assert not run.names["first"].alarm
    assert "samples without labels, 10 classes" in run.output
    assert "ALARM after" in run.output


def test_the_story_of_a_ward_runs_to_its_end(ran):
    run = ran("docs/hospital.md")
    assert "ALARM" not in run.output[: run.output.index("BandwidthRecord")]
    assert "ALARM after" in run.output
    assert "499 → 125 support points" in run.output
    assert kcal.load(run.folder / "ward.kcal").support_size_ == 125


def test_the_page_on_serving_gets_the_probabilities_of_the_library(ran):
    run = ran("docs/serving.md")
    names = run.names
    blend, test = names["blend"], names["test"]
    expected = blend.predict_proba(test.embeddings[:5], logits=test.logits[:5])
    np.testing.assert_allclose(names["result"].as_numpy("probabilities"), expected, atol=1e-6)
    assert names["response"].json()["results"] == [{"id": "scan-17", "status": "stored"}]
    assert "kcal_estimated_accuracy" in run.output
    response, _ = json.JSONDecoder().raw_decode(run.output, run.output.index('{"model":'))  # of curl
    assert len(response["probabilities"][0]) == 10
    assert names["seen"].json()["labels"] == names["classifier"].predict(test.inputs()[:2]).tolist()
    stores = (run.folder / "feedback.db", run.folder / "clothes.db")
    with CalibrationStore(stores[0]) as store, CalibrationStore(stores[1]) as learnt:
        assert len(store) == 0
        assert learnt.ids() == ["photo-1", "photo-0"]


# The examples run with the libraries that they are for.

POINTS = torch.randn(400, 5, generator=torch.Generator().manual_seed(0))
LABELS = (POINTS[:, 0] + 0.5 * POINTS[:, 1] > 0).long() + (POINTS[:, 2] > 1).long()


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Dropout(0.1), nn.Linear(12, 3))


def test_lightning_calibrates_at_the_end_of_training(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightning = pytest.importorskip("pytorch_lightning")
        from lightning_callback import Calibrate

        class Network(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.layers = layers()

            def forward(self, points: torch.Tensor) -> torch.Tensor:
                return self.layers(points)

            def training_step(self, batch: Any, _: int) -> torch.Tensor:
                return nn.functional.cross_entropy(self(batch[0]), batch[1])

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.Adam(self.parameters(), lr=0.01)

        train = DataLoader(TensorDataset(POINTS[:200], LABELS[:200]), batch_size=50)
        calibration = DataLoader(TensorDataset(POINTS[200:350], LABELS[200:350]), batch_size=50)
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
        callback = Calibrate(calibration)
        trainer = lightning.Trainer(max_epochs=3, callbacks=[callback], default_root_dir=tmp_path, **quiet)
        trainer.fit(Network(), train)
    probs = callback.model(POINTS[350:]).detach().numpy()
    np.testing.assert_allclose(probs, callback.model.predict_proba(POINTS[350:]), atol=1e-6)
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-5)


def test_skorch_is_calibrated_on_its_own_arrays(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    skorch = pytest.importorskip("skorch")
    from skorch_classifier import calibrate

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = skorch.NeuralNetClassifier(
            layers, criterion=nn.CrossEntropyLoss, max_epochs=3, lr=0.1, train_split=None, verbose=0
        )
        net.fit(POINTS[:200].numpy(), LABELS[:200].numpy())
        calibrated = calibrate(net, POINTS[200:350].numpy(), LABELS[200:350].numpy())
    probs = calibrated.predict_proba([POINTS[350:]])
    assert probs.shape == (50, 3)
    assert (probs.argmax(axis=1) == LABELS[350:].numpy()).mean() > 0.6
