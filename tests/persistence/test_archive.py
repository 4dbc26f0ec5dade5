"""A calibrator survives its file; a file that is not one says so."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors
from torch import nn

from calibrator_checks import quick, unlearned
from kcal import METHODS, FastRecipe, KCal, TemperatureScaling, load, save, train_projection
from kcal.calibrators import ClassifierOutputs, fit_on
from kcal.errors import FileFormatError, InvalidInputError, KcalError

TINY = FastRecipe(steps=4, batch_size=60, checkpoints=2, class_weights="balanced")


@pytest.fixture
def fitted(problem: Any) -> KCal:
    return KCal(projection="identity", prior=[0.2, 0.3, 0.5], smoothing=0.01, folds=4).fit(
        problem.embeddings,
        problem.labels,
        sample_weight=np.linspace(0.5, 2.0, 240),
        ids=np.arange(240) + 1000,
        groups=np.arange(240) % 12,
    )


def header_of(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["kcal"])


def rewrite(path: Path, header: Any, tensors: dict[str, torch.Tensor] | None = None) -> Path:
    tensors = read_tensors(path.read_bytes()) if tensors is None else tensors
    path.write_bytes(write_tensors(tensors, metadata={"kcal": json.dumps(header)}))
    return path


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
    assert repr(loaded) == repr(fitted)


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
    with pytest.raises(InvalidInputError, match="leave projection= out"):
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
    with pytest.raises(InvalidInputError, match="expects a calibrator"):
        save(nn.Identity(), tmp_path / "model.kcal")
    fitted = KCal(projection="identity").fit(problem.embeddings, problem.labels)
    with pytest.raises(InvalidInputError, match="is not a folder"):
        save(fitted, tmp_path / "nowhere" / "model.kcal")
    with pytest.raises(InvalidInputError, match="is a folder"):
        save(fitted, tmp_path)
    with pytest.raises(Exception, match="not fitted"):
        save(KCal(), tmp_path / "model.kcal")


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    with pytest.raises(FileFormatError, match="is not a file"):
        load(path)
    for content in (b"", b"hello", b"\x80\x04\x95pickle", b"PK\x03\x04" + bytes(40), b"\xff" * 64):
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match="not a kcal file"):
            load(path)
    path.write_bytes(write_tensors({"weight": torch.zeros(3)}))
    with pytest.raises(FileFormatError, match="kcal did not write it"):
        load(path)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_truncated_file_is_refused(fitted: KCal, tmp_path: Path, data: st.DataObject) -> None:
    path = save(fitted, tmp_path / "model.kcal")
    content = path.read_bytes()
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(FileFormatError):
        load(path)


def paths_into(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        for name, entry in value.items():
            found += paths_into(entry, (*path, name))
    return found


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_hostile_header_gives_a_clear_error_or_a_working_calibrator(
    fitted: KCal, problem: Any, tmp_path: Path, data: st.DataObject
) -> None:
    path = save(fitted, tmp_path / "model.kcal")
    header = header_of(path)
    *parents, last = data.draw(st.sampled_from(paths_into(header)))
    place = header
    for name in parents:
        place = place[name]
    if data.draw(st.booleans()):
        del place[last]
    else:
        place[last] = data.draw(st.sampled_from([None, -1, 0, 1e308, "x", [], {}, [1, 2], True, "__import__('os')"]))
    rewrite(path, header)
    try:
        loaded = load(path)
    except KcalError:
        return
    try:
        loaded.predict_proba(problem.test_embeddings[:3])
    except (KcalError, ValueError):
        return


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("support.points", torch.zeros(5, 6, dtype=torch.float64)),
        ("support.points", torch.full((240, 6), torch.nan, dtype=torch.float64)),
        ("support.points", torch.zeros(240)),
        ("support.codes", torch.full((240,), 9)),
        ("support.codes", torch.full((240,), -1)),
        ("support.codes", torch.zeros(240)),
        ("support.weights", torch.ones(3)),
        ("support.keys", torch.ones(3)),
    ],
)
def test_tensors_that_do_not_fit_together_are_refused(
    fitted: KCal, tmp_path: Path, name: str, tensor: torch.Tensor
) -> None:
    path = save(fitted, tmp_path / "model.kcal")
    tensors = read_tensors(path.read_bytes())
    with pytest.raises(FileFormatError):
        load(rewrite(path, header_of(path), {**tensors, name: tensor}))


def test_a_newer_format_asks_for_a_newer_kcal(fitted: KCal, tmp_path: Path) -> None:
    path = save(fitted, tmp_path / "model.kcal")
    header = header_of(path)
    header["format_version"] = 99
    with pytest.raises(FileFormatError, match="Upgrade kcal"):
        load(rewrite(path, header))


def test_a_temperature_out_of_bounds_is_refused(problem: Any, tmp_path: Path) -> None:
    path = save(TemperatureScaling().fit(problem.logits, problem.labels), tmp_path / "model.kcal")
    header = header_of(path)
    header["values"]["temperature"] = -1.0
    with pytest.raises(FileFormatError, match="out of bounds"):
        load(rewrite(path, header))


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
    with pytest.raises(FileFormatError, match="not a kcal file"):
        load(path)


def test_the_home_folder_may_be_a_tilde(problem: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    calibrator = KCal(projection="identity", bandwidth=1.0).fit(problem.embeddings, problem.labels)
    assert save(calibrator, "~/model.kcal") == tmp_path / "model.kcal"
    assert load("~/model.kcal").bandwidth_ == 1.0


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("values", "classes", "dtype"), "<U400000000"),
        (("values", "classes", "dtype"), "M8[s]"),
        (("values", "n_features"), 300_000_000),
        (("values", "ids"), {"dtype": "<i8", "labels": [1, 2]}),
    ],
)
def test_a_header_that_asks_for_the_absurd_is_refused(fitted: KCal, tmp_path: Path, place: Any, value: Any) -> None:
    path = save(fitted, tmp_path / "model.kcal")
    header = header_of(path)
    inner = header
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    with pytest.raises(FileFormatError):
        load(rewrite(path, header))


def test_a_number_of_thousands_of_digits_is_a_damaged_file(fitted: KCal, tmp_path: Path) -> None:
    path = save(fitted, tmp_path / "model.kcal")
    text = json.dumps(header_of(path)).replace('"format_version": 1', '"format_version": ' + "1" * 5000)
    path.write_bytes(write_tensors(read_tensors(path.read_bytes()), metadata={"kcal": text}))
    with pytest.raises(FileFormatError):
        load(path)


def test_the_module_that_a_caller_passes_stays_as_it_was(problem: Any, tmp_path: Path) -> None:
    module = nn.Linear(6, 4)
    fitted = KCal(projection=nn.Linear(6, 4).double(), recipe=TINY).fit(
        problem.embeddings, problem.labels, train_embeddings=problem.train_embeddings, train_labels=problem.train_labels
    )
    loaded = load(save(fitted, tmp_path / "model.kcal"), projection=module)
    assert loaded.projection_ is not module
    assert module.weight.dtype == torch.float32
    assert module.weight.requires_grad


DAMAGES: list[tuple[str, Any]] = [
    ("seed", -1),
    ("seed", None),
    ("representation", "scores"),
    ("representation", ["logits"]),
    ("maps", "all"),
    ("maps", {}),
    ("bins", 0),
    ("bins", "many"),
    ("binning", "equal"),
    ("form", "square"),
    ("form", []),
    ("knots", 1.5),
    ("floor", "x"),
    ("penalty", -1.0),
    ("penalty", "strong"),
    ("training", "none"),
    ("folds", 1),
    ("samples", 0),
    ("inducing_points", [3]),
    ("width", 0),
    ("epochs", "x"),
    ("grid", "fine"),
    ("bandwidth", -1.0),
    ("smoothing", 2.0),
    ("kernel", "square"),
]


def saved(name: str, problem: Any, folder: Path) -> Path:
    outputs = ClassifierOutputs(problem.embeddings, problem.logits, problem.labels)
    return save(fit_on(unlearned(quick(name)), outputs), folder / "model.kcal")


@pytest.mark.parametrize("name", METHODS)
def test_a_damaged_parameter_is_a_damaged_file_of_that_name(name: str, problem: Any, tmp_path: Path) -> None:
    path = saved(name, problem, tmp_path)
    header = header_of(path)
    for parameter, value in DAMAGES:
        if parameter in header["parameters"]:
            damaged = {**header, "parameters": {**header["parameters"], parameter: value}}
            with pytest.raises(FileFormatError, match=parameter) as caught:
                load(rewrite(path, damaged))
            assert str(caught.value).startswith(str(path))
            assert caught.value.__cause__ is not None


@pytest.mark.parametrize("name", METHODS)
def test_columns_that_do_not_fit_the_classes_are_a_damaged_file(name: str, problem: Any, tmp_path: Path) -> None:
    path = saved(name, problem, tmp_path)
    header = header_of(path)
    for columns in (5, 2, 0, "3", 3.0, True, None):
        damaged = {**header, "values": {**header["values"], "n_features": columns}}
        with pytest.raises(FileFormatError) as caught:
            load(rewrite(path, damaged))
        assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("form", ["diag", "oi"])
def test_columns_that_do_not_fit_the_classes_are_seen_in_every_form(form: str, problem: Any, tmp_path: Path) -> None:
    fitted = quick("iop").set_params(form=form).fit(problem.logits, problem.labels)
    path = save(fitted, tmp_path / "model.kcal")
    header = header_of(path)
    header["values"]["n_features"] = 5
    with pytest.raises(FileFormatError, match="5 columns are stored for 3 classes"):
        load(rewrite(path, header))


def test_a_module_for_a_method_without_projection_is_the_callers_mistake(problem: Any, tmp_path: Path) -> None:
    path = saved("ts", problem, tmp_path)
    with pytest.raises(InvalidInputError, match="projection is not used by a saved TemperatureScaling"):
        load(path, projection=nn.Identity())
