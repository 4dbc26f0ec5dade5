"""Tensors as JSON and binary data: numpy and tritonclient as oracles, and sizes that are checked first."""

from __future__ import annotations

import json

import numpy as np
import pytest
from fastapi import HTTPException
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from kcal.serving.protocol import TYPES, from_binary, from_json, to_binary


def extremes(datatype: str) -> np.ndarray:
    kind = np.dtype(TYPES[datatype])
    if kind.kind == "b":
        return np.array([[True, False], [False, True]])
    limits = np.iinfo(kind) if kind.kind in "iu" else np.finfo(kind)
    return np.array([[limits.min, limits.max], [0, 1]], dtype=kind)


@pytest.mark.parametrize("datatype", TYPES)
def test_binary_data_are_the_bytes_of_numpy(datatype):
    array = extremes(datatype)
    np.testing.assert_array_equal(from_binary("x", datatype, [2, 2], memoryview(array.tobytes())), array)
    for content in (array.tobytes()[:-1], array.tobytes() + b"\0"):
        with pytest.raises(HTTPException, match="400"):
            from_binary("x", datatype, [2, 2], memoryview(content))


@pytest.mark.parametrize("datatype", [name for name in TYPES if name != "UINT64"])  # numpy has no type for both ends
def test_json_keeps_every_number(datatype):
    array = extremes(datatype)
    for data in (array.tolist(), array.reshape(-1).tolist()):
        found = from_json("x", datatype, json.loads(json.dumps(data)))
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found.reshape(2, 2), array)


@given(st.lists(st.binary(max_size=8), min_size=1, max_size=5))
def test_bytes_are_read_as_tritonclient_writes_them(texts):
    written = serialize_byte_tensor(np.array(texts, dtype=object)).item()
    assert from_binary("x", "BYTES", [len(texts)], memoryview(written)).tolist() == texts


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1, max_size=5))
def test_texts_are_written_as_tritonclient_reads_them(texts):
    found = deserialize_bytes_tensor(to_binary(np.array(texts, dtype=object)))
    assert [text.decode() for text in found] == texts


@pytest.mark.parametrize(
    ("datatype", "data"),
    [
        ("FP32", ["1"]), ("FP32", [True]), ("FP32", [None]), ("FP32", [[1.0], [1.0, 2.0]]), ("FP32", 3), ("FP32", [{}]),
        ("INT8", [128]), ("UINT8", [-1]), ("INT64", [2**63]), ("UINT64", [2**64]), ("INT32", [1.5]), ("BOOL", [1]),
        ("BYTES", [1]), ("BYTES", [["a"], "b"]), ("BYTES", ["\ud800"]), ("FP64", [10**400]),
    ],
)  # fmt: skip
def test_data_of_another_type_or_range_are_refused(datatype, data):
    with pytest.raises(HTTPException, match="400"):
        from_json("x", datatype, data)


@pytest.mark.parametrize("data", [b"", b"\1\0\0\0", b"\1\0\0\0ab", b"\xff\xff\xff\xffa", b"\1\0\0\0a\0\0"])
def test_lengths_of_bytes_must_fit_the_data(data):
    with pytest.raises(HTTPException, match="400"):
        from_binary("x", "BYTES", [1], memoryview(data))


@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
@pytest.mark.parametrize(
    "shape",
    [
        [0, 2**40, 2**40], [2**32, 2**32], [2**40] * 16, [2**64], [10**300], [-1, 6], [0, -1], None, [], [1.0], ["3"],
        [1] * 17,
    ],
)  # fmt: skip
def test_absurd_shapes_are_bad_requests(service, shape, datatype):
    entry = {"name": "embeddings", "shape": shape, "datatype": datatype}
    rows = {"name": "embeddings", "shape": [1, 6], "datatype": "FP32", "data": [0.0] * 6}
    contents = [
        {"inputs": [entry | {"data": []}]},
        {"inputs": [entry | {"data": [[]]}]},
        {"inputs": [entry | {"parameters": {"binary_data_size": 0}}]},
        {"inputs": [rows, entry | {"name": "ids", "data": []}]},
    ]
    with service.http() as client:
        for content in contents:
            body = json.dumps(content).encode()
            headers = {"Inference-Header-Content-Length": str(len(body))}
            response = client.post("/v2/models/animals/infer", content=body, headers=headers)
            assert (response.status_code, list(response.json())) == (400, ["error"]), content


@pytest.mark.parametrize("data", [[0.0] * 5, [0.0] * 12, [[0.0] * 3] * 2, [[0.0] * 6] * 2, [[[0.0] * 6]]])
def test_data_must_have_the_shape_of_the_tensor(service, data):
    entry = {"name": "embeddings", "shape": [1, 6], "datatype": "FP32", "data": data}
    with service.http() as client:
        answer = client.post("/v2/models/animals/infer", json={"inputs": [entry]})
    assert (answer.status_code, "shape [1, 6]" in answer.text) == (400, True)
