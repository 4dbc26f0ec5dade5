"""Explanations: the most influential calibration samples of each prediction, and what the parts of a blend contribute.

Of a KCal, with S_k the sum of w_i·φ_i over the samples of class k,

p_k = Σ_{i: y_i = k} share_i + smoothing/K,   share_i = (p_k − smoothing/K)·w_i·φ_i / S_k

The prior is in p_k, as a factor of all shares of a class. Where all mass is on classes that the prior excludes, the
prior alone decides, and samples have no share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.calibrators.kernel_model import KernelModel
from kcal.errors import printable
from kcal.kernels import Contributions, largest_contributions
from kcal.validation import check_integer, require_pandas

if TYPE_CHECKING:
    import pandas

Floats = NDArray[np.float64]

SHOWN_ROWS, SHOWN_CLASSES, LABEL_WIDTH = 5, 3, 24
"""Rows, classes and characters of a label that a printed explanation shows, at most."""


METRIC = "projected"
RARE_TERMS = ("prior", "masked")
"""Contributions to the log-odds that are left out where they are 0 for all predictions."""
ROUNDING = 1e-15
"""Relative difference of a probability and its logarithm's exponential."""
BLOCK_ROWS, BLOCK_ENTRIES = 1_024, 4_000_000
"""Predictions that are explained at once, and numbers of their samples' points, at most."""


@dataclass(frozen=True, eq=False)
class LogOdds:
    """The log-odds of the two most probable classes of each prediction, as a sum of contributions."""

    first: NDArray[Any]  # (n,), label of the most probable class
    second: NDArray[Any]  # (n,), label of the next one
    total: Floats  # (n,), log p_first − log p_second
    terms: tuple[str, ...]
    contributions: Floats  # (n, n_terms), which sum to the total

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas DataFrame with one row per prediction: the two classes, the total and a column per term."""
        columns = {"first": self.first, "second": self.second, "total": self.total}
        return require_pandas().DataFrame(columns | dict(zip(self.terms, self.contributions.T, strict=True)))


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """The k calibration samples that carry each of n predictions most, those with the largest shares first.

    Each sample has a share of the probability of its own class. With the shares of all other samples (``rest``) and
    what no sample carries (``parts``) they sum to the probabilities:

    p_k = Σ_{i: label_i = k} shares_i + rest_k + Σ_name parts[name]_k

    A :class:`KCal` has shares (1 − smoothing)·p⁰_k·w_i·φ_i / S_k, p⁰ being corrected for the prior, and the parts
    "smoothing" and "prior" (where only the prior is left, because all mass is on classes that it excludes).

    The probabilities of a :class:`KCalBlend` are a product of powers, which has no unique shares. Here every part of
    the pool has the share of its absolute weight: |g·w_j| for an estimate, |g·v_i| for a network calibrator, 1 − g for
    the fallback, over their sum. The share of an estimate is divided among samples and background as its mass for the
    class is. The parts are "network", "background", "fallback" and "merged" (estimates over points that stand for
    several samples). Whether something speaks for or against a class is in ``log_odds``.

    Where all support points stand for several samples, these points take the place of samples: "centroid of 12
    samples #3".

    An integer index, a slice or an array of them gives the explanation of these predictions.
    """

    classes: NDArray[Any]  # (n_classes,), labels in the order of the columns
    probabilities: Floats  # (n, n_classes)
    ids: NDArray[Any]  # (n, k), identifiers of the samples; row numbers if the fit was given none
    rows: NDArray[np.int64]  # (n, k), rows of the calibration set; −1 for points that are no samples, and after updates
    codes: NDArray[np.int64]  # (n, k), positions of the samples' labels in classes
    shares: Floats  # (n, k), of the probability of the sample's class
    distances: Floats  # (n, k, n_metrics), in the projected space
    metrics: tuple[str, ...]  # names of the projected spaces
    rest: Floats  # (n, n_classes), shares of all other samples
    parts: Mapping[str, Floats]  # (n, n_classes) each: what no sample carries
    log_odds: LogOdds | None = None  # of a blend

    @property
    def labels(self) -> NDArray[Any]:
        """Labels of the samples, (n, k)."""
        labels: NDArray[Any] = self.classes[self.codes]
        return labels

    @property
    def predictions(self) -> NDArray[Any]:
        """The most probable class of each prediction, (n,)."""
        labels: NDArray[Any] = self.classes[self.probabilities.argmax(axis=1)]
        return labels

    def __len__(self) -> int:
        return len(self.probabilities)

    def __iter__(self) -> Iterator[Explanation]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, index: Any) -> Explanation:
        chosen = np.atleast_1d(np.arange(len(self))[index])
        names = ("probabilities", "ids", "rows", "codes", "shares", "distances", "rest")
        values: dict[str, Any] = {name: getattr(self, name)[chosen] for name in names}
        values["parts"] = {name: part[chosen] for name, part in self.parts.items()}
        if self.log_odds is not None:
            arrays = {name: getattr(self.log_odds, name)[chosen] for name in _LOG_ODDS_ARRAYS}
            values["log_odds"] = replace(self.log_odds, **arrays)
        return replace(self, **values)

    def sample_shares(self) -> Floats:
        """Return the shares of the k samples summed by class, (n, n_classes)."""
        sums = np.zeros_like(self.probabilities)
        np.add.at(sums, (np.arange(len(self))[:, None], self.codes), self.shares)
        return sums

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return a table as columns by name: one row per prediction and sample, and per part of a class.

        "row" is the prediction, "part" is "sample", "rest" or one of ``parts``; a part has neither id nor distance.
        Parts without a share are left out. The shares of a row and class sum to its probability.
        """
        n, k = self.codes.shape
        names = ["distance"] if len(self.metrics) == 1 else [f"distance_{name}" for name in self.metrics]
        pieces: dict[str, list[Any]] = {
            "row": [np.repeat(np.arange(n), k)],
            "part": [np.full(n * k, "sample", dtype=object)],
            "id": [self.ids.astype(object).ravel()],
            "class": [self.labels.ravel()],
            "share": [self.shares.ravel()],
        }
        for name, part in {"rest": self.rest, **self.parts}.items():
            rows, codes = part.nonzero()
            pieces["row"].append(rows)
            pieces["part"].append(np.full(len(rows), name, dtype=object))
            pieces["id"].append(np.full(len(rows), None, dtype=object))
            pieces["class"].append(self.classes[codes])
            pieces["share"].append(part[rows, codes])
        order = np.argsort(np.concatenate(pieces["row"]), kind="stable")
        missing = np.full(len(order) - n * k, np.nan)
        for place, name in enumerate(names):
            pieces[name] = [self.distances[:, :, place].ravel(), missing]
        return {name: np.concatenate(parts)[order] for name, parts in pieces.items()}

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas DataFrame of the :meth:`columns`."""
        return require_pandas().DataFrame(self.columns())

    def cells(self, row: int = 0) -> list[list[str]]:
        """Return the table of one prediction as text, line by line: a heading, the samples, the parts, their sum.

        There is a column for each of the most probable classes, and one for all others; each sums to its probability.
        """
        check_integer(row, "row", minimum=0, maximum=len(self) - 1)
        top = np.argsort(-self.probabilities[row], kind="stable")[:SHOWN_CLASSES]
        groups = [np.array([code]) for code in top]
        others = np.setdiff1d(np.arange(len(self.classes)), top)
        groups += [others] if len(others) else []
        titles = [short(self.classes[code]) for code in top] + (["others"] if len(others) else [])
        lines = [["sample", "label", *_distance_titles(self.metrics), *titles]]
        for place, code in enumerate(self.codes[row]):
            shares = [number(self.shares[row, place]) if code in group else "" for group in groups]
            distances = [f"{distance:.4g}" for distance in self.distances[row, place]]
            lines.append([short(self.ids[row, place]), short(self.classes[code]), *distances, *shares])
        blank = [""] * (1 + len(self.metrics))
        sums = {"other samples": self.rest, **self.parts, "probability": self.probabilities}
        return lines + [
            [name, *blank, *(number(part[row, group].sum()) for group in groups)] for name, part in sums.items()
        ]

    def log_odds_cells(self, row: int = 0) -> list[list[str]]:
        """Return the contributions to the log-odds of one prediction as text, line by line; none without a blend."""
        if self.log_odds is None:
            return []
        check_integer(row, "row", minimum=0, maximum=len(self) - 1)
        odds = self.log_odds
        heading = [f"log-odds of {short(odds.first[row])} against {short(odds.second[row])}", ""]
        terms = [[name, f"{value:+.4f}"] for name, value in zip(odds.terms, odds.contributions[row], strict=True)]
        return [heading, *terms, ["sum", f"{odds.total[row]:+.4f}"]]

    def __repr__(self) -> str:
        n, k = self.codes.shape
        return f"Explanation({n:,} predictions of {len(self.classes):,} classes by {k:,} samples each)"

    def __str__(self) -> str:
        lines = []
        for row in range(min(len(self), SHOWN_ROWS)):
            lines += [f"prediction {row}: {short(self.predictions[row])}", *aligned(self.cells(row))]
            lines += [*aligned(self.log_odds_cells(row)), ""]
        left = len(self) - SHOWN_ROWS
        return "\n".join([*lines, f"and {left:,} more"] if left > 0 else lines[:-1])


_LOG_ODDS_ARRAYS = tuple(entry.name for entry in fields(LogOdds) if entry.name != "terms")


def number(share: float) -> str:
    """Return a share as text, a small one not as 0."""
    return f"{share:.4f}" if share == 0 or share >= 0.00005 else f"{share:.0e}"


def short(name: object) -> str:
    """Return a label or an identifier on one line, cut in the middle if it is long."""
    text = printable(name)
    half = LABEL_WIDTH // 2
    return text if len(text) <= LABEL_WIDTH else f"{text[: half - 1]}…{text[-half:]}"


def aligned(lines: list[list[str]]) -> list[str]:
    """Return lines of text with columns of equal width; all but the first are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    first = widths[0] if widths else 0
    return [
        "  ".join([f"{line[0]:<{first}}", *(f"{c:>{w}}" for c, w in zip(line[1:], widths[1:], strict=True))]).rstrip()
        for line in lines
    ]


def _distance_titles(metrics: tuple[str, ...]) -> list[str]:
    return ["distance"] if len(metrics) == 1 else [f"distance, {name}" for name in metrics]


@dataclass(frozen=True, eq=False)
class Attribution:
    """The shares of the k most important samples in n predictions, and of everything else."""

    positions: torch.Tensor  # (n, k), of the samples in the support, in the order of the fit
    codes: torch.Tensor  # (n, k), their classes
    shares: torch.Tensor  # (n, k)
    distances: torch.Tensor  # (n, k, n_metrics)
    metrics: tuple[str, ...]
    rest: torch.Tensor  # (n, n_classes), of all other samples
    parts: Mapping[str, torch.Tensor]  # (n, n_classes) each, of what is no sample
    terms: Mapping[str, torch.Tensor]  # (n,) each, contributions to the log-odds of the top two classes; of a blend
    log_odds: torch.Tensor | None = None  # (n,)


def attribute_kcal(model: Any, embeddings: torch.Tensor, probs: torch.Tensor, k: int) -> Attribution:
    """Return the attribution of the probabilities ``probs``, (n, n_classes) in float64, of ``embeddings``, (n, h)."""
    points = model.project(embeddings)
    even = model.even_share / probs.shape[1]
    carried = torch.where(probs > (1 + ROUNDING) * even, probs - even, 0.0)
    parts = {"smoothing": torch.full_like(probs, even)}
    if model.prior is not None:
        posteriors = model.prepared.posteriors(points)[0].cpu()
        reached = (posteriors[:, model.prior.cpu() > 0] > 0).any(dim=1, keepdim=True)
        parts["prior"] = torch.where(reached, 0.0, carried)
        carried = torch.where(reached, carried, 0.0)
    contributions = Contributions(model.prepared, points)
    sums = contributions.class_sums().sums  # (1, n_classes, n)
    factors = torch.where(sums > 0, carried.T.to(sums) / sums, 0.0)
    return attribution({METRIC: (contributions, factors)}, k, carried, parts)


def attribution(
    metrics: Mapping[str, tuple[Contributions, torch.Tensor]],
    k: int,
    carried: torch.Tensor,
    parts: Mapping[str, torch.Tensor],
    *,
    terms: Mapping[str, torch.Tensor] | None = None,
    log_odds: torch.Tensor | None = None,
) -> Attribution:
    """Return the attribution by the samples of the largest shares.

    ``metrics`` are what samples contribute to class sums, by name of the metric, with the factors that make shares of
    it; ``carried`` is the probability that all samples carry together, (n, n_classes). The others are as in
    :class:`Attribution`.
    """
    contributions = [pair[0] for pair in metrics.values()]
    positions, shares = largest_contributions(contributions, [pair[1] for pair in metrics.values()], k)
    distances = torch.stack([part.distances(positions).cpu() for part in contributions], dim=2)
    support = contributions[0].prepared.support
    places = positions.to(support.codes.device)
    codes, shares = support.codes[places].cpu(), shares.cpu()
    rest = (carried - torch.zeros_like(carried).scatter_add_(1, codes, shares)).clamp_min(0.0)
    order = support.order[places].cpu()
    return Attribution(order, codes, shares, distances, tuple(metrics), rest, parts, terms or {}, log_odds)


def to_explanation(
    attributions: Sequence[Attribution],
    probs: torch.Tensor,
    classes: NDArray[Any],
    *,
    rows: NDArray[np.int64],
    ids: NDArray[Any],
) -> Explanation:
    """Return blocks of attributions as one explanation of ``probs``; ``rows`` and ``ids`` are those of the samples."""

    def joined(read: Callable[[Attribution], torch.Tensor]) -> NDArray[Any]:
        return torch.cat([read(block) for block in attributions]).numpy()

    first = attributions[0]
    positions = joined(lambda block: block.positions)
    parts = {name: joined(lambda block, name=name: block.parts[name]) for name in first.parts}  # type: ignore[misc]
    log_odds, totals = None, [block.log_odds for block in attributions if block.log_odds is not None]
    if totals:
        terms = {name: joined(lambda block, name=name: block.terms[name]) for name in first.terms}  # type: ignore[misc]
        terms = {name: values for name, values in terms.items() if name not in RARE_TERMS or values.any()}
        top = top_two(probs).numpy()
        contributions = np.column_stack(list(terms.values()))
        log_odds = LogOdds(
            classes[top[:, 0]], classes[top[:, 1]], torch.cat(totals).numpy(), tuple(terms), contributions
        )
    return Explanation(
        classes=classes,
        probabilities=probs.numpy(),
        ids=ids[positions],
        rows=rows[positions],
        codes=joined(lambda block: block.codes),
        shares=joined(lambda block: block.shares),
        distances=joined(lambda block: block.distances),
        metrics=first.metrics,
        rest=joined(lambda block: block.rest),
        parts={name: part for name, part in parts.items() if part.any()},
        log_odds=log_odds,
    )


def point_names(estimate: KernelModel) -> NDArray[Any]:
    """Return a name of each support point of a compressed estimate, in the original order, (n,).

    The weight of a centroid is the number of its samples, if these had equal weights. Points of other methods are
    samples, whose ids the estimate does not know.
    """
    support, compression = estimate.support, estimate.compression
    numbers = np.arange(len(support))
    if compression is None:
        return numbers
    if compression.method != "kmeans":
        return np.array([f"point #{number}" for number in numbers])
    weights = torch.ones(len(support)) if support.log_weights is None else support.log_weights.double().exp().cpu()
    counts = support.in_original_order(weights / weights.sum() * compression.n_samples).numpy()
    if np.abs(counts - counts.round()).max() > 1e-3 * counts.min():
        return np.array([f"centroid #{number}" for number in numbers])
    sizes = counts.round().astype(np.int64).tolist()
    return np.array([f"centroid of {size:,} sample{'s'[: size != 1]} #{place}" for place, size in enumerate(sizes)])


def top_two(probs: torch.Tensor) -> torch.Tensor:
    """Return the columns of the two most probable classes, (n, 2); of equal ones the first."""
    return probs.sort(dim=1, descending=True, stable=True).indices[:, :2]
