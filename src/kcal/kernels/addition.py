"""The class sums of a support from those of its parts, wherever these are held."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kcal.kernels.sums import ClassSums


def add_sums(parts: Sequence[ClassSums]) -> ClassSums:
    """Return the class sums of a support from those of its parts, of the same classes and queries.

    log S_k = log Σ_parts exp(log S_k of the part). A part whose kernel reaches no point adds nothing to one that does;
    where none does, the offset is −inf and the sums are 0: which points are nearest, sums alone do not tell.
    """
    largest = torch.stack([part.offsets for part in parts]).amax(dim=0)
    total = torch.zeros_like(parts[0].sums, dtype=largest.dtype)
    for part in parts:
        factors = torch.where(torch.isfinite(largest), part.offsets - largest, -torch.inf).exp()
        total += part.sums * factors[:, None]
    return ClassSums(total, largest)
