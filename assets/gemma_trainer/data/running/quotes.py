"""Quotation marks in blocks of JSON, counted with numpy once there is so much that its import is repaid."""

from __future__ import annotations

from gemma_trainer.data.running.optional import import_numpy

QUOTE, BACKSLASH = b'"\\'
NUMPY_FROM = 1 << 22  # bytes, from which numpy repays its import


class Quotes:
    """The counts of one run."""

    def __init__(self):
        self.seen = 0  # bytes

    def count(self, data: bytes) -> int:
        """All quotation marks."""
        numpy = self._numpy(data)
        return int(numpy.count_nonzero(_codes(data, numpy) == QUOTE)) if numpy else data.count(b'"')

    def around_strings(self, data: bytes, others: list[bytes]) -> int:
        """Those around strings, lines left out; -1 where that takes more than a look at the byte before each."""
        numpy = self._numpy(data)
        marks = _marks_by_numpy(data, numpy) if numpy else _marks(data)
        return marks - sum(line.count(b'"') - line.count(b'\\"') for line in others) if marks >= 0 else -1

    def _numpy(self, data: bytes):
        self.seen += len(data)
        return import_numpy() if self.seen > NUMPY_FROM else None


def _marks(data: bytes) -> int:
    return -1 if b'\\\\"' in data else data.count(b'"') - data.count(b'\\"')


def _marks_by_numpy(data: bytes, numpy) -> int:
    codes = _codes(data, numpy)
    marks = codes == QUOTE
    escaped = marks[1:] & (codes[:-1] == BACKSLASH)
    inner = numpy.count_nonzero(escaped)
    if inner and (escaped[1:] & (codes[:-2] == BACKSLASH)).any():
        return -1
    return int(numpy.count_nonzero(marks) - inner)


def _codes(data: bytes, numpy):
    return numpy.frombuffer(data, numpy.uint8)
