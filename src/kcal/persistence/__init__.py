"""Files: calibrators in safetensors and JSON, no pickle; every file is written completely or not at all."""

from kcal.persistence.archive import load, load_calibrator, save
from kcal.persistence.atomic import atomic_path, check_path, write_whole

__all__ = ["atomic_path", "check_path", "load", "load_calibrator", "save", "write_whole"]
