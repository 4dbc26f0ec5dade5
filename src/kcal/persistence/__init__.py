"""Files of calibrators: safetensors and JSON, no pickle."""

from kcal.persistence.archive import load, load_calibrator, save

__all__ = ["load", "load_calibrator", "save"]
