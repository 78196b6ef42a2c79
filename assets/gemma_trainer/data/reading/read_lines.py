"""JSON Lines: one value a line, told apart before anything is parsed."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gemma_trainer.data.reading.parse import Decoder, parse_line
from gemma_trainer.data.reading.raw import BLOCK, BOM, Lines, RawRow, Span, bad_row, whole_lines
from gemma_trainer.rows.problems import Problem

_SPAN = 1 << 22  # bytes: what a worker takes at a time
_SEPARATORS = re.compile(r"[ \t\r\n,]*")


def line_blocks(stream: BinaryIO, spans: bool = False) -> Iterator[Lines | Span]:
    """The lines of a stream in blocks. Lines end at LF only. What was read before packed data breaks
    comes first, then the error; a line that it cuts is not given."""
    with stream:
        if not isinstance(getattr(stream, "raw", None), io.FileIO):  # it unpacks or recodes
            yield from _unpacked_blocks(stream)
            return
        if spans:
            yield from _spans(stream)
            return
        while lines := whole_lines(stream):
            yield Lines(lines)


def _spans(stream: BinaryIO) -> Iterator[Span]:
    """What a worker reads is read here too, which is how the hash of the file comes about while others work."""
    start = end = at = stream.tell()
    buffer = bytearray(BLOCK)
    while size := stream.readinto(buffer):
        last = buffer.rfind(b"\n", 0, size)
        end = at + last + 1 if last >= 0 else end
        at += size
        if end - start >= _SPAN:
            yield Span(start, end - start)
            start = end
    if at > start:
        yield Span(start, at - start)


def _unpacked_blocks(stream: BinaryIO) -> Iterator[Lines]:
    read, rest = getattr(stream, "read1", stream.read), []
    while block := read(BLOCK):
        end = block.rfind(b"\n") + 1
        if not end:
            rest.append(block)
            continue
        yield Lines(b"".join([*rest, block[:end]]))
        rest = [block[end:]]
    if last := b"".join(rest):
        yield Lines(last)


def rows_of(lines: Lines, path: Path, line: int = 0, row: int = 0) -> Iterator[RawRow | Problem]:
    """The rows of a block that `line` lines and `row` rows precede. Blank lines count as lines but are no rows."""
    for number, text in enumerate(lines.lines, line + 1):
        if text.isspace():
            continue
        row += 1
        if text.startswith(BOM):  # files that were joined keep their marks
            yield Problem("byte-order-mark", "the line starts with a byte order mark", file=str(path), line=number)
            text = text[len(BOM) :]
        value, fault = parse_line(text)
        if fault is None:
            yield RawRow(value, number, row)
            continue
        values = _rows_in(text) if fault.code == "json-extra-data" else []
        if not values:
            yield bad_row(fault, path, number, row, text)
            continue
        message = "a comma after the row" if len(values) == 1 else fault.message
        yield Problem(fault.code, message, file=str(path), line=number)
        yield from (RawRow(value, number, row + at) for at, value in enumerate(values))
        row += len(values) - 1


def lines_of_rows(lines: Lines, path: Path) -> Iterator[int]:
    """The line of each row of a block, counted from 1."""
    return (item.line for item in rows_of(lines, path) if isinstance(item, RawRow))


def _rows_in(line: bytes) -> list:
    """The objects or lists that share a line, with commas at most between them; none where anything else is there."""
    text, decoder, values, at = line.decode("utf-8").strip(), Decoder(), [], 0
    while at < len(text):
        try:
            value, at, fault = decoder.value_at(text, at)
        except ValueError:
            return []
        if fault or not isinstance(value, dict | list):
            return []
        values.append(value)
        at = _SEPARATORS.match(text, at).end()
    return values
