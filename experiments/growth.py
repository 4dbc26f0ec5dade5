"""More and more calibration samples where the true probabilities are known: a simulation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from experiments.lines import Line, Panel
from experiments.output import floats, number_entry, spread_line
from experiments.study import Measurements, Study, StudyOutput, Values, Variant
from kcal.benchmark import Task
from kcal.benchmark.table import Entry, Table
from kcal.benchmark.tasks import Split
from kcal.calibrators import Calibrator, fit_on, make_calibrator, predict_on
from kcal.embeddings import ClassifierOutputs

SIZES = (100, 300, 1_000, 3_000, 10_000, 30_000)
MAX_SAMPLES = 30_000
"""Calibration samples of a size over all repetitions: large sets take long and vary little."""
N_TEST = 2_000
DIMENSION = 2
OVERCONFIDENCE = 2.0
"""Factor of the network's logits."""
PARAMETERS: dict[str, dict[str, Any]] = {
    "uncal": {},
    "ts": {},
    "kcal": {"projection": "identity", "progress": False},
    "kcal-blend": {"progress": False},
}
"""Methods and their parameters; nothing is learned from a training set."""
BLEND = "kcal-blend"
EXPERTS = ("network", "refit", "samples")


@dataclass(frozen=True)
class World:
    """Inputs in the plane, the network's outputs for them, their labels, and the true probabilities (n, 3)."""

    outputs: ClassifierOutputs
    truth: NDArray[np.float64]


def draw_world(n: int, generator: np.random.Generator) -> World:
    """Draw inputs uniformly from a square, the network's logits, and labels by the true probabilities."""
    points = generator.uniform(-2, 2, size=(n, DIMENSION))
    first, second = points[:, 0], points[:, 1]
    true = np.stack([2 * np.sin(2 * first), 2 * second, np.cos(3 * second)], axis=1)  # (n, 3)
    blind = first > 0  # there the network does not see the first direction
    network = OVERCONFIDENCE * np.where(blind[:, None], true * [0, 1, 1], true)
    labels = (true + generator.gumbel(size=true.shape)).argmax(axis=1)
    outputs = ClassifierOutputs(points.astype(np.float32), network.astype(np.float32), labels)
    return World(outputs, softmax(true, axis=1))


@dataclass(frozen=True)
class Simulation:
    """Calibration sets of one size; a split is one repetition, and its rows do not matter."""

    size: int
    seed: int

    @property
    def label(self) -> str:
        return f"{self.size:,}"

    def splits(self, n_splits: int) -> list[Split]:
        none = np.empty(0, dtype=np.intp)
        return [Split(index, none, none) for index in range(min(n_splits, max(MAX_SAMPLES // self.size, 1)))]

    def fingerprint(self) -> str:
        return self.label

    def variant(self, method: str) -> Variant:
        """Return the distance of a method from the truth and, for the blend, what it relies on."""

        def measure(split: Split) -> Values:
            world = draw_world(self.size, np.random.default_rng([self.seed, 1, self.size, split.index]))
            test = draw_world(N_TEST, np.random.default_rng([self.seed, 0]))
            calibrator = make_calibrator(method, seed=self.seed, **PARAMETERS[method])
            fit_on(calibrator, world.outputs, classes=range(3))
            error = float(np.abs(predict_on(calibrator, test.outputs) - test.truth).mean())
            return {"error": error, **(reliance(calibrator) if method == BLEND else {})}

        return measure


def reliance(blend: Calibrator | Any) -> dict[str, float]:
    """Return the share of each expert in the mixture, that of the pool divided by the sizes of its exponents."""
    total = sum(abs(weight) for weight in blend.weights_.values())
    return {name: blend.shares_["pool"] * abs(blend.weights_[name]) / total + blend.shares_[name] for name in EXPERTS}


def settings(tasks: Iterable[Task], seed: int) -> Iterator[Simulation]:
    """Yield the sizes; tasks are not used."""
    yield from (Simulation(size, seed) for size in SIZES)


def show(measured: Measurements) -> StudyOutput:
    rows = []
    for label, by_method in measured.items():
        distances = (number_entry(values["error"]) for values in by_method.values())
        shares = (number_entry(by_method[BLEND][name], scale=100, digits=0) for name in EXPERTS)
        rows.append((Entry(label), *distances, *shares))
    n_splits = ", ".join(str(len(by_method[BLEND]["error"])) for by_method in measured.values())
    heading = ("samples", *PARAMETERS, *(f"share of the {name}, %" for name in EXPERTS))
    note = (
        "Mean of |p̂ − p|, and the share of each expert in the blend, ± standard deviation over repetitions, of which "
        f"large sizes have fewer: {n_splits}. The share of the pool is divided by the sizes of its exponents."
    )
    table = Table("growth", "Known truth: error and shares by calibration samples", heading, tuple(rows), note)
    sizes = [float(label.replace(",", "")) for label in measured]
    errors = {name: [by_method[name]["error"] for by_method in measured.values()] for name in PARAMETERS}
    rate = errors["kcal"][-1].mean() * (np.array(sizes) / sizes[-1]) ** (-2 / (DIMENSION + 4))
    reference = Line(f"n^(−2/{DIMENSION + 4})", tuple(sizes), floats(rate), reference=True)
    distance = (*(spread_line(name, sizes, values) for name, values in errors.items()), reference)
    relied = tuple(
        spread_line(name, sizes, [by_method[BLEND][name] for by_method in measured.values()]) for name in EXPERTS
    )
    axis = "calibration samples n"
    panels = (
        Panel("Distance from the truth", axis, "mean of |p̂ − p|", distance, True, True, tuple(sizes)),
        Panel("What the blend relies on", axis, "share", relied, True, False, tuple(sizes)),
    )
    return StudyOutput((table,), panels)


def variants(setting: Simulation) -> Mapping[str, Variant]:
    return {method: setting.variant(method) for method in PARAMETERS}


STUDY = Study("growth", "Known truth: more calibration samples", variants, show, settings)
