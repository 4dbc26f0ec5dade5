"""The real tritonclient works unchanged."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.http as triton
from running_service import Running
from tritonclient.utils import InferenceServerException


@pytest.fixture(scope="module")
def client(service: Running):
    with service.triton() as one:
        yield one


def tensor(name: str, array, *, binary: bool = True, datatype: str = "FP32") -> triton.InferInput:
    one = triton.InferInput(name, list(array.shape), datatype)
    one.set_data_from_numpy(array, binary_data=binary)
    return one


def rows(problem, start: int = 0, n: int = 5):
    return problem.test_embeddings[start : start + n].astype(np.float32)


def test_server_and_models_describe_themselves(client, animals):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("animals")
    assert client.is_model_ready("blend", "1")
    assert not client.is_model_ready("nothing")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    metadata = client.get_model_metadata("animals")
    assert metadata["versions"] == ["1"]
    assert metadata["inputs"] == [{"name": "embeddings", "datatype": "FP32", "shape": [-1, 6]}]
    assert {"name": "probabilities", "datatype": "FP32", "shape": [-1, 3]} in metadata["outputs"]
    assert json.loads(metadata["parameters"]["classes"]) == animals.classes_.tolist()
    index = {(entry["name"], entry["version"]): entry["state"] for entry in client.get_model_repository_index()}
    assert index == {("animals", "1"): "READY", ("blend", "1"): "READY"}


@pytest.mark.parametrize("binary", [True, False])
def test_predictions_are_those_of_the_calibrator(client, animals, problem, binary):
    x = rows(problem)
    names = ("probabilities", "labels", "evidence")
    outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in names]
    result = client.infer("animals", [tensor("embeddings", x, binary=binary)], outputs=outputs, request_id="r-1")
    assert result.get_response()["id"] == "r-1"
    assert result.get_response()["model_name"] == "animals"
    np.testing.assert_allclose(result.as_numpy("probabilities"), animals.predict_proba(x), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(result.as_numpy("evidence"), animals.evidence(x), rtol=1e-5, atol=1e-7)
    labels = [label.decode() if isinstance(label, bytes) else label for label in result.as_numpy("labels")]
    assert labels == animals.predict(x).tolist()


def test_blend_takes_embeddings_and_logits(client, blend, problem):
    x, z = rows(problem), problem.test_logits[:5].astype(np.float32)
    result = client.infer("blend", [tensor("embeddings", x), tensor("logits", z)], model_version="1")
    np.testing.assert_allclose(result.as_numpy("probabilities"), blend.predict_proba(x, logits=z), rtol=1e-5, atol=1e-7)
    assert [label.decode() for label in result.as_numpy("labels")] == [
        str(label) for label in blend.predict(x, logits=z)
    ]


@pytest.mark.parametrize(("datatype", "kind"), [("FP16", np.float16), ("FP64", np.float64), ("INT32", np.int32)])
def test_other_numbers_become_single_precision(client, animals, problem, datatype, kind):
    x = (4 * rows(problem)).round().astype(kind) / kind(1)
    result = client.infer("animals", [tensor("embeddings", x.astype(kind), datatype=datatype)])
    expected = animals.predict_proba(x.astype(np.float32))
    np.testing.assert_allclose(result.as_numpy("probabilities"), expected, rtol=1e-5, atol=1e-7)


def test_ids_and_explanations(client, animals, problem):
    x = rows(problem, n=2)
    names = [triton.InferRequestedOutput(name) for name in ("ids", "explanation")]
    given = np.array([b"scan-1", b"scan-2"], dtype=object)
    result = client.infer(
        "animals",
        [tensor("embeddings", x), tensor("ids", given, datatype="BYTES")],
        outputs=names,
        parameters={"explanation_samples": 3},
    )
    assert result.as_numpy("ids").tolist() == [b"scan-1", b"scan-2"]
    expected = animals.explain(x, 3)
    for place, text in enumerate(result.as_numpy("explanation")):
        entry = json.loads(text)
        assert [sample["id"] for sample in entry["samples"]] == expected.ids[place].tolist()
        np.testing.assert_allclose([one["share"] for one in entry["samples"]], expected.shares[place], rtol=1e-4)
    assigned = client.infer("animals", [tensor("embeddings", x)], outputs=names[:1]).as_numpy("ids").tolist()
    assert len(set(assigned)) == 2
    assert not set(assigned) & {b"scan-1", b"scan-2"}


def test_batched_rows_get_the_same_probabilities(service, animals, problem):
    sizes = [3, 1, 40, 7, 300, *[1] * 24]
    starts = np.cumsum([0, *sizes[:-1]])

    def ask(start_and_size):
        start, size = start_and_size
        with service.triton() as one:
            return one.infer("animals", [tensor("embeddings", rows(problem, start, size))]).as_numpy("probabilities")

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, zip(starts.tolist(), sizes, strict=True)))
    x = rows(problem, 0, sum(sizes))
    np.testing.assert_allclose(np.concatenate(answers), animals.predict_proba(x), rtol=1e-5, atol=1e-7)
    assert [len(answer) for answer in answers] == sizes


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("nothing", [("embeddings", (2, 6))], "there is no model 'nothing'"),
        ("animals", [("embeddings", (2, 7))], r"must have the shape \[-1, 6\]; got \[2, 7\]"),
        ("animals", [("embeddings", (2, 6))], "must be finite numbers"),
        ("animals", [("embeddings", (2, 6)), ("pixels", (2, 6))], "the inputs must be embeddings"),
        ("blend", [("embeddings", (2, 6))], "the inputs must be embeddings, logits"),
        ("blend", [("embeddings", (2, 6)), ("logits", (3, 3))], "the same number of rows"),
    ],
)
def test_errors_reach_the_client(client, name, inputs, message):
    value = np.nan if message == "must be finite numbers" else 0.0
    tensors = [tensor(key, np.full(shape, value, dtype=np.float32)) for key, shape in inputs]
    with pytest.raises(InferenceServerException, match=message) as error:
        client.infer(name, tensors)
    assert error.value.status() == ("404" if name == "nothing" else "400")


def test_responses_may_be_compressed(client, animals, problem):
    x = rows(problem, n=200)
    result = client.infer("animals", [tensor("embeddings", x)], response_compression_algorithm="gzip")
    np.testing.assert_allclose(result.as_numpy("probabilities"), animals.predict_proba(x), rtol=1e-5, atol=1e-7)
