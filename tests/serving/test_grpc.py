"""The real tritonclient.grpc: the same predictions, errors and tokens as over HTTP."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from running_service import PATIENCE, wait_until

from kcal import save
from kcal.serving.tokens import create_token

triton = pytest.importorskip("tritonclient.grpc")
from tritonclient.utils import InferenceServerException  # noqa: E402


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


@contextmanager
def served(model: Path, *words: str) -> Iterator[str]:
    """Serve a model in a process; yield the address of gRPC when it is ready."""
    ports = [str(free_port()), str(free_port())]
    command = [sys.executable, "-m", "kcal", "serve", str(model), "--port", ports[0], "--grpc-port", ports[1], *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            url = f"http://127.0.0.1:{ports[0]}/readyz"
            wait_until(lambda: httpx.get(url, timeout=PATIENCE).status_code == 200)
            yield f"127.0.0.1:{ports[1]}"
        finally:
            process.terminate()
    assert process.returncode == 0


@pytest.fixture(scope="module")
def address(animals, tmp_path_factory) -> Iterator[str]:
    with served(save(animals, tmp_path_factory.mktemp("grpc") / "animals.kcal")) as one:
        yield one


@pytest.fixture
def client(address):
    with triton.InferenceServerClient(address) as one:
        yield one


def tensor(name: str, array, datatype: str = "FP32"):
    one = triton.InferInput(name, list(array.shape), datatype)
    one.set_data_from_numpy(array)
    return one


def test_server_and_model_describe_themselves(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("animals")
    assert not client.is_model_ready("nothing")
    assert client.get_server_metadata().name == "kcal"
    metadata = client.get_model_metadata("animals")
    assert [(one.name, one.datatype, list(one.shape)) for one in metadata.inputs] == [("embeddings", "FP32", [-1, 6])]


def test_predictions_are_those_of_the_calibrator(client, animals, problem):
    x = problem.test_embeddings[:5].astype(np.float32)
    ids = np.array([f"scan-{row}".encode() for row in range(5)], dtype=object)
    names = ("probabilities", "labels", "evidence", "ids")
    outputs = [triton.InferRequestedOutput(name) for name in names]
    inputs = [tensor("embeddings", x), tensor("ids", ids, "BYTES")]
    result = client.infer("animals", inputs, outputs=outputs, request_id="r-1")
    assert result.get_response().id == "r-1"
    np.testing.assert_allclose(result.as_numpy("probabilities"), animals.predict_proba(x), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(result.as_numpy("evidence"), animals.evidence(x), rtol=1e-5, atol=1e-7)
    assert [label.decode() for label in result.as_numpy("labels")] == animals.predict(x).tolist()
    assert result.as_numpy("ids").tolist() == ids.tolist()
    default = client.infer("animals", [tensor("embeddings", x.astype(np.float64), "FP64")])
    np.testing.assert_allclose(default.as_numpy("probabilities"), animals.predict_proba(x), rtol=1e-5, atol=1e-7)


def test_typed_contents_and_parameters_are_read(address, animals):
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    request = service_pb2.ModelInferRequest(model_name="animals")
    request.parameters["explanation_samples"].int64_param = 2
    request.inputs.add(name="embeddings", datatype="FP32", shape=[1, 6]).contents.fp32_contents.extend([0.5] * 6)
    for name in ("probabilities", "explanation"):
        request.outputs.add(name=name)
    with grpc.insecure_channel(address) as channel:
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
    found = np.frombuffer(answer.raw_output_contents[0], dtype=np.float32)
    np.testing.assert_allclose(found, animals.predict_proba([[0.5] * 6])[0], rtol=1e-5)
    assert answer.raw_output_contents[1].count(b'"share"') == 2


def test_bytes_that_are_no_message_are_refused(address):
    import grpc

    with grpc.insecure_channel(address) as channel:
        for name in ("ModelInfer", "ServerLive", "ModelMetadata"):
            method = channel.unary_unary(f"/inference.GRPCInferenceService/{name}")
            with pytest.raises(grpc.RpcError) as error:
                method(b"\xff" * 9)
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("name", "shape", "value", "code"),
    [
        ("nothing", (1, 6), 0.0, "NOT_FOUND"),
        ("animals", (1, 7), 0.0, "INVALID_ARGUMENT"),
        ("animals", (1, 6), np.nan, "INVALID_ARGUMENT"),
    ],
)
def test_errors_reach_the_client(client, name, shape, value, code):
    with pytest.raises(InferenceServerException) as error:
        client.infer(name, [tensor("embeddings", np.full(shape, value, dtype=np.float32))])
    assert code in error.value.status()


def test_tokens_are_those_of_http(animals, tmp_path):
    file, path = tmp_path / "tokens.json", save(animals, tmp_path / "animals.kcal")
    tokens = {scope: create_token(file, scope, [scope]) for scope in ("predict", "metrics")}
    row = [tensor("embeddings", np.zeros((1, 6), dtype=np.float32))]
    with served(path, "--tokens", str(file)) as address, triton.InferenceServerClient(address) as client:
        assert client.is_server_live()
        for headers, code in (({}, "UNAUTHENTICATED"), (bearer("wrong"), "UNAUTHENTICATED"),
                              (bearer(tokens["metrics"]), "PERMISSION_DENIED")):  # fmt: skip
            with pytest.raises(InferenceServerException) as error:
                client.infer("animals", row, headers=headers)
            assert code in error.value.status()
        answer = client.infer("animals", row, headers=bearer(tokens["predict"]))
        assert answer.as_numpy("probabilities").shape == (1, 3)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}
