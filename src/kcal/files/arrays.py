"""Arrays by name in one npz file."""

import os
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.files.atomic import atomic_path


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays by name to a compressed npz file, whole or not at all; raise for arrays of Python objects.

    ``numpy.savez_compressed`` pickles objects, and before numpy 2.1 cannot be told not to.
    """
    with atomic_path(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)
