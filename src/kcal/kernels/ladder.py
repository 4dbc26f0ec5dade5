"""Kernel values at one or several bandwidths from one block of squared distances."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import exp, isclose, log2

import torch

from kcal.kernels import numerics
from kcal.kernels.blocks import buffer
from kcal.kernels.mother import MotherKernel


class KernelLadder:
    """One kernel at several bandwidths, the widest first.

    Blocks hold h = −½‖z − q‖², in any unit of length and less any shift per query that a log-linear kernel can bear.
    At bandwidth j the exponents are

        h·f_j  (log-linear kernels)        log φ(−2·h·f_j) − shift_j  (others)

    with f_j = 1/(d·b_j²) in the unit of the block. A log-linear kernel whose f_j is that of the next wider one times a
    power of 2, as with 2b, b and b/2, is that kernel squared a few times, which is much faster than an exponential.
    """

    def __init__(self, kernel: MotherKernel, dimension: int, factors: Sequence[float]) -> None:
        self.kernel, self.dimension, self.factors = kernel, dimension, list(factors)
        self.order = sorted(range(len(self.factors)), key=self.factors.__getitem__)
        self.squares = self._squares()

    def __len__(self) -> int:
        return len(self.factors)

    def log_profiles(self, half_squares: torch.Tensor) -> torch.Tensor:
        """Return log φ of unshifted h (n,) at every bandwidth, (n_bandwidths, n)."""
        squares = half_squares.clamp_max(0.0) * -2.0
        return torch.stack([self.kernel.log_profile(squares * factor, self.dimension) for factor in self.factors])

    def needs_floor(self, least: float, dtype: torch.dtype) -> list[bool]:
        """Return per bandwidth whether exponents may be too low for normal numbers, if no h is below ``least``."""
        lowest = numerics.lowest_exponent(dtype)
        return [not (self.kernel.log_linear and least * factor > lowest) for factor in self.factors]

    def values(
        self,
        half_squares: torch.Tensor,
        *,
        floored: Sequence[bool],
        shifts: torch.Tensor | None = None,
        in_place: bool = True,
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the index of each bandwidth with its kernel values, which the next ones overwrite.

        Parameters
        ----------
        half_squares : (n_rows, n_columns) tensor
            A block, overwritten if ``in_place``.
        floored : sequence of bool
            Bandwidths whose exponents are raised to the lowest one of normal numbers.
        shifts : (n_bandwidths, n_columns) tensor, optional
            Subtracted from the exponents.
        in_place : bool
            Whether the block may be overwritten.
        """
        lowest = numerics.lowest_exponent(half_squares.dtype)
        values, exponentials_left = half_squares, self.squares.count(None)
        for index, squares in zip(self.order, self.squares, strict=True):
            if squares is None:
                exponentials_left -= 1
                values = half_squares
                if self.kernel.log_linear and not (in_place and exponentials_left == 0):
                    values = buffer("values", half_squares, half_squares.shape)
                values = self._exponents(half_squares, index, shifts, out=values)
                if floored[index]:
                    values.clamp_min_(lowest)
                values.exp_()
            else:
                if floored[index]:
                    values.clamp_min_(exp(lowest / 2**squares))
                for _ in range(squares):
                    values.square_()
            yield index, values

    def _exponents(
        self,
        half_squares: torch.Tensor,
        index: int,
        shifts: torch.Tensor | None,
        *,
        out: torch.Tensor,
    ) -> torch.Tensor:
        """Return the exponents at a bandwidth, those of a log-linear kernel in ``out``."""
        factor = self.factors[index]
        if not self.kernel.log_linear:
            squares = half_squares.clamp_max(0.0).mul_(-2.0 * factor)
            out = self.kernel.log_profile(squares, self.dimension)
            return out if shifts is None else out.sub_(shifts[index])
        exponents = out if factor == 1.0 and out is half_squares else torch.mul(half_squares, factor, out=out)
        return exponents if shifts is None else exponents.sub_(shifts[index])

    def _squares(self) -> list[int | None]:
        """Return how often the kernel before is squared to give each one, by ``order``; None for an exponential."""
        result: list[int | None] = [None]
        in_a_row = 0
        for wider, narrower in pairwise(sorted(self.factors)):
            count = round(log2(narrower / wider))
            is_power = self.kernel.log_linear and isclose(wider * 2.0**count, narrower, rel_tol=1e-9)
            squared = is_power and in_a_row + count <= numerics.MOST_SQUARES
            in_a_row = in_a_row + count if squared else 0
            result.append(count if squared else None)
        return result
