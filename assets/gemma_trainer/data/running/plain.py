"""The fast path: lines that are plain, clean conversations, which most lines of most files are.

It accepts `{"messages": [{"role", "content"}, ...]}` with an optional system message, user and assistant in turn, and
nothing in any text that a check could stumble over. Whatever else a line is, `process` judges it; both agree on what is
valid, which tests hold. Needs msgspec; without it every line goes the slow way.

Repeated keys: a parser keeps one of them, so a line with a repeated key has more strings, and quotation marks around
them, than came out of it. The marks are counted for a whole block of lines at once.
"""

from __future__ import annotations

from collections.abc import Callable

from gemma_trainer.data.options import Options, Place
from gemma_trainer.data.reading.hashing import key_function
from gemma_trainer.data.reading.raw import Lines
from gemma_trainer.data.running.keys import BETWEEN
from gemma_trainer.data.running.part import Part
from gemma_trainer.data.running.plain_text import (
    BACKSLASH,
    BRACKET,
    LESS_THAN,
    NUL,
    QUOTE,
    Plain,
    Slow,
    Take,
    as_dicts,
    holds_strings,
    is_harmless,
    message_type,
    row_decoder,
)
from gemma_trainer.rows.content import BLANK_WORDS

_LAYOUTS = ("auto", "messages", "openai")
_SHORT = 5  # characters; what is shorter may be a word for a missing value
_COUNTED = 40  # lines that are counted together: few enough for the processor's caches
_NUMPY_FROM = 1 << 22  # bytes, from which counting with numpy repays its import


class PlainRows(Plain):
    """The fast path of one run."""

    def __init__(self, options: Options, decode: Callable, decode_short: Callable):
        super().__init__(options)
        self.decode, self.decode_short = decode, decode_short
        self.seen = 0

    @classmethod
    def for_run(cls, options: Options) -> PlainRows | None:
        """None where rows of this shape need the slow path, or msgspec is not installed."""
        if options.task != "sft" or options.layout not in _LAYOUTS or options.mapping:
            return None
        message = message_type(_SHORT), message_type(1)
        return cls(options, *(row_decoder(messages=list[kind]) for kind in message)) if all(message) else None

    def judge(self, lines: Lines, place: Place, part: Part, take: Take | None, slow: Slow) -> bool:
        """Fill `part`.

        False when, without `take`, some line repeats a key: then the block must be judged line by line.
        """
        # One loop without calls: on a plain row everything beside parsing takes a microsecond.
        decode, digest, between, limit = self.decode, key_function(), BETWEEN.join, self.limit
        keys, put = part.keys.rows, part.keys.rows.keys.append
        rows, accepted, turns, slow_marks = part.rows, 0, 0, 0
        at = -1
        for at, line in enumerate(lines.lines):
            try:
                messages = decode(line).messages
            except ValueError:
                messages = self._with_short_texts(line)
            contents, wanted = [], "user"
            for message in messages:
                role, content = message.role, message.content
                if role == wanted:
                    wanted = "assistant" if role == "user" else "user"
                elif role != "system" or contents or not self.takes_system:
                    break
                if content.isspace():
                    break
                contents.append(content)
            else:
                size = len(contents)
                if wanted == "user" and size > 1:
                    joined = between(contents)
                    text = joined.encode()
                    if (
                        len(text) <= limit
                        and (
                            not (not joined.isascii() or LESS_THAN in text or BRACKET in text or NUL in text)
                            or is_harmless(text, contents)
                        )
                        and (take is None or self._takes(take, line, messages, text, part, rows))
                    ):
                        if not accepted:
                            part.saw("messages", place.line + at + 1)
                        put(digest(text, size) or 1)
                        rows += 1
                        accepted += 1
                        turns += size
                        continue
            part.rows = rows
            slow(line, at)
            rows = part.rows
            keys.fill(rows)
            slow_marks += line.count(b'"') - line.count(b'\\"')
        part.rows, part.lines, part.valid = rows, at + 1, part.valid + accepted
        if accepted:
            part.saw("messages", place.line, accepted - 1)
        return take is not None or 8 * turns + 2 * accepted + slow_marks == self._string_marks(lines.lines)

    def _takes(self, take: Take, line: bytes, messages: list, text: bytes, part: Part, rows: int) -> bool:
        """Hand on one line, unless it repeats a key."""
        part.rows = rows
        if not holds_strings(line, 4 * len(messages) + 1, text):
            return False
        return take(line, {"messages": as_dicts(messages)}, part)

    def _with_short_texts(self, line: bytes) -> list:
        """The messages of a line whose texts may be short; none when it is anything else."""
        try:
            messages = self.decode_short(line).messages
        except ValueError:
            return []
        return [] if any(message.content in BLANK_WORDS for message in messages) else messages

    def _string_marks(self, lines: list[bytes]) -> int:
        """Quotation marks around strings in a block, -1 where that takes more than a look at the byte before each."""
        numpy = _numpy() if self.seen > _NUMPY_FROM else None
        marks = 0
        for start in range(0, len(lines), _COUNTED):
            data = b"".join(lines[start : start + _COUNTED])
            self.seen += len(data)
            found = _marks_by_numpy(data, numpy) if numpy else _marks(data)
            if found < 0:
                return -1
            marks += found
        return marks


def _marks(data: bytes) -> int:
    return -1 if b'\\\\"' in data else data.count(b'"') - data.count(b'\\"')


def _marks_by_numpy(data: bytes, numpy) -> int:
    codes = numpy.frombuffer(data, numpy.uint8)
    marks = codes == QUOTE
    escaped = marks[1:] & (codes[:-1] == BACKSLASH)
    inner = numpy.count_nonzero(escaped)
    if inner and (escaped[1:] & (codes[:-2] == BACKSLASH)).any():
        return -1
    return int(numpy.count_nonzero(marks) - inner)


def _numpy():
    try:
        import numpy
    except ImportError:
        return None
    return numpy
