"""Betting against calibration: a wealth that can only grow by chance while the probabilities are calibrated.

A payoff g has mean 0 given the prediction and the past, and lies between low ≤ 0 and high ≥ 0, which the prediction
determines. A gambler who stakes λ of his wealth, known before the label, has 1 + λ·g times as much afterwards. The
wealth is spread over several stakes, and a part is kept and handed out as time goes on, so that a change is noticed
after a long calm time too. All of it together is a martingale that starts from 1: it ever reaches 1/α with probability
α at most (Ville's inequality).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_MAGNITUDES = 2.0 ** np.arange(-4, 5)
STAKES: Floats = np.concatenate([-_MAGNITUDES[::-1], _MAGNITUDES])
"""λ of each gambler, before it is limited."""
LIMIT = 0.5
"""Share of the wealth that a single row can cost, at most."""
BLOCK_ROWS = 256
"""Rows of a block: a stake loses no more than LIMIT per row, so that exp(−growth) is at most 2²⁵⁶."""
KEPT, PATIENCE, DECAY = 0.5, 100.0, 0.5
"""The wealth kept after t rows is KEPT·(1 + t/PATIENCE)^(−DECAY); the rest has been handed out in equal parts."""


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

    @property
    def log_totals(self) -> Floats:
        """Logarithm of the wealth of each game, (n_games,)."""
        return np.logaddexp(_log_sum(self.log_stakes), np.log(kept_after(self.counts)))

    def play(
        self, payoffs: Floats, lows: Floats, highs: Floats, tolerances: Floats | float = 0.0
    ) -> tuple[Self, Floats]:
        """Return the wealth after some rows, and its logarithm after each of them, (n_rows, n_games).

        Payoffs and their bounds are (n_rows, n_games). A mean of the payoffs up to ``tolerances``, (n_games,), in
        either direction makes no one rich: every stake pays it as a fee.
        """
        fees = np.broadcast_to(tolerances, payoffs.shape[1:])
        wealth, paths = self, []
        for start in range(0, len(payoffs), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            wealth, path = wealth._play_block(payoffs[rows], lows[rows], highs[rows], fees)
            paths.append(path)
        return wealth, np.concatenate(paths)

    def _play_block(self, payoffs: Floats, lows: Floats, highs: Floats, fees: Floats) -> tuple[Self, Floats]:
        stakes = limited_stakes(lows - fees, highs + fees)  # (n_rows, n_games, n_stakes)
        growth = np.cumsum(np.log1p(stakes * payoffs[..., None] - np.abs(stakes) * fees[:, None]), axis=0)
        counts = self.counts + np.arange(1, len(payoffs) + 1)[:, None]  # (n_rows, n_games)
        handed_out = (kept_after(counts - 1) - kept_after(counts)) / len(STAKES)
        # What is handed out after row s grows by the rows after it: by growth(t) − growth(s) until row t.
        grown = np.log(np.cumsum(handed_out[..., None] * np.exp(-growth), axis=0)) + growth
        log_stakes = np.logaddexp(self.log_stakes + growth, grown)
        path = np.logaddexp(_log_sum(log_stakes), np.log(kept_after(counts)))
        return replace(self, counts=counts[-1], log_stakes=log_stakes[-1]), path

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

    def join(self, other: Wealth) -> Self:
        """Return the games of both."""
        parts = ("counts", "log_stakes")
        return replace(self, **{name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in parts})

    def select(self, games: NDArray[Any]) -> Self:
        """Return some of the games."""
        return replace(self, counts=self.counts[games], log_stakes=self.log_stakes[games])

    def replaced(self, games: NDArray[Any], other: Wealth) -> Self:
        """Return all games, some of them as they are in ``other``."""
        counts, log_stakes = self.counts.copy(), self.log_stakes.copy()
        counts[games], log_stakes[games] = other.counts, other.log_stakes
        return replace(self, counts=counts, log_stakes=log_stakes)


def kept_after(counts: NDArray[np.int64]) -> Floats:
    """Return the wealth that is not staked after some rows."""
    return np.asarray(KEPT * (1.0 + counts / PATIENCE) ** -DECAY)


def limited_stakes(lows: Floats, highs: Floats) -> Floats:
    """Return the stakes of each row and game, (…, n_stakes), none of which can cost more than ``LIMIT``."""
    with np.errstate(divide="ignore"):
        largest, smallest = LIMIT / np.abs(lows), -LIMIT / np.abs(highs)
    return np.clip(STAKES, smallest[..., None], largest[..., None])


def _log_sum(logs: Floats) -> Floats:
    """Return log Σ exp over the last axis."""
    highest = logs.max(axis=-1, initial=-np.inf, keepdims=True)
    return np.asarray(np.log(np.exp(logs - highest).sum(axis=-1)) + highest[..., 0])
