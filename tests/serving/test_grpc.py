"""The real tritonclient.grpc: the same predictions, errors and tokens as over HTTP."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

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


class Served(NamedTuple):
    """A process with the service."""

    address: str  # of gRPC
    url: str
    pid: int

    def peak_memory(self) -> int:
        """Return the largest memory of the process so far, in MB."""
        lines = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8").splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) // 1024


@contextmanager
def served(model: Path, *words: str) -> Iterator[Served]:
    """Serve a model in a process; yield its addresses when it is ready."""
    ports = [str(free_port()), str(free_port())]
    command = [sys.executable, "-m", "kcal", "serve", str(model), "--port", ports[0], "--grpc-port", ports[1], *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            url = f"http://127.0.0.1:{ports[0]}"
            wait_until(lambda: httpx.get(f"{url}/readyz", timeout=PATIENCE).status_code == 200)
            yield Served(f"127.0.0.1:{ports[1]}", url, process.pid)
        finally:
            process.terminate()
    assert process.returncode == 0


@pytest.fixture(scope="module")
def process(animals, tmp_path_factory) -> Iterator[Served]:
    with served(save(animals, tmp_path_factory.mktemp("grpc") / "animals.kcal")) as one:
        yield one


@pytest.fixture(scope="module")
def address(process) -> str:
    return process.address


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
        for name in ("ModelInfer", "ServerMetadata", "ModelMetadata"):
            method = channel.unary_unary(f"/inference.GRPCInferenceService/{name}")
            with pytest.raises(grpc.RpcError) as error:
                method(b"\xff" * 9)
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_requests_of_many_parts_are_refused(address):
    import grpc
    from tritonclient.grpc import service_pb2

    parameters = {f"p{number}": service_pb2.InferParameter(int64_param=1) for number in range(100)}
    requests = [
        b"\x2a\x00" * 10**6,  # inputs
        b"\x3a\x00" * 10**6,  # raw contents
        b"\x2a\x80\x80",
        service_pb2.ModelInferRequest(model_name="animals", parameters=parameters).SerializeToString(),
    ]
    with grpc.insecure_channel(address) as channel:
        for content in requests:
            with pytest.raises(grpc.RpcError) as error:
                channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(content)
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


def test_tokens_are_those_of_http_and_without_one_no_request_is_read(animals, tmp_path):
    import grpc

    file, path = tmp_path / "tokens.json", save(animals, tmp_path / "animals.kcal")
    tokens = {scope: create_token(file, scope, [scope]) for scope in ("predict", "metrics")}
    row, content = [tensor("embeddings", np.zeros((1, 6), dtype=np.float32))], bytes(60 * 2**20)
    with served(path, "--tokens", str(file)) as process, triton.InferenceServerClient(process.address) as client:
        assert client.is_server_live()
        for headers, code in (({}, "UNAUTHENTICATED"), (bearer("wrong"), "UNAUTHENTICATED"),
                              (bearer(tokens["metrics"]), "PERMISSION_DENIED")):  # fmt: skip
            with pytest.raises(InferenceServerException) as error:
                client.infer("animals", row, headers=headers)
            assert code in error.value.status()
        answer = client.infer("animals", row, headers=bearer(tokens["predict"]))
        assert answer.as_numpy("probabilities").shape == (1, 3)
        before = process.peak_memory()
        with grpc.insecure_channel(process.address, options=[("grpc.max_send_message_length", -1)]) as channel:
            with pytest.raises(grpc.RpcError) as error:
                channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(content)
            assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(content) == b"\x08\x01"
        assert process.peak_memory() < before + 30


def test_long_errors_reach_the_client(client):
    with pytest.raises(InferenceServerException) as error:
        client.infer("é" * 20_000, [tensor("embeddings", np.zeros((1, 6), dtype=np.float32))])
    assert "NOT_FOUND" in error.value.status()
    assert 100 < len(error.value.message()) <= 500


def test_order_of_the_classes_is_in_the_configuration(client):
    found = client.get_model_config("animals").config
    assert found.name == "animals"
    assert json.loads(found.parameters["classes"].string_value) == ["cat", "dog", "owl"]


def test_requests_are_counted_by_method_and_status(client, process):
    def count(status: str) -> float:
        name = f'kcal_requests_total{{endpoint="ModelInfer",status="{status}"}} '
        lines = httpx.get(f"{process.url}/metrics", timeout=PATIENCE).text.splitlines()
        return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))

    before = {status: count(status) for status in ("OK", "NOT_FOUND")}
    row = [tensor("embeddings", np.zeros((1, 6), dtype=np.float32))]
    client.infer("animals", row)
    for _ in range(2):
        with pytest.raises(InferenceServerException):
            client.infer("nothing", row)
    assert count("OK") == before["OK"] + 1
    assert count("NOT_FOUND") == before["NOT_FOUND"] + 2


# Size


def test_compressed_requests_are_refused_before_they_are_expanded(address, process):
    import grpc

    before = process.peak_memory()
    content = bytes(60 * 2**20)
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(address, options=options, compression=grpc.Compression.Gzip) as channel:
        for name in ("ServerLive", "ModelInfer"):
            with pytest.raises(grpc.RpcError) as error:
                channel.unary_unary(f"/inference.GRPCInferenceService/{name}")(content)
            assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert process.peak_memory() < before + 100


def test_typed_contents_have_the_limit_of_json_and_do_not_stop_other_requests(address, process):
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    def request(n_values: int) -> service_pb2.ModelInferRequest:
        content = service_pb2.ModelInferRequest(model_name="animals")
        given = content.inputs.add(name="embeddings", datatype="BOOL", shape=[1, n_values])
        given.contents.ParseFromString(b"\x0a" + varint(n_values) + b"\x01" * n_values)
        return content

    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(address, options=options) as channel:
        infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        before, codes = process.peak_memory(), []
        for n_values in (40 * 2**20, 15 * 2**20):  # the limit is 16 MiB
            waits, answer = list[float](), infer.future(request(n_values))
            while not answer.done():
                start = time.monotonic()
                assert httpx.get(f"{process.url}/healthz", timeout=PATIENCE).status_code == 200
                waits.append(time.monotonic() - start)
            codes.append(answer.code().name)
    assert codes == ["RESOURCE_EXHAUSTED", "INVALID_ARGUMENT"]  # the second is read: it has the wrong shape
    assert max(waits) < sum(waits) / 2  # other requests are answered all the time
    assert process.peak_memory() < before + 500


def varint(value: int) -> bytes:
    return bytes([*((value >> 7 * k & 127) | 128 for k in range(3)), value >> 21])


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}
