"""ONNX and torch.export files of calibrated predictions, verified before they are kept.

A :class:`Predictor` is traced once, with any number of rows. What comes out runs beside it, on the example at several
batch sizes and far from the calibration set: the outputs must agree.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kcal.calibrators import Calibrator
from kcal.errors import ExportError, InvalidInputError, KcalError, MissingExtraError
from kcal.files import atomic_path, check_path
from kcal.progress import progress_bar
from kcal.validation import check_number, shown

TOLERANCE = 1e-5
BATCH_SIZES = (1, 2, 7, 256)
"""Numbers of rows with which an export is verified."""
MAX_ROWS = 256
"""Rows of an example that are used, at most: they bound the memory."""
FAR_FACTORS = (10.0, 100.0)
"""Factors of the rows of the example that make rows far from all calibration samples; of numbers, not of token ids."""
MIN_LOGIT = float(np.finfo(np.float32).min)
"""The logit of a class that the network masks out, in place of −∞, as :func:`kcal.extract` has it."""
EXTERNAL_BYTES = 10**9
"""Tensors of more bytes than this are stored in a file of their own beside the graph."""
TRACE_REMEDY = (
    "Change what torch.export cannot follow in the network, or export the calibrated head alone: kcal export, or "
    "calibrator.as_module()."
)
OPERATOR_REMEDY = "Replace operators that ONNX does not have, or export the calibrated head alone: kcal export."
RUNTIME_REMEDY = "Try another version of onnxruntime, a network in float32, or torch.export (to_exported)."

Tensors = tuple[torch.Tensor, ...]


class Predictor(nn.Module):
    """What is exported: tensors to a tuple of tensors, on the CPU.

    Parameters
    ----------
    module : nn.Module
        Holds the tensors; its ``with_evidence`` gives probabilities, (n, n_classes), and evidence, (n,).
    names : sequence of str
        Names of the inputs.
    by_name : bool
        Whether the module is called by these names.
    outputs : mapping of str to float
        Names of the outputs, and how much each may differ whatever the tolerance is.
    run : callable, optional
        What is run in place of the module.
    """

    def __init__(
        self,
        module: nn.Module,
        names: Sequence[str],
        outputs: Mapping[str, float],
        *,
        by_name: bool = True,
        run: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__()
        self.module, self.names, self.by_name = module, tuple(names), by_name
        self.output_names, self.rounding = tuple(outputs), dict(outputs)
        self._run: Any = run or (module.with_evidence if "evidence" in outputs else module)

    def forward(self, *inputs: torch.Tensor) -> Tensors:
        """Return the outputs, each with the rows of the inputs."""
        named = dict(zip(self.names, inputs, strict=True))
        found = self._run(**named) if self.by_name else self._run(*inputs)
        return found if isinstance(found, tuple) else (found,)


class HeadPredictor(Predictor):
    """The calibrated head alone: embeddings and logits, as far as the method takes them."""

    def __init__(self, calibrator: Calibrator) -> None:
        super().__init__(calibrator.as_module().cpu(), taken_outputs(calibrator), prediction_outputs(calibrator))


def taken_outputs(calibrator: Calibrator) -> tuple[str, ...]:
    """Return which outputs of a network the predictions of a calibrator take: "embeddings", "logits" or both."""
    takes = {"embeddings": calibrator.inputs != "logits", "logits": calibrator.tags.needs_logits}
    return tuple(name for name, is_taken in takes.items() if is_taken)


def prediction_outputs(calibrator: Calibrator) -> dict[str, float]:
    """Return the names of what a calibrator predicts, and how much rounding may change each.

    The evidence is a share of calibration samples. A sample whose density is that of the row but for rounding may count
    or not.
    """
    evidence = {"evidence": calibrator.model_.evidence_step} if calibrator.tags.has_evidence else {}
    return {"probabilities": 0.0, **evidence}


def read_example(example: Any) -> tuple[tuple[str, ...], bool, Tensors]:
    """Return the names of a network's inputs, whether it is called by them, and the tensors of an example."""
    by_name = isinstance(example, Mapping)
    values = example.values() if by_name else example if isinstance(example, tuple | list) else (example,)
    parts = tuple(values)
    numbered = ("input",) if len(parts) == 1 else tuple(f"input_{place}" for place in range(len(parts)))
    names = tuple(example) if by_name else numbered
    valid = len(parts) > 0 and all(isinstance(part, torch.Tensor) and part.ndim for part in parts)
    if not valid or len({len(part) for part in parts}) != 1 or len(parts[0]) == 0:
        expected = f"must be {len(parts)} tensor(s) with the same number of rows: {', '.join(names)}"
        raise InvalidInputError("example", expected, got=shown(example))
    return names, by_name, tuple(part.detach().cpu() for part in parts)


def export_program(
    predictor: Predictor, example: Sequence[torch.Tensor], *, tolerance: float = TOLERANCE
) -> torch.export.ExportedProgram:
    """Return the program of ``torch.export`` with any number of rows, verified as an ONNX file is; otherwise raise."""
    program = _trace(predictor, example)
    module = program.module()

    def run(inputs: Tensors) -> list[Any]:
        with torch.no_grad(), _export_errors("the program of torch.export does not run", TRACE_REMEDY):
            return [part.numpy() for part in module(*inputs)]

    _verify(run, predictor, example, tolerance, "the program of torch.export")
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

    onnxruntime must agree with torch, at several batch sizes and far from all calibration samples, on 10 and 100 times
    the example.

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
            progress_bar("Writing the ONNX file", 3, show=progress) as advance,
        ):
            beside = Path(os.path.realpath(target))
            written = Path(folder) / _data_name(beside).removesuffix(".data")
            program = _trace(predictor, example)
            advance("converting")
            _convert(onnx, program, predictor, written, metadata)
            advance("verifying")
            _verify_onnx(runtime, predictor, example, written, tolerance)
            advance("")
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


def metadata_of(calibrator: Calibrator | Any) -> dict[str, str]:
    """Return what a file says of itself: class labels, method, version and, if known, the class frequencies assumed."""
    labels, prior = calibrator.classes_.tolist(), calibrator.prior_ if calibrator.tags.has_prior else None
    frequencies = {} if prior is None else {"prior": json.dumps(prior.tolist())}
    described = {"classes": json.dumps(labels), "method": calibrator.method, "kcal_version": version("kcal")}
    return described | frequencies


def network_metadata(reference: Mapping[str, Any]) -> dict[str, str]:
    """Return what the file of a network alone says of itself: which network it is, and the version."""
    return {"network": json.dumps(reference), "kcal_version": version("kcal")}


def _trace(predictor: Predictor, example: Sequence[torch.Tensor]) -> torch.export.ExportedProgram:
    """Return the program with any number of rows."""
    batch = torch.export.Dim("batch", min=1)
    shapes = (tuple({0: batch} for _ in example),)
    rows = tuple(torch.cat([part, part])[: max(len(part), 2)] for part in _first_rows(example))  # 1 would be a constant
    with (
        torch.no_grad(),
        warnings.catch_warnings(),
        _export_errors("torch.export does not follow the computation", TRACE_REMEDY),
    ):
        warnings.simplefilter("ignore")  # of torch's own parts
        return torch.export.export(predictor, rows, dynamic_shapes=shapes, strict=False)


def _convert(
    onnx: Any,
    program: torch.export.ExportedProgram,
    predictor: Predictor,
    path: Path,
    metadata: Mapping[str, str],
) -> None:
    """Write the graph and, if they are large, its tensors beside it."""
    size = sum(tensor.nbytes for tensor in chain(predictor.parameters(), predictor.buffers()))
    options: dict[str, Any] = {"dynamo": True, "verbose": False, "external_data": size > EXTERNAL_BYTES}
    names: dict[str, Any] = {"input_names": predictor.names, "output_names": predictor.output_names}
    with _quiet_exporter(), _export_errors("torch.onnx does not write the file", OPERATOR_REMEDY):
        torch.onnx.export(program, f=path, **names, **options)
    model = onnx.load(path, load_external_data=False)
    onnx.helper.set_model_props(model, dict(metadata))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    path.write_bytes(model.SerializeToString())


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Keep back what torch.onnx and onnxscript say on their way: the file is verified afterwards."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _data_name(target: Path) -> str:
    """Return the name of a new file of tensors: no graph may refer to it before it is complete."""
    name = f"{target.name}.data"
    return f"{target.name}.{secrets.token_hex(4)}.data" if target.with_name(name).exists() else name


def _data_files(target: Path) -> list[Path]:
    """Return the files of tensors that exports to a path have left beside it."""
    pattern = re.compile(re.escape(target.name) + r"(\.[0-9a-f]{8})?\.data")
    return [path for path in target.parent.iterdir() if pattern.fullmatch(path.name) and path.is_file()]


def _verify_onnx(
    runtime: Any, predictor: Predictor, example: Sequence[torch.Tensor], path: Path, tolerance: float
) -> None:
    """Raise if onnxruntime does not give the outputs of the predictor."""
    with _export_errors("onnxruntime does not load the file", RUNTIME_REMEDY):
        session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(inputs: Tensors) -> list[Any]:
        feeds = {name: rows.numpy() for name, rows in zip(predictor.names, inputs, strict=True)}
        with _export_errors("onnxruntime does not run the file", RUNTIME_REMEDY):
            return list(session.run(None, feeds))

    _verify(run, predictor, example, tolerance, "the ONNX file")


def _verify(
    run: Callable[[Tensors], list[Any]],
    predictor: Predictor,
    example: Sequence[torch.Tensor],
    tolerance: float,
    what: str,
) -> None:
    """Raise if outputs are not those of the predictor at several batch sizes, and far from the calibration set.

    Integers, such as token ids, have no multiples: an export of a network that takes only integers is not verified far
    from the calibration set.
    """
    rows = _first_rows(example)
    batches = [tuple(part[torch.arange(size) % len(part)] for part in rows) for size in BATCH_SIZES]
    batches += [tuple(part * factor if part.is_floating_point() else part for part in rows) for factor in FAR_FACTORS]
    with torch.no_grad():
        sizes = [_size(name, part.numpy()) for name, part in zip(predictor.output_names, predictor(*rows), strict=True)]
        for inputs in batches:
            expected = [part.numpy() for part in predictor(*inputs)]
            for name, size, one, other in zip(predictor.output_names, sizes, run(inputs), expected, strict=True):
                difference = float(np.abs(one.astype(np.float64) - other).max())
                allowed = max(tolerance * max(size, _size(name, other)), predictor.rounding[name])
                if not difference <= allowed:  # NaN, too
                    raise ExportError(
                        f"Nothing was exported: {what} differs from torch, {name} by {difference:.2g} with "
                        f"{len(other)} rows; {allowed:g} is allowed. Report the operators of your network that differ, "
                        "or pass a larger tolerance."
                    )


def _size(name: str, values: NDArray[Any]) -> float:
    """Return the size of outputs to which a tolerance is relative: that of the largest number of a network's outputs.

    Logits of classes that are masked out do not count.
    """
    if name in ("probabilities", "evidence"):
        return 1.0
    return float(np.abs(values, where=values > MIN_LOGIT, out=np.zeros_like(values)).max())


def _first_rows(example: Sequence[torch.Tensor]) -> Tensors:
    return tuple(part[:MAX_ROWS] for part in example)


@contextmanager
def _export_errors(what: str, remedy: str) -> Iterator[None]:
    """Turn errors of torch and onnxruntime into :class:`ExportError`; errors of files and of kcal stay as they are."""
    try:
        yield
    except (KcalError, OSError):
        raise
    except Exception as error:
        line = (str(error).strip().splitlines() or [""])[0]
        message = f"{type(error).__name__}: {line}" if line else type(error).__name__
        raise ExportError(f"Nothing was exported: {what} ({message}). {remedy}") from error


def _require_onnx() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("ONNX files need more packages: pip install 'kcal[onnx]'.") from error
    return onnx, onnxruntime
