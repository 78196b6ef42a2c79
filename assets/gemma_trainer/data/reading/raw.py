"""A row as it was found in a file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import NamedTuple

from gemma_trainer.data.reading.parse import Fault
from gemma_trainer.rows.problems import Problem

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


class Lines(NamedTuple):
    """Lines of JSON Lines, not parsed yet."""

    lines: list[bytes]


class Span(NamedTuple):
    """Whole lines of JSON Lines by where they lie in a file that is stored as it is read."""

    start: int  # bytes
    size: int

    def read(self, file: Path) -> Lines:
        with file.open("rb") as stream:
            stream.seek(self.start)
            return Lines(io.BytesIO(stream.read(self.size)).readlines())


Batch = Lines | Span | list[RawRow | Problem]  # what is read, judged and told at a time


def bad_row(fault: Fault, path: Path, line: int, row: int, source: bytes) -> RawRow:
    """A row that could not be read: its fault and its bytes."""
    problem = Problem(fault.code, fault.message, file=str(path), line=line, row=row)
    return RawRow(None, line, row, problem, source)
