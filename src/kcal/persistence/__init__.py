"""Files of calibrators (safetensors and JSON, no pickle), and the store of calibration samples (SQLite)."""

from kcal.persistence.archive import (
    from_bytes,
    from_parts,
    load,
    load_calibrator,
    load_with_network,
    save,
    to_bytes,
    to_parts,
)
from kcal.persistence.follow import Follower
from kcal.persistence.store import CalibrationStore
from kcal.persistence.stored_samples import StoredSamples

__all__ = [
    "CalibrationStore",
    "Follower",
    "StoredSamples",
    "from_bytes",
    "from_parts",
    "load",
    "load_calibrator",
    "load_with_network",
    "save",
    "to_bytes",
    "to_parts",
]
