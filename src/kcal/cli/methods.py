"""From what was typed to a calibrator: names, numbers and the options that a method takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import typer
from numpy.typing import NDArray

from kcal.calibrators import METHODS, Calibrator, make_calibrator
from kcal.cli.tables_in import listed
from kcal.errors import InvalidInputError
from kcal.projection import ARCHITECTURES, UNTRAINED
from kcal.validation import SEED_LIMIT

NO_PROJECTION = "none"
"""What a blend is told that is to learn no metric."""
ALLOWED_EXCESS = 1e-3
"""How far from 1 the shares of a prior may sum, as in the library."""


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
    fixed = getattr(METHODS[method].factory, "keywords", {})
    taken = [name for name in make_calibrator(method).get_params() if name in typed and name not in fixed]
    for name in chosen:
        if name not in taken:
            known = ", ".join(option_name(other) for other in taken)
            raise typer.BadParameter(f"{option_name(name)} is no option of method {method}, which takes {known}.")
    _check_projection(method, chosen)
    _refuse_what_does_not_fit(chosen)
    if chosen.get("projection") == NO_PROJECTION:
        chosen["projection"] = None
    return chosen


def refuse_what_lacks_data(chosen: Mapping[str, Any], *, training: bool, logits: bool) -> None:
    """Refuse options of a blend about a training set or logits that are not there."""
    for name in ("projection", "dimension", "recipe"):
        if not training and chosen.get(name) is not None:
            raise typer.BadParameter(
                f"{option_name(name)} is of no use here: a blend learns its projection from the network's training set "
                "alone, and there is none. Pass --train FILE, or leave it out."
            )
    for name in ("representation", "folds"):
        if not logits and chosen.get(name) is not None:
            raise typer.BadParameter(
                f"{option_name(name)} is of no use here: it is about logits, and there are none. Name their columns "
                "with --logit-columns, pass --logits FILE, or leave it out."
            )


def _check_projection(method: str, chosen: Mapping[str, Any]) -> None:
    """Refuse a projection that the method does not know."""
    known = (
        (*ARCHITECTURES, NO_PROJECTION) if make_calibrator(method).inputs == "both" else (*ARCHITECTURES, *UNTRAINED)
    )
    if "projection" in chosen and chosen["projection"] not in known:
        raise typer.BadParameter(
            f"--projection {chosen['projection']} is not for method {method}, which takes {', '.join(known)}."
        )


def _refuse_what_does_not_fit(chosen: Mapping[str, Any]) -> None:
    """Refuse options that need another one, or that another one makes useless."""
    rule, reference = chosen.get("bandwidth") == "rule", "bandwidth_reference" in chosen
    if rule and not reference:
        raise typer.BadParameter(
            "--bandwidth rule needs --bandwidth-reference B,COUNT, such as 1.4,300: a bandwidth found before and the "
            "count of the rarest class then."
        )
    if reference and not rule:
        raise typer.BadParameter("--bandwidth-reference is of no use without --bandwidth rule; add it.")
    for name in ("dimension", "recipe"):
        if chosen.get("projection") in (*UNTRAINED, NO_PROJECTION) and name in chosen:
            raise typer.BadParameter(
                f"{option_name(name)} is of no use with --projection {chosen['projection']}, which learns nothing. "
                "Leave it out."
            )


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
    fits = [number for number in numbers if number is not None and 0 < number < float("inf")]
    if len(numbers) != 2 or len(fits) != 2:
        raise typer.BadParameter(f"--bandwidth-reference must be two positive numbers, such as 1.4,300; got {text!r}.")
    return fits[0], fits[1]


def parse_smoothing(share: float | None) -> float | None:
    """Return a share of at least 0 and less than 1."""
    if share is not None and not 0 <= share < 1:
        raise typer.BadParameter(f"--smoothing must be at least 0 and less than 1, such as 0.001; got {share:g}.")
    return share


def parse_seed(number: int | None) -> int | None:
    """Return a whole number that generators take."""
    if number is not None and not 0 <= number < SEED_LIMIT:
        raise typer.BadParameter(f"--seed must be a whole number, at least 0 and below 2⁶⁴; got {number}.")
    return number


def parse_settings(method: str, texts: Sequence[str], typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that ``--set NAME=VALUE`` names; values are JSON where they can be, and words elsewhere."""
    fixed = getattr(METHODS[method].factory, "keywords", {})
    own = [name for name in make_calibrator(method).get_params() if name not in {*typed, *fixed, "progress"}]
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not value:
            raise typer.BadParameter(f"--set must be NAME=VALUE, such as bins=20; got {text!r}.")
        if name in typed:
            raise typer.BadParameter(f"--set {name} has an option of its own: {option_name(name)}.")
        if name not in own:
            known = f"which takes {', '.join(own)}" if own else "which has no others"
            raise typer.BadParameter(f"--set: {name!r} is no parameter of method {method}, {known}.")
        if name in found:
            raise typer.BadParameter(f"--set names {name} more than once.")
        found[name] = _value(value)
    return found


def _value(text: str) -> Any:
    """Return what JSON reads; a list also without its brackets or in round ones; all else as a word."""
    inner = text.removeprefix("(").removesuffix(")").strip().removesuffix(",")
    for form in (text, f"[{inner}]" if "," in text else text):
        try:
            return json.loads(form)
        except json.JSONDecodeError:
            continue
    return text


def parse_classes(text: str | None) -> list[str] | None:
    """Return the names of all classes, each once."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    repeated = sorted({name for name in names if names.count(name) > 1})
    trouble = ""
    if "" in names:
        trouble = f"; name {names.index('') + 1} is blank"
    elif repeated:
        trouble = f"; {listed(repeated)} is there more than once"
    if trouble or len(names) < 2:
        raise typer.BadParameter(
            f"--classes must list at least two classes, each once, such as cat,dog,owl; got {text!r}{trouble}."
        )
    return names


def parse_prior(text: str | None) -> str | dict[str, float] | None:
    """Return "uniform", or the share of each class by its name."""
    if text is None or text == "uniform":
        return text
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, equals, share = part.rpartition("=")
        number = _number(share)
        if not equals or number is None or number < 0 or name.strip() in shares:
            raise typer.BadParameter(
                "--prior must be uniform, or a share for each class, such as cat=0.2,dog=0.8, no class twice and no "
                f"share negative; got {text!r}."
            )
        shares[name.strip()] = number
    if not abs(sum(shares.values()) - 1) < ALLOWED_EXCESS:
        raise typer.BadParameter(
            f"--prior must be shares that sum to 1; got {text!r}, which sums to {sum(shares.values()):.6g}."
        )
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
