"""What more and more calibration samples bring where the true probabilities are known: a simulation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from kcal.benchmark.studies.study import Line, Panel, Study, StudyWatch, unwatched
from kcal.benchmark.tables import Entry, Table
from kcal.benchmark.tasks import Task
from kcal.calibrators import METHODS, ClassifierOutputs, KCal, KCalBlend, fit_on, make_calibrator, predict_on

SIZES = (100, 300, 1_000, 3_000, 10_000, 30_000)
SAMPLES = 30_000
"""Of a size, at most, over all repetitions: large sets take long and scatter little, and are drawn less often."""
N_TEST = 2_000
DIMENSION = 2
TOO_SURE = 2.0
"""What the network's logits are multiplied by."""
VARIANTS: dict[str, Callable[[int], Any]] = {
    "uncal": lambda seed: make_calibrator("uncal", seed=seed),
    "ts": lambda seed: make_calibrator("ts", seed=seed),
    "kcal": lambda seed: KCal(projection="identity", seed=seed, progress=False),
    "kcal-blend": lambda seed: KCalBlend(projection=None, seed=seed, progress=False),
}
"""What the figure calls a method, and how to make it; nothing is learned from a training set."""
BLEND = "kcal-blend"
ESTIMATES, NETWORK = "kernel estimates", "network"
ABOUT = (
    "A simulation, in which the true probabilities p of three classes are known for every input in the plane. The "
    "network is too sure everywhere, its logits twice what they should be, and on one half of the plane it does not "
    "see one of the two directions at all: no temperature can mend that. Left, the mean of |p̂ − p| over classes and "
    f"{N_TEST:,} new inputs: with more calibration samples KCal's error falls towards 0, at about the rate n^(−2/(d + "
    f"4)) of kernel estimates in d = {DIMENSION} dimensions (dashed), while temperature scaling stays as wrong as its "
    "form. Right, the weights that the blend gives to its kernel estimates and to the network, each summed: with few "
    "samples it relies on the network, with many on the estimates. Weights may be negative, and need not sum to 1."
)


@dataclass(frozen=True)
class World:
    """Inputs in the plane, what a network says of them, their classes, and the truth."""

    outputs: ClassifierOutputs
    truth: NDArray[np.float64]  # (n, 3)


@dataclass(frozen=True, eq=False)
class Growth:
    """Errors by method, and the blend's summed weights, each by size: (n_repetitions,)."""

    sizes: tuple[int, ...]
    errors: dict[str, list[NDArray[np.float64]]]
    weights: dict[str, list[NDArray[np.float64]]]

    def table(self) -> Table:
        """Return sizes as rows; errors and weights as columns."""
        columns = [*self.errors.values(), *self.weights.values()]
        digits = [4] * len(self.errors) + [2] * len(self.weights)
        rows = tuple(
            (
                Entry(f"{size:,}"),
                *(_entry(values[place], places) for values, places in zip(columns, digits, strict=True)),
                Entry(f"{100 * self._share(place):.0f}%".replace("-", "−")),
            )
            for place, size in enumerate(self.sizes)
        )
        heading = (
            "samples",
            *self.errors,
            *(f"weight of the {who}" for who in self.weights),
            f"share of the {ESTIMATES}",
        )
        note = (
            "Mean of |p̂ − p|, and the blend's summed weights; ± standard deviation over repetitions, of which the "
            f"largest sizes have fewer: {', '.join(f'{len(each)}' for each in columns[0])}. The share is of the sum of "
            "all weights, above 100% where the network's weight is negative."
        )
        return Table("growth", "Known truth: error and weights by calibration samples", heading, rows, note)

    def panels(self) -> tuple[Panel, ...]:
        """Return the errors, both axes logarithmic, and the weights."""
        last = float(self.errors["kcal"][-1].mean())
        sizes = np.array(self.sizes, dtype=np.float64)
        rate = last * (sizes / sizes[-1]) ** (-2 / (DIMENSION + 4))
        reference = Line(f"n^(−2/{DIMENSION + 4})", tuple(sizes.tolist()), tuple(rate.tolist()), reference=True)
        label = "calibration samples n"
        errors = (*(_line(name, self.sizes, values) for name, values in self.errors.items()), reference)
        weights = tuple(_line(name, self.sizes, values) for name, values in self.weights.items())
        return (
            Panel("Distance from the truth", label, "mean of |p̂ − p|", errors, True, True, self.sizes),
            Panel("Whom the blend relies on", label, "summed weights", weights, True, False, self.sizes),
        )

    def _share(self, place: int) -> float:
        means = {who: float(values[place].mean()) for who, values in self.weights.items()}
        return means[ESTIMATES] / sum(means.values())


def study_growth(tasks: Iterable[Task], *, reshuffles: int = 10, seed: int = 0, watch: StudyWatch = unwatched) -> Study:
    """Simulate; the tasks do not matter, ``reshuffles`` is how often a calibration set is drawn."""
    found = measure_growth(SIZES, n_repetitions=reshuffles, seed=seed, watch=lambda *step: watch("simulation", *step))
    return Study("growth", "Known truth: what grows with the calibration set", ABOUT, (found.table(),), found.panels())


def measure_growth(
    sizes: tuple[int, ...], *, n_repetitions: int, seed: int, watch: Callable[[int, int], None] = lambda *_: None
) -> Growth:
    """Fit every method on calibration sets of every size, and compare with the truth on new inputs."""
    repetitions = [min(n_repetitions, max(SAMPLES // size, 1)) for size in sizes]
    test = draw_world(N_TEST, np.random.default_rng([seed, 0]))
    errors: dict[str, list[NDArray[np.float64]]] = {method: [] for method in VARIANTS}
    weights: dict[str, list[NDArray[np.float64]]] = {ESTIMATES: [], NETWORK: []}
    done = 0
    for size, repeated in zip(sizes, repetitions, strict=True):
        found: dict[str, list[float]] = {name: [] for name in (*errors, *weights)}
        for repetition in range(repeated):
            world = draw_world(size, np.random.default_rng([seed, 1, size, repetition]))
            for name, value in _measured(world, test, seed).items():
                found[name].append(value)
            done += 1
            watch(done, sum(repetitions))
        for name, values in (errors | weights).items():
            values.append(np.array(found[name]))
    return Growth(tuple(sizes), errors, weights)


def draw_world(n: int, generator: np.random.Generator) -> World:
    """Draw inputs evenly from a square, the network's logits for them, and their classes by the true probabilities."""
    points = generator.uniform(-2, 2, size=(n, DIMENSION))
    across, up = points[:, 0], points[:, 1]
    true = np.stack([2 * np.sin(2 * across), 2 * up, np.cos(3 * up)], axis=1)  # (n, 3)
    blind = across > 0  # to the first direction
    network = TOO_SURE * np.where(blind[:, None], true * [0, 1, 1], true)
    labels = (true + generator.gumbel(size=true.shape)).argmax(axis=1)
    outputs = ClassifierOutputs(points.astype(np.float32), network.astype(np.float32), labels)
    return World(outputs, softmax(true, axis=1))


def _measured(world: World, test: World, seed: int) -> dict[str, float]:
    found = {}
    for name, make in VARIANTS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            calibrator = fit_on(make(seed), world.outputs, classes=range(3))
            probabilities = predict_on(calibrator, test.outputs)
        found[name] = float(np.abs(probabilities - test.truth).mean())
        if name == BLEND:
            assert isinstance(calibrator, KCalBlend)
            found |= summed_weights(calibrator)
    return found


def summed_weights(blend: KCalBlend) -> dict[str, float]:
    """Return the blend's weights of its kernel estimates and of the network, summed."""
    network = sum(weight for name, weight in blend.weights_.items() if name in METHODS)
    return {ESTIMATES: sum(blend.weights_.values()) - network, NETWORK: network}


def _line(label: str, sizes: tuple[int, ...], values: list[NDArray[np.float64]]) -> Line:
    spread = tuple(float(each.std(ddof=1)) if len(each) > 1 else 0.0 for each in values)
    return Line(label, tuple(float(size) for size in sizes), tuple(float(each.mean()) for each in values), spread)


def _entry(values: NDArray[np.float64], digits: int) -> Entry:
    spread = f"±{values.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
    return Entry(f"{values.mean():.{digits}f}{spread}".replace("-", "−"))
