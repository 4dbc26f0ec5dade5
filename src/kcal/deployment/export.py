"""ONNX and torch.export files of calibrated predictions, verified before they are kept."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from kcal.calibrators import Calibrator
from kcal.errors import ExportError, InvalidInputError, MissingExtraError
from kcal.files import check_path
from kcal.validation import check_number, shown

BATCH_SIZES = (1, 2, 7, 256)
"""Numbers of rows with which a file is verified."""
FAR_FACTORS = (10.0, 100.0)
"""Factors of the rows of the example that make rows far from all calibration samples."""
EXTERNAL_BYTES = 10**9
"""Size of the tensors from which on they are stored in a file of their own beside the graph."""
TOLERANCE = 1e-5
EXAMPLE_ROWS = 64


class Predictor(nn.Module):
    """What is exported: named tensors to probabilities and, if the method has it, evidence.

    Attributes
    ----------
    names : tuple of str
        Names of the inputs.
    has_evidence : bool
        Whether there is a second output.
    """

    names: tuple[str, ...]
    has_evidence: bool

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs."""
        return ["probabilities", "evidence"] if self.has_evidence else ["probabilities"]


class HeadPredictor(Predictor):
    """The calibrated head alone: embeddings and logits, as far as the method takes them."""

    def __init__(self, calibrator: Calibrator) -> None:
        super().__init__()
        self.head = calibrator.as_module()
        self.has_evidence = calibrator.has_evidence
        takes = {"embeddings": calibrator.inputs != "logits", "logits": calibrator.needs_logits_}
        self.names = tuple(name for name, taken in takes.items() if taken)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return probabilities, (n, n_classes), and evidence, (n,)."""
        parts = dict(zip(self.names, inputs, strict=True))
        rows = (parts.get("embeddings"), parts.get("logits"))
        probs = self.head(*rows)
        return (probs, self.head.evidence(*rows)) if self.has_evidence else (probs,)


class NetworkPredictor(Predictor):
    """A network with its calibrated head: the network's own inputs."""

    classifier: Any  # a CalibratedClassifier

    def __init__(self, classifier: nn.Module, names: tuple[str, ...], *, by_name: bool, has_evidence: bool) -> None:
        super().__init__()
        self.classifier, self.names, self.by_name, self.has_evidence = classifier, names, by_name, has_evidence

    @classmethod
    def of(cls, classifier: nn.Module, example: Any, *, has_evidence: bool) -> tuple[Self, tuple[torch.Tensor, ...]]:
        """Return the predictor that takes inputs like the example, and the tensors of the example."""
        by_name = isinstance(example, Mapping)
        if by_name:
            names, parts = tuple(example), tuple(example.values())
        else:
            parts = tuple(example) if isinstance(example, tuple | list) else (example,)
            names = ("input",) if len(parts) == 1 else tuple(f"input_{place}" for place in range(len(parts)))
        return cls(classifier, names, by_name=by_name, has_evidence=has_evidence), check_example(parts, names)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return probabilities, (n, n_classes), and evidence, (n,)."""
        run = self.classifier.with_evidence if self.has_evidence else self.classifier
        result = run(**dict(zip(self.names, inputs, strict=True))) if self.by_name else run(*inputs)
        return result if self.has_evidence else (result,)


def export_program(predictor: Predictor, example: Sequence[torch.Tensor]) -> torch.export.ExportedProgram:
    """Return the program of ``torch.export`` with any number of rows."""
    rows = torch.export.Dim("rows", min=1)
    shapes = (tuple({0: rows} for _ in example),)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own parts
        return torch.export.export(predictor, _at_least_two(example), dynamic_shapes=shapes, strict=False)


def write_onnx(
    predictor: Predictor,
    example: Sequence[torch.Tensor],
    path: str | os.PathLike[str],
    *,
    metadata: Mapping[str, str],
    tolerance: float = TOLERANCE,
) -> Path:
    """Write an ONNX file with any number of rows, if onnxruntime agrees with torch; otherwise raise, and write nothing.

    Parameters
    ----------
    predictor : Predictor
        What is exported, on the CPU.
    example : sequence of (n, …) tensors
        Real inputs. The file is verified with them at several batch sizes, and with 10 and 100 times them, which are
        far from all calibration samples.
    path : path
        The file; an existing one is replaced. Tensors of more than 1 GB in all go to a second file, PATH.data.
    metadata : mapping
        Texts that are stored in the file.
    tolerance : float
        Largest difference of a probability, or of the evidence.
    """
    onnx, runtime = _require_onnx()
    target = check_path(path)
    check_number(tolerance, "tolerance", minimum=0, exclusive=True)
    if not target.parent.is_dir() or target.is_dir():
        raise InvalidInputError("path", "must be a file in an existing folder", got=str(target))
    with TemporaryDirectory(dir=target.parent, prefix=".kcal-") as folder:
        written = Path(folder) / target.name
        program = export_program(predictor, example)
        _to_onnx(program, predictor, example, written)
        _add_metadata(onnx, written, metadata)
        session = runtime.InferenceSession(written, providers=["CPUExecutionProvider"])
        verify_onnx(session, predictor, example, tolerance)
        del session  # it may hold the file open
        for part in sorted(Path(folder).iterdir(), reverse=True):  # the graph last
            shutil.move(part, target.parent / part.name)
    return target


def verify_onnx(session: Any, predictor: Predictor, example: Sequence[torch.Tensor], tolerance: float) -> float:
    """Return the largest difference of onnxruntime from torch; raise if it is above the tolerance."""
    largest = 0.0
    for inputs in verification_batches(example):
        with torch.no_grad():
            expected = [output.float().numpy() for output in predictor(*inputs)]
        feeds = {name: rows.numpy() for name, rows in zip(predictor.names, inputs, strict=True)}
        for name, one, other in zip(predictor.output_names, session.run(None, feeds), expected, strict=True):
            difference = float(np.abs(one.astype(np.float64) - other).max())
            if not difference <= tolerance:  # NaN, too
                raise ExportError(
                    f"The ONNX file was not written: its {name} differ from torch by {difference:.2g} with "
                    f"{len(other)} rows; {tolerance:g} is allowed. Report the operators of your network that differ, "
                    "or pass a larger tolerance."
                )
            largest = max(largest, difference)
    return largest


def verification_batches(example: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
    """Return batches of several sizes with rows of the example, and with multiples of it."""
    n_rows = len(example[0])
    batches = [tuple(part[torch.arange(size) % n_rows] for part in example) for size in BATCH_SIZES]
    far = [tuple(part * factor if part.is_floating_point() else part for part in example) for factor in FAR_FACTORS]
    return batches + far


def metadata_of(calibrator: Calibrator) -> dict[str, str]:
    """Return what a file says of itself: class labels, method and version."""
    labels = calibrator.classes_.tolist()
    return {"classes": json.dumps(labels), "method": calibrator.method, "kcal_version": version("kcal")}


def example_rows(calibrator: Calibrator, n_rows: int = EXAMPLE_ROWS) -> dict[str, torch.Tensor]:
    """Return made-up inputs of a calibrator like those of its calibration set, with which a file can be verified."""
    generator = torch.Generator().manual_seed(0)
    n_features = calibrator.n_features_in_
    rows = {"logits": 3.0 * torch.randn(n_rows, len(calibrator.classes_), generator=generator)}
    if calibrator.inputs == "logits":
        return rows
    estimate = getattr(calibrator.model_, "experts", (calibrator.model_,))[0]
    noise = torch.randn(n_rows, n_features, generator=generator)
    norms = [part for part in estimate.projection.modules() if isinstance(part, nn.BatchNorm1d)]
    if norms and norms[0].num_features == n_features and norms[0].running_var is not None:
        noise = norms[0].get_buffer("running_mean") + norms[0].running_var.sqrt() * noise
    elif estimate.support.dimension == n_features:  # the metric keeps the coordinates
        points = estimate.support.points.cpu().float()
        noise = points[torch.arange(n_rows) % len(points)] + 0.1 * points.std(dim=0) * noise
    return {"embeddings": noise, **rows}


def check_example(example: Any, names: Sequence[str]) -> tuple[torch.Tensor, ...]:
    """Return the tensors of an example, on the CPU; raise if one is missing or no tensor with rows."""
    parts = tuple(example) if isinstance(example, tuple | list) else (example,)
    valid = len(parts) == len(names) and all(isinstance(part, torch.Tensor) and part.ndim for part in parts)
    if not valid or len({len(part) for part in parts}) != 1 or len(parts[0]) == 0:
        expected = f"must be {len(names)} tensor(s) with the same number of rows: {', '.join(names)}"
        raise InvalidInputError("example", expected, got=shown(example))
    return tuple(part.detach().cpu() for part in parts)


def _to_onnx(program: Any, predictor: Predictor, example: Sequence[torch.Tensor], path: Path) -> None:
    size = sum(tensor.nbytes for tensor in chain(predictor.parameters(), predictor.buffers()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            program,
            f=path,
            input_names=list(predictor.names),
            output_names=predictor.output_names,
            dynamo=True,
            verbose=False,
            external_data=size > EXTERNAL_BYTES,
        )


def _add_metadata(onnx: Any, path: Path, metadata: Mapping[str, str]) -> None:
    model = onnx.load(path, load_external_data=False)
    onnx.helper.set_model_props(model, dict(metadata))
    path.write_bytes(model.SerializeToString())


def _at_least_two(example: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return the example with two rows or more: a size of 1 would be taken for a constant."""
    return tuple(torch.cat([part, part])[: max(len(part), 2)] for part in example)


def _require_onnx() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("ONNX files need more packages: pip install 'kcal[onnx]'.") from error
    return onnx, onnxruntime
