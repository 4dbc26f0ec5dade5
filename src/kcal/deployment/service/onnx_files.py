"""ONNX files that kcal wrote: a network alone, which runs before its calibrator, and a network with its calibration."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kcal.deployment.service.predictors import Arrays, Scores, ServedPredictor, TensorSpec, check_finite
from kcal.errors import FileFormatError, InvalidInputError, MissingExtraError

ONNX_TYPES = {
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(float16)": "FP16",
    "tensor(bool)": "BOOL",
    **{f"tensor({sign}int{size})": f"{sign.upper()}INT{size}" for sign in ("", "u") for size in (8, 16, 32, 64)},
}
QUIET = 4
"""Level of onnxruntime's log at which rows that a graph does not take are not logged: the client is told."""
SHOWN = 12
"""Characters of a checksum on the page."""
SERVE_PAIR = "serve its calibrator with the network: kcal serve MODEL.kcal --network NETWORK.onnx --store FILE"


class OnnxSession:
    """A graph in memory, with its inputs, its outputs and what it says of itself."""

    def __init__(self, path: Path) -> None:
        runtime = _require_runtime()
        errors = runtime.capi.onnxruntime_pybind11_state
        self._refusal = (errors.InvalidArgument, errors.Fail)  # Fail: lengths that do not fit together
        options = runtime.SessionOptions()
        options.log_severity_level = QUIET
        try:
            self._session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            self.metadata: dict[str, str] = self._session.get_modelmeta().custom_metadata_map
        except Exception as error:  # onnxruntime raises errors of its own for every kind of damage
            raise FileFormatError(f"{path} is no ONNX file that kcal exported, or it is damaged.") from error
        self.inputs = tuple(_spec(one) for one in self._session.get_inputs())
        self.output_names = [one.name for one in self._session.get_outputs()]

    def run(self, names: list[str], arrays: Arrays) -> list[NDArray[Any]]:
        """Return some outputs; raise if the graph does not take the values, such as an unknown token id."""
        try:
            results: list[NDArray[Any]] = self._session.run(names, arrays)
        except self._refusal as error:
            expected = "must be values that the network takes: indices, such as token ids, within its range"
            raise InvalidInputError(" and ".join(arrays), expected) from error
        return results


class NetworkFile:
    """The file of a network alone that ``CalibratedClassifier.network_to_onnx`` wrote: inputs to embeddings and logits.

    Attributes
    ----------
    reference : dict
        Class, checksum and head of the network.
    """

    def __init__(self, path: Path) -> None:
        self._session, self._path = OnnxSession(path), path
        try:
            self.reference: dict[str, Any] = dict(json.loads(self._session.metadata["network"]))
            self.checksum = str(self.reference["checksum"])
        except (KeyError, TypeError, ValueError) as error:
            message = f"{path} is no network alone: write it with CalibratedClassifier.network_to_onnx."
            raise FileFormatError(message) from error
        self.inputs = self._session.inputs

    def check_outputs(self, names: tuple[str, ...]) -> None:
        """Raise if the file was written for a calibrator that takes less."""
        missing = " and ".join(name for name in names if name not in self._session.output_names)
        if missing:
            remedy = "Write it again with network_to_onnx of the present one."
            raise FileFormatError(f"{self._path} was written for a calibrator that does not take {missing}. {remedy}")

    def run(self, names: tuple[str, ...], arrays: Arrays) -> Arrays:
        """Return embeddings, logits or both of checked arrays; raise if they are not finite."""
        outputs = dict(zip(names, self._session.run(list(names), arrays), strict=True))
        check_finite(outputs)
        return outputs

    def summary(self) -> dict[str, str]:
        """Return facts for the page."""
        name = f"{self.reference.get('class')}, {self._path.name}"
        return {"network": name, "checksum of the network": self.checksum[:SHOWN]}


@dataclass(frozen=True, eq=False)
class ExportedCalibrator:
    """What an ONNX file says of the calibrator in it: enough to watch class frequencies, but no row can be compared."""

    classes_: NDArray[Any]
    prior_: NDArray[np.float64] | None
    has_evidence: ClassVar[bool] = False  # of rows: the file gives it with its predictions alone


class OnnxPredictor(ServedPredictor):
    """The predictions of an ONNX file that ``kcal export`` or ``CalibratedClassifier.to_onnx`` wrote."""

    feedback_obstacle = f"its calibration is part of an ONNX file; {SERVE_PAIR}"

    def __init__(self, path: Path) -> None:
        self._session = OnnxSession(path)
        metadata = self._session.metadata
        if "network" in metadata:
            raise FileFormatError(f"{path} is a network alone: {SERVE_PAIR}")
        try:
            self.classes = np.array(json.loads(metadata["classes"]))
            prior = np.array(json.loads(metadata["prior"]), dtype=np.float64) if "prior" in metadata else None
        except (KeyError, ValueError) as error:
            raise FileFormatError(f"{path} is no ONNX file that kcal exported, or it is damaged.") from error
        self.method = f"onnx-{metadata.get('method', '')}"
        self.inputs, self.has_evidence = self._session.inputs, "evidence" in self._session.output_names
        self.reference = ExportedCalibrator(self.classes, prior)

    def predict(self, arrays: Arrays, *, evidence: bool) -> Scores:
        """Return probabilities and, if asked for, evidence."""
        names = ["probabilities", "evidence"] if evidence else ["probabilities"]
        probs, *rest = self._session.run(names, arrays)
        return Scores(probs, rest[0] if rest else None)

    def summary(self) -> dict[str, str]:
        """Return facts for the page."""
        return {"method": self.method, "classes": f"{len(self.classes):,}"}


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
