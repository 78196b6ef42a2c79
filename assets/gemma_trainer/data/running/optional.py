"""What numpy does faster, where it is installed and the data is large enough to repay its import."""

from __future__ import annotations

NUMPY_FROM = 1 << 28  # bytes of data


def import_numpy():
    """The module, or None."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy


class ByteCounter:
    """How often one byte stands in each of many blocks."""

    def __init__(self, byte: bytes):
        self.byte, self.seen = byte, 0

    def __call__(self, data: bytes) -> int:
        self.seen += len(data)
        numpy = import_numpy() if self.seen > NUMPY_FROM else None
        if numpy is None:
            return data.count(self.byte)
        return int(numpy.count_nonzero(numpy.frombuffer(data, numpy.uint8) == self.byte[0]))
