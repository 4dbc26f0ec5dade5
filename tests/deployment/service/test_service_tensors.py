"""Tensors of requests: what tritonclient writes is read, and what is written it reads."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tritonclient.utils import (
    deserialize_bf16_tensor,
    deserialize_bytes_tensor,
    np_to_triton_dtype,
    serialize_bf16_tensor,
    serialize_byte_tensor,
)

from kcal.deployment.service.errors import RequestError
from kcal.deployment.service.tensors import (
    NUMPY_TYPES,
    Tensor,
    check_shape,
    decode_binary,
    decode_json,
    encode_binary,
    encode_json,
    text_tensor,
    to_texts,
)

SHAPES = arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)
few = settings(max_examples=20)
TEXTS = st.lists(st.binary(max_size=12), max_size=5)


def numbers(datatype: str, **options):
    return arrays.arrays(NUMPY_TYPES[datatype], SHAPES, elements=options or None)


@pytest.mark.parametrize("datatype", NUMPY_TYPES)
def test_binary_data_are_numpys_bytes(datatype):
    @few
    @given(numbers(datatype))
    def check(array):
        assert np_to_triton_dtype(array.dtype) == datatype
        sent = encode_binary(Tensor("x", datatype, array))
        assert sent == array.tobytes()
        received = decode_binary("x", datatype, array.shape, memoryview(sent))
        assert received.dtype == array.dtype
        np.testing.assert_array_equal(received, array)

    check()


@pytest.mark.parametrize("datatype", NUMPY_TYPES)
@pytest.mark.parametrize("nested", [False, True])
def test_json_data_keep_every_number(datatype, nested):
    options = {"allow_nan": False, "allow_infinity": False} if datatype.startswith("FP") else {}

    @few
    @given(numbers(datatype, **options))
    def check(array):
        data = array.tolist() if nested else encode_json(Tensor("x", datatype, array))
        received = decode_json("x", datatype, array.shape, data)
        assert received.dtype == array.dtype
        np.testing.assert_array_equal(received, array)

    check()


@few
@given(arrays.arrays(np.float32, SHAPES, elements={"allow_nan": False}))
def test_bfloat16_is_read_and_written_as_tritonclient_does(array):
    written = serialize_bf16_tensor(array)
    sent = b"" if written.size == 0 else written.item()
    received = decode_binary("x", "BF16", array.shape, memoryview(sent))
    np.testing.assert_array_equal(received.reshape(-1), deserialize_bf16_tensor(sent).reshape(-1))
    assert encode_binary(Tensor("x", "BF16", array)) == sent
    finite = np.nan_to_num(array, posinf=1.0, neginf=-1.0)
    from_json = decode_json("x", "BF16", array.shape, finite.tolist())
    assert encode_binary(Tensor("x", "BF16", from_json)) == encode_binary(Tensor("x", "BF16", finite))


@few
@given(TEXTS)
def test_bytes_are_read_and_written_as_tritonclient_does(texts):
    array = np.empty(len(texts), dtype=object)
    array[:] = texts
    written = serialize_byte_tensor(array)
    sent = b"" if written.size == 0 else written.item()
    assert encode_binary(Tensor("x", "BYTES", array)) == sent
    received = decode_binary("x", "BYTES", array.shape, memoryview(sent))
    assert received.tolist() == texts == list(deserialize_bytes_tensor(sent))


@few
@given(st.lists(st.text(max_size=8), min_size=1, max_size=5))
def test_texts_come_back(texts):
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    tensor = text_tensor("ids", texts)
    assert to_texts(tensor, len(texts)) == texts
    assert encode_json(tensor) == texts
    np.testing.assert_array_equal(decode_json("ids", "BYTES", (len(texts), 1), texts)[:, 0], tensor.array)


@pytest.mark.parametrize("shape", [None, [], [1.0], [-1], [True], ["3"], [2**41], [1] * 17, {"0": 1}])
def test_a_shape_must_be_a_list_of_sizes(shape):
    with pytest.raises(RequestError, match="shape must be a list"):
        check_shape(shape, "x")


def test_a_huge_shape_is_refused_before_anything_is_allocated():
    shape = (10**12, 10**12)
    with pytest.raises(RequestError, match="needs 4000000000000000000000000 bytes"):
        decode_binary("x", "FP32", shape, memoryview(b"1234"))
    with pytest.raises(RequestError, match="must hold"):
        decode_binary("x", "BYTES", shape, memoryview(b"1234"))
    with pytest.raises(RequestError, match="with the elements of shape"):
        decode_json("x", "FP32", shape, [1.0, 2.0])


@pytest.mark.parametrize(
    ("datatype", "data"),
    [
        ("FP32", ["1", "2"]),
        ("FP32", [1, None]),
        ("FP32", [True, 1]),
        ("FP32", [1e39, 1]),
        ("FP16", [70000, 1]),
        ("FP64", [10**400, 1]),
        ("INT8", [128, 1]),
        ("UINT8", [-1, 1]),
        ("INT64", [2**63, 1]),
        ("INT32", [1.0, 2]),
        ("BOOL", [1, 0]),
        ("BYTES", [b"x", 1]),
        ("BYTES", ["\ud800", "x"]),
        ("FP32", [[1, 2]]),
        ("FP32", [[1], [2]]),
        ("FP32", "12"),
        ("FP32", {"0": 1}),
    ],
)
def test_data_of_another_kind_or_range_are_refused(datatype, data):
    with pytest.raises(RequestError) as error:
        decode_json("x", datatype, (2,), data)
    assert error.value.status == 400
    assert "input 'x'" in error.value.message


@pytest.mark.parametrize("data", [b"", b"\1\0\0\0", b"\1\0\0\0ab", b"\xff\xff\xff\xffa", b"\1\0\0\0a\0\0"])
def test_lengths_of_bytes_must_fit_the_data(data):
    with pytest.raises(RequestError, match="must hold 1 elements"):
        decode_binary("x", "BYTES", (1,), memoryview(data))


@pytest.mark.parametrize("datatype", ["FP32", "BF16", "BOOL", "BYTES"])
@pytest.mark.parametrize(
    "shape",
    [
        [0, 2**40, 2**40], [2**40, 2**40, 0], [2**32, 2**32], [2**40] * 16, [0, *[2**20] * 4], [2**63], [2**64],
        [10**300], [-1, 6], [1, -6], [-1, -6], [0, -1], [-(2**63)],
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
