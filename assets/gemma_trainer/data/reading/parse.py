"""One JSON text -> one value, strictly, with faults in plain words.

Python's json and orjson accept duplicate keys; json also accepts NaN and half surrogate pairs, orjson turns integers
beyond 64 bits into floats. None of that is taken here. orjson, when installed, reads what is clean; the reference
decoder reads the rest and says what is wrong.
"""

from __future__ import annotations

import json
import math
import re
from typing import NamedTuple

try:
    import orjson
except ImportError:  # the standard library reads the same rows, slower
    orjson = None

MAX_DEPTH = 200
loads = orjson.loads if orjson is not None else json.loads  # lenient: for a look ahead only
_TOO_BIG = 2.0**63
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
_STRING_OR_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|(NaN|-?Infinity)')


class Fault(NamedTuple):
    """Why a text is refused. `code` is a key of CODES."""

    code: str
    message: str


class Decoder(json.JSONDecoder):
    """The reference. It notes faults and reads on, so that a value's end is known even if the value is bad."""

    def __init__(self):
        super().__init__(
            object_pairs_hook=self._object,
            parse_constant=self._constant,
            parse_float=self._float,
            parse_int=self._integer,
        )
        self.faults: list[Fault] = []

    def value_at(self, text: str, start: int) -> tuple[object, int, Fault | None]:
        """(value, end, fault) of the value that starts at `start`. Raises JSONDecodeError where it is no JSON."""
        self.faults.clear()
        try:
            value, end = self.raw_decode(text, start)
        except RecursionError:
            raise json.JSONDecodeError("nested too deep", text, start) from None
        fault = self.faults[0] if self.faults else _value_fault(value, text, start, end)
        return value, end, fault

    def _object(self, pairs: list[tuple[str, object]]) -> dict:
        value = dict(pairs)
        if len(value) < len(pairs):
            seen: set[str] = set()
            key = next(key for key, _ in pairs if key in seen or seen.add(key))
            self.faults.append(Fault("json-duplicate-key", f"the key `{_printable(key)}` stands twice in one object"))
        return value

    def _constant(self, name: str) -> None:
        self.faults.append(Fault("json-not-a-number", f"{name} is not JSON; a missing value is null"))

    def _integer(self, digits: str) -> int:
        try:
            return int(digits)
        except ValueError:  # Python's limit on the length of numbers
            self.faults.append(Fault("json-invalid", f"a number of {len(digits)} digits"))
            return 0

    def _float(self, digits: str) -> float:
        value = float(digits)
        if math.isinf(value):
            self.faults.append(Fault("json-invalid", "a number is too large"))
        return value


def parse_line(line: bytes) -> tuple[object, Fault | None]:
    """The value of one line of JSON, or None and the fault."""
    if orjson is not None:
        try:
            value = orjson.loads(line)
        except ValueError:
            return _explain(line)
        # A key that stood twice leaves one `":` too many; text with `":` in it takes the slow way for nothing.
        try:
            if _count_keys(value, MAX_DEPTH) == line.count(b'":'):
                return value, None
        except OverflowError:
            pass
    return _explain(line)


def parse_text(text: str) -> tuple[object, Fault | None]:
    """The value of a JSON text, or None and the fault with the column where it shows."""
    decoder = Decoder()
    start = len(text) - len(text.lstrip(" \t\r\n"))
    try:
        value, end, fault = decoder.value_at(text, start)
    except json.JSONDecodeError as error:
        return None, syntax_fault(text, error)
    except ValueError as error:  # an integer of more than 4,300 digits
        return None, Fault("json-invalid", str(error).split(";")[0][:120])
    if fault is not None:
        return None, _with_column(fault, text)
    rest = text[end:].strip(" \t\r\n")
    if rest:
        column = end + 1 + text[end:].index(rest)
        what = "a second value" if rest[0] in "{[" else "something more"
        return None, Fault("json-extra-data", f"{what} begins in the same line at column {column}")
    return value, None


def syntax_fault(text: str, error: json.JSONDecodeError) -> Fault:
    """Own words for where JSON ends to be JSON. Columns count from 1 in the line of the error."""
    at = error.pos
    column = f"column {error.colno}"
    before, rest = text[:at].rstrip(), text[at:].strip()
    if error.msg == "nested too deep":
        return Fault("json-too-deep", f"nested more than {MAX_DEPTH} levels deep")
    if error.msg.startswith("Unterminated string"):
        return Fault("json-cut", f"the text stops inside the string that opens at {column}")
    if not rest or _is_cut_word(rest):
        return Fault("json-cut", f"the text stops at {column}, in the middle of a value")
    if (before.endswith(",") and rest[0] in "}]") or (rest[0] == "," and rest[1:].lstrip()[:1] in ("}", "]")):
        bracket = min(found for found in (text.find("}", at), text.find("]", at)) if found >= 0)
        where = bracket - text.rfind("\n", 0, bracket)
        return Fault("json-trailing-comma", f"a comma before the closing bracket at column {where}")
    if error.msg.startswith("Invalid control character"):
        return Fault("json-invalid", f"a raw line break, tab or control character inside a string at {column}")
    if error.msg.startswith("Invalid \\"):
        if len(text) - at < 7 and '"' not in rest[1:]:
            return Fault("json-cut", f"the text stops inside an escape at {column}")
        return Fault("json-invalid", f"a backslash that begins no JSON escape at {column}")
    if rest[0] == "'":
        return Fault("json-invalid", f"single quotes at {column}: this is a printed Python value, not JSON")
    if re.match(r"(True|False|None)\b", rest):
        return Fault("json-invalid", f"a Python word at {column}: JSON writes true, false, null")
    return Fault("json-invalid", f"not JSON at {column} ({error.msg[:1].lower()}{error.msg[1:]})")


def _explain(line: bytes) -> tuple[object, Fault | None]:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        return None, utf8_fault(error)
    return parse_text(text)


def utf8_fault(error: UnicodeDecodeError, offset: int = 0) -> Fault:
    byte = error.object[error.start]
    return Fault("invalid-utf8", f"byte 0x{byte:02x} at byte {offset + error.start + 1} of the line is not UTF-8")


def _printable(text: str) -> str:
    """A short piece of text that any output can take: half surrogate pairs become question marks."""
    return text[:40].encode("utf-8", "replace").decode("utf-8")


def _value_fault(value: object, text: str, start: int, end: int) -> Fault | None:
    try:
        _count_keys(value, MAX_DEPTH)
    except (RecursionError, OverflowError):
        return Fault("json-too-deep", f"nested more than {MAX_DEPTH} levels deep")
    half = _HALF_PAIR.search(text, start, end)
    if half and not _encodes(value):
        where = f"near column {half.start() + 1 - text.rfind(chr(10), 0, half.start()) - 1}"
        return Fault("json-lone-surrogate", f"half a surrogate pair ({half.group()}..) {where}")
    return None


def _encodes(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _count_keys(value: object, depth: int) -> int:
    """Keys in all objects of a value; -1 or less when it must be read by the reference (depth, large numbers)."""
    if value.__class__ is dict:
        count, items = len(value), value.values()
    elif value.__class__ is list:
        count, items = 0, value
    else:
        return 0
    if depth == 0:
        raise OverflowError
    for item in items:
        kind = item.__class__
        if kind is dict or kind is list:
            count += _count_keys(item, depth - 1)
        elif kind is float and not -_TOO_BIG < item < _TOO_BIG:
            count -= 1 << 40
    return count


def _is_cut_word(rest: str) -> bool:
    return any(len(rest) < len(word) and word.startswith(rest) for word in ("true", "false", "null"))


def _with_column(fault: Fault, text: str) -> Fault:
    if fault.code != "json-not-a-number":
        return fault
    match = next((m for m in _STRING_OR_WORD.finditer(text) if m.group(1)), None)
    return fault._replace(message=f"{fault.message} (column {match.start() + 1})") if match else fault
