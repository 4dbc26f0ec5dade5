"""Explanations: the most influential calibration samples of each prediction, and what else its probabilities come from.

Of a KCal, with S_k the sum of w_i·φ_i over the samples of class k,

p_k = Σ_{i: y_i = k} share_i + smoothing/K,   share_i = (p_k − smoothing/K)·w_i·φ_i / S_k

The prior is in p_k, as a factor of all shares of a class. Where all mass is on classes that the prior excludes, the
prior alone decides, and samples have no share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.errors import printable
from kcal.kernels import Contributions, largest_contributions
from kcal.progress import progress_bar
from kcal.samples import Floats, Samples
from kcal.validation import check_integer

if TYPE_CHECKING:
    import pandas

    from kcal.calibrators.kernel_model import KernelModel

SHOWN_ROWS, SHOWN_CLASSES, LABEL_WIDTH = 5, 3, 24
"""Rows, classes and characters of a label that a printed explanation shows, at most."""
LOW_EVIDENCE = 0.01
"""Evidence below which a row is said to have few similar samples."""
RARE_TERMS = ("prior", "masked")
"""Contributions to the log-odds that are left out where they are 0 for all predictions."""
BLOCK_ROWS, BLOCK_ENTRIES = 1_024, 4_000_000
"""Predictions that are explained at once, and numbers of their samples' points, at most."""


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """The k calibration samples that influence each of n predictions most, those with the largest shares first.

    Each sample has a share of the probability of its own class. With the shares of all other samples (``rest``) and of
    what is not a sample (``parts``) they sum to the probabilities:

    p_k = Σ_{i: label_i = k} shares_i + rest_k + Σ_name parts[name]_k

    A :class:`KCal` has shares (1 − smoothing)·p⁰_k·w_i·φ_i / S_k, p⁰ being corrected for the prior, and the parts
    "smoothing" and "prior" (where only the prior is left, because all mass is on classes that it excludes).

    The probabilities of a :class:`KCalBlend` contain a product of powers, which has no unique shares: there every part
    has the share of the absolute value of its exponent. The parts are "network" and "refitted layer". Whether
    something speaks for or against a class is in ``log_odds``: the contributions of "network", "refitted layer",
    "similar samples" and, where they matter, "prior" and "masked" (a class that the logits exclude), which sum to
    log p_a − log p_b of the two most probable classes a and b.

    Where all support points stand for several samples, these points take the place of samples: "centroid of 12
    samples #3". An integer index, a slice or an array of them gives the explanation of these predictions.
    """

    classes: NDArray[Any]  # (n_classes,), labels in the order of the columns
    numbers: NDArray[np.int64]  # (n,), of the rows that were explained
    probabilities: Floats  # (n, n_classes)
    evidence: Floats  # (n,), share of calibration samples with less evidence than the row
    ids: NDArray[Any]  # (n, k), identifiers of the samples; row numbers if the fit was given none
    rows: NDArray[np.int64]  # (n, k), rows of the calibration set; −1 for points that are not samples, after updates
    codes: NDArray[np.int64]  # (n, k), positions of the samples' labels in classes
    shares: Floats  # (n, k), of the probability of the sample's class
    distances: Floats  # (n, k), in the projected space
    rest: Floats  # (n, n_classes), shares of all other samples
    parts: Mapping[str, Floats]  # (n, n_classes) each, shares of what is not a sample
    log_odds: Mapping[str, Floats]  # (n,) each, contributions to the log-odds; of a blend

    @property
    def labels(self) -> NDArray[Any]:
        """Labels of the samples, (n, k)."""
        labels: NDArray[Any] = self.classes[self.codes]
        return labels

    @property
    def top(self) -> NDArray[Any]:
        """Labels of the two most probable classes, (n, 2)."""
        labels: NDArray[Any] = self.classes[np.argsort(-self.probabilities, axis=1, kind="stable")[:, :2]]
        return labels

    @property
    def predictions(self) -> NDArray[Any]:
        """The most probable class of each prediction, (n,)."""
        labels: NDArray[Any] = self.top[:, 0]
        return labels

    def __len__(self) -> int:
        return len(self.probabilities)

    def __iter__(self) -> Iterator[Explanation]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, index: Any) -> Explanation:
        chosen = np.atleast_1d(np.arange(len(self))[index])

        def some(value: Any) -> Any:
            return {name: some(part) for name, part in value.items()} if isinstance(value, Mapping) else value[chosen]

        names = [entry.name for entry in fields(self) if entry.name != "classes"]
        return replace(self, **{name: some(getattr(self, name)) for name in names})

    def sample_shares(self) -> Floats:
        """Return the shares of the k samples summed by class, (n, n_classes)."""
        sums = np.zeros_like(self.probabilities)
        np.add.at(sums, (np.arange(len(self))[:, None], self.codes), self.shares)
        return sums

    def to_dict(self) -> list[dict[str, Any]]:
        """Return a dictionary for each prediction, of values that JSON can represent; infinite numbers become None."""
        return [self._entry(place) for place in range(len(self))]

    def _entry(self, place: int) -> dict[str, Any]:
        def by_class(part: Floats) -> dict[str, float]:
            return dict(zip(map(str, self.classes.tolist()), part[place].tolist(), strict=True))

        samples = {"id": self.ids, "row": self.rows, "label": self.labels}
        samples |= {"share": self.shares, "distance": self.distances}
        lines = zip(*(values[place].tolist() for values in samples.values()), strict=True)
        entry = {
            "row": int(self.numbers[place]),
            "prediction": self.predictions[place].item(),
            "evidence": float(self.evidence[place]),
            "probabilities": by_class(self.probabilities),
            "samples": [dict(zip(samples, line, strict=True)) for line in lines],
            "rest": by_class(self.rest),
            "parts": {name: by_class(part) for name, part in self.parts.items()},
        }
        if self.log_odds:
            first, second = self.top[place].tolist()
            terms = {name: float(values[place]) for name, values in self.log_odds.items()}
            terms["total"] = sum(terms.values())
            finite = {name: value if np.isfinite(value) else None for name, value in terms.items()}
            total = finite.pop("total")
            entry["log_odds"] = {"first": first, "second": second, "total": total, "terms": finite}
        return entry

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas DataFrame with a line per prediction and sample, and per other part and class.

        "row" is the row that was explained, "part" is "similar sample", "other samples" or one of ``parts``; only
        samples have an id and a distance. Parts without a share are left out. The shares of a row and class sum to its
        probability.
        """
        import pandas  # here, because its import takes long

        lines: list[tuple[Any, ...]] = []
        others = {"other samples": self.rest, **self.parts}
        for place, row in enumerate(self.numbers.tolist()):
            samples = (self.ids, self.labels, self.shares, self.distances)
            lines += [(row, "similar sample", *each) for each in zip(*(part[place] for part in samples), strict=True)]
            for name, part in others.items():
                codes = part[place].nonzero()[0]
                shares = zip(self.classes[codes], part[place, codes], strict=True)
                lines += [(row, name, None, *each, np.nan) for each in shares]
        frame = pandas.DataFrame(lines, columns=["row", "part", "id", "class", "share", "distance"])
        frame["id"] = pandas.Series([line[2] for line in lines], dtype=object)  # not NaN where there is none
        return frame

    def cells(self, row: int = 0) -> list[list[str]]:
        """Return the table of one prediction as text, line by line: a heading, the samples, the parts, their sum.

        There is a column for each of the most probable classes, and one for all others; each sums to its probability.
        """
        check_integer(row, "row", minimum=0, maximum=len(self) - 1)
        order = np.argsort(-self.probabilities[row], kind="stable")
        groups = {short(self.classes[code]): np.array([code]) for code in order[:SHOWN_CLASSES]}
        if len(order) > SHOWN_CLASSES:
            groups["others"] = order[SHOWN_CLASSES:]
        lines = [["similar sample", "label", "distance", *groups]]
        for name, code, distance, share in zip(
            self.ids[row], self.codes[row], self.distances[row], self.shares[row], strict=True
        ):
            shares = [number(share) if code in group else "" for group in groups.values()]
            lines.append([short(name), short(self.classes[code]), f"{distance:.4g}", *shares])
        sums = {"other samples": self.rest, **self.parts, "probability": self.probabilities}
        return lines + [
            [name, "", "", *(number(part[row, group].sum()) for group in groups.values())]
            for name, part in sums.items()
        ]

    def log_odds_cells(self, row: int = 0) -> list[list[str]]:
        """Return the contributions to the log-odds of one prediction as text, line by line; none without a blend."""
        check_integer(row, "row", minimum=0, maximum=len(self) - 1)
        if not self.log_odds:
            return []
        first, second = self.top[row]
        terms = {name: values[row] for name, values in self.log_odds.items()}
        heading = [f"log-odds of {short(first)} against {short(second)}", ""]
        return [heading, *([name, f"{value:+.4f}"] for name, value in {**terms, "sum": sum(terms.values())}.items())]

    def heading(self, row: int = 0) -> str:
        """Return the number of one row and its most probable class; whether it has few similar samples."""
        check_integer(row, "row", minimum=0, maximum=len(self) - 1)
        note = ", few similar samples" if self.evidence[row] < LOW_EVIDENCE else ""
        return f"row {self.numbers[row]}: {short(self.predictions[row])}{note}"

    def __repr__(self) -> str:
        n, k = self.codes.shape
        return f"Explanation({n:,} predictions of {len(self.classes):,} classes by {k:,} samples each)"

    def __str__(self) -> str:
        lines = []
        for row in range(min(len(self), SHOWN_ROWS)):
            lines += [self.heading(row), *aligned(self.cells(row)), *aligned(self.log_odds_cells(row)), ""]
        left = len(self) - SHOWN_ROWS
        return "\n".join([*lines, f"and {left:,} more"] if left > 0 else lines[:-1])


def number(share: float) -> str:
    """Return a share as text, a small one not as 0."""
    return f"{share:.4f}" if share == 0 or share >= 0.00005 else f"{share:.0e}"


def short(name: object) -> str:
    """Return a label or an identifier on one line, cut in the middle if it is long."""
    text, half = printable(name), LABEL_WIDTH // 2
    return text if len(text) <= LABEL_WIDTH else f"{text[: half - 1]}…{text[-half:]}"


def aligned(lines: list[list[str]]) -> list[str]:
    """Return lines of text with columns of equal width; all but the first are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            f"{cell:>{width}}" if place else f"{cell:<{width}}"
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def attribute(
    contributions: Contributions,
    by_samples: torch.Tensor,
    k: int,
    parts: dict[str, torch.Tensor],
    log_odds: dict[str, torch.Tensor] | None = None,
) -> dict[str, Any]:
    """Return what an :class:`Explanation` has of a block of predictions, but with the positions of the samples.

    ``contributions`` are what samples contribute to class sums; ``by_samples`` is the probability that all samples have
    together, (n, n_classes). Positions are in the order of the fit.
    """
    sums = contributions.class_sums().sums  # (1, n_classes, n)
    factors = torch.where(sums > 0, by_samples.T.to(sums) / sums, 0.0)
    positions, shares = largest_contributions(contributions, factors, k)
    distances, support = contributions.distances(positions).cpu(), contributions.prepared.support
    positions = positions.to(support.codes.device)
    codes, shares = support.codes[positions].cpu(), shares.cpu()
    rest = (by_samples - torch.zeros_like(by_samples).scatter_add_(1, codes, shares)).clamp_min(0.0)
    samples = {"positions": support.order[positions].cpu(), "codes": codes, "shares": shares, "distances": distances}
    return {**samples, "rest": rest, "parts": parts, "log_odds": log_odds or {}}


def explain_rows(
    model: Any,
    samples: Samples | None,
    classes: NDArray[Any],
    embeddings: torch.Tensor | None,
    logits: torch.Tensor | None,
    *,
    k: int,
    progress: bool | None,
) -> Explanation:
    """Return the explanation of the predictions of a model for embeddings and logits; ``samples`` are its support."""
    probs = model.in_blocks(embeddings, logits).exp().cpu().double()
    step = BLOCK_ENTRIES // (min(k, len(model.points)) * model.n_features)
    step = max(min(BLOCK_ROWS, step), 1)
    blocks = [slice(start, start + step) for start in range(0, len(probs), step)]
    found = []
    with progress_bar("Explaining", len(blocks), show=progress if len(blocks) > 1 else False) as advance:
        for block in blocks:
            inputs = [None if rows is None else rows[block] for rows in (embeddings, logits)]
            evidence = model.evidence_of(*inputs).cpu().double()
            found.append({**model.attribute(*inputs, probs[block], k), "evidence": evidence})
            advance("")
    joined = _joined(found)
    positions, parts, terms = (joined.pop(name) for name in ("positions", "parts", "log_odds"))
    indices = np.full(len(model.points), -1) if samples is None else samples.indices
    ids = point_names(model) if samples is None else indices if samples.ids is None else samples.ids
    return Explanation(
        **joined,
        classes=classes,
        numbers=np.arange(len(probs)),
        probabilities=probs.numpy(),
        ids=ids[positions],
        rows=indices[positions],
        parts={name: part for name, part in parts.items() if part.any()},
        log_odds={name: values for name, values in terms.items() if name not in RARE_TERMS or values.any()},
    )


def _joined(blocks: Sequence[Any]) -> Any:
    """Return the rows of all blocks, by name where they are mappings."""
    if isinstance(blocks[0], Mapping):
        return {name: _joined([block[name] for block in blocks]) for name in blocks[0]}
    return torch.cat(list(blocks)).numpy()


def point_names(model: KernelModel) -> NDArray[Any]:
    """Return a name of each centroid of a compressed support, in the original order, (n,).

    The weight of a centroid is the number of its samples, if these had equal weights.
    """
    support = model.support
    weights = torch.ones(len(support)) if support.log_weights is None else support.log_weights.double().exp().cpu()
    counts = support.in_original_order(weights / weights.sum() * model.n_samples).numpy()
    if np.abs(counts - counts.round()).max() > 1e-3 * counts.min():
        return np.array([f"centroid #{place}" for place in range(len(counts))])
    sizes = counts.round().astype(np.int64).tolist()
    return np.array([f"centroid of {size:,} sample{'s'[: size != 1]} #{place}" for place, size in enumerate(sizes)])


def top_two(probs: torch.Tensor) -> torch.Tensor:
    """Return the columns of the two most probable classes, (n, 2); of equal ones the first."""
    return probs.sort(dim=1, descending=True, stable=True).indices[:, :2]
