"""Write what the library computes today to the golden file: ``python -m tests.golden.write`` at the root."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .cases import GROUPS, cases

GOLDEN = Path(__file__).with_name("golden.npz")


def write(path: Path = GOLDEN) -> None:
    """Compute all cases and write them, as float64."""
    computed: dict[str, np.ndarray] = {}
    for group in GROUPS:
        computed |= cases(group)
    np.savez_compressed(path, **computed)


if __name__ == "__main__":
    write()
