"""The one table of methods, with what the command line, the benchmark and the archive need to know of each.

To add a method: write its class, and add a line here. The contract tests find it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, singledispatch
from typing import Any

from kcal.calibrators.base import Calibrator
from kcal.calibrators.blend import KCalBlend
from kcal.calibrators.dirichlet import DirichletCalibration
from kcal.calibrators.gp import GaussianProcessCalibration
from kcal.calibrators.imax import IMaxBinning
from kcal.calibrators.kcal import KCal, KCalLogits
from kcal.calibrators.neighbors import DensityAwareCalibration, KNNInterpolation
from kcal.calibrators.one_vs_rest import (
    BetaCalibration,
    HistogramBinning,
    IsotonicCalibration,
    PlattScaling,
    ScalingBinning,
    VennAbers,
)
from kcal.calibrators.order_preserving import OrderPreservingCalibration
from kcal.calibrators.refit import LastLayerRefit
from kcal.calibrators.scaling import (
    EnsembleTemperatureScaling,
    MatrixScaling,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    TemperatureScaling,
    Uncalibrated,
    VectorScaling,
)
from kcal.calibrators.spline import SplineCalibration
from kcal.calibrators.state import CalibratorState
from kcal.errors import FileFormatError, InvalidInputError
from kcal.validation import check_choice, shown

PUBLISHED: dict[str, Any] = {"recipe": "paper", "bandwidth": "published", "smoothing": 0.0}
"""Parameters of the method of the paper."""
SLOW = 100
"""Cost from which a method is run only if it is named."""


@dataclass(frozen=True)
class Method:
    """A registered method.

    Attributes
    ----------
    name : str
        Short name, as typed on the command line and shown in tables.
    factory : callable
        Makes an unfitted calibrator; needs no arguments and accepts ``seed=``.
    title : str
        Full name.
    cost : int
        Relative time to fit, from 0 (milliseconds) upwards; the benchmark starts the most expensive first. From
        ``SLOW`` on it is an hour or so: "all" methods are then without it, and it runs if it is named.
    extra : str, optional
        Optional dependency group of the package that the method needs.
    packages : tuple of str
        Packages beyond kcal's own requirements that the method's results depend on.
    """

    name: str
    factory: Callable[..., Calibrator]
    title: str
    cost: int = 0
    extra: str | None = None
    packages: tuple[str, ...] = ()

    @property
    def calibrator_class(self) -> type[Calibrator]:
        """The class that ``factory`` makes."""
        factory = self.factory.func if isinstance(self.factory, partial) else self.factory
        assert isinstance(factory, type)
        return factory

    @property
    def inputs(self) -> str:
        """What the method takes: "embeddings", "logits" or "both"."""
        return self.calibrator_class.inputs


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("uncal", Uncalibrated, "no calibration"),
        Method("ts", TemperatureScaling, "temperature scaling"),
        Method("ets", EnsembleTemperatureScaling, "ensemble temperature scaling"),
        Method("vector", VectorScaling, "vector scaling"),
        Method("matrix", MatrixScaling, "matrix scaling"),
        Method("svs", StructuredVectorScaling, "structured vector scaling"),
        Method("sms", StructuredMatrixScaling, "structured matrix scaling", cost=1),
        Method("platt", PlattScaling, "Platt scaling"),
        Method("beta", BetaCalibration, "beta calibration"),
        Method("isotonic", IsotonicCalibration, "isotonic regression"),
        Method("venn-abers", VennAbers, "Venn–Abers prediction"),
        Method("histogram", HistogramBinning, "histogram binning"),
        Method("scaling-binning", ScalingBinning, "scaling-binning"),
        Method("dircal", DirichletCalibration, "Dirichlet calibration", cost=6),
        Method("imax", IMaxBinning, "I-Max binning"),
        Method("spline", SplineCalibration, "spline calibration"),
        Method("gp", GaussianProcessCalibration, "Gaussian-process calibration", 2, "gp", ("gpytorch",)),
        Method("iop", OrderPreservingCalibration, "intra order-preserving calibration", cost=8),
        Method("knn", KNNInterpolation, "k-nearest-neighbour interpolation", cost=1),
        Method("refit", LastLayerRefit, "ridge refit of the last layer", cost=4),
        Method("dac", DensityAwareCalibration, "density-aware calibration", cost=1),
        Method("kcal", KCal, "KCal", cost=5),
        Method("kcal-paper", partial(KCal, **PUBLISHED), "KCal as published", cost=SLOW),
        Method("kcal-linear", partial(KCal, projection="linear"), "KCal with a linear projection", cost=4),
        Method("kcal-logits", KCalLogits, "KCal on logits", cost=3),
        Method("kcal-blend", KCalBlend, "KCalBlend", cost=7),
    )
}


def make_calibrator(name: str, **parameters: object) -> Calibrator:
    """Return an unfitted calibrator by its name in the table."""
    return METHODS[check_choice(name, "method", tuple(METHODS))].factory(**parameters)


@singledispatch
def calibrator_state(calibrator: Any) -> CalibratorState:
    """Return the content of a fitted calibrator, for a file; other packages register their own classes."""
    expected = "must be a calibrator of kcal or a TrainedProjection"
    raise InvalidInputError("calibrator", expected, got=shown(calibrator))


@calibrator_state.register
def _(calibrator: Calibrator) -> CalibratorState:
    return calibrator._state()


def calibrator_from_state(state: CalibratorState, **parts: Any) -> Calibrator:
    """Return the fitted calibrator that ``state`` describes; ``parts`` are arguments of :func:`kcal.load`."""
    return _calibrator_class(state.method)._from_state(state, **parts)


def _calibrator_class(name: str) -> type[Calibrator]:
    """Return the class whose saved files carry this method name."""
    classes = {method.calibrator_class.method: method.calibrator_class for method in METHODS.values()}
    if not isinstance(name, str) or name not in classes:
        raise FileFormatError(f"the file holds the method {name!r}, which this version of kcal does not have.")
    return classes[name]
