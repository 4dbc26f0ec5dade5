"""A calibrator behind its network: the network's own inputs, with feedback, explanations and evidence."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.http as triton
from running_service import in_process, running, until, used_ids
from served_networks import CLASSES, N_TOKENS, calibrator, draw_images, draw_texts, make_pair, rows
from tritonclient.utils import InferenceServerException

from kcal import CalibratedClassifier, KCal, save
from kcal.errors import FileFormatError, InvalidInputError, MissingExtraError, without_warnings
from kcal.persistence import CalibrationStore
from kcal.serving.predictor import Predictor

pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("shared_operators")]

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("networks")


@pytest.fixture(scope="module")
def images(folder, shared_operators):
    return make_pair(folder, "images")


@pytest.fixture(scope="module")
def texts(folder, shared_operators):
    return make_pair(folder, "texts")


@pytest.fixture(scope="module")
def other(tmp_path_factory, shared_operators):
    """The same architecture with other weights."""
    return make_pair(tmp_path_factory.mktemp("other"), "images", seed=7)


@pytest.fixture(scope="module")
def service(folder, images, texts):
    with running(folder) as one:
        yield one


@pytest.fixture(scope="module")
def client(service):
    with service.triton() as one:
        yield one


@pytest.fixture
def model(images, tmp_path):
    """The files of the images in a folder of the test."""
    for path in (images.path, images.network):
        shutil.copy(path, tmp_path)
    return tmp_path / "images.kcal"


def tensors(inputs) -> list[triton.InferInput]:
    named, made = inputs if isinstance(inputs, dict) else {"input": inputs}, []
    for name, part in named.items():
        one = triton.InferInput(name, list(part.shape), "INT64" if part.dtype == torch.int64 else "FP32")
        made.append(one.set_data_from_numpy(part.numpy()))
    return made


def plain(inputs) -> dict[str, list[Any]]:
    """Return inputs as plain JSON."""
    return {name: part.tolist() for name, part in (inputs if isinstance(inputs, dict) else {"input": inputs}).items()}


def learned(service) -> set[str]:
    return used_ids(service) - {f"images-{row}" for row in range(120)}


@pytest.mark.parametrize("kind", ["images", "texts"])
def test_predictions_and_explanations_are_those_of_the_calibrated_network(client, images, texts, kind):
    pair = {"images": images, "texts": texts}[kind]
    metadata, x = client.get_model_metadata(kind), rows(pair.inputs, 7)
    shapes = {one["name"]: (one["datatype"], one["shape"]) for one in metadata["inputs"]}
    if kind == "images":
        assert shapes == {"input": ("FP32", [-1, 1, 6, 6])}
    else:
        assert shapes == {"input_ids": ("INT64", [-1, 5]), "attention_mask": ("INT64", [-1, 5])}
    names = ("probabilities", "labels", "evidence", "explanation")
    assert {one["name"] for one in metadata["outputs"]} == {*names, "ids"}
    outputs = [triton.InferRequestedOutput(name) for name in names]
    result = client.infer(kind, tensors(x), outputs=outputs, parameters={"explanation_samples": 3})
    np.testing.assert_allclose(result.as_numpy("probabilities"), pair.model.predict_proba(x), **CLOSE)
    np.testing.assert_allclose(result.as_numpy("evidence"), pair.model.evidence(x), **CLOSE)
    assert [label.decode() for label in result.as_numpy("labels")] == pair.model.predict(x).tolist()
    computed = pair.outputs(7)
    logits = {"logits": computed.logits} if kind == "images" else {}
    expected = pair.model.calibrator.explain(computed.embeddings, 3, **logits)
    for place, text in enumerate(result.as_numpy("explanation")):
        samples = json.loads(text)["samples"]
        assert [sample["id"] for sample in samples] == expected.ids[place].tolist()
        np.testing.assert_allclose([one["share"] for one in samples], expected.shares[place], rtol=1e-3)


async def test_a_token_that_the_network_does_not_know_spoils_no_other_request(texts):
    good = {name: part[:1] for name, part in texts.inputs.items()}
    bad = good | {"input_ids": torch.full((1, 5), N_TOKENS)}
    async with in_process(texts.path) as (client, _):
        asked = [client.predict(plain(good)), client.predict(plain(bad), 400), client.predict(plain(good))]
        first, refused, second = await asyncio.gather(*asked)
    assert "does not accept" in refused["error"]
    assert "Gather" not in refused["error"]
    for answer in (first, second):
        np.testing.assert_allclose(answer["probabilities"], texts.model.predict_proba(good), **CLOSE)


@pytest.mark.parametrize(
    ("image", "status", "message"),
    [
        (np.zeros((2, 1, 6, 5), np.float32), "400", r"must have the shape \[-1, 1, 6, 6\]"),
        (np.full((1, 1, 6, 6), 3e38, np.float32), "422", "embeddings that are not finite"),
    ],
)
def test_inputs_that_the_network_cannot_take_are_refused(client, image, status, message):
    with pytest.raises(InferenceServerException, match=message) as error:
        client.infer("images", tensors(torch.from_numpy(image)))
    assert error.value.status() == status


async def test_labels_by_id_alone_reach_the_store_the_calibrator_and_the_page(model, images, tmp_path):
    x = images.inputs[:4]
    async with in_process(model, store=tmp_path / "feedback.db") as (client, service):
        await client.predict(plain(x), ids=["a", "b", "c", "d"])
        given = [{"id": "a", "label": "owl"}, {"id": "b", "label": "dog"}]
        assert await client.give(given, model="images") == ["stored", "stored"]
        await until(lambda: learned(service) == {"a", "b"})
        learnt = await client.predict(plain(x), explain=True, explanation_samples=100)
        summary, page = service.get("images").summary(), (await client.get("/")).text
    assert summary.n_labels == 2
    assert summary.n_inputs > 0
    outputs = images.outputs(2)
    for place, name in enumerate("ab"):
        assert name in {sample["id"] for sample in learnt["explanation"][place]["samples"]}
    with CalibrationStore(tmp_path / "feedback.db") as store:
        samples = store.samples()
    np.testing.assert_allclose(samples.embeddings, outputs.embeddings, **CLOSE)
    np.testing.assert_allclose(samples.logits, outputs.logits, **CLOSE)
    assert "images.network.onnx" in page


async def test_inputs_sent_again_are_learnt_as_those_of_the_prediction(model, images, tmp_path):
    x, outputs = images.inputs[:2], images.outputs(2)
    async with in_process(model, store=tmp_path / "feedback.db") as (client, _):
        missing = await client.give({"id": "a", "label": "owl"}, 404, model="images")
        assert "send its input with the label" in missing
        again = [
            {"id": "a", "label": "owl", "input": x[0].tolist()},
            {"id": "b", "label": "dog", "input": x[1:].tolist()},
        ]
        assert await client.give(again, model="images") == ["stored", "stored"]
        for status, message, fields in (
            (400, "the inputs must be input", {"embeddings": outputs.embeddings[0].tolist()}),
            (400, "must be one row", {"input": x.tolist()}),
            (400, "shape", {"input": x[0, 0].tolist()}),
            (422, "finite", {"input": torch.full((1, 6, 6), 3e38).tolist()}),
        ):
            assert message in await client.give({"id": "c", "label": "owl", **fields}, status, model="images")
    with CalibrationStore(tmp_path / "feedback.db") as store:
        np.testing.assert_allclose(store.samples().embeddings, outputs.embeddings, **CLOSE)


def test_files_that_do_not_belong_together_are_refused(images, other, texts, tmp_path):
    for wrong in (other, texts):
        with pytest.raises(InvalidInputError, match=r"must be the one that .*images\.kcal was fitted"):
            Predictor.load(images.path, wrong.network)
    (tmp_path / "damaged.onnx").write_bytes(images.network.read_bytes()[:-100])
    with pytest.raises(FileFormatError, match="network_to_onnx"):
        Predictor.load(images.path, tmp_path / "damaged.onnx")
    unnamed = save(images.model.calibrator, tmp_path / "unnamed.kcal")
    with pytest.raises(InvalidInputError, match=r"Write it with CalibratedClassifier\.save"):
        Predictor.load(unnamed, images.network)
    inputs, labels = draw_texts(120, 2)
    with without_warnings():  # about logits that separate the classes, and a head that is not the last layer
        blend = CalibratedClassifier(texts.model.network, calibrator("images")).fit([{**inputs, "labels": labels}])
        head = images.model.network.body[4]
        inner = CalibratedClassifier(images.model.network, KCal(projection="identity"), head=head)
        inner.fit([draw_images(120, 2)])
    with pytest.raises(FileFormatError, match="without logits"):
        Predictor.load(blend.save(tmp_path / "blend.kcal"), texts.network)
    with pytest.raises(InvalidInputError, match="or another head"):
        Predictor.load(inner.save(tmp_path / "inner.kcal"), images.network)


def test_without_onnxruntime_the_error_names_the_extra(images, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'kcal\[onnx\]'"):
        Predictor.load(images.path, images.network)


def replace(path, new) -> None:
    """Replace a file by a copy of another, atomically."""
    shutil.copy(new, path.with_name("incoming"))
    path.with_name("incoming").replace(path)


async def test_a_network_that_is_gone_does_not_turn_its_model_into_one_without(model, images, tmp_path):
    network = tmp_path / "images.network.onnx"
    async with in_process(model, reload_seconds=0.01) as (client, service):
        network.rename(tmp_path / "elsewhere")
        await until(lambda: service.errors)
        assert service.errors["images"].startswith("the network of images.kcal is gone")
        answer = await client.predict(plain(images.inputs[:3]))
        (tmp_path / "elsewhere").rename(network)
        await until(lambda: not service.errors)
    np.testing.assert_allclose(answer["probabilities"], images.model.predict_proba(images.inputs[:3]), **CLOSE)


async def test_either_file_may_be_replaced_and_an_unmatched_pair_changes_nothing(model, images, other, tmp_path):
    x, network = images.inputs[:3], tmp_path / "images.network.onnx"
    recalibrated = CalibratedClassifier(images.model.network, calibrator("images"))
    recalibrated.fit([draw_images(60, 9)], classes=CLASSES)
    async with in_process(model, store=tmp_path / "feedback.db", reload_seconds=0.01) as (client, service):
        served = service.get("images")
        await client.predict(plain(x), ids=["first", "second", "third"])
        await client.give({"id": "third", "label": "cat"}, model="images")
        await until(lambda: "third" in used_ids(service))
        # another calibrator of the same network
        before = served.predictor
        recalibrated.save(model)
        await until(lambda: served.predictor is not before)
        second = await client.predict(plain(x))
        assert await client.give({"id": "first", "label": "owl"}, model="images") == ["stored"]
        await until(lambda: "first" in used_ids(service))
        # another network, first without its calibrator
        before = served.predictor
        replace(network, other.network)
        await until(lambda: service.errors)
        assert (await client.get("/readyz")).status_code == 200
        assert served.predictor is before
        page = (await client.get("/")).text
        assert "must be the one that images.kcal was fitted with" in page
        assert str(tmp_path) not in page
        replace(model, other.path)
        await until(lambda: served.predictor is not before)
        third = await client.predict(plain(x))
        late = await client.give({"id": "second", "label": "owl"}, 404, model="images")
        assert "send its input with the label" in late
        await until(lambda: not service.errors)
        assert "first" not in used_ids(service)
        assert "2; not followed" in (await client.get("/")).text
        # with inputs, a label is of the present network; a correction alone is of the earlier one
        given = [{"id": "first", "label": "dog", "input": x[0].tolist()}, {"id": "third", "correction": "owl"}]
        assert await client.give(given, model="images") == ["corrected", "corrected"]
        await until(lambda: "first" in used_ids(service))
        assert "third" not in used_ids(service)
    np.testing.assert_allclose(third["probabilities"], other.model.predict_proba(x), **CLOSE)
    outputs, live = images.outputs(3), recalibrated.calibrator
    live.partial_fit(outputs.embeddings[2:], ["cat"], logits=outputs.logits[2:])
    with without_warnings():  # of a row that it has learnt
        expected = live.predict_proba(outputs.embeddings, logits=outputs.logits)
    np.testing.assert_allclose(second["probabilities"], expected, **CLOSE)
