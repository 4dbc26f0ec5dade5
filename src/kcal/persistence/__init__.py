"""Files: calibrators in safetensors and JSON, no pickle."""

from kcal.persistence.archive import load, save, write_whole

__all__ = ["load", "save", "write_whole"]
