"""ONNX and torch.export files of calibrated predictions, verified before they are kept."""

from __future__ import annotations

import json
import os
import re
import secrets
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from kcal.calibrators import Calibrator
from kcal.deployment.predictors import Predictor
from kcal.deployment.verification import (
    RUNTIME_REMEDY,
    TOLERANCE,
    TRACE_REMEDY,
    export_errors,
    first_rows,
    verify_module,
    verify_onnx,
    verify_program,
)
from kcal.errors import MissingExtraError
from kcal.files import atomic_path, check_path
from kcal.progress import progress_bar
from kcal.validation import check_number

EXTERNAL_BYTES = 10**9
"""Size of the tensors from which on they are stored in a file of their own beside the graph."""
OPERATOR_REMEDY = "Replace operators that ONNX does not have, or export the calibrated head alone: kcal export."


def export_program(
    predictor: Predictor, example: Sequence[torch.Tensor], *, tolerance: float = TOLERANCE
) -> torch.export.ExportedProgram:
    """Return the program of ``torch.export`` with any number of rows, verified as an ONNX file is; otherwise raise."""
    verify_module(predictor, example, tolerance)
    program = _trace(predictor, example)
    verify_program(program, predictor, example, tolerance)
    return program


def write_onnx(
    predictor: Predictor,
    example: Sequence[torch.Tensor],
    path: str | os.PathLike[str],
    *,
    metadata: Mapping[str, str],
    tolerance: float = TOLERANCE,
    progress: bool | None = None,
) -> Path:
    """Write an ONNX file with any number of rows, if it is right; otherwise raise, and write nothing.

    On the example, a calibrated module must predict as the calibrator itself, up to the rounding of single-precision
    kernel sums, 5e-5. onnxruntime must agree with the module, at several batch sizes and far from all calibration
    samples, on 10 and 100 times the example.

    Parameters
    ----------
    predictor : Predictor
        What is exported, on the CPU.
    example : sequence of (n, …) tensors
        Real inputs, of which the first 256 rows are used.
    path : path
        The file; an existing one is replaced. Tensors of more than 1 GB in all go to a second file, PATH.data, or
        PATH.xxxxxxxx.data if there is one already: the old file is valid until the new one is complete.
    metadata : mapping
        Texts that are stored in the file.
    tolerance : float
        Largest difference of a probability, or of the evidence; of a network alone, relative to the largest number of
        the output. The evidence may also differ by 2/n, n the number of calibration samples that it refers to, 1,000 at
        most: rounding decides whether a sample counts.
    progress : bool, optional
        Show a progress bar; by default in a terminal only.
    """
    onnx, runtime = _require_onnx()
    target = check_path(path)
    check_number(tolerance, "tolerance", minimum=0, exclusive=True)
    data = None
    try:
        with (
            atomic_path(target) as graph,
            TemporaryDirectory(prefix=graph.name, dir=graph.parent) as folder,
            progress_bar("Writing the ONNX file", 4, show=progress) as advance,
        ):
            verify_module(predictor, example, tolerance)
            advance("tracing")
            beside = Path(os.path.realpath(target))
            written = Path(folder) / _data_name(beside).removesuffix(".data")
            program = _trace(predictor, example)
            advance("converting")
            _to_onnx(program, predictor, written)
            _add_metadata(onnx, written, metadata)
            advance("verifying")
            with export_errors("onnxruntime does not load the file", RUNTIME_REMEDY):
                session = runtime.InferenceSession(written, providers=["CPUExecutionProvider"])
            verify_onnx(session, predictor, example, tolerance)
            advance("")
            del session  # it may hold the file open
            weights = written.with_name(f"{written.name}.data")
            if weights.exists():
                data = weights.replace(beside.with_name(weights.name))  # no graph refers to it yet
            written.replace(graph)
    except BaseException:
        if data is not None:
            data.unlink(missing_ok=True)
        raise
    for other in _data_files(beside):
        if other != data:
            other.unlink(missing_ok=True)
    return target


def metadata_of(calibrator: Calibrator) -> dict[str, str]:
    """Return what a file says of itself: class labels, method, version and, if known, the class frequencies assumed."""
    labels, prior = calibrator.classes_.tolist(), getattr(calibrator, "prior_", None)
    frequencies = {} if prior is None else {"prior": json.dumps(prior.tolist())}
    described = {"classes": json.dumps(labels), "method": calibrator.method, "kcal_version": version("kcal")}
    return described | frequencies


def network_metadata(reference: Mapping[str, Any]) -> dict[str, str]:
    """Return what the file of a network alone says of itself: which network it is, and the version."""
    return {"network": json.dumps(reference), "kcal_version": version("kcal")}


def _trace(predictor: Predictor, example: Sequence[torch.Tensor]) -> torch.export.ExportedProgram:
    """Return the program with any number of rows."""
    rows = torch.export.Dim("rows", min=1)
    shapes = (tuple({0: rows} for _ in example),)
    with (
        torch.no_grad(),
        warnings.catch_warnings(),
        export_errors("torch.export does not follow the computation", TRACE_REMEDY),
    ):
        warnings.simplefilter("ignore")  # of torch's own parts
        inputs = _at_least_two(first_rows(example))
        return torch.export.export(predictor, inputs, dynamic_shapes=shapes, strict=False)


def _to_onnx(program: torch.export.ExportedProgram, predictor: Predictor, path: Path) -> None:
    """Write the graph and, if they are large, its tensors beside it."""
    size = sum(tensor.nbytes for tensor in chain(predictor.parameters(), predictor.buffers()))
    with warnings.catch_warnings(), export_errors("torch.onnx does not write the file", OPERATOR_REMEDY):
        warnings.simplefilter("ignore")
        torch.onnx.export(
            program,
            f=path,
            input_names=list(predictor.names),
            output_names=list(predictor.output_names),
            dynamo=True,
            verbose=False,
            external_data=size > EXTERNAL_BYTES,
        )


def _data_name(target: Path) -> str:
    """Return the name of a new file of tensors: no graph may refer to it before it is complete."""
    name = f"{target.name}.data"
    return f"{target.name}.{secrets.token_hex(4)}.data" if target.with_name(name).exists() else name


def _data_files(target: Path) -> list[Path]:
    """Return the files of tensors that exports to a path have left beside it."""
    pattern = re.compile(re.escape(target.name) + r"(\.[0-9a-f]{8})?\.data")
    return [path for path in target.parent.iterdir() if pattern.fullmatch(path.name) and path.is_file()]


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
