"""Equal-sized sampling: the numbers m_k of background samples that estimate the class probabilities of a query best.

    P_k = S_k/ΣS,   Var P_k ≈ Σ_j r_j²·P_j²·(1{j = k} − P_k)²/m_j                      (delta method)
    Var P_k ≈ r²·P_k²·(1 − P_k)²·(1/m_k + 1/(M − m_k))                                  (the paper's form)

with S_k = p_k·(mean of m_k kernel values of class k), r_j their coefficient of variation, M = Σ m_k.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from experiments.lines import Line, Panel
from experiments.output import floats
from experiments.theory.estimates import Array, posteriors
from experiments.theory.output import Part, PartOutput, Step
from kcal.benchmark.table import Entry, Table

PER_CLASS = 20
DRAWS = 4_000
POWERS = (-0.4, -0.2, 0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""θ of the allocations m_k ∝ p_k^θ: 0 is equal, 1 proportional."""
LIKENESS = 5.0
"""Mean kernel value of the query's own class over that of the others."""
SPREAD = 1.0
"""r, where it is the same for all classes."""
RADIUS = 1.6
"""Distance of the centres of the normal classes from the origin."""


@dataclass(frozen=True)
class Problem:
    """Queries, one per class, and the kernel values that they see."""

    name: str
    frequencies: Array  # p, (n_classes,)
    means: Array  # (n_query, n_classes) mean kernel values μ
    spreads: Array  # (n_query, n_classes) coefficients of variation r
    query_weights: Array  # (n_query,)
    centres: Array | None = None  # (n_classes, d) of normal classes; None for gamma-distributed kernel values
    log_loss: bool = False
    """The variance of log P_y of the query's own class y counts, not that of all P_k."""

    @property
    def probs(self) -> Array:
        """P, (n_query, n_classes)."""
        joint = self.means * self.frequencies
        return np.asarray(joint / joint.sum(axis=1, keepdims=True))

    @property
    def costs(self) -> Array:
        """A_j of the mean variance Σ_j A_j/m_j, (n_classes,)."""
        identity = np.eye(len(self.frequencies))
        if self.log_loss:  # query y: Var log P_y ≈ Σ_j r_j²·(1{j = y} − P_j)²/m_j
            by_query = (self.spreads * (identity - self.probs)) ** 2
        else:
            gaps = identity - self.probs[:, :, None]  # (n_query, k, j)
            by_query = (self.spreads * self.probs) ** 2 * (gaps**2).mean(axis=1)
        return np.asarray(self.query_weights @ by_query)

    def delta(self, counts: Array) -> float:
        """Return the mean variance over queries by the delta method."""
        return float((self.costs / counts).sum())

    def printed(self, counts: Array) -> float:
        """Return the same by the paper's form, with the spread of the class as r."""
        both = 1 / counts + 1 / (counts.sum() - counts)
        if self.log_loss:
            by_query = np.diagonal((self.spreads * (1 - self.probs)) ** 2 * both)
        else:
            by_query = ((self.spreads * self.probs * (1 - self.probs)) ** 2 * both).mean(axis=1)
        return float(self.query_weights @ by_query)

    def best(self, total: float) -> Array:
        """Return the allocation that minimises the delta method's variance: m_j ∝ √A_j."""
        roots = np.sqrt(self.costs)
        return np.asarray(total * roots / roots.sum())

    def simulate(self, counts: Array, n_draws: int, generator: np.random.Generator) -> float:
        """Return the mean variance over draws of m_k samples of each class; ``counts`` are whole numbers."""
        variances = []
        for query in range(len(self.means)):
            probs = (
                self._gamma_probs(query, counts, n_draws, generator)
                if self.centres is None
                else self._kernel_probs(self.centres[query], counts, n_draws, generator)
            )
            values = np.log(probs[:, [query]]) if self.log_loss else probs
            variances.append(values.var(axis=0, ddof=1).mean())
        return float(self.query_weights @ np.array(variances))

    def _gamma_probs(self, query: int, counts: Array, n_draws: int, generator: np.random.Generator) -> Array:
        """Draw means of gamma-distributed kernel values, which are gamma-distributed as well."""
        shapes = counts / self.spreads[query] ** 2
        sums = self.frequencies * self.means[query] * generator.gamma(shapes, size=(n_draws, len(counts))) / shapes
        return np.asarray(sums / sums.sum(axis=1, keepdims=True))

    def _kernel_probs(self, query: Array, counts: Array, n_draws: int, generator: np.random.Generator) -> Array:
        """Draw normal classes and sum RBF kernel values, each with the weight p_k/m_k."""
        assert self.centres is not None
        numbers, n_classes = counts.astype(int), len(counts)
        labels = np.tile(np.repeat(np.arange(n_classes), numbers), n_draws)
        points = self.centres[labels] + generator.standard_normal((len(labels), self.centres.shape[1]))
        draws = np.repeat(np.arange(n_draws), numbers.sum())
        weights = (self.frequencies / counts)[labels]
        return posteriors(points, labels, draws, n_draws, query, 1.0, n_classes=n_classes, weights=weights)


def geometric(n_classes: int, ratio: float) -> Array:
    """Return class frequencies that fall geometrically to 1:ratio."""
    shares = ratio ** (-np.arange(n_classes) / max(n_classes - 1, 1))
    return np.asarray(shares / shares.sum())


def paper_problem(name: str, frequencies: Array, *, balanced: bool = False, log_loss: bool = False) -> Problem:
    """Return the paper's assumptions: one mean for other classes, a larger one for the own class, one spread."""
    n_classes = len(frequencies)
    means = 1.0 + (LIKENESS - 1.0) * np.eye(n_classes)
    weights = np.full(n_classes, 1 / n_classes) if balanced else frequencies
    return Problem(name, frequencies, means, np.full_like(means, SPREAD), weights, log_loss=log_loss)


def normal_problem(name: str, frequencies: Array, *, log_loss: bool = False) -> Problem:
    """Return normal classes on a circle with an RBF kernel of b = 1, queried at their centres; exact moments."""
    angles = 2 * np.pi * np.arange(len(frequencies)) / len(frequencies)
    centres = RADIUS * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    squares = ((centres[:, None] - centres) ** 2).sum(axis=2)
    means = np.exp(-squares / 4) / 2  # E exp(−‖u‖²/2), u ~ N(c, I), d = 2
    seconds = np.exp(-squares / 3) / 3  # E exp(−‖u‖²)
    spreads = np.sqrt(seconds / means**2 - 1)
    return Problem(name, frequencies, means, spreads, frequencies, centres, log_loss)


def problems() -> tuple[Problem, ...]:
    """Return the problems of the table; the last three are drawn."""
    skewed = geometric(5, 20)
    return (
        paper_problem("2 classes, 9:1", np.array([0.9, 0.1])),
        paper_problem("5 equal classes", np.full(5, 0.2)),
        paper_problem("5 classes, 20:1, queries balanced", skewed, balanced=True),
        paper_problem("5 classes, 20:1, log P of the own class", skewed, log_loss=True),
        normal_problem("5 normal classes, 20:1, RBF kernel, log P of the own class", skewed, log_loss=True),
        paper_problem("5 classes, 20:1", skewed),
        paper_problem("5 classes, 20:1, log P, queries balanced", skewed, balanced=True, log_loss=True),
        normal_problem("5 normal classes, 20:1, RBF kernel", skewed),
    )


def whole(shares: Array, total: int) -> Array:
    """Return whole numbers near ``shares`` that sum to ``total``, at least 1 each; the largest takes the rest."""
    counts = np.maximum(np.round(total * shares / shares.sum()), 1.0)
    counts[counts.argmax()] += total - counts.sum()
    return np.asarray(counts)


def row_of(problem: Problem, n_draws: int, generator: np.random.Generator) -> tuple[Entry, ...]:
    total = PER_CLASS * len(problem.frequencies)
    equal, proportional = (whole(problem.frequencies**power, total) for power in (0.0, 1.0))
    best = problem.best(total)
    least = problem.delta(best)
    simulated = [problem.simulate(counts, n_draws, generator) for counts in (equal, proportional)]
    deltas = [problem.delta(counts) for counts in (equal, proportional)]
    printed = [problem.printed(counts) for counts in (equal, proportional)]
    return (
        Entry(problem.name),
        *(Entry(f"{value / least:.3f}", bold=value == min(deltas)) for value in deltas),
        *(Entry(f"{a / b:.2f}") for a, b in zip(simulated, deltas, strict=True)),
        *(Entry(f"{a / b:.2f}") for a, b in zip(printed, deltas, strict=True)),
        Entry(", ".join(f"{count:.0f}" for count in best)),
    )


def panel(problem: Problem, n_draws: int, generator: np.random.Generator) -> Panel:
    """Return standard deviations over allocations m_k ∝ p_k^θ."""
    total = PER_CLASS * len(problem.frequencies)
    counts = [whole(problem.frequencies**power, total) for power in POWERS]
    values = {
        "delta method": [problem.delta(c) for c in counts],
        "Monte Carlo": [problem.simulate(c, n_draws, generator) for c in counts],
        "the paper's form": [problem.printed(c) for c in counts],
    }
    lines = [Line(name, POWERS, floats(1e4 * np.array(v)), points=name == "Monte Carlo") for name, v in values.items()]
    what = "log P" if problem.log_loss else "P_k"
    least = 1e4 * problem.delta(problem.best(total))
    lines.append(Line("best allocation", (POWERS[0], POWERS[-1]), (least, least), reference=True))
    return Panel(
        problem.name, "θ of m_k ∝ p_k^θ (0 equal, 1 proportional)", f"mean variance of {what} × 10⁴", tuple(lines)
    )


def run(seed: int, quick: bool, step: Step) -> PartOutput:
    """Compare allocations of all problems."""
    n_draws, generator = (400 if quick else DRAWS), np.random.default_rng([seed, 6])
    rows = []
    for problem in problems():
        rows.append(row_of(problem, n_draws, generator))
        step(f"sampling, {problem.name}")
    panels = tuple(panel(problem, n_draws, generator) for problem in problems()[-3:])
    heading = (
        "problem", "equal ÷ best", "proportional ÷ best", "Monte Carlo ÷ delta, equal", "proportional",
        "paper's form ÷ delta, equal", "proportional", "best allocation",
    )  # fmt: skip
    note = (
        f"Mean variance of P_k over classes and queries (of log P of the query's own class where named); queries "
        f"are as frequent as their classes, or balanced: as many of each; {PER_CLASS} background samples per class on "
        f"average; {n_draws:,} draws: a ratio of Monte Carlo is known to about {100 * sqrt(2 / n_draws):.0f}%. "
        "“Best” is by the delta method."
    )
    table = Table("allocation", "Variance by allocation", heading, tuple(rows), note)
    return PartOutput((table,), panels)


PART = Part("allocation", "Equal-sized sampling", run)
