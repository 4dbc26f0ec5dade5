"""A trained projection in a file, and the device of what is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_files import header_of, rewrite
from torch import nn

from kcal import FastRecipe, KCal, KCalBlend, PaperRecipe, TemperatureScaling, TrainedProjection, load, save
from kcal import train_projection as train
from kcal.errors import FileFormatError, InvalidInputError, LeakageWarning
from kcal.persistence import load_calibrator

TINY = FastRecipe(steps=6, batch_size=60, checkpoints=3)


def trained_on(problem: Any, **options: Any) -> TrainedProjection:
    return train(problem.train_embeddings, problem.train_labels, **({"recipe": TINY} | options))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("projection", ["skip", "linear"])
def test_a_loaded_projection_gives_equal_predictions(
    projection: str, dtype: type, problem: Any, tmp_path: Path
) -> None:
    rows = problem.train_embeddings.astype(dtype)
    trained = train(rows, problem.train_labels, projection=projection, dimension=4, recipe=TINY)
    loaded = load(save(trained, tmp_path / "projection.kcal"))
    assert isinstance(loaded, TrainedProjection)
    assert (loaded.steps, loaded.curve, loaded.recipe) == (trained.steps, trained.curve, trained.recipe)
    expected, found = (
        KCal(projection=given).fit(problem.embeddings, problem.labels).predict_proba(problem.test_embeddings)
        for given in (trained, loaded)
    )
    np.testing.assert_array_equal(found, expected)
    assert save(loaded, tmp_path / "again.kcal").read_bytes() == (tmp_path / "projection.kcal").read_bytes()


def test_classes_and_fingerprints_of_the_training_set_come_back(problem: Any, tmp_path: Path) -> None:
    names = np.array(["b", "a", "ü"])[problem.train_labels]
    trained = train(problem.train_embeddings, names, recipe=TINY, classes=["b", "a", "ü", "z"])
    loaded = load(save(trained, tmp_path / "projection.kcal"))
    assert loaded.classes.tolist() == ["b", "a", "ü", "z"]
    with pytest.warns(LeakageWarning, match="also occur in the training set"):
        KCal(projection=loaded, smoothing=0.1).fit(problem.train_embeddings, names)


def test_the_papers_recipe_comes_back(problem: Any, tmp_path: Path) -> None:
    recipe = PaperRecipe(epochs=1, batches_per_epoch=2, predictions=20, background_per_class=5)
    trained = trained_on(problem, recipe=recipe)
    assert load(save(trained, tmp_path / "projection.kcal")).recipe == trained.recipe


def test_a_module_of_ones_own_is_needed_to_load_it(problem: Any, tmp_path: Path) -> None:
    module = nn.Linear(6, 2, dtype=torch.float64)
    trained = trained_on(problem, projection=module)
    path = save(trained, tmp_path / "projection.kcal")
    with pytest.raises(InvalidInputError, match="projection is needed: the projection is a module of your own"):
        load(path)
    loaded = load(path, projection=nn.Linear(6, 2))
    for one, other in zip(loaded.checkpoints, trained.checkpoints, strict=True):
        assert torch.equal(one.weight, other.weight)
    with pytest.raises(FileFormatError, match="the stored projection does not fit"):
        load(path, projection=nn.Linear(5, 2))
    with pytest.raises(InvalidInputError, match="projection is not needed"):
        load(save(trained_on(problem), path), projection=module)


def test_a_damaged_projection_is_refused(problem: Any, tmp_path: Path) -> None:
    path = save(trained_on(problem), tmp_path / "projection.kcal")
    whole = header_of(path)
    for name, value in (
        ("steps", [1]),
        ("checkpoints", []),
        ("recipe", {"name": "slow"}),
        ("curve", {}),
        ("classes", 3),
    ):
        with pytest.raises(FileFormatError):
            load(rewrite(path, whole | {"values": whole["values"] | {name: value}}))
    assert isinstance(load(rewrite(path, whole)), TrainedProjection)


def test_a_projection_is_no_calibrator(problem: Any, tmp_path: Path) -> None:
    path = save(trained_on(problem), tmp_path / "projection.kcal")
    with pytest.raises(FileFormatError, match="holds a trained projection, not a calibrator"):
        load_calibrator(path)


@pytest.mark.parametrize("kind", [KCal, KCalBlend])
def test_loading_to_a_device_moves_the_kernel_sums_there(kind: Any, problem: Any, tmp_path: Path) -> None:
    parameters = {"projection": "identity"} if kind is KCal else {}
    fitted = kind(**parameters).fit(problem.embeddings, problem.labels)
    path = save(fitted, tmp_path / "model.kcal")
    for device in ("cpu", torch.device("cpu")):
        loaded = load(path, device=device)
        np.testing.assert_array_equal(
            loaded.predict_proba(problem.test_embeddings), fitted.predict_proba(problem.test_embeddings)
        )
    for device in ("toaster", "cuda:99", "meta", 1.5, ""):
        with pytest.raises(InvalidInputError, match=r"^device must be a device of this machine") as raised:
            load(path, device=device)
        assert raised.value.parameter == "device"
        with pytest.raises(InvalidInputError, match=r"^device must be a device of this machine"):
            loaded.to(device)


def test_loading_calls_for_the_device(problem: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moves = []
    monkeypatch.setattr(KCal, "to", lambda self, device: moves.append(device) or self)
    path = save(KCal(projection="identity").fit(problem.embeddings, problem.labels), tmp_path / "model.kcal")
    load(path)
    assert moves == []
    load(path, device="cpu")
    assert moves == [torch.device("cpu")]


def test_a_device_is_refused_where_nothing_runs_on_it(problem: Any, tmp_path: Path) -> None:
    for saved in (TemperatureScaling().fit(problem.logits, problem.labels), trained_on(problem)):
        with pytest.raises(InvalidInputError, match=f"device is not used by a saved {type(saved).__name__}"):
            load(save(saved, tmp_path / "model.kcal"), device="cpu")
