"""What every method computes: probabilities of the fitted calibrator and of the one that was saved and loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import kcal
from kcal.kernels import KERNELS

from . import names
from .problems import Problem, as_probabilities, few, in_single, many, masked, without_last_class

Cases = Iterator[tuple[str, np.ndarray]]

ROWS = 12
"""How many rows of a prediction are stored."""
RECIPE = kcal.FastRecipe(steps=12, batch_size=100, checkpoints=3)
LOGIT_METHODS: dict[str, dict[str, Any]] = {
    "uncal": {},
    "ts": {},
    "ets": {},
    "vector": {},
    "matrix": {},
    "sms": {},
    "svs": {},
    "platt": {},
    "beta": {},
    "isotonic": {},
    "venn-abers": {},
    "histogram": {},
    "scaling-binning": {},
    "dircal": {"folds": 3, "grid": [(1.0, 0.01, 1.0), (0.1, 0.01, 0.1)]},
    "imax": {},
    "spline": {},
    "gp": {"inducing_points": 3, "samples": 20},
    "iop": {"form": "oi", "width": 4, "folds": 2, "epochs": 3},
}
"""Methods that take logits, with parameters that make slow ones quick."""
SLOW = ("gp", "iop", "dircal")
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "vector": [{"penalty": 0.1}],
    "matrix": [{"penalty": 0.1}],
    "platt": [{"maps": "class"}, {"maps": "shared"}],
    "beta": [{"maps": "class", "penalty": 0.1}, {"maps": "shared"}],
    "isotonic": [{"maps": "class"}, {"maps": "shared"}],
    "histogram": [{"maps": "class", "bins": 8}, {"maps": "shared", "binning": "equal-mass"}],
    "scaling-binning": [{"maps": "class", "bins": 6}, {"maps": "shared"}],
    "dircal": [{"grid": "tied", "folds": 3}, {"grid": "odir", "folds": 2, "seed": 3}],
    "imax": [{"form": "classwise", "bins": 8}, {"form": "top"}, {"seed": 4}],
    "spline": [{"form": "rank"}, {"form": "top", "knots": 4}, {"floor": False}],
    "iop": [{"form": "diag", "width": 3, "folds": 2}, {"form": "op", "width": 3, "folds": 2, "epochs": 2}],
}


def fit(calibrator: Any, problem: Problem, *, learn: bool = False, **keywords: Any) -> Any:
    """Fit on what the calibrator takes of the problem; ``keywords`` are those of its fit."""
    part, extra = problem.calibration, dict(keywords)
    rows = part.logits if calibrator.inputs == "logits" else part.embeddings
    if calibrator.inputs == "both":
        extra = {"logits": part.logits, **extra}
    if learn:
        train = problem.train.logits if calibrator.inputs == "logits" else problem.train.embeddings
        extra = {"train_embeddings": train, "train_labels": problem.train.labels, **extra}
    return calibrator.fit(rows, part.labels, **extra)


def made(name: str, **parameters: Any) -> Any:
    return names.REGISTERED[name].factory(**parameters)


def outcomes(name: str, calibrator: Any, problem: Problem, *, logits: bool = True, single: bool = False) -> Cases:
    """What a fitted calibrator answers, of itself and of its loaded copy, and what it is made of."""
    rows = (problem.test.logits if calibrator.inputs == "logits" else problem.test.embeddings)[:ROWS]
    extra = {"logits": problem.test.logits[:ROWS]} if calibrator.inputs == "both" and logits else {}
    probabilities = calibrator.predict_proba(rows, **extra)
    assert probabilities.dtype == (np.float32 if single else np.float64), name
    with TemporaryDirectory() as folder:
        loaded = kcal.load(kcal.save(calibrator, Path(folder) / "calibrator.kcal"))
    yield f"{name}/fitted-and-loaded", np.stack([probabilities, loaded.predict_proba(rows, **extra)])
    tensors = [None if part is None else torch.from_numpy(part) for part in (rows, extra.get("logits"))]
    with torch.inference_mode():
        yield f"{name}/module", calibrator.as_module()(*(tensors if calibrator.inputs != "logits" else tensors[::-1]))
    if not single:  # the logarithm of what is tiny in single precision depends on the order of a sum
        yield f"{name}/log", calibrator.predict_log_proba(rows, **extra)
    parts = {"embeddings": names.KCAL_FITTED, "kcal-blend": names.BLEND_FITTED}.get(
        calibrator.method if calibrator.inputs == "both" else calibrator.inputs, {}
    )
    for part, value in parts.items():
        yield f"{name}/{part}", np.atleast_1d(np.asarray(value(calibrator), dtype=np.float64))[:ROWS]
    if parts:
        yield f"{name}/log-density", names.log_densities(loaded, rows)


def logit_method(name: str) -> Cases:
    """One method on logits: precisions, weights, missing classes, masks, probabilities, many classes, options."""
    parameters, plain = LOGIT_METHODS[name], few()
    yield from outcomes(f"{name}/float64", fit(made(name, **parameters), plain), plain)
    single = in_single(plain)
    yield from outcomes(f"{name}/float32", fit(made(name, **parameters), single), single, single=True)
    yield from outcomes(f"{name}/weights", fit(made(name, **parameters), plain, sample_weight=plain.weights), plain)
    hidden = masked(plain)
    yield from outcomes(f"{name}/masked", fit(made(name, **parameters), hidden), hidden)
    fewer = without_last_class(plain)
    yield from outcomes(f"{name}/missing", fit(made(name, **parameters), fewer, classes=range(plain.n_classes)), plain)
    shares = as_probabilities(plain)
    told = made(name, representation="probabilities", **parameters)
    yield from outcomes(f"{name}/probabilities", fit(told, shares), shares)
    for number, options in enumerate(OPTIONS.get(name, [])):
        yield from outcomes(f"{name}/option-{number}", fit(made(name, **options), plain), plain)
    if name in SLOW:
        return
    yield from outcomes(f"{name}/counts", fit(made(name, **parameters), plain, sample_weight=plain.counts), plain)
    wide = many()
    yield from outcomes(f"{name}/many", fit(made(name, **parameters), wide), wide)
    words = np.array(["d", "b", "a", "c"])
    part = plain.calibration
    named = made(name, **parameters).fit(part.logits, words[part.labels], classes=words)
    yield from outcomes(f"{name}/words", named, plain)


def kcal_kernels() -> Cases:
    """Every mother kernel on embeddings as they are, and several bandwidths."""
    for kernel in KERNELS:
        for label, problem in (("float64", few()), ("float32", in_single(few()))):
            single = label == "float32"
            fitted = fit(made("kcal", kernel=kernel, projection="identity"), problem)
            yield from outcomes(f"kcal/{kernel}/{label}", fitted, problem, single=single)
            for bandwidth in (0.1, 0.6) if single else (0.1, 0.6, 5.0):
                fixed = fit(made("kcal", kernel=kernel, projection="identity", bandwidth=bandwidth), problem)
                yield from outcomes(f"kcal/{kernel}/{label}/{bandwidth}", fixed, problem, single=single)
        for label, problem in (("weights", few()), ("groups", few())):
            if kernel in ("matern52", "biweight", "triweight"):
                continue  # as their neighbours
            keywords = {"sample_weight": problem.weights} if label == "weights" else {"groups": problem.groups}
            fitted = fit(made("kcal", kernel=kernel, projection="identity"), problem, **keywords)
            yield from outcomes(f"kcal/{kernel}/{label}", fitted, problem)


def kcal_options() -> Cases:
    """KCal without a learned projection: bandwidth rules, folds, smoothing, priors, weights, missing classes."""
    plain, wide = few(), many()
    variants: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "rule": ({"bandwidth": "rule", "bandwidth_reference": (0.9, 300)}, {}),
        "interval": ({"bandwidth_interval": (0.5, 1.0)}, {}),
        "smoothing": ({"smoothing": 0.02}, {}),
        "folds": ({"folds": 4}, {}),
        "folds-groups": ({"folds": 4, "seed": 2}, {"groups": plain.groups}),
        "prior-uniform": ({"prior": "uniform"}, {}),
        "prior-sequence": ({"prior": [0.4, 0.3, 0.2, 0.1]}, {"sample_weight": plain.weights}),
        "counts": ({}, {"sample_weight": plain.counts}),
        "weights-groups": ({}, {"sample_weight": plain.weights, "groups": plain.groups}),
        "unit": ({"projection": "unit"}, {}),
    }
    for label, (parameters, keywords) in variants.items():
        fitted = fit(made("kcal", **{"projection": "identity", **parameters}), plain, **keywords)
        yield from outcomes(f"kcal/{label}", fitted, plain)
        if label == "interval":
            curve = fitted.bandwidth_curve_
            yield f"kcal/{label}/curve", np.stack([curve.bandwidths, curve.losses])
    yield from outcomes("kcal/many", fit(made("kcal", projection="identity"), wide), wide)
    fewer = without_last_class(plain)
    for smoothing in (0.0, 0.01):
        sparse = fit(made("kcal", projection="identity", smoothing=smoothing), fewer, classes=range(plain.n_classes))
        rows = plain.test.embeddings[:ROWS]
        yield f"kcal/missing-{smoothing}", sparse.predict_proba(rows)
    for label, problem in (("float64", plain), ("masked", masked(plain)), ("float32", in_single(plain))):
        on_logits = fit(made("kcal-logits", projection="identity"), problem)
        yield from outcomes(f"kcal-logits/{label}", on_logits, problem, single=label == "float32")


@contextmanager
def weights_held(strength: float) -> Iterator[None]:
    """Pull the weights of a training back to their initial values, by ``strength`` times the learning rate per step.

    The stored numbers of a recipe are those of such a training.
    """
    start: list[torch.Tensor] = []

    def before(optimizer: torch.optim.Optimizer, *_: object) -> None:
        if not start:
            start.extend(weight.detach().clone() for weight in optimizer.param_groups[0]["params"])

    @torch.no_grad()
    def after(optimizer: torch.optim.Optimizer, *_: object) -> None:
        group = optimizer.param_groups[0]
        for weight, initial in zip(group["params"], start, strict=True):
            weight.lerp_(initial, strength * group["lr"])

    hooks = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def halved(problem: Problem) -> Problem:
    """Return half of the calibration samples of each class as training set of the other half."""
    generator, labels = np.random.default_rng([0, 1]), problem.calibration.labels
    members = [generator.permutation(np.flatnonzero(labels == k)) for k in np.unique(labels)]
    is_first = np.isin(np.arange(len(labels)), np.concatenate([rows[: len(rows) // 2] for rows in members]))
    return replace(problem, calibration=problem.calibration.rows(~is_first), train=problem.calibration.rows(is_first))


def kcal_learned() -> Cases:
    """KCal with a projection that is learned in a few steps."""
    plain, wide = few(), many()
    for name in ("kcal", "kcal-linear", "kcal-logits"):
        fitted = fit(made(name, recipe=RECIPE), plain, learn=True)
        yield from outcomes(f"{name}/learned", fitted, plain)
    yield from outcomes("kcal/learned-many", fit(made("kcal", recipe=RECIPE, dimension=5), wide, learn=True), wide)
    grouped = fit(
        made("kcal", recipe=RECIPE, dimension=4, seed=3),
        plain,
        learn=True,
        groups=plain.groups,
        train_groups=plain.train_groups,
        sample_weight=plain.weights,
    )
    yield from outcomes("kcal/learned-groups", grouped, plain)
    yield "kcal/learned-groups/checkpoint-losses", np.array(grouped.training_curve_.checkpoint_losses)
    halves = halved(plain)
    yield from outcomes("kcal/held-out", fit(made("kcal", recipe=RECIPE), halves, learn=True), plain)
    other = kcal.FastRecipe(
        steps=8, batch_size=80, checkpoints=2, start="random", sampling="proportional", class_weights="balanced",
        select="last", unit_length=True,
    )  # fmt: skip
    with weights_held(0.01):
        held = fit(made("kcal", recipe=other), plain, learn=True)
    yield from outcomes("kcal/recipe", held, plain)
    paper = kcal.PaperRecipe(epochs=2, batches_per_epoch=4, learning_rate=1e-2)
    yield from outcomes("kcal/paper", fit(made("kcal", recipe=paper), plain, learn=True), plain)
    trained = kcal.train_projection(plain.train.embeddings, plain.train.labels, recipe=RECIPE, dimension=3)
    yield "projection/curve", np.array([trained.curve.steps, trained.curve.losses, trained.curve.learning_rates])
    yield "projection/last", trained.checkpoints[-1](torch.from_numpy(plain.test.embeddings[:ROWS])).detach().numpy()
    yield from outcomes("kcal/trained", fit(made("kcal", projection=trained), plain), plain)


def blend_options() -> Cases:
    """The blend: parameters, precision, weights, groups, missing classes, masks, and rows far from all samples."""
    plain, wide = few(), many()
    variants: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "float64": ({}, {}),
        "weights": ({}, {"sample_weight": plain.weights}),
        "counts": ({}, {"sample_weight": plain.counts}),
        "groups": ({}, {"groups": plain.groups}),
        "groups-weights": ({"seed": 2}, {"groups": plain.groups, "sample_weight": plain.weights}),
        "folds": ({"folds": 3}, {}),
        "prior-uniform": ({"prior": "uniform"}, {}),
        "prior-sequence": ({"prior": [0.4, 0.3, 0.2, 0.1]}, {}),
    }
    for label, (parameters, keywords) in variants.items():
        fitted = fit(made("kcal-blend", **parameters), plain, **keywords)
        yield from outcomes(f"kcal-blend/{label}", fitted, plain)
    for label, problem in (
        ("float32", in_single(plain)),
        ("masked", masked(plain)),
        ("many", wide),
        ("many-float32", in_single(wide)),
    ):
        fitted = fit(made("kcal-blend"), problem)
        yield from outcomes(f"kcal-blend/{label}", fitted, problem, single=label.endswith("float32"))
    shares = as_probabilities(plain)
    fitted = fit(made("kcal-blend", representation="probabilities"), shares)
    yield from outcomes("kcal-blend/probabilities", fitted, shares)
    fewer = without_last_class(plain)
    for label, logits in (("missing", fewer.calibration.logits), ("missing-without-logits", None)):
        fitted = fit(made("kcal-blend"), fewer, logits=logits, classes=range(plain.n_classes))
        yield from outcomes(f"kcal-blend/{label}", fitted, plain, logits=logits is not None)
    for label, keywords in (("without-logits", {}), ("without-logits-groups", {"groups": plain.groups})):
        fitted = fit(made("kcal-blend"), plain, logits=None, **keywords)
        yield from outcomes(f"kcal-blend/{label}", fitted, plain, logits=False)
    far = fit(made("kcal-blend"), plain)
    queries = plain.test.embeddings[:ROWS] * np.linspace(1.0, 40.0, ROWS)[:, None]
    yield "kcal-blend/far", far.predict_proba(queries, logits=plain.test.logits[:ROWS])


def two_inputs() -> Cases:
    """Other methods on embeddings and logits: precisions, weights, groups, options, a training set."""
    plain = few()
    single = in_single(plain)
    for name, options in (("knn", {"seed": 1}), ("refit", {"penalty": 3.0}), ("dac", {"k": 10})):
        yield from outcomes(f"{name}/float64", fit(made(name), plain), plain)
        yield from outcomes(f"{name}/float32", fit(made(name), single), single, single=True)
        yield from outcomes(f"{name}/weights", fit(made(name), plain, sample_weight=plain.weights), plain)
        yield from outcomes(f"{name}/groups", fit(made(name), plain, groups=plain.groups), plain)
        yield from outcomes(f"{name}/options", fit(made(name, **options), plain), plain)
        yield from outcomes(f"{name}/many", fit(made(name), many()), many())
    trained = fit(made("dac"), plain, train_embeddings=plain.train.embeddings)
    yield from outcomes("dac/training", trained, plain)


def dispatched() -> Cases:
    """Records of a classifier's outputs handed to a method of each kind of input."""
    plain = few()
    part, test = plain.calibration, plain.test
    record = names.ClassifierOutputs(part.embeddings, part.logits, part.labels, weights=plain.weights)
    train = names.ClassifierOutputs(plain.train.embeddings, plain.train.logits, plain.train.labels)
    queries = names.ClassifierOutputs(test.embeddings[:ROWS], test.logits[:ROWS])
    for name, parameters in (("ts", {}), ("kcal", {"recipe": RECIPE}), ("kcal-blend", {})):
        fitted = names.fit_on(made(name, **parameters), record, train)
        yield f"dispatched/{name}", names.predict_on(fitted, queries)
