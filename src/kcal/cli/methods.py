"""From what was typed to a calibrator: names, numbers and the options that a method takes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import typer
from numpy.typing import NDArray

from kcal.calibrators import CALIBRATORS, Calibrator, make_calibrator
from kcal.cli.tables_in import listed
from kcal.errors import InvalidInputError


def one_of(names: Collection[str]) -> Callable[[str | None], str | None]:
    """Return a check that a typed word is one of ``names``."""

    def check(value: str | None) -> str | None:
        if value is not None and value not in names:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(names)}.")
        return value

    return check


def check_options(method: str, typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were typed, refusing those that the method does not take."""
    chosen = {name: value for name, value in typed.items() if value is not None}
    fixed = getattr(CALIBRATORS[method], "keywords", {})
    taken = [name for name in make_calibrator(method).get_params() if name in typed and name not in fixed]
    for name in chosen:
        if name not in taken:
            known = ", ".join(option_name(other) for other in taken)
            raise typer.BadParameter(f"{option_name(name)} is no option of method {method}, which takes {known}.")
    return chosen


def option_name(parameter: str) -> str:
    """Return how a parameter is typed."""
    return f"--{parameter.replace('_', '-')}"


def parse_dimension(text: str | None) -> int | str | None:
    """Return "auto" or a whole number."""
    if text is None or text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"--dimension must be auto or a whole number, at least 1; got {text!r}.")
    return int(text)


def parse_bandwidth(text: str | None) -> float | str | None:
    """Return "cv", "rule" or a positive number."""
    if text is None or text in ("cv", "rule"):
        return text
    number = _number(text)
    if number is None or not 0 < number < float("inf"):
        raise typer.BadParameter(f"--bandwidth must be cv, rule or a positive number; got {text!r}.")
    return number


def parse_bandwidth_reference(text: str | None) -> tuple[float, float] | None:
    """Return a bandwidth and the count of the rarest class that it was found with."""
    if text is None:
        return None
    numbers = [_number(part) for part in text.split(",")]
    if len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
        raise typer.BadParameter(f"--bandwidth-reference must be two numbers, such as 1.4,300; got {text!r}.")
    return numbers[0], numbers[1]


def parse_prior(text: str | None) -> str | dict[str, float] | None:
    """Return "uniform", or the share of each class by its name."""
    if text is None or text == "uniform":
        return text
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, equals, share = part.rpartition("=")
        number = _number(share)
        if not equals or number is None:
            raise typer.BadParameter(f"--prior must be uniform, or shares such as cat=0.2,dog=0.8; got {text!r}.")
        shares[name.strip()] = number
    return shares


def prior_in_order(prior: Any, classes: NDArray[Any]) -> Any:
    """Return the shares in the order of the classes, as a file can hold them."""
    if not isinstance(prior, dict):
        return prior
    names = [str(label) for label in classes.tolist()]
    unknown = sorted(set(prior) - set(names))
    if unknown:
        raise InvalidInputError(f"--prior names {listed(unknown)}, which is not among the classes: {listed(names)}.")
    return [prior.get(name, 0.0) for name in names]


def build_calibrator(method: str, parameters: Mapping[str, Any], *, quiet: bool) -> Calibrator:
    """Return the unfitted calibrator."""
    silence = {"progress": False} if quiet and "progress" in make_calibrator(method).get_params() else {}
    return make_calibrator(method, **parameters, **silence)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return None if np.isnan(number) else number
