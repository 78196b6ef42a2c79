"""Container -> raw rows. The content decides what a file is; the suffix only where content does not tell.

Everything streams: memory holds one block or one row. A bad row is told and reading goes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gemma_trainer.data.reading.not_data import not_data
from gemma_trainer.data.reading.raw import BOM, Batch, Lines, RawRow, Span
from gemma_trainer.data.reading.reply import SAMPLE_KEYS
from gemma_trainer.data.reading.sources import READ_ERRORS, Watch, read_head, suffix
from gemma_trainer.rows.problems import Problem

_ROWS = 500  # of a container other than JSON Lines, a batch
_ARROW_STREAM = b"\xff\xff\xff\xff"
_JSON = (".jsonl", ".ndjson", ".json")
_SEPARATORS = re.compile(r"[,;|\t]")
_LOOKED_AT = 50  # lines


def read_rows(path: Path, delimiter: str | None = None) -> Iterator[RawRow | Problem]:
    """The rows of a file in order; problems of the file as a whole stand between them. Raises as `read_batches`."""
    from gemma_trainer.data.reading.read_lines import rows_of

    line = row = 0
    for batch in read_batches(path, delimiter):
        if isinstance(batch, Lines):
            for item in rows_of(batch, path, line, row):
                row = item.row if isinstance(item, RawRow) else row
                yield item
            line += len(batch.lines)
        else:
            yield from batch


def read_batches(
    path: Path, delimiter: str | None = None, watch: Watch | None = None, spans: bool = False
) -> Iterator[Batch]:
    """A file in batches: blocks of JSON Lines, or lists of rows and problems of the file as a whole.

    Formats: JSON Lines, a JSON array or an object that holds one, CSV, TSV, Parquet, Arrow, each also packed.
    `watch` sees the stored bytes go by. With `spans` lines that lie in a file as they are read come as a Span, for whoever
    judges them to read. Raises Failure where a package is missing or the file cannot be opened.
    """
    items: list[RawRow | Problem] = []
    for item in _read(path, delimiter, watch, spans):
        if isinstance(item, Lines | Span):
            if items:
                yield items
                items = []
            yield item
            continue
        items.append(item)
        if len(items) == _ROWS:
            yield items
            items = []
    if items:
        yield items


def _read(
    path: Path, delimiter: str | None, watch: Watch | None, spans: bool
) -> Iterator[Lines | Span | RawRow | Problem]:
    head, broken = read_head(path)
    if not head.strip() and not broken:
        text = "the file holds nothing but blanks" if head else "the file is empty"
        yield Problem("empty-file", text, file=str(path))
        return
    rows = 0
    try:
        if broken and not head:
            raise EOFError
        for item in _dispatch(path, head, delimiter, watch, spans):
            rows += len(item.lines) if isinstance(item, Lines) else isinstance(item, RawRow)
            yield item
    except READ_ERRORS:
        text = f"the packed data ends or breaks after row {rows}"
        yield Problem("packed-cut", text, file=str(path))


def _dispatch(
    path: Path, head: bytes, delimiter: str | None, watch: Watch | None, spans: bool
) -> Iterator[Lines | Span | RawRow | Problem]:
    from gemma_trainer.data.reading import read_json, read_lines, read_tables, recode

    kind = suffix(path)
    if other := not_data(head):
        yield Problem("file-not-data", other.what, fix=other.fix, file=str(path))
        return
    if head.startswith(b"PAR1"):
        yield from read_tables.parquet_rows(path)
        return
    if head.startswith((b"ARROW1", _ARROW_STREAM)) or (kind == ".arrow" and b"\0" in head):
        yield from read_tables.arrow_rows(path)
        return
    if kind == ".parquet" and b"\0" in head:
        yield Problem("parquet-invalid", "not a Parquet file: it does not begin with PAR1", file=str(path))
        return
    encoding = recode.encoding_of(head)
    if encoding:
        yield Problem("encoding-unsupported", f"the file is {encoding.upper()} text", file=str(path), line=1)
        head = recode.recoded_head(head, encoding)
    lone_returns = recode.has_lone_returns(head)
    if lone_returns:
        text = "lines end in a carriage return alone"
        yield Problem("lone-carriage-returns", text, file=str(path), line=1)
        head = head.replace(b"\r", b"\n")
    marked = head.startswith(BOM)
    if marked:
        yield Problem("byte-order-mark", "the file starts with a byte order mark", file=str(path), line=1)
        head = head[len(BOM) :]
    with recode.open_text(path, encoding, lone_returns, watch) as stream:
        if marked:
            stream.read(len(BOM))
        if head.lstrip()[:1] in (b"{", b"["):
            yield from read_json.json_rows(stream, path, head, spans)
        elif kind in (".csv", ".tsv") or (kind not in _JSON and _is_table(head)):
            yield from read_tables.delimited_rows(stream, path, delimiter or ("\t" if kind == ".tsv" else None))
        elif kind in _JSON and _names_columns(head):
            yield Problem("not-json-lines", "a table, not JSON as the suffix says", file=str(path), line=1)
            yield from read_tables.delimited_rows(stream, path, delimiter)
        else:
            yield from read_lines.line_blocks(stream, spans)


def _is_table(head: bytes) -> bool:
    first = head.lstrip().split(b"\n", 1)[0]
    return b"," in first or b"\t" in first


def _names_columns(head: bytes) -> bool:
    """Whether the first line is a header with a column that layouts know, and no row of JSON stands below it."""
    first, *others = head.lstrip().split(b"\n", _LOOKED_AT)
    names = {name.strip(' "\r').lower() for name in _SEPARATORS.split(first.decode("utf-8", "replace"))}
    return bool(names & SAMPLE_KEYS) and not any(line.lstrip()[:1] in (b"{", b"[") for line in others)
