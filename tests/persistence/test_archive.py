"""What is saved comes back as it was: every method, every label, projections, and modules of the user's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import model_files
import numpy as np
import pytest
import torch
from model_files import save_models
from sklearn.exceptions import NotFittedError
from torch import nn

from kcal import FastRecipe, KCal, KCalBlend, PaperRecipe, TrainedProjection, load, save, train_projection
from kcal.errors import FileFormatError, InvalidInputError, LeakageWarning
from kcal.persistence import load_calibrator, to_bytes

TINY = FastRecipe(steps=4, batch_size=60, checkpoints=2, class_weights="balanced")


def learned(problem: Any, **parameters: Any) -> KCal:
    train = {"train_embeddings": problem.train_embeddings, "train_labels": problem.train_labels}
    return KCal(recipe=TINY, **parameters).fit(problem.embeddings, problem.labels, **train)


def trained_on(problem: Any, **options: Any) -> TrainedProjection:
    return train_projection(problem.train_embeddings, problem.train_labels, **({"recipe": TINY} | options))


def assert_same_predictions(one: Any, other: Any, problem: Any) -> None:
    np.testing.assert_array_equal(*(each.predict_proba(problem.test_embeddings) for each in (one, other)))


def test_loaded_calibrator_equals_saved_one(fitted: KCal, problem: Any, tmp_path: Path) -> None:
    loaded = load(save(fitted, tmp_path / "model.kcal"))
    for name in ("predict_proba", "log_evidence", "evidence", "predict"):
        np.testing.assert_array_equal(*(getattr(one, name)(problem.test_embeddings) for one in (loaded, fitted)))
    np.testing.assert_array_equal(loaded.leave_one_out_proba_, fitted.leave_one_out_proba_)
    np.testing.assert_array_equal(loaded.ids_, fitted.ids_)
    np.testing.assert_array_equal(loaded.bandwidth_curve_.losses, fitted.bandwidth_curve_.losses)
    assert (loaded.bandwidth_, loaded.get_params()) == (fitted.bandwidth_, fitted.get_params())


def test_equal_fits_give_equal_files(fitted: KCal, fitted_content: bytes, tmp_path: Path) -> None:
    assert to_bytes(fitted) == to_bytes(load(save(fitted, tmp_path / "model"))) == fitted_content
    other = tmp_path / "other"
    other.mkdir()
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    subprocess.run([sys.executable, model_files.__file__, other], env=environment, check=True)
    for path in save_models(tmp_path):
        assert path.read_bytes() == (other / path.name).read_bytes()


LABELS = [["b", "a", "ü 🐟"], [1.0, 0.0, -3.0], [True, False], [7, 2**40, -1], [2**63, 2**63 + 1, 2**63 + 2]]


TEXTS = [np.array(list("abc"), dtype=np.dtypes.StringDType())] if hasattr(np.dtypes, "StringDType") else []


@pytest.mark.parametrize("labels", [*map(np.array, LABELS), np.arange(3, dtype=np.float16), *TEXTS], ids=str)
def test_labels_of_every_kind_come_back(labels: Any, problem: Any, tmp_path: Path) -> None:
    names, ids = labels[problem.labels % len(labels)], np.array([f"-{row}" for row in range(240)], dtype=object)
    fitted = KCal(projection="identity", bandwidth=1.0).fit(problem.embeddings, names, ids=ids)
    loaded = load(save(fitted, tmp_path / "model"))
    np.testing.assert_array_equal(loaded.classes_, fitted.classes_, strict=True)
    np.testing.assert_array_equal(loaded.classes_, np.unique(names))
    np.testing.assert_array_equal(loaded.ids_, ids)


@pytest.mark.parametrize("projection", ["residual", "linear"])
def test_learned_projection_and_its_recipe_come_back(projection: str, problem: Any, tmp_path: Path) -> None:
    fitted = learned(problem, projection=projection)
    loaded = load(save(fitted, tmp_path / "model.kcal"))
    assert (loaded.recipe, loaded.training_curve_) == (TINY, fitted.training_curve_)
    assert_same_predictions(loaded, fitted, problem)


def test_own_module_is_passed_again_and_copied(problem: Any, tmp_path: Path) -> None:
    fitted, module = learned(problem, projection=nn.Linear(6, 4).double()), nn.Linear(6, 4)
    path = save(fitted, tmp_path / "model.kcal")
    with pytest.raises(InvalidInputError, match=r"^projection"):
        load(path)
    loaded = load(path, projection=module)
    assert_same_predictions(loaded, fitted, problem)
    assert loaded.projection_ is not module
    assert (module.weight.dtype, module.weight.requires_grad) == (torch.float32, True)
    with pytest.raises(FileFormatError):
        load(path, projection=nn.Linear(6, 5))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("projection", ["residual", "linear"])
def test_trained_projection_comes_back(projection: str, dtype: type, problem: Any, tmp_path: Path) -> None:
    rows = problem.train_embeddings.astype(dtype)
    trained = train_projection(rows, problem.train_labels, projection=projection, dimension=4, recipe=TINY)
    path = save(trained, tmp_path / "projection.kcal")
    loaded = load(path)
    assert isinstance(loaded, TrainedProjection)
    assert (loaded.steps, loaded.curve, loaded.recipe) == (trained.steps, trained.curve, trained.recipe)
    pair = (KCal(projection=each).fit(problem.embeddings, problem.labels) for each in (trained, loaded))
    assert_same_predictions(*pair, problem)
    assert to_bytes(loaded) == path.read_bytes()
    with pytest.raises(FileFormatError, match="not a calibrator"):
        load_calibrator(path)


def test_classes_recipe_and_fingerprints_of_a_trained_projection_come_back(problem: Any, tmp_path: Path) -> None:
    names = np.array(["b", "a", "ü"])[problem.train_labels]
    recipe = PaperRecipe(epochs=1, batches_per_epoch=2, predictions=20, background_per_class=5)
    trained = train_projection(problem.train_embeddings, names, recipe=recipe, classes=["b", "a", "ü", "z"])
    loaded = load(save(trained, tmp_path / "projection.kcal"))
    assert loaded.classes.tolist() == ["b", "a", "ü", "z"]
    assert loaded.recipe == trained.recipe
    with pytest.warns(LeakageWarning, match="training set"):
        KCal(projection=loaded, smoothing=0.1).fit(problem.train_embeddings, names)


@pytest.mark.filterwarnings("ignore:No logits were given")
@pytest.mark.parametrize("kind", [KCal, KCalBlend])
def test_loading_to_a_device(kind: Any, problem: Any, saved: Callable[[str], Path], tmp_path: Path) -> None:
    fitted = kind(**({"projection": "identity"} if kind is KCal else {})).fit(problem.embeddings, problem.labels)
    path = save(fitted, tmp_path / "model")
    loaded = load(path, device="cpu")
    assert_same_predictions(loaded, fitted, problem)
    for device in ("toaster", "cuda:99", "meta", 1.5, ""):
        for move in (loaded.to, lambda device: load(path, device=device)):
            with pytest.raises(InvalidInputError, match=r"^device"):
                move(device)
    for file in (saved("ts"), save(trained_on(problem), tmp_path / "projection")):
        with pytest.raises(InvalidInputError, match=r"^device is not used"):
            load(file, device="cpu")


def test_what_cannot_be_saved(fitted: KCal, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"^calibrator"):
        save(nn.Identity(), tmp_path / "model.kcal")
    with pytest.raises(NotFittedError):
        save(KCal(), tmp_path / "model.kcal")
    for path in (tmp_path, tmp_path / "nowhere" / "model.kcal"):
        with pytest.raises(InvalidInputError, match=r"^path"):
            save(fitted, path)
    long = tmp_path / ("a" * 300)
    with pytest.raises(OSError, match="too long") as caught:
        save(fitted, long)
    assert caught.value.filename == str(long)
    with pytest.raises(FileFormatError, match="cannot be read"):
        load(long)


def test_file_that_is_replaced_while_it_is_read_is_read_whole(
    fitted: KCal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever Python opens the file, it has just been replaced."""
    other = KCal(projection="identity", bandwidth=0.5).fit(np.eye(9).repeat(3, 0), np.arange(27) % 3)
    files = cycle([save(other, tmp_path / "one"), save(fitted, tmp_path / "two")])
    path, opener = save(fitted, tmp_path / "model.kcal"), Path.open

    def replace_and_open(self: Path, *arguments: Any, **options: Any) -> Any:
        Path(shutil.copy(next(files), tmp_path / "new")).replace(path)
        return opener(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", replace_and_open)
    assert [load(path).n_features_in_ for _ in range(4)] == [9, 6, 9, 6]


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs users and permissions of POSIX")
def test_file_that_may_not_be_read(fitted: KCal, tmp_path: Path) -> None:
    path = save(fitted, tmp_path / "model.kcal")
    path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # nobody: root may read everything
    try:
        with pytest.raises(FileFormatError, match=r"model\.kcal"):
            load(path)
    finally:
        os.seteuid(user)
