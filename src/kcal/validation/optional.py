"""Packages that need not be installed."""

from typing import Any

from kcal.errors import MissingExtraError


def require_pandas() -> Any:
    """Return pandas; raise with how to install it if it is missing."""
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise MissingExtraError("to_frame needs pandas, which is not installed. Run: pip install pandas") from error
    return pandas
