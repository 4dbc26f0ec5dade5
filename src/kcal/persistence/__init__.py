"""Files of calibrators (safetensors and JSON, no pickle), and the store of calibration samples (SQLite)."""

from kcal.persistence.archive import (
    from_parts,
    load,
    load_calibrator,
    load_with_network,
    save,
    to_bytes,
    to_parts,
)
from kcal.persistence.store import CalibrationStore, StoreBusyError, StoreSync

__all__ = [
    "CalibrationStore",
    "StoreBusyError",
    "StoreSync",
    "from_parts",
    "load",
    "load_calibrator",
    "load_with_network",
    "save",
    "to_bytes",
    "to_parts",
]
