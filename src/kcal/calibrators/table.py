"""One table of names, read by the command line and by whoever compares methods."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kcal.calibrators.base import Calibrator
from kcal.calibrators.kcal import KCal, KCalLogits
from kcal.calibrators.temperature import TemperatureScaling
from kcal.calibrators.uncalibrated import Uncalibrated
from kcal.errors import InvalidInputError

CALIBRATORS: dict[str, Callable[..., Calibrator]] = {
    "uncal": Uncalibrated,
    "ts": TemperatureScaling,
    "kcal": KCal,
    "kcal-linear": partial(KCal, projection="linear"),
    "kcal-logits": KCalLogits,
}
"""Each value needs no arguments and accepts ``seed=``."""


def make_calibrator(name: str, **parameters: object) -> Calibrator:
    """Return an unfitted calibrator by its name in the table."""
    if name not in CALIBRATORS:
        raise InvalidInputError(f"method must be one of {', '.join(CALIBRATORS)}; got {name!r}.")
    return CALIBRATORS[name](**parameters)


def class_of(method: str) -> type[Calibrator]:
    """Return the class whose ``method`` a file names."""
    for kind in (Uncalibrated, TemperatureScaling, KCal, KCalLogits):
        if kind.method == method:
            return kind
    raise InvalidInputError(f"no calibrator is called {method!r}.")
