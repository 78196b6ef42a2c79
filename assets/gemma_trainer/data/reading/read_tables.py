"""Rows of tables: delimited text, Parquet, Arrow."""

from __future__ import annotations

import csv
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from gemma_trainer.data.reading.raw import RawRow
from gemma_trainer.data.reading.sources import open_bytes
from gemma_trainer.data.reading.table_values import batch_rows
from gemma_trainer.rows.problems import Problem, missing

_SEPARATORS = {";": "';'", "\t": "a tab", "|": "'|'", ",": "a comma"}
_INDEX = "Unnamed: 0"  # what pandas calls the index column that it writes without a name
_BATCH = 256


def delimited_rows(stream: BinaryIO, path: Path, delimiter: str | None = None) -> Iterator[RawRow | Problem]:
    """Rows of CSV (RFC 4180) or another delimited text as {column: cell}; the first record names the columns.

    A cell is always text. A record may run over several lines; its line is the one it starts on.
    """
    csv.field_size_limit(sys.maxsize)
    lines = _Lines(stream)
    reader = csv.reader(lines, delimiter=delimiter or ",", strict=True)
    header: list[str] | None = None
    row = named = 0
    while True:
        start, lines.kept = lines.number + 1, []
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if header is None:
                yield Problem("csv-header", f"the header cannot be read: {error}", file=str(path), line=start)
                return
            row += 1
            yield lines.bad_row(path, start, row, _csv_fault(error))
            continue
        if not cells:
            continue
        if header is None:
            if fault := lines.fault():
                yield Problem(*fault, file=str(path), line=start)
                return
            problem = _header_problem(cells, reader.dialect.delimiter, path, start)
            if problem:
                yield problem
                return
            header, named = _names(cells), start
            if odd := next((cell for cell in cells if cell != cell.strip()), None):
                text = f"blanks stand around the name of the column `{odd.strip()[:40]}`"
                yield Problem("column-renamed", text, file=str(path), line=start)
            continue
        row += 1
        fault = lines.fault() or _cells_fault(cells, header)
        if fault:
            yield lines.bad_row(path, start, row, fault)
        else:
            yield RawRow(dict(zip(header, cells, strict=True)), start, row, header=named)


class _Lines:
    """Text lines for csv.reader. Bytes that are no UTF-8 are kept apart, so that only their record is refused."""

    def __init__(self, stream: BinaryIO):
        self.stream, self.number = stream, 0
        self.kept: list[bytes] = []  # the lines of the record that is being read

    def __iter__(self) -> Iterator[str]:
        for line in self.stream:
            self.number += 1
            self.kept.append(line)
            yield line.decode("utf-8", errors="surrogateescape")

    def fault(self) -> tuple[str, str] | None:
        for at, line in enumerate(self.kept):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                which = f"line {self.number - len(self.kept) + 1 + at}"
                byte = line[error.start]
                return "invalid-utf8", f"byte 0x{byte:02x} at byte {error.start + 1} of {which} is not UTF-8"
        return None

    def bad_row(self, path: Path, line: int, row: int, fault: tuple[str, str]) -> RawRow:
        problem = Problem(*fault, file=str(path), line=line, row=row)
        return RawRow(None, line, row, problem, b"".join(self.kept))


def _header_problem(cells: list[str], delimiter: str, path: Path, line: int) -> Problem | None:
    if len(cells) == 1:
        for separator, name in _SEPARATORS.items():
            if separator in cells[0] and separator != delimiter:
                text = f"one column; the separator looks like {name}"
                value = "tab" if separator == "\t" else f"'{separator}'"
                fix = f"Pass --delimiter {value} or save the file with commas."
                return Problem("csv-separator", text, file=str(path), line=line, fix=fix)
    names = _names(cells)
    if "" in names:
        text = f"column {names.index('') + 1} of {len(names)} has no name"
        return Problem("csv-header", text, file=str(path), line=line)
    double = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if double is not None:
        return Problem("csv-header", f"two columns are named `{double[:40]}`", file=str(path), line=line)
    return None


def _names(cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    return [_INDEX, *names[1:]] if len(names) > 1 and not names[0] and _INDEX not in names else names


def _cells_fault(cells: list[str], header: list[str]) -> tuple[str, str] | None:
    if len(cells) == len(header):
        return None
    more = "an unquoted separator?" if len(cells) > len(header) else "the end of the row is missing"
    return "csv-cells", f"{len(cells)} cells for {len(header)} columns: {more}"


def _csv_fault(error: csv.Error) -> tuple[str, str]:
    if "unexpected end of data" in str(error):
        return "csv-quote", "a quote opens here and never closes"
    if "expected after" in str(error):
        return "csv-quote", "text follows a closing quote: a quote inside a cell is written twice"
    return "csv-invalid", str(error).split(" - ")[0][:120]


def parquet_rows(path: Path) -> Iterator[RawRow | Problem]:
    """Rows of a Parquet file."""
    arrow = _pyarrow("Parquet")
    import pyarrow.parquet as parquet

    try:
        with _seekable(path) as file, parquet.ParquetFile(file) as table:
            yield from _batches(batch for batch in table.iter_batches(_BATCH))
    except _faults(arrow) as error:
        yield _unreadable("Parquet", error, path)


def arrow_rows(path: Path) -> Iterator[RawRow | Problem]:
    """Rows of an Arrow file or stream (datasets writes streams)."""
    arrow = _pyarrow("Arrow")
    try:
        with _seekable(path) as file:
            is_file = file.read(6) == b"ARROW1"
            file.seek(0)
            if is_file:
                reader = arrow.ipc.open_file(file)
                yield from _batches(reader.get_batch(at) for at in range(reader.num_record_batches))
            else:
                yield from _batches(arrow.ipc.open_stream(file))
    except _faults(arrow) as error:
        yield _unreadable("Arrow", error, path)


def _faults(arrow) -> tuple[type[Exception], ...]:
    """What pyarrow raises of damaged files (MemoryError: a length in them is absurd) and of values that Python has no object
    for, such as days after the year 9999."""
    return arrow.ArrowException, OSError, MemoryError, ValueError, OverflowError


def _unreadable(form: str, error: Exception, path: Path) -> Problem:
    reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
    if isinstance(error, OverflowError):
        text, fix = f"a value in it is out of range ({reason})", "Leave that column out, or write it as text."
        return Problem("parquet-invalid", text, fix=fix, file=str(path))
    return Problem("parquet-invalid", f"not a complete {form} file ({reason})", file=str(path))


def _batches(batches: Iterable) -> Iterator[RawRow]:
    row = 0
    for batch in batches:
        batch.validate(full=True)  # damaged offsets would lead outside the buffers: a crash, not an exception
        for value in batch_rows(batch):
            row += 1
            yield RawRow(value, None, row)


def _seekable(path: Path):
    """The file itself, or its unpacked bytes: these formats are read from their end."""
    stream = open_bytes(path)
    if stream.seekable():
        return stream
    with stream:
        spool = tempfile.TemporaryFile()  # noqa: SIM115
        shutil.copyfileobj(stream, spool)
    spool.seek(0)
    return spool


def _pyarrow(name: str):
    try:
        import pyarrow
    except ImportError:
        raise missing("pyarrow", f"reading {name} files", "data") from None
    import pyarrow.ipc

    return pyarrow
