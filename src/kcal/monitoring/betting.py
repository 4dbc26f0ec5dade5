"""Betting against calibration: a wealth that can only grow by chance while the probabilities are calibrated.

A payoff g has mean 0 given the prediction and the past, and lies between low ≤ 0 and high ≥ 0, which the prediction
determines. A gambler who stakes λ of the wealth, known before the label, has 1 + λ·g times as much afterwards. The
wealth is spread over several stakes, and a part is kept and handed out over time: a change is noticed after a long calm
time too. All of it together is a martingale that starts from 1: it ever reaches 1/α with probability α at most
(Ville's inequality).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from kcal.errors import FileFormatError, InvalidInputError
from kcal.validation import check_probs, collect_classes, shown

Floats = NDArray[np.float64]

_MAGNITUDES = 2.0 ** np.arange(-4, 5)
STAKES: Floats = np.concatenate([-_MAGNITUDES[::-1], _MAGNITUDES])
"""λ of each gambler, before it is limited."""
LIMIT = 0.5
"""Share of the wealth that a single row can cost, at most."""
BLOCK_ROWS = 256
"""Rows of a block: a stake loses no more than LIMIT per row, therefore exp(−growth) is at most 2²⁵⁶."""
KEPT, PATIENCE, DECAY = 0.5, 100.0, 0.5
"""The wealth kept after t rows is KEPT·(1 + t/PATIENCE)^(−DECAY); the rest has been handed out in equal parts."""
N_OVERALL = 2
"""Payoffs of all classes together: Brier loss and confidence."""


@dataclass(frozen=True, eq=False)
class Payoffs:
    """Payoffs of rows in several games and their bounds given the predictions, each (n_rows, n_games).

    ``reach``, (n_games,), is the largest mean of a payoff if every probability is off by 1 at most.
    """

    values: Floats
    lows: Floats
    highs: Floats
    reach: Floats

    def rows(self, chosen: Any) -> Payoffs:
        """Return the payoffs of some rows."""
        return replace(self, values=self.values[chosen], lows=self.lows[chosen], highs=self.highs[chosen])

    def beside(self, other: Payoffs) -> Payoffs:
        """Return the games of both."""
        pairs = ((getattr(self, entry.name), getattr(other, entry.name)) for entry in fields(self))
        return Payoffs(*(np.concatenate(pair, axis=-1) for pair in pairs))


def overall_payoffs(probs: Floats, labels: NDArray[np.intp]) -> Payoffs:
    """Return the payoffs of all classes together.

    The Brier loss minus its expectation, Σ_k (p_k − 1[y = k])² − (1 − Σ_k p_k²) = 2·(Σ_k p_k² − p_y), between
    2·(Σ p² − max p) and 2·(Σ p² − min p); and max p − 1[y is the predicted class], between max p − 1 and max p.
    """
    top, squares = probs.max(axis=1), (probs**2).sum(axis=1)
    correct = probs.argmax(axis=1) == labels
    values = np.column_stack([2.0 * (squares - probs[np.arange(len(labels)), labels]), top - correct])
    lows = np.column_stack([2.0 * (squares - top), top - 1.0])
    highs = np.column_stack([2.0 * (squares - probs.min(axis=1)), top])
    return Payoffs(values, np.minimum(lows, 0.0), np.maximum(highs, 0.0), np.array([2.0, 1.0]))


def class_payoffs(probs: Floats, labels: NDArray[np.intp]) -> Payoffs:
    """Return the payoffs of each class against the rest, (n_rows, 2·n_classes).

    First p_k − 1[y = k], which sees a class that is predicted too often or too rarely; then the Brier loss of the class
    minus its expectation, (1[y = k] − p_k)·(1 − 2·p_k), which sees over- and underconfident predictions.
    """
    own = np.eye(probs.shape[1])[labels]
    tilt = 1.0 - 2.0 * probs
    if_own, if_other = (1.0 - probs) * tilt, -probs * tilt
    return Payoffs(
        np.concatenate([probs - own, (own - probs) * tilt], axis=1),
        np.concatenate([probs - 1.0, np.minimum(if_own, if_other)], axis=1),
        np.concatenate([probs, np.maximum(if_own, if_other)], axis=1),
        np.ones(2 * probs.shape[1]),
    )


def check_named_probs(
    probs: ArrayLike, classes: ArrayLike | None = None, name: str = "probs"
) -> tuple[Floats, NDArray[Any]]:
    """Return probabilities, (n, n_classes), and the label of every column: 0, 1, … without ``classes``."""
    names = None if classes is None else collect_classes([], classes)
    checked = np.asarray(check_probs(probs, name, n_classes=None if names is None else len(names)), dtype=np.float64)
    n_classes = checked.shape[1]
    if names is not None and len(names) != n_classes:
        raise InvalidInputError(
            name, f"must have one column for each of the classes ({len(names)})", got=str(n_classes)
        )
    return checked, np.arange(n_classes) if names is None else names


def normalised(probs: NDArray[np.floating]) -> Floats:
    """Return rows that sum to 1 in double precision: payoffs have mean 0 only then."""
    wide = probs.astype(np.float64)
    return np.asarray(wide / wide.sum(axis=1, keepdims=True))


@dataclass(frozen=True, eq=False)
class Wealth:
    """The wealth of several games, each of its own payoff.

    ``counts``, (n_games,), are rows played, ``log_stakes``, (n_games, n_stakes), the logarithms of what is staked.
    """

    counts: NDArray[np.int64]
    log_stakes: Floats

    @classmethod
    def start(cls, n_games: int) -> Self:
        """Return games that begin: half of the wealth is staked, half kept."""
        each = np.log((1.0 - KEPT) / len(STAKES))
        return cls(np.zeros(n_games, dtype=np.int64), np.full((n_games, len(STAKES)), each))

    def games(self, chosen: slice) -> Self:
        """Return some of the games."""
        return replace(self, counts=self.counts[chosen], log_stakes=self.log_stakes[chosen])

    def beside(self, other: Wealth) -> Self:
        """Return the games of both."""
        stakes = np.concatenate([self.log_stakes, other.log_stakes])
        return replace(self, counts=np.concatenate([self.counts, other.counts]), log_stakes=stakes)

    @property
    def log_totals(self) -> Floats:
        """Logarithm of the wealth of each game, (n_games,)."""
        return _log_totals(self.log_stakes, self.counts)

    def play(self, payoffs: Payoffs, tolerance: float = 0.0) -> tuple[Self, Floats]:
        """Return the wealth after some rows, and its logarithm after each of them, (n_rows, n_games).

        While every probability is off by ``tolerance`` at most, no game has a positive expectation: every stake pays
        the largest mean of its payoff as a fee.
        """
        wealth, paths = self, []
        for start in range(0, len(payoffs.values), BLOCK_ROWS):
            block = payoffs.rows(slice(start, start + BLOCK_ROWS))
            wealth, path = wealth._play_block(block, tolerance * payoffs.reach)
            paths.append(path)
        return wealth, np.concatenate(paths)

    def _play_block(self, payoffs: Payoffs, fees: Floats) -> tuple[Self, Floats]:
        stakes = limited_stakes(payoffs.lows - fees, payoffs.highs + fees)  # (n_rows, n_games, n_stakes)
        growth = np.cumsum(np.log1p(stakes * payoffs.values[..., None] - np.abs(stakes) * fees[:, None]), axis=0)
        counts = self.counts + np.arange(1, len(growth) + 1)[:, None]  # (n_rows, n_games)
        handed_out = (kept_after(counts - 1) - kept_after(counts)) / len(STAKES)
        # What is handed out after row s grows by the rows after it: by growth(t) − growth(s) until row t.
        grown = np.log(np.cumsum(handed_out[..., None] * np.exp(-growth), axis=0)) + growth
        log_stakes = np.logaddexp(self.log_stakes + growth, grown)
        return replace(self, counts=counts[-1], log_stakes=log_stakes[-1]), _log_totals(log_stakes, counts)

    def to_dict(self) -> dict[str, Any]:
        """Return the games in a form that JSON can represent."""
        return {"counts": self.counts.tolist(), "log_stakes": self.log_stakes.tolist()}

    @classmethod
    def from_dict(cls, stored: dict[str, Any], n_games: int) -> Self:
        """Return the games that :meth:`to_dict` described; raise a ValueError if there are not so many."""
        counts = np.array(stored["counts"], dtype=np.int64).reshape(n_games)
        log_stakes = np.array(stored["log_stakes"], dtype=np.float64).reshape(n_games, len(STAKES))
        if not (np.isfinite(log_stakes).all() and counts.min(initial=0) >= 0):
            raise ValueError("stakes must be finite and counts not negative")
        return cls(counts, log_stakes)


def sum_by_group(rows: Floats, groups: NDArray[np.integer[Any]]) -> Floats:
    """Return the sums of the rows of each group, (n_groups, n_columns); groups are codes from 0."""
    sums = np.zeros((int(groups.max()) + 1, rows.shape[1]))
    np.add.at(sums, groups, rows)
    return sums


def first_crossing(path: Floats, alpha: float) -> int | None:
    """Return the number of rows after which a log wealth first reached −log α; None if it did not."""
    crossed = path >= -np.log(alpha)
    return int(crossed.argmax()) + 1 if crossed.any() else None


def kept_after(counts: NDArray[np.int64]) -> Floats:
    """Return the wealth that is not staked after some rows."""
    return np.asarray(KEPT * (1.0 + counts / PATIENCE) ** -DECAY)


def limited_stakes(lows: Floats, highs: Floats) -> Floats:
    """Return the stakes of each row and game, (…, n_stakes), none of which can cost more than ``LIMIT``."""
    with np.errstate(divide="ignore"):
        largest, smallest = LIMIT / np.abs(lows), -LIMIT / np.abs(highs)
    return np.clip(STAKES, smallest[..., None], largest[..., None])


def _log_totals(log_stakes: Floats, counts: NDArray[np.int64]) -> Floats:
    return np.asarray(np.logaddexp(logsumexp(log_stakes, axis=-1), np.log(kept_after(counts))))


@contextmanager
def reading_state(state: Any, expected_format: int) -> Iterator[None]:
    """Turn errors of reading the stored state of a monitor into a FileFormatError."""
    if not isinstance(state, dict) or state.get("format") != expected_format:
        expected = f"a dictionary of format {expected_format}, as to_dict returns"
        raise FileFormatError(f"the state of a monitor must be {expected}; got {shown(state)}.")
    try:
        yield
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FileFormatError(f"this is not the state of a monitor, or it is damaged ({error}).") from error
