"""A saved calibrator comes back as it was."""

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
from model_files import header_of, save_models
from torch import nn

from kcal import FastRecipe, KCal, load, save, train_projection
from kcal.errors import FileFormatError, InvalidInputError

TINY = FastRecipe(steps=4, batch_size=60, checkpoints=2, class_weights="balanced")


def test_everything_a_user_sees_comes_back(fitted: KCal, problem: Any, tmp_path: Path) -> None:
    loaded = load(save(fitted, tmp_path / "model.kcal"))
    for name in ("predict_proba", "log_evidence", "predict", "was_fitted_on"):
        np.testing.assert_array_equal(
            getattr(loaded, name)(problem.test_embeddings), getattr(fitted, name)(problem.test_embeddings)
        )
    np.testing.assert_array_equal(loaded.leave_one_out_proba_, fitted.leave_one_out_proba_)
    np.testing.assert_array_equal(loaded.ids_, fitted.ids_)
    np.testing.assert_array_equal(loaded.bandwidth_curve_.losses, fitted.bandwidth_curve_.losses)
    assert loaded.bandwidth_ == fitted.bandwidth_
    assert loaded.get_params() == fitted.get_params()


def test_equal_fits_in_two_processes_give_equal_files(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    subprocess.run(
        [sys.executable, model_files.__file__, other], env={**os.environ, "PYTHONHASHSEED": seed}, check=True
    )
    for path in save_models(tmp_path):
        assert path.read_bytes() == (other / path.name).read_bytes()


def test_saving_again_gives_the_same_bytes(fitted: KCal, fitted_content: bytes, tmp_path: Path) -> None:
    for _ in range(5):
        assert save(fitted, tmp_path / "model.kcal").read_bytes() == fitted_content
    loaded = load(tmp_path / "model.kcal")
    assert save(loaded, tmp_path / "again.kcal").read_bytes() == fitted_content


def test_samples_of_zero_weight_come_back(problem: Any, tmp_path: Path) -> None:
    weights = (np.arange(240) % 3 > 0).astype(float)
    fitted = KCal(projection="identity", bandwidth=1.0).fit(problem.embeddings, problem.labels, sample_weight=weights)
    loaded = load(save(fitted, tmp_path / "model.kcal"))
    rows = problem.test_embeddings
    np.testing.assert_array_equal(loaded.predict_proba(rows), fitted.predict_proba(rows))


@pytest.mark.parametrize("labels", [["b", "a", "ü 🐟"], [1.0, 0.0, -3.0], [True, False], [7, 2**40, -1]])
def test_labels_of_every_kind_come_back(labels: list[Any], problem: Any, tmp_path: Path) -> None:
    names = np.array(labels)[problem.labels % len(labels)]
    loaded = load(save(KCal(projection="identity").fit(problem.embeddings, names), tmp_path / "model.kcal"))
    assert loaded.classes_.dtype == np.unique(names).dtype
    np.testing.assert_array_equal(loaded.classes_, np.unique(names))


@pytest.mark.parametrize("projection", ["skip", "linear"])
def test_a_learned_projection_and_its_recipe_come_back(projection: str, problem: Any, tmp_path: Path) -> None:
    fitted = KCal(projection=projection, recipe=TINY).fit(
        problem.embeddings.astype(np.float32),
        problem.labels,
        train_embeddings=problem.train_embeddings,
        train_labels=problem.train_labels,
    )
    loaded = load(save(fitted, tmp_path / "model.kcal"))
    assert loaded.recipe == TINY
    assert loaded.training_curve_ == fitted.training_curve_
    rows = problem.test_embeddings.astype(np.float32)
    np.testing.assert_array_equal(loaded.predict_proba(rows), fitted.predict_proba(rows))


def test_a_shared_projection_comes_back_as_the_frozen_module_in_use(problem: Any, tmp_path: Path) -> None:
    trained = train_projection(problem.train_embeddings, problem.train_labels, recipe=TINY)
    fitted = KCal(projection=trained).fit(problem.embeddings, problem.labels)
    loaded = load(save(fitted, tmp_path / "model.kcal"))
    np.testing.assert_array_equal(
        loaded.predict_proba(problem.test_embeddings), fitted.predict_proba(problem.test_embeddings)
    )
    again = loaded.fit(problem.embeddings, problem.labels)
    assert len(again.support_indices_) == 240


def test_a_module_of_the_users_own_is_put_back_into_the_module_that_they_pass(problem: Any, tmp_path: Path) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 4), nn.Tanh()).double()

    fitted = KCal(projection=build(), recipe=TINY).fit(
        problem.embeddings, problem.labels, train_embeddings=problem.train_embeddings, train_labels=problem.train_labels
    )
    path = save(fitted, tmp_path / "model.kcal")
    with pytest.raises(InvalidInputError, match=r"kcal\.load\(path, projection=module\)"):
        load(path)
    loaded = load(path, projection=build())
    np.testing.assert_array_equal(
        loaded.predict_proba(problem.test_embeddings), fitted.predict_proba(problem.test_embeddings)
    )
    with pytest.raises(FileFormatError, match="does not fit"):
        load(path, projection=nn.Linear(6, 4))


def test_a_projection_that_is_stored_whole_takes_no_module(fitted: KCal, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="projection is not needed"):
        load(save(fitted, tmp_path / "model.kcal"), projection=nn.Identity())


def test_the_file_names_its_versions_classes_bandwidth_and_projection(fitted: KCal, tmp_path: Path) -> None:
    header = header_of(save(fitted, tmp_path / "model.kcal"))
    assert header["format_version"] == 1
    assert header["package_version"]
    assert header["values"]["classes"]["labels"] == [0, 1, 2]
    assert header["values"]["bandwidth"] == fitted.bandwidth_
    assert header["values"]["projection"] == "identity"


def test_a_failed_save_leaves_the_old_file_and_no_litter(
    fitted: KCal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(fitted, tmp_path / "model.kcal")
    before = path.read_bytes()

    def fail(handle: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        save(fitted, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_saving_what_cannot_be_saved_says_why(problem: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="calibrator must be a calibrator of kcal"):
        save(nn.Identity(), tmp_path / "model.kcal")
    fitted = KCal(projection="identity").fit(problem.embeddings, problem.labels)
    with pytest.raises(InvalidInputError, match="must be in an existing folder"):
        save(fitted, tmp_path / "nowhere" / "model.kcal")
    with pytest.raises(InvalidInputError, match="got the folder"):
        save(fitted, tmp_path)
    with pytest.raises(Exception, match="not fitted"):
        save(KCal(), tmp_path / "model.kcal")


@pytest.mark.parametrize("path", [None, b"model.kcal", "a\0b", "", 7])
def test_what_is_no_path_is_refused_by_name(problem: Any, path: Any) -> None:
    calibrator = KCal(projection="identity", bandwidth=1.0).fit(problem.embeddings, problem.labels)
    with pytest.raises(InvalidInputError, match="path must be the name of a file"):
        save(calibrator, path)
    with pytest.raises(InvalidInputError, match="path must be the name of a file"):
        load(path)


def test_a_failure_to_write_names_the_callers_path(problem: Any, tmp_path: Path) -> None:
    calibrator = KCal(projection="identity", bandwidth=1.0).fit(problem.embeddings, problem.labels)
    path = tmp_path / ("a" * 300)
    with pytest.raises(OSError, match="too long") as caught:
        save(calibrator, path)
    assert caught.value.filename == str(path)
    with pytest.raises(FileFormatError, match="cannot be read"):
        load(path)


def test_a_file_that_is_replaced_while_it_is_read_is_read_whole(
    fitted: KCal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever Python or torch, which safetensors calls, opens the file, it has just been replaced."""
    other = KCal(projection="identity", bandwidth=0.5).fit(np.eye(9).repeat(3, 0), np.arange(27) % 3)
    files = cycle([save(other, tmp_path / "one"), save(fitted, tmp_path / "two")])
    path = save(fitted, tmp_path / "model.kcal")

    def after_replacing(opener: Callable[..., Any]) -> Callable[..., Any]:
        def replace_and_open(*arguments: Any, **options: Any) -> Any:
            Path(shutil.copy(next(files), tmp_path / "new")).replace(path)
            return opener(*arguments, **options)

        return replace_and_open

    monkeypatch.setattr(Path, "open", after_replacing(Path.open))
    monkeypatch.setattr(torch.UntypedStorage, "from_file", after_replacing(torch.UntypedStorage.from_file))
    for _ in range(4):
        assert load(path).n_features_in_ in (6, 9)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs users and permissions of POSIX")
def test_a_file_that_may_not_be_read_says_so(fitted: KCal, tmp_path: Path) -> None:
    path = save(fitted, tmp_path / "model.kcal")
    path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # nobody: root may read everything
    try:
        with pytest.raises(FileFormatError, match=r"model\.kcal cannot be read: its permissions do not allow it"):
            load(path)
    finally:
        os.seteuid(user)


def test_the_home_folder_may_be_a_tilde(problem: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    calibrator = KCal(projection="identity", bandwidth=1.0).fit(problem.embeddings, problem.labels)
    assert save(calibrator, "~/model.kcal") == tmp_path / "model.kcal"
    assert load("~/model.kcal").bandwidth_ == 1.0


def test_the_module_that_a_caller_passes_stays_as_it_was(problem: Any, tmp_path: Path) -> None:
    module = nn.Linear(6, 4)
    fitted = KCal(projection=nn.Linear(6, 4).double(), recipe=TINY).fit(
        problem.embeddings, problem.labels, train_embeddings=problem.train_embeddings, train_labels=problem.train_labels
    )
    loaded = load(save(fitted, tmp_path / "model.kcal"), projection=module)
    assert loaded.projection_ is not module
    assert module.weight.dtype == torch.float32
    assert module.weight.requires_grad


def test_a_module_for_a_method_without_projection_is_the_callers_mistake(saved: Callable[[str], Path]) -> None:
    path = saved("ts")
    with pytest.raises(InvalidInputError, match="projection is not used by a saved TemperatureScaling"):
        load(path, projection=nn.Identity())
