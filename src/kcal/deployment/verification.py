"""Compare what was exported with torch, and the module that is exported with its calibrator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from kcal.deployment.predictors import Predictor
from kcal.errors import ExportError, KcalError
from kcal.kernels import RESOLUTION

BATCH_SIZES = (1, 2, 7, 256)
"""Numbers of rows with which an export is verified."""
MAX_ROWS = 256
"""Rows of an example that are used, at most: they bound the memory."""
FAR_FACTORS = (10.0, 100.0)
"""Factors of the rows of the example that make rows far from all calibration samples; of numbers, not of token ids."""
TOLERANCE = 1e-5
MODULE_TOLERANCE = 0.5 * RESOLUTION
"""Difference of a probability of the module from the calibrator's. In single precision the calibrator's log odds are
off by 2·``RESOLUTION`` at most, and a probability by a quarter of that; the module computes exponents in double."""

Tensors = tuple[torch.Tensor, ...]


def first_rows(example: Sequence[torch.Tensor]) -> Tensors:
    """Return the rows of an example with which an export is verified."""
    return tuple(part[:MAX_ROWS] for part in example)


def verify_module(predictor: Predictor, example: Sequence[torch.Tensor], tolerance: float = TOLERANCE) -> float:
    """Return the largest difference of the module from its calibrator on the example; raise if it is too large.

    Probabilities may differ by ``MODULE_TOLERANCE``, if the tolerance is not larger.
    """
    inputs = first_rows(example)
    with torch.no_grad():
        found, expected = predictor(*inputs), predictor.expected(*inputs)
    return _compare(
        predictor,
        [part.cpu().numpy() for part in found],
        [part.cpu().numpy() for part in expected],
        max(tolerance, MODULE_TOLERANCE),
        "the module to export does not predict as its calibrator",
        "Do not change the tensors of the module; make a new one from the calibrator, or load it again.",
    )


def verify_onnx(session: Any, predictor: Predictor, example: Sequence[torch.Tensor], tolerance: float) -> float:
    """Return the largest difference of onnxruntime from torch; raise if it is above the tolerance."""

    def run(inputs: Tensors) -> list[Any]:
        feeds = {name: rows.numpy() for name, rows in zip(predictor.names, inputs, strict=True)}
        with export_errors("onnxruntime does not run the file", RUNTIME_REMEDY):
            return list(session.run(None, feeds))

    return _verify(run, predictor, example, tolerance, "the ONNX file differs from torch")


def verify_program(program: Any, predictor: Predictor, example: Sequence[torch.Tensor], tolerance: float) -> float:
    """Return the largest difference of an exported program from torch; raise if it is above the tolerance."""
    module = program.module()

    def run(inputs: Tensors) -> list[Any]:
        with torch.no_grad(), export_errors("the program of torch.export does not run", TRACE_REMEDY):
            return [part.numpy() for part in module(*inputs)]

    return _verify(run, predictor, example, tolerance, "the program of torch.export differs from torch")


def verification_batches(example: Sequence[torch.Tensor]) -> list[Tensors]:
    """Return batches of several sizes with rows of the example, and with multiples of it.

    Integers, such as token ids, have no multiples: an export of a network that takes only integers is not verified far
    from the calibration set.
    """
    example = first_rows(example)
    n_rows = len(example[0])
    batches = [tuple(part[torch.arange(size) % n_rows] for part in example) for size in BATCH_SIZES]
    far = [tuple(part * factor if part.is_floating_point() else part for part in example) for factor in FAR_FACTORS]
    return batches + far


TRACE_REMEDY = (
    "Change what torch.export cannot follow in the network, or export the calibrated head alone: kcal export, or "
    "calibrator.as_module()."
)
RUNTIME_REMEDY = "Try another version of onnxruntime, a network in float32, or torch.export (to_exported)."


@contextmanager
def export_errors(what: str, remedy: str) -> Iterator[None]:
    """Turn errors of torch and onnxruntime into :class:`ExportError`; errors of files and of kcal stay as they are."""
    try:
        yield
    except (KcalError, OSError):
        raise
    except Exception as error:
        line = (str(error).strip().splitlines() or [""])[0]
        message = f"{type(error).__name__}: {line}" if line else type(error).__name__
        raise ExportError(f"Nothing was exported: {what} ({message}). {remedy}") from error


def _verify(
    run: Callable[[Tensors], list[Any]],
    predictor: Predictor,
    example: Sequence[torch.Tensor],
    tolerance: float,
    what: str,
) -> float:
    """Compare outputs with those of the predictor at several batch sizes, and far from the calibration set."""
    largest, remedy = 0.0, "Report the operators of your network that differ, or pass a larger tolerance."
    for inputs in verification_batches(example):
        with torch.no_grad():
            expected = [output.numpy() for output in predictor(*inputs)]
        largest = max(largest, _compare(predictor, run(inputs), expected, tolerance, what, remedy))
    return largest


def _compare(
    predictor: Predictor, found: Sequence[Any], expected: Sequence[Any], tolerance: float, what: str, remedy: str
) -> float:
    """Return the largest difference; raise if one is too large."""
    largest = 0.0
    for name, one, other in zip(predictor.output_names, found, expected, strict=True):
        difference = float(np.abs(one.astype(np.float64) - other).max())
        allowed = predictor.allowed_difference(name, other, tolerance)
        if not difference <= allowed:  # NaN, too
            raise ExportError(
                f"Nothing was exported: {what}, {name} by {difference:.2g} with {len(other)} rows; "
                f"{allowed:g} is allowed. {remedy}"
            )
        largest = max(largest, difference)
    return largest
