"""The fast path: lines that are plain, clean conversations, which most lines of most files are.

It accepts `{"messages": [{"role", "content"}, ...]}` with an optional system message, user and assistant in turn, and
nothing in any text that a check could stumble over. Whatever else a line is, `process` judges it; both agree on what is
valid, which tests hold. Needs msgspec; without it every line goes the slow way.

Repeated keys: a parser keeps one of them, so a line with a repeated key has more quotation marks than the strings that
came out of it account for. The marks are counted for a whole block of lines at once.
"""

from __future__ import annotations

import io
from collections.abc import Callable

from gemma_trainer.data.hashing import key_function
from gemma_trainer.data.keys import BETWEEN
from gemma_trainer.data.options import Options, Place
from gemma_trainer.data.part import Part
from gemma_trainer.data.plain_text import (
    BRACKET,
    LESS_THAN,
    NUL,
    QUOTE,
    as_dicts,
    message_type,
    quotation_marks,
    row_decoder,
)
from gemma_trainer.data.raw import Lines
from gemma_trainer.rows.content import BLANK_WORDS

_LAYOUTS = ("auto", "messages", "openai")
_SHORT = 5  # characters; what is shorter may be a word for a missing value
_BYTES_PER_TOKEN = 4  # a guessed length is never above this share of the bytes
_NUMPY_FROM = 1 << 22  # bytes, from which counting with numpy repays its import


class PlainRows:
    """The fast path of one run."""

    def __init__(self, options: Options, decode: Callable, decode_short: Callable):
        self.decode, self.decode_short = decode, decode_short
        self.takes_system = options.family.system != "refused"
        self.limit = options.max_length * _BYTES_PER_TOKEN if options.max_length else 1 << 60
        self.seen = 0

    @classmethod
    def for_run(cls, options: Options) -> PlainRows | None:
        """None where rows of this shape need the slow path, or msgspec is not installed."""
        if options.task != "sft" or options.layout not in _LAYOUTS or options.mapping:
            return None
        message = message_type(_SHORT), message_type(1)
        return cls(options, *(row_decoder(messages=list[kind]) for kind in message)) if all(message) else None

    def judge(
        self,
        lines: Lines,
        place: Place,
        part: Part,
        take: Callable[[bytes, dict, Part], bool] | None,
        slow: Callable[[bytes, int], None],
    ) -> bool:
        """Fill `part`. `take` uses an accepted line, or sends it the slow way by False; `slow` judges one line.

        False when, without `take`, some line repeats a key: then the block must be judged line by line.
        """
        decode, digest, between, limit = self.decode, key_function(), BETWEEN.join, self.limit
        keys, put = part.keys.rows, part.keys.rows.keys.append
        rows, accepted, turns, marks = part.rows, 0, 0, 0
        at = -1
        for at, line in enumerate(io.BytesIO(lines.data)):
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
                    if len(text) > limit:
                        quoted = -1
                    elif (
                        len(text) != len(joined) or LESS_THAN in text or BRACKET in text or QUOTE in text or NUL in text
                    ):
                        quoted = quotation_marks(text, contents, line)
                    else:
                        quoted = 0
                    if quoted >= 0 and take is not None:
                        part.rows = rows
                        whole = 8 * size + 2 + quoted == line.count(b'"')
                        quoted = quoted if whole and take(line, {"messages": as_dicts(messages)}, part) else -1
                    if quoted >= 0:
                        if not accepted:
                            part.saw("messages", place.line + at + 1)
                        put(digest(text, size) or 1)
                        rows += 1
                        accepted += 1
                        turns += size
                        marks += quoted
                        continue
            part.rows = rows
            slow(line, at)
            rows = part.rows
            keys.fill(rows)
            marks += line.count(b'"')
        part.rows, part.lines, part.valid = rows, at + 1, part.valid + accepted
        if accepted:
            part.saw("messages", place.line, accepted - 1)
        return take is not None or 8 * turns + 2 * accepted + marks == self._marks(lines.data)

    def _with_short_texts(self, line: bytes) -> list:
        """The messages of a line whose texts may be short; none when it is anything else."""
        try:
            messages = self.decode_short(line).messages
        except ValueError:
            return []
        return [] if any(message.content in BLANK_WORDS for message in messages) else messages

    def _marks(self, data: bytes) -> int:
        self.seen += len(data)
        if self.seen > _NUMPY_FROM:
            try:
                import numpy
            except ImportError:
                return data.count(b'"')
            return int(numpy.count_nonzero(numpy.frombuffer(data, numpy.uint8) == QUOTE))
        return data.count(b'"')
