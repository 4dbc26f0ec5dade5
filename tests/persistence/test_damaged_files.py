"""A file that is foreign, truncated, damaged or hostile raises; none gives other probabilities or fills the memory."""

from __future__ import annotations

import json
import resource
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_files import entries_of, header_end, header_of, rewrite, with_entry
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors

from kcal import METHODS, FastRecipe, TrainedProjection, load, save, train_projection
from kcal.errors import FileFormatError, KcalError

FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
VALUES = [None, -1, 0, 1e308, 10**12, "x", [], {}, [1, 2], True, "__import__('os')"]


@pytest.fixture
def path(fitted_content: bytes, tmp_path: Path) -> Path:
    file = tmp_path / "model.kcal"
    file.write_bytes(fitted_content)
    return file


def assert_refused(path: Path, *, match: str | None = None) -> None:
    with pytest.raises(FileFormatError, match=match) as caught:
        load(path)
    assert str(caught.value).startswith(str(path))


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    assert_refused(path, match="is not a file")
    tensors = write_tensors({"weight": torch.zeros(3)})
    for content in (b"", b"hello", b"\x80\x04\x95pickle", b"PK\x03\x04" + bytes(40), b"\xff" * 64, tensors):
        path.write_bytes(content)
        assert_refused(path)


@FUZZ
@given(st.data())
def test_truncated_file_is_refused(fitted_content: bytes, tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "model.kcal"
    path.write_bytes(fitted_content[: data.draw(st.integers(0, len(fitted_content) - 1))])
    assert_refused(path)


@FUZZ
@given(st.integers(0, 10**6), st.sampled_from([(), *((value,) for value in VALUES)]))
def test_hostile_header_gives_an_error_or_a_working_calibrator(
    fitted_content: bytes, problem: Any, tmp_path: Path, place: int, value: tuple[Any, ...]
) -> None:
    path = tmp_path / "model.kcal"
    path.write_bytes(fitted_content)
    entries = entries_of(header_of(path))
    rewrite(path, with_entry(header_of(path), entries[place % len(entries)], *value))
    try:
        probs = load(path).predict_proba(problem.test_embeddings[:3])
    except (KcalError, ValueError):
        return
    np.testing.assert_allclose(probs.sum(axis=1), 1.0, atol=1e-9)
    assert (probs >= 0).all()


@pytest.mark.parametrize("name", METHODS)
def test_numbers_of_a_hostile_header_allocate_nothing(name: str, saved: Callable[[str], Path]) -> None:
    path = saved(name)
    header = header_of(path)
    sizes = [entry for entry in entries_of(header) if entry[:2] == ("values", "model")]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for entry in [("values", "n_features"), *(entry for entry in sizes if type(value_of(header, entry)) is int)]:
        for number in (10**12, 10**19, 300_000_000):
            with suppress(FileFormatError):
                load(rewrite(path, with_entry(header, entry, number)))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KB


def value_of(header: Any, entry: tuple[str, ...]) -> Any:
    for name in entry:
        header = header[name]
    return header


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("model.points", torch.zeros(5, 6, dtype=torch.float64)),
        ("model.points", torch.zeros(240)),
        ("model.codes", torch.full((240,), 9)),
        ("model.codes", torch.full((240,), -1)),
        ("model.codes", torch.zeros(240)),
        ("model.log_weights", torch.ones(3)),
        ("model.log_weights", torch.zeros(240)),
        ("model.log_weights", torch.full((240,), torch.inf, dtype=torch.float64)),
        ("samples.log_lengths", torch.ones(3)),
        ("fingerprints", torch.ones(3)),
        ("samples.indices", torch.arange(3)),
    ]
    + [("model.points", torch.full((240, 6), number).double()) for number in (1e19, -1e19, torch.inf, torch.nan)],
)
def test_tensors_that_do_not_fit_are_refused(path: Path, name: str, tensor: torch.Tensor) -> None:
    tensors = read_tensors(path.read_bytes())
    assert name in tensors
    assert_refused(rewrite(path, header_of(path), {**tensors, name: tensor}))


@pytest.mark.parametrize("found", [99, 2, 0, -5, True, 1.0, "1", None, [1]])
def test_only_its_own_format_version_is_read(path: Path, found: Any) -> None:
    newer = type(found) is int and found > 1
    assert_refused(rewrite(path, {**header_of(path), "format_version": found}), match="Upgrade" if newer else "damaged")


def test_headers_that_json_does_not_allow_are_refused(path: Path) -> None:
    header = header_of(path)
    assert_refused(rewrite(path, with_entry(header, ("values", "model", "bandwidth"), float("nan"))), match="NaN")
    digits = json.dumps(header).replace('"format_version": 1', '"format_version": ' + "1" * 5000)
    for text in (digits, "[" * 100_000, "{", "[]", "null"):
        assert_refused(rewrite(path, text))


@pytest.mark.parametrize(
    "labels",
    [
        {"dtype": "<U249999", "labels": [str(k) for k in range(9_000)]},
        {"dtype": "<U400000000", "labels": ["a", "b", "c"]},
        {"dtype": "M8[s]", "labels": [1, 2, 3]},
        {"dtype": "<i8", "labels": [1, 2]},
        {"dtype": "<i8", "labels": [1, 1, 2]},
    ],
)
@pytest.mark.parametrize("entry", [("values", "classes"), ("values", "samples", "ids")])
def test_labels_that_do_not_fit_are_refused(path: Path, labels: Any, entry: tuple[str, ...]) -> None:
    rewrite(path, with_entry(header_of(path), entry, labels))
    tracemalloc.start()
    assert_refused(path)
    assert tracemalloc.get_traced_memory()[1] < 2**25
    tracemalloc.stop()


def test_checksum_covers_names_types_shapes_and_bytes(path: Path) -> None:
    tensors, header = read_tensors(path.read_bytes()), header_of(path)
    text = json.dumps(header)
    metadata = {"kcal": json.loads(path.read_bytes()[8 : header_end(path.read_bytes())])["__metadata__"]["kcal"]}
    points = tensors["model.points"]
    for change in (
        {"model.points": points + 1e-12},
        {"model.points": points.reshape(6, 240)},
        {"model.points": points.view(torch.int64)},
        {"model.other": points.clone()},
        {"model.empty": torch.empty(0)},
    ):
        path.write_bytes(write_tensors({**tensors, **change}, metadata=metadata))
        assert_refused(path, match="checksum")
    for line in ("", "0" * 64):
        path.write_bytes(write_tensors(tensors, metadata={"kcal": f"{line}\n{text}"}))
        assert_refused(path, match="checksum")


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


def test_each_of_a_thousand_flipped_bits_is_noticed(path: Path, fitted_content: bytes) -> None:
    """Anywhere in the file; and in the length of its header, in the header, in its padding and in the checksum."""
    generator, end = np.random.default_rng(3), header_end(fitted_content)
    assert_flips_are_noticed(path, generator.choice(8 * len(fitted_content), 1000, replace=False))
    assert_flips_are_noticed(path, generator.choice(8 * end, 300, replace=False))
    assert_flips_are_noticed(path, np.r_[np.arange(64), 8 * end - 1 - np.arange(64)])
    case_bits = 8 * (fitted_content.index(b'"kcal":"') + 8 + np.arange(64)) + 5  # of hexadecimal digits
    assert_flips_are_noticed(path, case_bits)
    assert load(path).ids_.tolist() == list(range(1000, 1240))


@pytest.mark.parametrize("name", METHODS)
def test_damaged_parameters_and_columns_are_named(name: str, saved: Callable[[str], Path]) -> None:
    path = saved(name)
    header = header_of(path)
    ranges = {"seed": -1, "folds": 1, "bandwidth": -1.0, "smoothing": 2.0, "penalty": -1.0, "bins": 0}
    for parameter in header["parameters"].keys() - {"prior", "progress", "head"}:  # which only another fit reads
        for value in ([["no", "value"]], ranges.get(parameter, [])):
            assert_refused(rewrite(path, with_entry(header, ("parameters", parameter), value)), match=parameter)
    for columns in (5, 2, 0, "3", 3.0, True, None):
        assert_refused(rewrite(path, with_entry(header, ("values", "n_features"), columns)))


def test_damaged_projection_is_refused(problem: Any, tmp_path: Path) -> None:
    recipe = FastRecipe(steps=2, batch_size=60, checkpoints=2)
    path = save(train_projection(problem.train_embeddings, problem.train_labels, recipe=recipe), tmp_path / "model")
    header, tensors = header_of(path), read_tensors(path.read_bytes())
    damages = {"steps": [1], "checkpoints": [], "recipe": {"name": "slow"}, "curve": {}, "classes": 3}
    for name, value in damages.items():
        assert_refused(rewrite(path, with_entry(header, ("values", name), value), tensors))
    for name in tensors:
        assert_refused(rewrite(path, header, {**tensors, name: torch.zeros(2, 2, 2)}))
    assert isinstance(load(rewrite(path, header, tensors)), TrainedProjection)
