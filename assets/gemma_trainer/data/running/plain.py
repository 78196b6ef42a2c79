"""The fast path: lines that are plain, clean conversations, which most lines of most files are.

It accepts `{"messages": [{"role", "content"}, ...]}` with an optional system message, user and assistant in turn, and
nothing in any text that a check could stumble over. Whatever else a line is, `process` judges it; both agree on what is
valid, which tests hold. Needs msgspec; without it every line goes the slow way.

Repeated keys: a parser keeps one of them, so a line with a repeated key has more strings, and quotation marks around
them, than came out of it. The marks are counted for a whole block of lines at once.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import chain

from gemma_trainer.data.options import Options
from gemma_trainer.data.reading.hashing import key_function
from gemma_trainer.data.reading.raw import Lines
from gemma_trainer.data.running.keys import BETWEEN
from gemma_trainer.data.running.optional import NUMPY_FROM, import_numpy
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
from gemma_trainer.rows.roles import ASSISTANT, SYSTEM, USER

_LAYOUTS = ("auto", "messages", "openai")
_LONGEST_WORD = max(map(len, BLANK_WORDS))


class PlainRows(Plain):
    """The fast path of one run."""

    def __init__(self, options: Options, decode: Callable):
        super().__init__(options)
        self.decode = decode
        self.turns = _Turns(self.takes_system)
        self.seen = 0

    @classmethod
    def for_run(cls, options: Options) -> PlainRows | None:
        """None where rows of this shape need the slow path, or msgspec is not installed."""
        message = message_type(1)
        if options.task != "sft" or options.layout not in _LAYOUTS or options.mapping or message is None:
            return None
        return cls(options, row_decoder(messages=list[message]))

    def judge(self, lines: Lines, before: int, part: Part, take: Take | None, slow: Slow) -> None:
        """Add the next lines of a batch to `part`; `before` lines stand before the batch."""
        chats = self._chats(lines.lines)
        keys, odd = self._looked_at(chats)
        if not self._keys_stand_once(lines, chats, odd):
            odd.update(at for at, line in enumerate(lines.lines) if at not in odd and not _holds(line, chats[at]))
        start = 0
        for end in (*sorted(odd), len(chats)):
            if take is None:
                self._accept(keys[start:end], before, part)
            else:
                for at in range(start, end):
                    if take(lines.lines[at], {"messages": as_dicts(chats[at])}, part):
                        self._accept(keys[at : at + 1], before, part)
                    else:
                        slow(lines.lines[at])
            if end < len(chats):
                slow(lines.lines[end])
            start = end + 1

    @staticmethod
    def _accept(keys: array, before: int, part: Part) -> None:
        """Count the next lines of a batch as plain rows of these keys."""
        if not keys:
            return
        part.saw("messages", before + part.lines + 1, len(keys))
        part.keys.rows.fill(part.rows)
        part.keys.rows.keys.extend(keys)
        part.rows += len(keys)
        part.valid += len(keys)
        part.lines += len(keys)

    def _chats(self, lines: list[bytes]) -> list[list]:
        """The messages of each line; none where it is no plain row."""
        decode, chats = self.decode, []
        for line in lines:
            try:
                chats.append(decode(line).messages)
            except ValueError:
                chats.append([])
        return chats

    def _looked_at(self, chats: list[list]) -> tuple[array, set[int]]:
        """(keys of the rows, those that a check must look at). Whole blocks are compared, rows only where one is odd."""
        sizes = list(map(len, chats))
        messages = list(chain.from_iterable(chats))
        contents = [message.content for message in messages]
        words = [content for content in contents if len(content) <= _LONGEST_WORD]
        odd: set[int] = set()
        turns = self.turns.__getitem__
        if 0 in sizes or [message.role for message in messages] != list(chain.from_iterable(map(turns, sizes))):
            odd.update(at for at, chat in enumerate(chats) if not chat or [m.role for m in chat] != turns(len(chat)))
        if True in map(str.isspace, contents) or not BLANK_WORDS.isdisjoint(words):
            odd.update(at for at, chat in enumerate(chats) if any(_is_nothing(message.content) for message in chat))
        digest, between, limit = key_function(), BETWEEN.join, self.limit
        keys, start = array("Q"), 0
        for at, size in enumerate(sizes):
            end = start + size
            text = between(contents[start:end]).encode()
            if (
                not text.isascii() or LESS_THAN in text or BRACKET in text or NUL in text or len(text) > limit
            ) and not (len(text) <= limit and is_harmless(text, contents[start:end])):
                odd.add(at)
            keys.append(digest(text, size) or 1)
            start = end
        return keys, odd

    def _keys_stand_once(self, lines: Lines, chats: list[list], odd: set[int]) -> bool:
        """Whether no plain line repeats a key. False as well where that takes more than counting."""
        self.seen += len(lines.data)
        numpy = import_numpy() if self.seen > NUMPY_FROM else None
        strings = sum(4 * len(chat) + 1 for at, chat in enumerate(chats) if at not in odd)
        others = sum(line.count(b'"') - line.count(b'\\"') for line in (lines.lines[at] for at in odd))
        marks = _marks_by_numpy(lines.data, numpy) if numpy else _marks(lines.data)
        return marks == 2 * strings + others


class _Turns(dict):
    """{messages of a conversation: their roles, where they are plain}; none where so many never are."""

    def __init__(self, takes_system: bool):
        self.takes_system = takes_system

    def __missing__(self, size: int) -> list[str]:
        fits = size > 1 and (size % 2 == 0 or self.takes_system)
        self[size] = [SYSTEM] * (size % 2) + [USER, ASSISTANT] * (size // 2) if fits else []
        return self[size]


def _is_nothing(content: str) -> bool:
    return content.isspace() or content in BLANK_WORDS


def _holds(line: bytes, chat: list) -> bool:
    """Whether a line holds the strings of a plain conversation and no more."""
    return holds_strings(line, 4 * len(chat) + 1, "".join([message.content for message in chat]).encode())


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
