"""From options to an unfitted calibrator; the library checks the values of its parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from typer import BadParameter

from kcal.calibrators import METHODS, Calibrator, make_calibrator
from kcal.calibrators.registry import SLOW, Method
from kcal.cli.messages import OPTIONS, check_options, option_name
from kcal.kernels import KERNELS
from kcal.projection import ARCHITECTURES, RECIPES, UNTRAINED
from kcal.validation import check_choice


def parse_methods(text: str, methods: Mapping[str, Method] = METHODS) -> list[str]:
    """Return names of methods, each once; "all" means every method that is not slow."""
    quick = [name for name, method in methods.items() if method.cost < SLOW]
    chosen = quick if text.strip() == "all" else [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in methods:
            raise BadParameter(f"--methods: {name!r} is not one of all, {', '.join(methods)}.")
        if chosen.count(name) > 1:
            raise BadParameter(f"--methods names {name} more than once.")
    return chosen


def parse_value(text: str) -> Any:
    """Return the JSON value; a list also without brackets or in round ones; anything else as text."""
    inner = text.removeprefix("(").removesuffix(")").strip().removesuffix(",")
    for form in (text, f"[{inner}]" if "," in text else text):
        try:
            return json.loads(form)
        except (ValueError, RecursionError):
            continue
    return text


def build_calibrator(
    method: str, options: Mapping[str, Any], settings: Sequence[str]
) -> tuple[Calibrator, dict[str, Any]]:
    """Return an unfitted calibrator, and its parameters that are given as options or with ``--set NAME=VALUE``."""
    factory = METHODS[check_choice(method, "--method", tuple(METHODS))].factory
    fixed = factory.keywords if isinstance(factory, partial) else {}
    accepted = [name for name in make_calibrator(method).get_params() if name not in fixed]
    typed = [name for name in OPTIONS if name in options]
    parameters = {name: _parse_option(name, options[name]) for name in typed if options[name] is not None}
    for name in parameters:
        if name not in accepted:
            known = ", ".join(option_name(other) for other in accepted if other in typed)
            raise BadParameter(f"{option_name(name)} is not an option of method {method}, which takes {known}.")
    own = [name for name in accepted if name not in (*typed, "progress", "head")]
    parameters |= _parse_settings(method, settings, typed, own)
    _check_projection(method, parameters)
    silent = {"progress": False} if options["quiet"] and "progress" in accepted else {}
    return make_calibrator(method, **parameters, **silent), parameters


def _parse_option(name: str, value: Any) -> Any:
    """Return the value of a parameter from that of its option."""
    choices = {"kernel": tuple(KERNELS), "recipe": tuple(RECIPES)}
    if name in choices:
        return check_choice(value, name, choices[name])
    if name == "prior":
        return parse_prior(value)
    return parse_value(value) if name in ("dimension", "bandwidth", "bandwidth_reference") else value


def _parse_settings(method: str, settings: Sequence[str], typed: Sequence[str], own: Sequence[str]) -> dict[str, Any]:
    parsed: dict[str, Any] = {}
    for text in settings:
        name, equals, value = (part.strip() for part in text.partition("="))
        known = f"which takes {', '.join(own)}" if own else "which takes no --set"
        check_options(
            (not equals or not value, f"--set must be NAME=VALUE, such as bins=20; got {text!r}."),
            (name in typed, f"--set {name}: this parameter has its own option, {option_name(name)}."),
            (name not in own, f"--set: {name!r} is not a parameter of method {method}, {known}."),
            (name in parsed, f"--set names {name} more than once."),
        )
        parsed[name] = parse_value(value)
    return parsed


def _check_projection(method: str, chosen: Mapping[str, Any]) -> None:
    """Raise for a projection that the method does not take, and for options that another one makes useless."""
    projection = chosen.get("projection")
    known = (*ARCHITECTURES, *UNTRAINED)
    if projection is not None and projection not in known:
        raise BadParameter(f"--projection {projection} is not for method {method}, which takes {', '.join(known)}.")
    for name in ("dimension", "recipe"):
        if name in chosen and projection in UNTRAINED:
            raise BadParameter(f"{option_name(name)} has no effect with --projection {projection}. Leave it out.")
    bandwidth = chosen.get("bandwidth", "cv")
    if "folds" in chosen and bandwidth not in ("cv", "published") and chosen.get("support") != "merged":
        raise BadParameter(f"--folds has no effect with --bandwidth {bandwidth}, which is not searched. Leave it out.")
    if ("bandwidth_reference" in chosen) != (chosen.get("bandwidth") == "rule"):
        raise BadParameter(
            "--bandwidth rule and --bandwidth-reference B,SIZE, such as 1.4,300, need each other: an earlier "
            "bandwidth and the size of the rarest class then."
        )


def parse_classes(text: str | None) -> list[str] | None:
    """Return the names of all classes, each once."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if "" in names or len(set(names)) < len(names) or len(names) < 2:
        raise BadParameter(f"--classes must list at least two classes, each once, such as cat,dog,owl; got {text!r}.")
    return names


def parse_prior(text: str | None) -> str | dict[str, float] | None:
    """Return "uniform", or the share of each class by its name."""
    if text is None or text == "uniform":
        return text
    try:
        pairs = [(name.strip(), float(share)) for name, _, share in (part.rpartition("=") for part in text.split(","))]
    except ValueError:
        pairs = []
    shares = dict(pairs)
    if not shares or "" in shares or len(shares) < len(pairs):
        expected = "uniform, or a share for each class, such as cat=0.2,dog=0.8"
        raise BadParameter(f"--prior must be {expected}; got {text!r}.")
    return shares
