"""JSON Lines, and JSON documents that hold many rows."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gemma_trainer.data.reading.parse import Decoder, Fault, parse_text, syntax_fault, utf8_fault
from gemma_trainer.data.reading.raw import Lines, RawRow, Span, bad_row
from gemma_trainer.data.reading.read_lines import line_blocks
from gemma_trainer.data.reading.sources import HEAD, suffix
from gemma_trainer.rows.problems import Problem

# Keys under which an object holds its rows.
WRAPPERS = ("data", "train", "rows", "examples", "items", "records", "dataset", "samples", "instances", "test", "eval")
_WRAPPED = re.compile(rf'\s*\{{\s*"(?:{"|".join(WRAPPERS)})"\s*:\s*\[\s*[\[{{\]]')
_SEPARATORS = re.compile(r"[ \t\r\n,]*")
_BLANKS = re.compile(r"[ \t\r\n]*")
_BLOCK = 1 << 18
_LOOKED_AT = 50  # lines, to tell rows from a document
_MARGIN = 200
_NEAR_END = 16  # an error this close to the end of the text at hand may be gone once more is read


def json_rows(
    stream: BinaryIO, path: Path, head: bytes, spans: bool = False
) -> Iterator[Lines | Span | RawRow | Problem]:
    """Rows of a text that begins with a bracket. `head` is the start of what `stream` gives."""
    if _is_lines(head):
        yield from line_blocks(stream, spans)
    else:
        yield from json_document(stream, path)


def json_document(stream: BinaryIO, path: Path) -> Iterator[RawRow | Problem]:
    """An array of rows, an object that holds such an array, or objects printed over several lines."""
    if suffix(path) in (".jsonl", ".ndjson"):
        text = "a JSON document over several lines, not one row a line as the suffix says"
        yield Problem("not-json-lines", text, file=str(path), line=1)
    window = _Window(stream)
    reader = _Document(window, path)
    try:
        yield from reader.rows()
    except json.JSONDecodeError as error:
        line, fault = window.line_at(error.pos), syntax_fault(window.text, error)
        reader.row += 1
        yield reader.rest_as_row(fault, line)
    except UnicodeDecodeError as error:
        line = window.line_at(len(window.text)) + error.object[: error.start].count(b"\n")
        yield bad_row(utf8_fault(error), path, line, reader.row + 1, window.rest())


class _Document:
    def __init__(self, window: _Window, path: Path):
        self.window, self.path, self.row = window, path, 0
        self.broken = False  # reading ends where it is

    def rows(self) -> Iterator[RawRow | Problem]:
        window = self.window
        while not self.broken and (first := window.next_char()):
            if first == "[":
                yield from self._array()
            elif window.matches(_WRAPPED):
                yield from self._wrapped()
            else:
                yield from self._object()

    def _array(self) -> Iterator[RawRow | Problem]:
        """The elements, or the array itself when its elements are messages: then it is one row without a name."""
        if is_message(self.window.first_element()):
            yield self._value_row()
            return
        self.window.take("[")
        yield from self._elements()

    def _elements(self) -> Iterator[RawRow | Problem]:
        """The values up to the closing bracket; the opening one is taken. A broken one is told and stepped over."""
        window = self.window
        if window.next_char() == "]":
            window.take("]")
            return
        while True:
            window.next_char()
            line, indent = window.line_here(), window.indent()
            try:
                yield self._value_row()
            except json.JSONDecodeError as error:
                fault = syntax_fault(window.text, error)
                source = window.skip_to(indent)
                self.row += 1
                if source is None:
                    yield self.rest_as_row(fault, line)
                    return
                yield bad_row(fault, self.path, line, self.row, source.encode("utf-8"))
                continue
            found = window.next_char()
            if found == ",":
                window.take(",")
                if window.next_char() != "]":
                    continue
                yield self._problem("json-trailing-comma", "a comma before the closing bracket of the array")
            elif found in ("{", "["):
                yield self._problem("json-invalid", "a comma between two rows is missing")
                continue
            elif found != "]":
                what = "the array is not closed" if not found else "neither a comma nor the closing bracket"
                yield self._problem("json-invalid" if found else "json-cut", what)
                self.broken = True
                return
            window.take("]")
            return

    def rest_as_row(self, fault: Fault, line: int) -> RawRow:
        """All that is left as one bad row: no place is seen where reading could go on."""
        self.broken = True
        if fault.code != "json-cut":
            fault = fault._replace(message=f"{fault.message}; the rows behind it cannot be told apart")
        return bad_row(fault, self.path, line, self.row, self.window.rest())

    def _problem(self, code: str, message: str) -> Problem:
        return Problem(code, message, file=str(self.path), line=self.window.line_here())

    def _wrapped(self) -> Iterator[RawRow | Problem]:
        """`{"data": [rows], ...}`: the first list that is not empty holds the rows, a second one would be lost and is an
        error."""
        window, before = self.window, self.row
        window.take("{")
        first = self._key()
        window.take("[")
        yield from self._elements()
        while not self.broken and window.next_char() == ",":
            window.take(",")
            key, line = self._key(), window.line_here()
            if self.row == before and key in WRAPPERS and window.next_char() == "[":
                first = key
                window.take("[")
                yield from self._elements()
                continue
            value, _, _ = window.value()
            if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
                text = f"the object holds the lists `{first}` and `{key[:40]}`"
                yield Problem("several-lists", text, file=str(self.path), line=line)
        if not self.broken:
            window.take("}")

    def _key(self) -> str:
        self.window.next_char()
        key, _, _ = self.window.value()
        self.window.take(":")
        self.window.next_char()
        return str(key)

    def _object(self) -> Iterator[RawRow | Problem]:
        """One row, or a wrapper that begins with other keys."""
        line = self.window.line_here()
        value, text, fault = self.window.value()
        found = [key for key in WRAPPERS if isinstance(value, dict) and _holds_rows(value.get(key))]
        if fault or len(found) != 1 or "messages" in value or "conversations" in value:
            yield self._raw(value, line, text, fault)
            return
        items = value[found[0]]
        for item, below in zip(items, _lines_of(text, found[0], len(items)), strict=True):
            yield self._raw(item, line + below, "", None)

    def _value_row(self) -> RawRow:
        self.window.next_char()
        line = self.window.line_here()
        value, text, fault = self.window.value()
        return self._raw(value, line, text, fault)

    def _raw(self, value: object, line: int, text: str, fault: Fault | None) -> RawRow:
        self.row += 1
        if fault:
            return bad_row(fault, self.path, line, self.row, text.encode("utf-8"))
        return RawRow(value, line, self.row)


class _Window:
    """The text around the reading position and the number of its line. What is read is dropped."""

    def __init__(self, stream: BinaryIO):
        self.stream, self.decoder = stream, Decoder()
        self.utf8 = codecs.getincrementaldecoder("utf-8")()
        self.text, self.position, self.ended = "", 0, False
        self._line, self._counted = 1, 0  # the line of the character at `_counted`

    def grow(self) -> bool:
        """Read on; false at the end. Blocks double so that a huge value is not parsed over and over."""
        if self.ended:
            return False
        block = self.stream.read(max(_BLOCK, len(self.text) - self.position))
        self.ended = not block
        new = self.utf8.decode(block, final=self.ended)
        self.line_here()
        kept = self.text.rfind("\n", 0, self.position) + 1  # the line's start is kept for its indent
        kept = max(kept, self.position - _MARGIN)
        self.text, self.position = self.text[kept:] + new, self.position - kept
        self._counted = self.position
        return True

    def next_char(self) -> str:
        """The next character that is no blank, without taking it; empty at the end."""
        while True:
            match = _BLANKS.match(self.text, self.position)
            self.position = match.end()
            if self.position < len(self.text) or not self.grow():
                return self.text[self.position : self.position + 1]

    def take(self, wanted: str) -> None:
        if self.next_char() != wanted:
            missing = "a comma or a closing bracket" if wanted in ",]" else wanted
            raise json.JSONDecodeError(f"{missing} is missing", self.text, self.position)
        self.position += 1

    def value(self) -> tuple[object, str, Fault | None]:
        """(value, its text, fault) at the position, which moves behind it."""
        value, end, fault = self._decode(0)
        text = self.text[self.position : end]
        self.position = end
        return value, text, fault

    def first_element(self) -> object:
        """The first object of the array that begins at the position; None when it is no object or broken."""
        at = self.position + 1
        while not (match := _BLANKS.match(self.text, at)) or match.end() == len(self.text):
            shift = at - self.position
            if not self.grow():
                return None
            at = self.position + shift
        if self.text[match.end()] != "{":
            return None
        try:
            return self._decode(match.end() - self.position)[0]
        except json.JSONDecodeError:
            return None

    def _decode(self, ahead: int) -> tuple[object, int, Fault | None]:
        while True:
            try:
                value, end, fault = self.decoder.value_at(self.text, self.position + ahead)
            except json.JSONDecodeError as error:
                sure = error.pos < len(self.text) - _NEAR_END and not error.msg.startswith("Unterminated")
                if sure or not self.grow():
                    raise
                continue
            if end < len(self.text) or not self.grow():  # a number may go on in the next block
                return value, end, fault

    def matches(self, pattern: re.Pattern) -> bool:
        while len(self.text) - self.position < _MARGIN and self.grow():
            pass
        return bool(pattern.match(self.text, self.position))

    def indent(self) -> str | None:
        """The blanks between the start of the line and the position; None when there is more than blanks."""
        start = self.text.rfind("\n", 0, self.position) + 1
        before = self.text[start : self.position]
        return before if not before.strip() and start else None

    def skip_to(self, indent: str | None) -> str | None:
        """Move to the next bracket that opens a line with that indent and return what lies between, else None."""
        if indent is None:
            return None
        opening = re.compile(rf"\n{indent}(?=[{{\[])")
        while not (match := opening.search(self.text, self.position)):
            if not self.grow():
                return None
        skipped = self.text[self.position : match.end()]
        self.position = match.end()
        return skipped

    def line_at(self, position: int) -> int:
        return self._line + self.text.count("\n", self._counted, position)

    def line_here(self) -> int:
        self._line, self._counted = self.line_at(self.position), self.position
        return self._line

    def rest(self) -> bytes:
        return self.text[self.position :].encode("utf-8")


def _lines_of(text: str, key: str, count: int) -> list[int]:
    """Lines below the start of an object's text on which the elements of its list `key` begin."""
    decoder, lines = Decoder(), []
    match = re.search(rf'"{key}"\s*:\s*\[', text)
    at, seen, line = match.end() if match else len(text), 0, 0
    try:
        for _ in range(count):
            at = _SEPARATORS.match(text, at).end()
            line, seen = line + text.count("\n", seen, at), at
            lines.append(line)
            at = decoder.value_at(text, at)[1]
    except json.JSONDecodeError:  # the first place with that name is another one: only the object's line is known
        return [0] * count
    return lines


def is_message(value: object) -> bool:
    """Whether an object is a chat message rather than a row."""
    return (
        isinstance(value, dict) and ("role" in value or "from" in value) and bool(value.keys() & {"content", "value"})
    )


def _holds_rows(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict | list) for item in value)


def _is_lines(head: bytes) -> bool:
    """Whether each line is a row: the first one is a value of its own, or a later one of the same kind is."""
    text = head.decode("utf-8", errors="replace")
    lines = [line for line in text.split("\n") if line.strip()]
    opens_document = bool(_WRAPPED.match(text)) or text.lstrip().startswith("[")
    if len(lines) == 1 and len(head) >= HEAD:  # a first line of which only the start is seen
        return not opens_document
    value, fault = parse_text(lines[0])
    if fault is None:
        return len(lines) > 1 or not _is_container(value)
    if len(lines) == 1 or _WRAPPED.match(text):
        return not opens_document
    if all(_fills_line(line) for line in lines[:_LOOKED_AT]):
        return True
    first = lines[0].lstrip()[0]
    return any(line[0] == first and parse_text(line)[1] is None for line in lines[1:_LOOKED_AT])


def _fills_line(line: str) -> bool:
    """Whether a line goes from brace to brace, with a comma at most behind it: a row, whatever is wrong inside."""
    return line.startswith("{") and line.rstrip(" \t\r,").endswith("}")


def _is_container(value: object) -> bool:
    """Whether a file of one line holds its rows in that one value."""
    if isinstance(value, list):
        return not (value and is_message(value[0]))
    if not isinstance(value, dict):
        return False
    return any(_holds_rows(value.get(key)) for key in WRAPPERS) or _is_empty(value)


def _is_empty(value: dict) -> bool:
    """Whether an object is nothing but lists for rows, without any."""
    return bool(value) and all(key in WRAPPERS and item == [] for key, item in value.items())
