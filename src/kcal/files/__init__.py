"""Files: written completely or not at all; a lock for folders."""

from kcal.files.arrays import write_arrays
from kcal.files.atomic import atomic_path, check_path, write_whole
from kcal.files.lock import locked_folder

__all__ = ["atomic_path", "check_path", "locked_folder", "write_arrays", "write_whole"]
