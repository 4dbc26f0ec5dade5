"""What a folder of predictions holds: the settings that its parts were computed with, and the parts of its files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kcal.distributed.parts import Part
from kcal.errors import FileFormatError, InvalidInputError
from kcal.files import write_whole

MANIFEST, LOCK = "_manifest.json", "_run.lock"
"""Readers of partitioned parquet skip names with a leading underscore."""
TEMPORARY = f".{'[0-9a-f]' * 16}.parquet"
"""Names of parts that are being written, as :func:`kcal.files.atomic_path` makes them."""
REMEDY = "Choose another folder, or remove this one."


@dataclass(frozen=True)
class Plan:
    """All parts of a run, and the folder that they are written to."""

    folder: Path
    settings: Mapping[str, Any]
    parts: Sequence[Part]

    @property
    def n_rows(self) -> int:
        """Rows of all parts."""
        return sum(map(len, self.parts))

    def missing(self) -> list[Part]:
        """Return the parts that are not written yet."""
        written = {path.name for path in self.folder.glob("*.parquet")}
        return [part for part in self.parts if part.name not in written]

    def begin(self) -> None:
        """Write the manifest, or check that of an earlier run; remove what a run that was killed left half-written.

        Raises
        ------
        InvalidInputError
            If the folder holds predictions of another model, of other settings, or of files that are not among these
            or have changed since.
        """
        path = self.folder / MANIFEST
        if path.exists():
            stored = read_manifest(self.folder)["settings"]
            differing = [name for name, value in self.settings.items() if stored.get(name) != value]
            if differing:
                expected = f"must be empty or hold predictions with the same {', '.join(differing)}"
                raise InvalidInputError("out", expected, got=str(self.folder), remedy=REMEDY)
        known = {part.name for part in self.parts} if path.exists() else set()
        unknown = sorted({file.name for file in self.folder.glob("[!.]*.parquet")} - known)
        if unknown:
            expected = "must hold predictions for these files only, as they are now"
            expected = expected if path.exists() else f"must hold no parquet files without their {MANIFEST}"
            raise InvalidInputError("out", expected, got=f"{self.folder / unknown[0]}", remedy=REMEDY)
        self._remove_leftovers()
        self._write(complete=False)

    def end(self) -> None:
        """Check that every part is there, and say so in the manifest; remove what workers that died left."""
        absent = self.missing()
        if absent:
            problem = f"{self.folder / absent[0].name} was written, but is not there"
            raise FileFormatError(f"{problem}: all machines must share the folder, and nobody may remove its files.")
        self._remove_leftovers()
        self._write(complete=True)

    def _remove_leftovers(self) -> None:
        for leftover in self.folder.glob(TEMPORARY):
            leftover.unlink(missing_ok=True)

    def _write(self, *, complete: bool) -> None:
        parts = [
            {"file": part.path, "first_row": part.start, "rows": len(part), "name": part.name} for part in self.parts
        ]
        content = {"complete": complete, "rows": self.n_rows, "settings": dict(self.settings), "parts": parts}
        write_whole(self.folder / MANIFEST, json.dumps(content, indent=1).encode())


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the content of the manifest of a folder of predictions."""
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content["settings"], dict):
            raise TypeError
    except (ValueError, KeyError, TypeError) as error:
        raise FileFormatError(f"{path} is damaged. {REMEDY}") from error
    manifest: dict[str, Any] = content
    return manifest
