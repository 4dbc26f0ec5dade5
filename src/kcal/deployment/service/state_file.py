"""The file beside the store that lets the page of a model survive a restart."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

logger = logging.getLogger("kcal.service")


class StateFile:
    """The state of the record of a model's predictions: counts, monitors, and labelled predictions with their ids.

    One thread at a time makes a state and writes it, so that a state of before an erasure never replaces one of after
    it. The temporary file has a fixed name: what a killed process left of it is overwritten.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._temporary = path.with_name(f".{path.name}.new")
        self._lock = threading.Lock()

    def read(self) -> Any:
        """Return the state; None if there is no file, or none that can be read."""
        try:
            return json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            logger.warning("%s cannot be read (%s); the record of predictions begins again", self.path.name, error)
            return None

    def write(self, make: Callable[[], dict[str, Any]]) -> None:
        """Write the state that ``make`` returns, completely or not at all."""
        with self._lock:
            content = json.dumps(make()).encode()
            try:
                with self._temporary.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                self._temporary.replace(self.path)
            except OSError:
                self._temporary.unlink(missing_ok=True)
                raise

    def remove(self) -> None:
        """Remove the file."""
        with self._lock:
            self._temporary.unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)
