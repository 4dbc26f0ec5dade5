"""The description of the package for an index: README.md without what only a checkout can show.

The build runs this module (``tool.hatch.metadata.hooks`` in pyproject.toml), so that it needs hatchling only.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

FIGURE = re.compile(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n\n\*[^*]*\*\n\n")
"""A figure of the checkout, with its caption."""
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:)[^)]*\)")
COMMENT = re.compile(r"<!--.*?-->\n", re.S)


def description(readme: str) -> str:
    """Return the text without figures and comments, and with the words of a relative link in place of the link."""
    return LINK.sub(r"\1", COMMENT.sub("", FIGURE.sub("", readme)))


class Description(MetadataHookInterface):
    """Set the field ``readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Write the description into the metadata of the project."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": description(text)}
