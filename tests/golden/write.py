"""Write what the library computes to the golden file, from the root of the project.

``python -m tests.golden.write PATTERN…`` rewrites the cases whose names match, such as ``'*/counts/*'``, and keeps the
others; ``'*'`` rewrites all.
"""

from __future__ import annotations

import sys
from fnmatch import fnmatch
from pathlib import Path

import numpy as np

from .cases import GROUPS, cases

GOLDEN = Path(__file__).with_name("golden.npz")


def write(patterns: list[str], path: Path = GOLDEN) -> list[str]:
    """Compute the cases that match, write the file, and return their names."""
    with np.load(path) as file:
        stored = {name: file[name] for name in file.files}
    computed = {name: values for group in GROUPS for name, values in cases(group).items()}
    written = [name for name in computed if any(fnmatch(name, pattern) for pattern in patterns)]
    kept = {name: stored[name] for name in computed if name not in written}
    np.savez_compressed(path, **kept, **{name: computed[name] for name in written})
    return written


if __name__ == "__main__":
    sys.stdout.write("\n".join(write(sys.argv[1:])) + "\n")
