"""Files of calibrators: safetensors and JSON, no pickle."""

from kcal.persistence.archive import from_bytes, load, load_calibrator, read_network_reference, save, to_bytes

__all__ = ["from_bytes", "load", "load_calibrator", "read_network_reference", "save", "to_bytes"]
