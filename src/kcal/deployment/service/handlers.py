"""The answers of each address; the framework's part is in api.py."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version as package_version
from typing import Any

from kcal.deployment.service.batching import BatcherClosedError, in_thread_if
from kcal.deployment.service.errors import bad_request
from kcal.deployment.service.feedback import parse_feedback
from kcal.deployment.service.inference import LARGE, ServedModel
from kcal.deployment.service.messages import HTML, Answer, json_answer
from kcal.deployment.service.page import content_security_policy, render_page
from kcal.deployment.service.protocol import (
    InferenceRequest,
    encode_response,
    json_length,
    parse_json,
    parse_object,
    parse_request,
)
from kcal.deployment.service.runtime import Service
from kcal.deployment.service.tensors import BYTES, Tensor, decode_json, nested_shape

EXTENSIONS = ["binary_tensor_data", "model_repository", "parameters"]
LARGE_BODY = 2**17
"""JSON of more bytes is parsed in a thread, so that other requests go on."""
PREDICT_OPTIONS = ("model", "version", "ids", "explain", "explanation_samples", "evidence")
"""Fields of a plain request, apart from the model's inputs."""

Outputs = list[tuple[Tensor, bool]]


@dataclass(eq=False)
class Call:
    """What handlers take from a request: the model and version of its address, the query and the body."""

    headers: Mapping[str, str]
    model: str = ""
    version: str | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class Handlers:
    """Requests in, answers out."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def infer(self, call: Call) -> Answer:
        """Answer an inference request of the protocol."""
        n_json = json_length(call.headers, len(call.body))
        max_json = self.service.options.max_json
        request = await in_thread_if(n_json > LARGE_BODY, parse_request, call.body, n_json, max_json)
        model, outputs = await self._infer(call.model, call.version, request)
        head = {"model_name": model.name, "model_version": str(model.version)}
        if request.id is not None:
            head["id"] = request.id
        is_large = sum(tensor.array.size for tensor, _ in outputs) > LARGE
        content, split = await in_thread_if(is_large, encode_response, head, outputs)
        if split is None:
            return Answer(content)
        header = {"Inference-Header-Content-Length": str(split)}
        return Answer(content, media_type="application/octet-stream", headers=header)

    async def _infer(self, name: str, version: str | None, request: InferenceRequest) -> tuple[ServedModel, Outputs]:
        """Return the outputs of a request; if its model is replaced before it answers, those of the new one."""
        while True:
            model = self.service.repository.get(name, version)
            try:
                return model, await model.infer(request)
            except BatcherClosedError:
                if self.service.is_stopping or self.service.repository.get(name, version) is model:
                    raise

    async def predict(self, call: Call) -> Answer:
        """Answer a plain JSON request."""
        content = await asyncio.to_thread(parse_object, call.body, self.service.options.max_json)
        name, version = content.get("model"), content.get("version")
        if name is not None and not isinstance(name, str):
            raise bad_request("model must be text")
        if version is not None and type(version) not in (str, int):
            raise bad_request("version must be text or an integer")
        model = self.service.repository.get(name, None if version is None else str(version))
        with model.tallies.timed():
            tensors, outputs = _plain_tensors(model, content), _plain_outputs(model, content)
            job = model.job(tensors, outputs, content.get("explanation_samples"))
            predictions = await model.batcher.submit(job, job.n_rows, job.key)
        answer: dict[str, Any] = {
            "model": model.name,
            "version": str(model.version),
            "classes": predictions.classes.tolist(),
            "ids": job.ids,
            "labels": predictions.labels,
            "probabilities": predictions.probs.tolist(),
        }
        if predictions.evidence is not None:
            answer["evidence"] = predictions.evidence.tolist()
        if predictions.explanation is not None:
            answer["explanation"] = [json.loads(text) for text in predictions.explanation]
        return await in_thread_if(predictions.probs.size > LARGE, json_answer, answer)

    async def feedback(self, call: Call) -> Answer:
        """Answer feedback when it is on disk."""
        content = await asyncio.to_thread(parse_json, call.body, self.service.options.max_json)
        while True:
            learner = self.service.learner(call.model, call.version)
            records = await asyncio.to_thread(parse_feedback, content, learner.model.predictor)  # a network may run
            try:
                done = await learner.learn(records)
                successor = self.service.learners.get(call.model or learner.model.name)
                if successor not in (None, learner) and any(record.is_erasure for record in records):
                    await successor.finish_erasures()  # the model was replaced meanwhile
                break
            except BatcherClosedError:
                if self.service.is_stopping or self.service.learners.get(call.model) is learner:
                    raise
        results = [{"id": record.id, "status": status} for record, status in zip(records, done, strict=True)]
        return json_answer({"model_name": call.model, "accepted": len(results), "results": results})

    async def reset_monitors(self, call: Call) -> Answer:
        """End the alarms of a model."""
        model = await asyncio.to_thread(self.service.reset_monitors, call.model, call.version)
        return json_answer({"model_name": model.name, "model_version": str(model.version)})

    async def server_metadata(self, _: Call) -> Answer:
        """Answer with name and version of the server."""
        return json_answer({"name": "kcal", "version": package_version("kcal"), "extensions": EXTENSIONS})

    async def live(self, _: Call) -> Answer:
        """Answer that the service runs."""
        return json_answer({"live": True})

    async def ready(self, _: Call) -> Answer:
        """Answer whether all models are loaded."""
        is_ready = self.service.is_ready
        return json_answer({"ready": is_ready}, 200 if is_ready else 503)

    async def models(self, _: Call) -> Answer:
        """Answer with the names of the models."""
        return json_answer({"models": sorted(self.service.repository.models)})

    async def index(self, _: Call) -> Answer:
        """Answer with the versions of all models, as Triton's repository extension does."""
        repository = self.service.repository
        states = {(model.name, model.version): ("READY", "") for model in repository.all()}
        failed = dict.fromkeys(repository.errors, ("UNAVAILABLE", "the file cannot be loaded"))
        entries = [
            {"name": name, "version": str(version), "state": state, "reason": reason}
            for (name, version), (state, reason) in {**failed, **states}.items()
        ]
        return json_answer(entries)

    async def model_metadata(self, call: Call) -> Answer:
        """Answer with inputs, outputs and versions of a model."""
        model = self.service.repository.get(call.model, call.version)
        return json_answer(model.metadata(sorted(self.service.repository.models[call.model])))

    async def model_ready(self, call: Call) -> Answer:
        """Answer whether a model is served."""
        model = self.service.repository.get(call.model, call.version)
        return json_answer({"name": model.name, "ready": True})

    async def page(self, call: Call) -> Answer:
        """Answer with the page for the people who run the service."""
        return await asyncio.to_thread(self._page, call.query)

    def _page(self, query: Mapping[str, str]) -> Answer:
        selected = query.get("model")
        text = render_page(
            self.service.views(selected),
            selected=selected,
            class_column=query.get("class"),
            refresh=query.get("refresh"),
        )
        return Answer(text.encode(), media_type=HTML, headers={"Content-Security-Policy": content_security_policy()})


def _plain_tensors(model: ServedModel, content: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the inputs of a plain request: nested lists, one row each."""
    names = [spec.name for spec in model.predictor.inputs]
    unknown = next((key for key in content if key not in (*names, *PREDICT_OPTIONS)), None)
    if unknown is not None:
        raise bad_request(f"there is no field {unknown!r}; the model's inputs are {', '.join(names)}")
    tensors, n_rows = {}, 0
    for spec in model.predictor.inputs:
        if spec.name not in content:
            raise bad_request(f"{spec.name!r} is missing; the model's inputs are {', '.join(names)}")
        shape = nested_shape(content[spec.name]) or (0,)
        n_rows = shape[0]
        tensors[spec.name] = Tensor(
            spec.name, spec.datatype, decode_json(spec.name, spec.datatype, shape, content[spec.name])
        )
    ids = content.get("ids")
    if ids is None:
        ids = [uuid.uuid4().hex for _ in range(n_rows)]
    tensors["ids"] = Tensor("ids", BYTES, decode_json("ids", BYTES, nested_shape(ids) or (0,), ids))
    return tensors


def _plain_outputs(model: ServedModel, content: Mapping[str, Any]) -> list[str]:
    outputs = ["probabilities", "labels", "ids"]
    for key, name, default in (
        ("evidence", "evidence", model.predictor.has_evidence),
        ("explain", "explanation", False),
    ):
        wanted = content.get(key, default)
        if not isinstance(wanted, bool):
            raise bad_request(f"{key} must be true or false")
        outputs += [name] if wanted else []
    return outputs
