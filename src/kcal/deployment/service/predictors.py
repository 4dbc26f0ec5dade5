"""What a served model computes: a calibrator's predictions, or those of an exported network in an ONNX file."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.calibrators import Calibrator, predict_on
from kcal.deployment.service.errors import bad_request
from kcal.deployment.service.explanations import explanation_entries
from kcal.deployment.service.tensors import BYTES, NUMPY_TYPES, Tensor
from kcal.embeddings import ClassifierOutputs
from kcal.errors import FileFormatError, MissingExtraError

Arrays = dict[str, NDArray[Any]]
LARGEST = 1e18
"""Larger embeddings are refused, as calibrators do."""
ONNX_TYPES = {
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(float16)": "FP16",
    "tensor(bool)": "BOOL",
    **{f"tensor({sign}int{size})": f"{sign.upper()}INT{size}" for sign in ("", "u") for size in (8, 16, 32, 64)},
}


@dataclass(frozen=True)
class TensorSpec:
    """Name, datatype and shape of an input or an output; −1 stands for any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the model's metadata."""
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}


class ServedPredictor(ABC):
    """Rows in, probabilities and evidence out; thread-safe, and the same for a row whatever rows come with it."""

    method: str
    classes: NDArray[Any]
    inputs: tuple[TensorSpec, ...]
    has_evidence: bool
    has_explanations: bool = False
    calibrator: Calibrator | None = None

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Every output that can be asked for."""
        evidence = (TensorSpec("evidence", "FP32", (-1,)),) if self.has_evidence else ()
        explanation = (TensorSpec("explanation", BYTES, (-1,)),) if self.has_explanations else ()
        return (
            TensorSpec("probabilities", "FP32", (-1, len(self.classes))),
            TensorSpec("labels", BYTES, (-1,)),
            *evidence,
            TensorSpec("ids", BYTES, (-1,)),
            *explanation,
        )

    @property
    def default_outputs(self) -> tuple[str, ...]:
        """Outputs of a request that names none."""
        return ("probabilities", "labels", "evidence") if self.has_evidence else ("probabilities", "labels")

    def check(self, tensors: Mapping[str, Tensor]) -> Arrays:
        """Return the arrays of a request in the model's precision; raise if one is missing, unknown or invalid."""
        names = [spec.name for spec in self.inputs]
        for name in tensors:
            if name not in names:
                raise bad_request(f"the model has no input {name!r}; its inputs are {', '.join(names)}")
        arrays = {}
        for spec in self.inputs:
            if spec.name not in tensors:
                raise bad_request(f"input {spec.name!r} is missing; the inputs are {', '.join(names)}")
            arrays[spec.name] = _checked(tensors[spec.name], spec)
        rows = {len(array) for array in arrays.values()}
        if len(rows) > 1 or 0 in rows:
            counts = ", ".join(f"{len(array)} of {name}" for name, array in arrays.items())
            raise bad_request(f"all inputs must have the same number of rows, at least 1; got {counts}")
        return arrays

    @abstractmethod
    def predict(self, arrays: Arrays, *, evidence: bool) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """Return probabilities, (n, n_classes), and the evidence, (n,), if it is asked for."""

    def explain(self, arrays: Arrays, k: int) -> list[str]:
        """Return the explanation of each row as JSON text, with ``k`` samples; raise if the model has none."""
        raise bad_request("this model does not explain its predictions")


def _checked(tensor: Tensor, spec: TensorSpec) -> NDArray[Any]:
    """Return the array of an input; numbers become floating point if the model takes it."""
    name, array, wanted = spec.name, tensor.array, NUMPY_TYPES[spec.datatype]
    expected = f"input {name!r} must have the shape {list(spec.shape)}; got {list(array.shape)}"
    sizes = zip(array.shape, spec.shape, strict=False)
    if array.ndim != len(spec.shape) or any(size != fixed for size, fixed in sizes if fixed >= 0):
        raise bad_request(expected)
    if array.dtype.kind not in ("fiu" if wanted.kind == "f" else wanted.kind):
        raise bad_request(f"input {name!r} must be {spec.datatype}; got {tensor.datatype}")
    if wanted.kind == "f":
        with np.errstate(over="ignore"):
            array = array.astype(wanted, copy=False)
        if not np.isfinite(array).all():
            raise bad_request(f"input {name!r} must be finite numbers of single precision")
    elif array.dtype != wanted:
        raise bad_request(f"input {name!r} must be {spec.datatype}; got {tensor.datatype}")
    return array


class CalibratorPredictor(ServedPredictor):
    """The predictions of a fitted calibrator, from embeddings, logits or both."""

    def __init__(self, calibrator: Calibrator) -> None:
        self.calibrator: Calibrator = calibrator
        self.method, self.classes = calibrator.method, calibrator.classes_
        self.has_evidence, self.has_explanations = calibrator.has_evidence, calibrator.has_explanations
        n_classes = len(self.classes)
        widths = {}
        if calibrator.inputs != "logits":
            widths["embeddings"] = calibrator.n_features_in_
        if calibrator.needs_logits_:
            widths["logits"] = calibrator.n_features_in_ if calibrator.inputs == "logits" else n_classes
        self.inputs = tuple(TensorSpec(name, "FP32", (-1, width)) for name, width in widths.items())

    def check(self, tensors: Mapping[str, Tensor]) -> Arrays:
        """Return the arrays of a request; embeddings must not be so large that their squares overflow."""
        arrays = super().check(tensors)
        if "embeddings" in arrays and float(np.abs(arrays["embeddings"]).max()) > LARGEST:
            raise bad_request(f"input 'embeddings' must have no number above {LARGEST:g}")
        return arrays

    def predict(self, arrays: Arrays, *, evidence: bool) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """Return probabilities and, if asked for, evidence."""
        outputs = ClassifierOutputs(**arrays)
        probs = np.asarray(predict_on(self.calibrator, outputs), dtype=np.float32)
        if not evidence:
            return probs, None
        calibrator: Any = self.calibrator
        return probs, np.asarray(calibrator.evidence(outputs.matrix(calibrator.inputs)), dtype=np.float32)

    def explain(self, arrays: Arrays, k: int) -> list[str]:
        """Return the explanation of each row as JSON text."""
        calibrator: Any = self.calibrator
        logits = {"logits": arrays["logits"]} if len(arrays) == 2 else {}
        explanation = calibrator.explain(ClassifierOutputs(**arrays).matrix(calibrator.inputs), k, **logits)
        return [json.dumps(entry, allow_nan=False) for entry in explanation_entries(explanation)]


class OnnxPredictor(ServedPredictor):
    """The predictions of an ONNX file that ``kcal export`` or ``CalibratedClassifier.to_onnx`` wrote."""

    def __init__(self, path: Path) -> None:
        runtime = _require_runtime()
        try:
            self._session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
            metadata = self._session.get_modelmeta().custom_metadata_map
            classes = json.loads(metadata["classes"])
        except Exception as error:  # onnxruntime raises errors of its own for every kind of damage
            raise FileFormatError(f"{path} is no ONNX file that kcal exported, or it is damaged.") from error
        self.method, self.classes = f"onnx-{metadata.get('method', '')}", np.array(classes)
        self.inputs = tuple(_spec(one) for one in self._session.get_inputs())
        self.has_evidence = "evidence" in [one.name for one in self._session.get_outputs()]

    def predict(self, arrays: Arrays, *, evidence: bool) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """Return probabilities and, if asked for, evidence."""
        names = ["probabilities", "evidence"] if evidence else ["probabilities"]
        results = self._session.run(names, arrays)
        return results[0], results[1] if evidence else None


def _spec(one: Any) -> TensorSpec:
    if one.type not in ONNX_TYPES:
        raise FileFormatError(f"the input {one.name} of the network has the type {one.type}, which cannot be served.")
    shape = tuple(size if isinstance(size, int) else -1 for size in one.shape)
    return TensorSpec(one.name, ONNX_TYPES[one.type], (-1, *shape[1:]))


def _require_runtime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("ONNX files are served with onnxruntime: pip install 'kcal[onnx]'.") from error
    return onnxruntime
