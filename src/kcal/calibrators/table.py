"""One table of names, read by the command line and by whoever compares methods."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kcal.calibrators.base import Calibrator
from kcal.calibrators.beta import BetaCalibration
from kcal.calibrators.blend import KCalBlend
from kcal.calibrators.dirichlet import DirichletCalibration
from kcal.calibrators.ensemble_temperature import EnsembleTemperatureScaling
from kcal.calibrators.gaussian_process import GaussianProcessCalibration
from kcal.calibrators.histogram import HistogramBinning
from kcal.calibrators.imax import IMaxBinning
from kcal.calibrators.isotonic import IsotonicRegression
from kcal.calibrators.kcal import KCal
from kcal.calibrators.kcal_logits import KCalLogits
from kcal.calibrators.order_preserving import OrderPreservingCalibration
from kcal.calibrators.platt import PlattScaling
from kcal.calibrators.scaling import MatrixScaling, VectorScaling
from kcal.calibrators.scaling_binning import ScalingBinning
from kcal.calibrators.spline import SplineCalibration
from kcal.calibrators.structured_scaling import StructuredMatrixScaling
from kcal.calibrators.temperature import TemperatureScaling
from kcal.calibrators.uncalibrated import Uncalibrated
from kcal.errors import FileFormatError, InvalidInputError

CALIBRATORS: dict[str, Callable[..., Calibrator]] = {
    "uncal": Uncalibrated,
    "ts": TemperatureScaling,
    "ets": EnsembleTemperatureScaling,
    "vector": VectorScaling,
    "matrix": MatrixScaling,
    "sms": StructuredMatrixScaling,
    "platt": PlattScaling,
    "beta": BetaCalibration,
    "isotonic": IsotonicRegression,
    "histogram": HistogramBinning,
    "scaling-binning": ScalingBinning,
    "dircal": DirichletCalibration,
    "imax": IMaxBinning,
    "spline": SplineCalibration,
    "gp": GaussianProcessCalibration,
    "iop": OrderPreservingCalibration,
    "kcal": KCal,
    "kcal-linear": partial(KCal, projection="linear"),
    "kcal-logits": KCalLogits,
    "kcal-blend": KCalBlend,
}
"""Each value needs no arguments and accepts ``seed=``."""


def make_calibrator(name: str, **parameters: object) -> Calibrator:
    """Return an unfitted calibrator by its name in the table."""
    if name not in CALIBRATORS:
        raise InvalidInputError(f"method must be one of {', '.join(CALIBRATORS)}; got {name!r}.")
    return CALIBRATORS[name](**parameters)


def class_of(method: str) -> type[Calibrator]:
    """Return the class whose ``method`` a file names."""
    kinds = {type(make()).method: type(make()) for make in CALIBRATORS.values()}
    if not isinstance(method, str) or method not in kinds:
        raise FileFormatError(f"the file is of a method {method!r} that this kcal does not know.")
    return kinds[method]
