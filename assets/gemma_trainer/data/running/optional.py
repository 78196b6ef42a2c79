"""Packages that are used where they are installed."""

from __future__ import annotations


def import_numpy():
    """The module, or None."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy
