"""What is used where it is installed."""

from __future__ import annotations

NUMPY_FROM = 1 << 22  # bytes of data, from which counting with numpy repays its import


def import_numpy():
    """The module, or None."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy
