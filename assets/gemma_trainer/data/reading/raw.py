"""A row as it was found in a file."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, NamedTuple

from gemma_trainer.data.reading.parse import Fault
from gemma_trainer.rows.problems import Problem

BLOCK = 1 << 18  # bytes; what larger blocks hold leaves the processor's caches
BOM = b"\xef\xbb\xbf"
REJECT_KEYS = frozenset({"file", "line", "row", "codes", "problems", "input"})  # of an entry of a rejects file


class RawRow(NamedTuple):
    """A row as it was found. `line` is the physical line it starts on (None in Parquet and Arrow), `row` counts from 1.

    A row that could not be read has a `fault` and its bytes in `source` instead of a `value`. `header` is the line that
    names the columns, where there is one.
    """

    value: object
    line: int | None
    row: int
    fault: Problem | None = None
    source: bytes | None = None
    header: int | None = None


class Lines:
    """Lines of JSON Lines, not parsed yet."""

    def __init__(self, data: bytes):
        self.data = data

    @cached_property
    def lines(self) -> list[bytes]:
        return io.BytesIO(self.data).readlines()  # several times faster than the lines of a file

    def __reduce__(self):
        return Lines, (self.data,)


class Span(NamedTuple):
    """Whole lines of JSON Lines by where they lie in a file that is stored as it is read."""

    start: int  # bytes
    size: int

    def read(self, file: Path) -> Iterator[Lines]:
        """Its lines in blocks."""
        left = self.size
        with file.open("rb", BLOCK) as stream:
            stream.seek(self.start)
            while left > 0 and (lines := whole_lines(stream, left)):
                yield Lines(lines)
                left -= len(lines)


def whole_lines(stream: BinaryIO, most: int = 1 << 62) -> bytes:
    """The next lines of a stream, about a block of them and no more than `most` bytes; nothing at its end."""
    block = stream.read(min(BLOCK, most))
    return block if block.endswith(b"\n") else block + stream.readline()


Batch = Lines | Span | list[RawRow | Problem]  # what is read, judged and told at a time


def blocks_of(batch: Batch, file: Path) -> Iterator[Lines]:
    """The lines of a batch in blocks; none where it is a list of rows."""
    if isinstance(batch, Span):
        yield from batch.read(file)
    elif isinstance(batch, Lines):
        yield batch


def bad_row(fault: Fault, path: Path, line: int, row: int, source: bytes) -> RawRow:
    """A row that could not be read: its fault and its bytes."""
    problem = Problem(fault.code, fault.message, file=str(path), line=line, row=row)
    return RawRow(None, line, row, problem, source)
