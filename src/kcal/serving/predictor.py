"""What a served model computes: the inputs of requests to probabilities, evidence and explanations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import HTTPException
from numpy.typing import NDArray

from kcal.calibrators import Calibrator, online_state, predict_on
from kcal.deployment.export import taken_outputs
from kcal.deployment.reference import check_pair
from kcal.embeddings import ClassifierOutputs
from kcal.errors import FileFormatError, InvalidInputError, MissingExtraError
from kcal.persistence import load_with_network
from kcal.serving.protocol import TYPES, bad_request, from_json

Arrays = Mapping[str, NDArray[Any]]

MAX_EMBEDDING = 1e18
"""Calibrators accept no larger embeddings: their squares would overflow."""


@dataclass(frozen=True)
class TensorSpec:
    """Name, datatype and shape of an input or an output; −1 stands for any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @classmethod
    def of_onnx(cls, one: Any) -> TensorSpec:
        """Return the specification of an input of an ONNX network, whose first dimension is that of the rows."""
        kind = one.type.removeprefix("tensor(").removesuffix(")")
        datatype = {"float": "FP32", "double": "FP64", "float16": "FP16"}.get(kind, kind.upper())
        _ = TYPES[datatype]  # raises for a type that the protocol does not have
        return cls(one.name, datatype, (-1, *(size if isinstance(size, int) else -1 for size in one.shape[1:])))

    def check(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the array of an input in the type of the model; integers may become floating point."""
        wanted = TYPES[self.datatype]
        sizes = zip(array.shape, self.shape, strict=False)
        if array.ndim != len(self.shape) or any(size != fixed for size, fixed in sizes if fixed >= 0):
            raise bad_request(f"input {self.name!r} must have the shape {list(self.shape)}; got {list(array.shape)}")
        if array.dtype != wanted and not (wanted.kind == "f" and array.dtype.kind in "fiu"):
            raise bad_request(f"input {self.name!r} must be {self.datatype}; got {array.dtype.name}")
        with np.errstate(over="ignore"):
            array = array.astype(wanted, copy=False)
        if wanted.kind == "f" and not np.isfinite(array).all():
            raise bad_request(f"input {self.name!r} must be finite numbers of {self.datatype}")
        return array


class Network:
    """A network that ``CalibratedClassifier.network_to_onnx`` wrote: its inputs to embeddings and logits.

    Parameters
    ----------
    path : Path
        The ONNX file.

    Attributes
    ----------
    reference : dict
        Class, checksum and head of the network.
    """

    def __init__(self, path: Path) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise MissingExtraError("Networks are served with onnxruntime: pip install 'kcal[onnx]'.") from error
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # rows that the network does not accept are reported to the client
        self.path = path
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            self.reference = dict(json.loads(self._session.get_modelmeta().custom_metadata_map["network"]))
            self.checksum = str(self.reference["checksum"])
            self.inputs = tuple(map(TensorSpec.of_onnx, self._session.get_inputs()))
        except Exception as error:  # onnxruntime raises errors of its own for every kind of damage
            message = f"{path} is not a network of CalibratedClassifier.network_to_onnx, or it is damaged."
            raise FileFormatError(message) from error
        self.outputs = {one.name for one in self._session.get_outputs()}

    def run(self, names: tuple[str, ...], arrays: Arrays) -> Arrays:
        """Return embeddings, logits or both; raise if the network does not accept the inputs, or gives NaN."""
        try:
            values = self._session.run(list(names), dict(arrays))
        except Exception as error:  # such as a token id that its table does not have
            raise bad_request(f"the network does not accept the values of {' and '.join(arrays)}") from error
        outputs = dict(zip(names, values, strict=True))
        for name, array in outputs.items():
            check_finite(name, array, MAX_EMBEDDING if name == "embeddings" else np.inf)
        return outputs


def check_finite(name: str, values: NDArray[Any], limit: float = np.inf) -> None:
    """Raise, with status 422, if the model computed numbers that are not finite, or not below a limit."""
    if not float(np.abs(values).max()) < limit:
        raise HTTPException(422, f"for this input the model computes {name} that are not finite")


@dataclass(frozen=True, eq=False)
class Scores:
    """What is computed for rows; ``rows`` are the embeddings and logits that the calibrator was given."""

    probs: NDArray[np.float32]  # (n, n_classes)
    evidence: NDArray[np.float32] | None  # (n,)
    rows: Arrays

    def __getitem__(self, part: slice) -> Scores:
        evidence = None if self.evidence is None else self.evidence[part]
        return Scores(self.probs[part], evidence, {name: values[part] for name, values in self.rows.items()})


class Predictor:
    """A fitted calibrator, after its network if there is one; thread-safe.

    Parameters
    ----------
    calibrator : Calibrator
        Fitted.
    network : Network, optional
        Computes the embeddings and logits; without it, clients send them.
    """

    def __init__(self, calibrator: Calibrator, network: Network | None = None) -> None:
        self.calibrator, self.network = calibrator, network
        self.classes: NDArray[Any] = calibrator.classes_
        self.taken = taken_outputs(calibrator)
        self.version = "" if network is None else network.checksum
        n_classes, width = len(self.classes), calibrator.n_features_in_
        widths = {"embeddings": width, "logits": width if calibrator.inputs == "logits" else n_classes}
        given = tuple(TensorSpec(name, "FP32", (-1, widths[name])) for name in self.taken)
        self.inputs = given if network is None else network.inputs
        evidence = [TensorSpec("evidence", "FP32", (-1,))] if calibrator.tags.has_evidence else []
        explanation = [TensorSpec("explanation", "BYTES", (-1,))] if calibrator.tags.has_explanations else []
        labels, ids = (TensorSpec(name, "BYTES", (-1,)) for name in ("labels", "ids"))
        self.outputs = (TensorSpec("probabilities", "FP32", (-1, n_classes)), labels, *evidence, ids, *explanation)
        self.default_outputs = ["probabilities", "labels", *(spec.name for spec in evidence)]

    @classmethod
    def load(cls, path: Path, network_path: Path | None) -> Predictor:
        """Return the predictor of a calibrator's file, and its network's; raise if they do not belong together."""
        calibrator, reference = load_with_network(path)
        if network_path is None:
            return cls(calibrator)
        network = Network(network_path)
        check_pair(reference, network.reference, path)
        if missing := [name for name in taken_outputs(calibrator) if name not in network.outputs]:
            remedy = "Write it again with network_to_onnx of the present one."
            raise FileFormatError(f"{network_path} was written for a calibrator without {missing[0]}. {remedy}")
        return cls(calibrator, network)

    def check(self, arrays: Arrays) -> Arrays:
        """Return the inputs of a request in the model's precision; raise if one is missing, unknown or invalid."""
        names = [spec.name for spec in self.inputs]
        if set(arrays) != set(names):
            raise bad_request(f"the inputs must be {', '.join(names)}; got {', '.join(arrays) or 'none'}")
        checked = {spec.name: spec.check(arrays[spec.name]) for spec in self.inputs}
        if len({len(array) for array in checked.values()}) > 1:
            raise bad_request("all inputs must have the same number of rows")
        return checked

    def read_lists(self, fields: Mapping[str, Any]) -> Arrays:
        """Return the checked inputs of plain JSON: nested lists with one row per prediction, or a single row."""
        ranks = {spec.name: len(spec.shape) for spec in self.inputs}
        datatypes = {spec.name: spec.datatype for spec in self.inputs}
        arrays = {name: from_json(name, datatypes.get(name, "FP32"), values) for name, values in fields.items()}
        return self.check({name: one[None] if one.ndim + 1 == ranks.get(name) else one for name, one in arrays.items()})

    def rows(self, arrays: Arrays) -> Arrays:
        """Return the embeddings and logits of checked inputs, which the network computes if there is one."""
        return arrays if self.network is None else self.network.run(self.taken, arrays)

    def predict(self, arrays: Arrays, *, evidence: bool) -> Scores:
        """Return probabilities and, on request, evidence of checked inputs."""
        rows = self.rows(arrays)
        outputs, calibrator, found = ClassifierOutputs(**rows), self.calibrator, None
        probs = np.asarray(predict_on(calibrator, outputs), dtype=np.float32)
        check_finite("probabilities", probs)
        if evidence:
            found = np.asarray(calibrator.evidence(outputs.matrix(calibrator.inputs)), dtype=np.float32)
            check_finite("evidence", found)
        return Scores(probs, found, rows)

    def explain(self, rows: Arrays, n_samples: int) -> Any:
        """Return the Explanation of embeddings and logits, with so many samples per row."""
        calibrator: Any = self.calibrator
        logits = {"logits": rows["logits"]} if len(rows) == 2 else {}
        return calibrator.explain(ClassifierOutputs(**rows).matrix(calibrator.inputs), n_samples, **logits)

    def summary(self) -> dict[str, str]:
        """Return the main results of the fit, and which network computes the inputs."""
        if self.network is None:
            return self.calibrator.summary()
        name = f"{self.network.reference.get('class')}, {self.network.path.name}, {self.version[:12]}"
        return self.calibrator.summary() | {"network": name}


def unable_to_learn(calibrator: Calibrator) -> str:
    """Return why samples cannot be added to a calibrator; empty if they can."""
    if not calibrator.tags.learns_online:
        return f"the method {calibrator.method} does not learn online."
    try:
        online_state(calibrator)
    except InvalidInputError as error:  # a compressed support
        return str(error)
    return ""
