"""The fast path: lines that are plain, clean conversations, which most lines of most files are.

It accepts `{"messages": [{"role", "content"}, ...]}` with an optional system message, user and assistant in turn, and
nothing in any text that a check could stumble over. Whatever else a line is, `process` judges it; both agree on what is
valid, which tests hold. Needs msgspec; without it every line goes the slow way.

Repeated keys: a parser keeps one of them, so a line with a repeated key has more strings, and quotation marks around
them, than came out of it. The marks are counted for a whole block of lines at once, as all else is looked at by block:
rows one by one only where the block holds something odd.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import chain

from gemma_trainer.data.options import Options
from gemma_trainer.data.reading.hashing import key_function
from gemma_trainer.data.reading.raw import Lines
from gemma_trainer.data.running.keys import BETWEEN
from gemma_trainer.data.running.part import Part
from gemma_trainer.data.running.plain_text import (
    BRACKET,
    HIDDEN_QUOTE,
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
from gemma_trainer.data.running.quotes import Quotes
from gemma_trainer.rows.content import BLANK_WORDS
from gemma_trainer.rows.roles import ASSISTANT, SYSTEM, USER

_LAYOUTS = ("auto", "messages", "openai")
_FEW = 8  # one row in so many with quotation marks in its texts
_LONGEST_WORD = max(map(len, BLANK_WORDS))


class PlainRows(Plain):
    """The fast path of one run."""

    def __init__(self, options: Options, decode: Callable):
        super().__init__(options)
        self.decode = decode
        self.turns = _Turns(self.takes_system)
        self.quotes = Quotes()

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
        sizes = list(map(len, chats))
        messages = list(chain.from_iterable(chats))
        contents = [message.content for message in messages]
        start = 0
        texts = [BETWEEN.join(contents[start : (start := start + size)]).encode() for size in sizes]
        odd = self._out_of_turn(chats, sizes, messages) | _blank(chats, contents) | self._suspicious(chats, texts)
        odd |= self._repeating_keys(lines, sizes, texts, odd)
        keys = array("Q", [key or 1 for key in map(key_function(), texts, sizes)])
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

    def _out_of_turn(self, chats: list[list], sizes: list[int], messages: list) -> set[int]:
        """Rows in which others speak than user and assistant in turn, after one system message at most."""
        turns = self.turns.__getitem__
        if 0 not in sizes and [message.role for message in messages] == list(chain.from_iterable(map(turns, sizes))):
            return set()
        return {at for at, chat in enumerate(chats) if not chat or [m.role for m in chat] != turns(len(chat))}

    def _suspicious(self, chats: list[list], texts: list[bytes]) -> set[int]:
        """Rows whose texts are long or hold what a check looks for."""
        seen = [
            at
            for at, text in enumerate(texts)
            if not text.isascii() or LESS_THAN in text or BRACKET in text or NUL in text
        ]
        odd = {at for at in seen if not is_harmless(texts[at], [message.content for message in chats[at]])}
        if max(map(len, texts)) > self.limit:
            odd.update(at for at, text in enumerate(texts) if len(text) > self.limit)
        return odd

    def _repeating_keys(self, lines: Lines, sizes: list[int], texts: list[bytes], odd: set[int]) -> set[int]:
        """Rows that may repeat a key, none of the odd ones."""
        others = [lines.lines[at] for at in odd]
        strings = 4 * sum(sizes) + len(sizes) - sum([4 * sizes[at] + 1 for at in odd])
        quoted = [at for at, text in enumerate(texts) if QUOTE in text and at not in odd]
        if _FEW * len(quoted) < len(texts):
            shown = sum([texts[at].count(b'"') for at in quoted])
            marks = self.quotes.count(lines.data) - sum([line.count(b'"') for line in others]) - shown
            once = marks == 2 * strings and not any(HIDDEN_QUOTE in lines.lines[at] for at in quoted)
        else:
            once = self.quotes.around_strings(lines.data, others) == 2 * strings
        rows = () if once else [at for at in range(len(sizes)) if at not in odd]
        return {at for at in rows if not holds_strings(lines.lines[at], 4 * sizes[at] + 1, texts[at])}


def _blank(chats: list[list], contents: list[str]) -> set[int]:
    """Rows with a content of white space, or a word for a missing value."""
    short = [content for content in contents if len(content) <= _LONGEST_WORD or content.isspace()]
    if not any(map(_is_nothing, short)):
        return set()
    return {at for at, chat in enumerate(chats) if any(_is_nothing(message.content) for message in chat)}


def _is_nothing(content: str) -> bool:
    return content.isspace() or content in BLANK_WORDS


class _Turns(dict):
    """{messages of a conversation: their roles, where they are plain}; none where so many never are."""

    def __init__(self, takes_system: bool):
        self.takes_system = takes_system

    def __missing__(self, size: int) -> list[str]:
        fits = size > 1 and (size % 2 == 0 or self.takes_system)
        self[size] = [SYSTEM] * (size % 2) + [USER, ASSISTANT] * (size // 2) if fits else []
        return self[size]
