"""The names of free axes."""

_ANONYMOUS = {"", "?", "-1", "None", "unknown", "*"}
"""Symbols that exporters write for "any size": two of them are not the same size."""


def axis_label(tensor: str, axis: int, symbol: str | None) -> str:
    """Return the name of a free axis: its symbol, or `tensor.axis` where the graph gives none of its own."""
    return f"{tensor}.{axis}" if symbol is None or symbol.strip() in _ANONYMOUS else symbol
