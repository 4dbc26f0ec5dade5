"""A file that is foreign, truncated, damaged or hostile raises; none gives other probabilities."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_files import header_end, header_of, rewrite
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors

from calibrator_checks import quick
from kcal import METHODS, KCal, TemperatureScaling, load, save
from kcal.errors import FileFormatError, KcalError
from kcal.persistence.archive import checksum


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
def test_a_truncated_file_is_refused(fitted_content: bytes, tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "model.kcal"
    path.write_bytes(fitted_content[: data.draw(st.integers(0, len(fitted_content) - 1))])
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
    fitted_content: bytes, problem: Any, tmp_path: Path, data: st.DataObject
) -> None:
    path = tmp_path / "model.kcal"
    path.write_bytes(fitted_content)
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
        probs = loaded.predict_proba(problem.test_embeddings[:3])
    except (KcalError, ValueError):
        return
    np.testing.assert_allclose(probs.sum(axis=1), 1.0, atol=1e-9)
    assert (probs >= 0).all()


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("support.points", torch.zeros(5, 6, dtype=torch.float64)),
        ("support.points", torch.full((240, 6), torch.nan, dtype=torch.float64)),
        ("support.points", torch.zeros(240)),
        ("support.codes", torch.full((240,), 9)),
        ("support.codes", torch.full((240,), -1)),
        ("support.codes", torch.zeros(240)),
        ("support.log_weights", torch.ones(3)),
        ("groups", torch.ones(3)),
        ("support.log_weights", torch.full((240,), torch.inf, dtype=torch.float64)),
    ],
)
def test_tensors_that_do_not_fit_together_are_refused(
    fitted: KCal, tmp_path: Path, name: str, tensor: torch.Tensor
) -> None:
    path = save(fitted, tmp_path / "model.kcal")
    tensors = read_tensors(path.read_bytes())
    with pytest.raises(FileFormatError):
        load(rewrite(path, header_of(path), {**tensors, name: tensor}))


@pytest.mark.parametrize(
    ("found", "message"),
    [(99, "Upgrade kcal"), (2, "Upgrade kcal"), (0, "damaged"), (-5, "damaged"), (True, "damaged")]
    + [(value, "damaged") for value in (1.0, "1", None, [1])],
)
def test_only_its_own_format_version_is_read(fitted: KCal, tmp_path: Path, found: Any, message: str) -> None:
    path = save(fitted, tmp_path / "model.kcal")
    with pytest.raises(FileFormatError, match=message):
        load(rewrite(path, {**header_of(path), "format_version": found}))


def test_a_header_of_nan_is_refused(fitted: KCal, tmp_path: Path) -> None:
    path = save(fitted, tmp_path / "model.kcal")
    header = header_of(path)
    header["values"]["bandwidth"] = float("nan")
    with pytest.raises(FileFormatError, match="NaN in the header"):
        load(rewrite(path, header))


def test_labels_that_would_fill_the_memory_are_refused_before_they_are_decoded(fitted: KCal, tmp_path: Path) -> None:
    path = save(fitted, tmp_path / "model.kcal")
    header = header_of(path)
    header["values"]["classes"] = {"dtype": "<U249999", "labels": [str(k) for k in range(9_000)]}
    tracemalloc.start()
    with pytest.raises(FileFormatError, match=r"more than [0-9,]+ bytes of memory"):
        load(rewrite(path, header))
    assert tracemalloc.get_traced_memory()[1] < 2**25
    tracemalloc.stop()


@pytest.mark.parametrize("number", [1e19, -1e19, torch.inf, -torch.inf, torch.nan])
def test_tensors_that_would_give_nan_are_refused(fitted: KCal, tmp_path: Path, number: float) -> None:
    path = save(fitted, tmp_path / "model.kcal")
    tensors = read_tensors(path.read_bytes())
    tensors["support.points"][7, 3] = number
    with pytest.raises(FileFormatError, match=r"damaged: it holds a tensor 'support\.points'"):
        load(rewrite(path, header_of(path), tensors))


def test_a_file_without_or_with_another_checksum_is_refused(fitted: KCal, tmp_path: Path) -> None:
    path = save(fitted, tmp_path / "model.kcal")
    tensors, text = read_tensors(path.read_bytes()), json.dumps(header_of(path))
    for line in ("", "0" * 64, checksum(text + " ", tensors)):
        path.write_bytes(write_tensors(tensors, metadata={"kcal": f"{line}\n{text}"}))
        with pytest.raises(FileFormatError, match="checksum does not match"):
            load(path)


def test_the_checksum_depends_on_names_types_shapes_and_bytes() -> None:
    tensor = torch.arange(6.0)
    variants = [
        ("h", {"a": tensor}),
        ("h", {"b": tensor}),
        ("h ", {"a": tensor}),
        ("h", {"a": tensor.reshape(2, 3)}),
        ("h", {"a": tensor.view(torch.int32)}),
        ("h", {"a": tensor + 1}),
        ("h", {"a": tensor[:3], "b": tensor[3:]}),
        ("h", {"a": torch.empty(0)}),
        ("h", {"a": torch.tensor(0.0)}),
        ("h", {"a": tensor.reshape(2, 3).T}),
        ("h", {"a": tensor.bfloat16()}),
        ("h", {"a": tensor > 2}),
        ("h", {}),
    ]
    assert len({checksum(*variant) for variant in variants}) == len(variants)


def assert_flips_are_noticed(path: Path, bits: Any) -> None:
    """Flip one bit of the file after the other, each in the sound file."""
    content = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for place, mask in zip((bits // 8).tolist(), (1 << bits % 8).tolist(), strict=True):
            file.seek(place)
            file.write(bytes([content[place] ^ mask]))
            with pytest.raises(FileFormatError):
                load(path)
            file.seek(place)
            file.write(content[place : place + 1])
    assert path.read_bytes() == content


@pytest.mark.parametrize("name", METHODS)
def test_a_flipped_bit_is_noticed_in_the_file_of_every_method(name: str, saved: Callable[[str], Path]) -> None:
    path, generator = saved(name), np.random.default_rng(17)
    content = path.read_bytes()
    for end in (len(content), header_end(content)):
        assert_flips_are_noticed(path, generator.integers(8 * end, size=15))


def test_every_one_of_a_thousand_flipped_bits_is_noticed(fitted_content: bytes, tmp_path: Path) -> None:
    """Anywhere in the file; and in the length of its header, in the header, in its padding and in the checksum."""
    path, generator = tmp_path / "model.kcal", np.random.default_rng(3)
    path.write_bytes(fitted_content)
    end = header_end(fitted_content)
    assert_flips_are_noticed(path, generator.choice(8 * len(fitted_content), 1000, replace=False))
    assert_flips_are_noticed(path, generator.choice(8 * end, 300, replace=False))
    assert_flips_are_noticed(path, np.r_[np.arange(64), 8 * end - 1 - np.arange(64)])
    case_bits = 8 * (fitted_content.index(b'"kcal":"') + 8 + np.arange(64)) + 5  # of hexadecimal digits
    assert_flips_are_noticed(path, case_bits)
    assert load(path).ids_.tolist() == list(range(1000, 1240))


def test_a_temperature_that_is_no_number_is_refused(problem: Any, tmp_path: Path) -> None:
    path = save(TemperatureScaling().fit(problem.logits, problem.labels), tmp_path / "model.kcal")
    header = header_of(path)
    header["values"]["temperature"] = "warm"
    with pytest.raises(FileFormatError, match="temperature must be of type float; got 'warm'"):
        load(rewrite(path, header))


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
    with pytest.raises(FileFormatError):
        load(rewrite(path, text))


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


@pytest.mark.parametrize("name", METHODS)
def test_a_damaged_parameter_is_a_damaged_file_of_that_name(name: str, saved: Callable[[str], Path]) -> None:
    path = saved(name)
    header = header_of(path)
    for parameter, value in DAMAGES:
        if parameter in header["parameters"]:
            damaged = {**header, "parameters": {**header["parameters"], parameter: value}}
            with pytest.raises(FileFormatError, match=parameter) as caught:
                load(rewrite(path, damaged))
            assert str(caught.value).startswith(str(path))
            assert caught.value.__cause__ is not None


@pytest.mark.parametrize("name", METHODS)
def test_columns_that_do_not_fit_the_classes_are_a_damaged_file(name: str, saved: Callable[[str], Path]) -> None:
    path = saved(name)
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
