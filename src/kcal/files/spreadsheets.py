"""Text cells of csv files that spreadsheet programs would run as formulas: marked when written, unmarked when read."""

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""First characters by which spreadsheet programs take a cell for a formula."""
TEXT_MARK = "'"


def with_mark(text: str) -> str:
    """Return a cell with a mark before it if it would be a formula, or if it already looks marked."""
    return f"{TEXT_MARK}{text}" if text.lstrip(TEXT_MARK).startswith(FORMULA_STARTS) else text


def without_mark(text: str) -> str:
    """Return a cell or a column name as it was before :func:`with_mark`."""
    return text[1:] if text.startswith(TEXT_MARK) and with_mark(text) != text else text
