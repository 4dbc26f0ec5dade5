"""The documentation of the addresses: what OpenAPI says of them, and a page of it that needs no other server."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html import escape
from importlib.metadata import version as package_version
from typing import Any

TEXT = {"type": "string"}
PARAMETERS = {"type": "object", "additionalProperties": True}
LABEL = {"oneOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}]}
ROW = {"type": "array", "items": {"type": "number"}}
OF_NETWORK = "a model with its network takes the network's inputs in their place, by name, as its metadata list them"


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties}


def _list(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": dict(items)}


def _body(schema: Mapping[str, Any], example: Any, *, binary: bool = False) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": dict(schema), "example": example}}
    if binary:
        content["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
    return {"requestBody": {"required": True, "content": content}}


TENSOR = _object(
    ["name", "shape", "datatype"],
    name=TEXT,
    shape=_list({"type": "integer", "minimum": 0}),
    datatype={**TEXT, "description": "BOOL, UINT8 to UINT64, INT8 to INT64, FP16, BF16, FP32, FP64 or BYTES"},
    parameters={**PARAMETERS, "description": "binary_data_size for binary data"},
    data={"type": "array", "items": {}, "description": "flat, or nested as the shape is"},
)
INFERENCE = _object(
    ["inputs"],
    id={**TEXT, "description": "returned with the response"},
    parameters={**PARAMETERS, "description": "binary_data_output, return_ids, explanation_samples"},
    inputs=_list(TENSOR),
    outputs=_list(_object(["name"], name=TEXT, parameters=PARAMETERS)),
)
FEEDBACK = _object(
    ["id"],
    id={**TEXT, "description": "of the prediction"},
    label={**LABEL, "description": "the class that it was"},
    correction={**LABEL, "description": "the class in place of an earlier label"},
    erase={"type": "boolean", "description": "erase everything that is known of the id"},
    embeddings={**ROW, "description": f"of the prediction, if it was long ago; {OF_NETWORK}"},
    logits={**ROW, "description": "of the prediction, for a model that takes them"},
    group={**TEXT, "description": "of the sample, for a model with groups"},
)
PREDICTION = _object(
    [],
    model={**TEXT, "description": "needed if there are several"},
    version=TEXT,
    embeddings={**_list(ROW), "description": f"one row each; {OF_NETWORK}"},
    logits={**_list(ROW), "description": "for a model that takes them"},
    ids={**_list(TEXT), "description": "by which feedback names the predictions"},
    evidence={"type": "boolean", "default": True},
    explain={"type": "boolean", "default": False},
    explanation_samples={"type": "integer", "default": 5},
)

EXAMPLE_INFERENCE = {"inputs": [{"name": "embeddings", "shape": [1, 3], "datatype": "FP32", "data": [0.1, 0.2, 0.3]}]}
OPERATIONS: dict[str, dict[str, Any]] = {
    "/": {"summary": "Page for the people who run the service (admin)"},
    "/v2": {"summary": "Name, version and extensions of the server"},
    "/v2/health/live": {"summary": "Whether the server is there; no token"},
    "/v2/health/ready": {"summary": "Whether every model is loaded; no token"},
    "/healthz": {"summary": "Whether the server is there; no token"},
    "/readyz": {"summary": "Whether every model is loaded; no token"},
    "/v2/models": {"summary": "Names of the models"},
    "/v2/models/{model}": {"summary": "Inputs, outputs and versions of a model"},
    "/v2/models/{model}/ready": {"summary": "Whether a model is served"},
    "/v2/repository/index": {"summary": "Every version of every model, and its state"},
    "/v2/models/{model}/infer": {
        "summary": "Calibrated predictions (predict); JSON tensors, or binary ones after the JSON",
        "openapi": _body(INFERENCE, EXAMPLE_INFERENCE, binary=True),
    },
    "/v2/models/{model}/feedback": {
        "summary": "Labels, corrections and erasures (feedback); answered when they are on disk",
        "openapi": _body({"oneOf": [FEEDBACK, _list(FEEDBACK)]}, {"id": "scan-17", "label": "cat"}),
    },
    "/v2/models/{model}/monitors/reset": {
        "summary": "End the alarms of a model: its monitors begin again with what comes from now on (admin)",
    },
    "/predict": {
        "summary": "Calibrated predictions as plain JSON (predict)",
        "openapi": _body(PREDICTION, {"embeddings": [[0.1, 0.2, 0.3]]}),
    },
    "/metrics": {"summary": "Metrics for Prometheus (metrics)"},
}
for _operation in OPERATIONS.values():
    _operation["responses"] = {
        "4XX": {"description": 'The request is refused: {"error": "…"}'},
        "503": {"description": "Too many requests wait, or the models are being loaded; see Retry-After"},
    }

STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:50rem;margin:0 auto;padding:1rem}"
    "code,pre{font-family:ui-monospace,monospace;overflow-wrap:anywhere}pre{white-space:pre-wrap}"
    "section{border-top:1px solid #8886;padding:.5rem 0}h2{font-size:1rem;margin:.25rem 0}"
    ":root{color-scheme:light dark}"
)


def openapi_schema(methods: Mapping[str, str]) -> dict[str, Any]:
    """Return what OpenAPI says of the addresses, given the method of each."""
    from fastapi import FastAPI, Response

    async def endpoint() -> None:  # for any of them: FastAPI describes them here, and answers nothing
        pass

    api = FastAPI(
        title="kcal",
        version=package_version("kcal"),
        description="Calibrated predictions over the Open Inference Protocol v2, with feedback and monitoring.",
    )
    for path, method in methods.items():
        documentation = OPERATIONS.get(path.replace("/versions/{version}", ""), {})
        api.add_api_route(
            path,
            endpoint,
            methods=[method],
            response_class=Response,
            response_model=None,
            name=re.sub(r"\W+", "_", path).strip("_") or "page",
            summary=documentation.get("summary"),
            openapi_extra={**documentation.get("openapi", {}), **_path_parameters(path)},
            responses=documentation.get("responses"),
        )
    return api.openapi()


def _path_parameters(path: str) -> dict[str, Any]:
    names = re.findall(r"\{(\w+)\}", path)
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    return {"parameters": parameters} if parameters else {}


def docs_page(schema: Mapping[str, Any]) -> str:
    """Return a page with every operation of an OpenAPI schema; the schema itself is at /openapi.json."""
    sections = [
        _section(path, method, operation)
        for path, operations in schema["paths"].items()
        for method, operation in operations.items()
    ]
    title = escape(f"{schema['info']['title']} {schema['info']['version']}")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head><body>'
        f"<h1>{title}</h1><p>{escape(schema['info']['description'])} "
        f'The schema is at <a href="/openapi.json">/openapi.json</a>.</p>{"".join(sections)}</body></html>'
    )


def _section(path: str, method: str, operation: Mapping[str, Any]) -> str:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    example = ""
    if content is not None:
        example = f"<pre>{escape(json.dumps(content['example'], indent=1))}</pre>{_fields(content['schema'])}"
    heading = f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation.get('summary', ''))}</p>"
    return f"<section>{heading}{example}</section>"


def _fields(schema: Mapping[str, Any]) -> str:
    """Return the fields of a body as a list."""
    properties = (schema.get("oneOf") or [schema])[0].get("properties", {})
    items = [
        f"<li><code>{escape(name)}</code> {escape(field.get('description', ''))}</li>"
        for name, field in properties.items()
    ]
    return f"<ul>{''.join(items)}</ul>"
