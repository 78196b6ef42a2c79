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
from typing import Annotated, Literal

from gemma_trainer.data.hashing import key_function
from gemma_trainer.data.keys import BETWEEN
from gemma_trainer.data.options import Options, Place
from gemma_trainer.data.part import Part
from gemma_trainer.data.raw import Lines
from gemma_trainer.families.catalogue import FAMILIES

_LAYOUTS = ("auto", "messages", "openai")
_SHORT = 5  # characters; what is shorter may be a word for a missing value
_BYTES_PER_TOKEN = 4  # a guessed length is never above this share of the bytes
_NUMPY_FROM = 1 << 22  # bytes, from which counting with numpy repays its import
_LESS_THAN, _BRACKET, _QUOTE, _NUL = b'<["\0'
# What stands behind the `<` of anything that a check looks for.
_TAILS = tuple({token[1:] for family in FAMILIES.values() for token in family.control_tokens if token[0] == "<"}
               | {"|", "think", "/think", "s>", "/s>", "unused"})  # fmt: skip
_STARTS = frozenset(tail[:2] for tail in _TAILS)


class PlainRows:
    """The fast path of one run."""

    def __init__(self, options: Options, decoder: Callable):
        self.decode, self.decode_short = decoder(_SHORT), decoder(1)
        self.takes_system = options.family.system != "refused"
        self.limit = options.max_length * _BYTES_PER_TOKEN if options.max_length else 1 << 60
        self.seen = 0

    @classmethod
    def for_run(cls, options: Options) -> PlainRows | None:
        """None where rows of this shape need the slow path, or msgspec is not installed."""
        if options.task != "sft" or options.layout not in _LAYOUTS or options.mapping:
            return None
        decoder = _decoder_maker()
        return decoder and cls(options, decoder)

    def judge(
        self,
        lines: Lines,
        place: Place,
        part: Part,
        take: Callable[[bytes, list[dict], Part], bool] | None,
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
                    text = between(contents).encode()
                    if _LESS_THAN in text or _BRACKET in text or _QUOTE in text or _NUL in text or len(text) > limit:
                        quoted = self._quoted(text, line)
                    else:
                        quoted = 0
                    if quoted >= 0 and (
                        take is None
                        or (8 * size + 2 + quoted == line.count(b'"') and take(line, _as_dicts(messages), part))
                    ):
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
            part.saw("messages", place.line + 1, accepted)
        return take is not None or 8 * turns + 2 * accepted + marks == self._marks(lines.data)

    def _with_short_texts(self, line: bytes) -> list:
        """The messages of a line whose texts may be short; none when it is anything else."""
        try:
            messages = self.decode_short(line).messages
        except ValueError:
            return []
        return [] if any(message.content.strip() in ("nan", "NaN", "None") for message in messages) else messages

    def _quoted(self, text: bytes, line: bytes) -> int:
        """Quotation marks in a text with a suspicious character; -1 where it holds what a check looks for."""
        if _NUL in text or len(text) > self.limit or b"[INST]" in text:
            return -1
        if _QUOTE in text and b"\\u0022" in line:  # a quotation mark that the line does not show
            return -1
        parts = text.decode().split("<")[1:] if _LESS_THAN in text else ()
        if any((part[:2] in _STARTS or part[:1] == "|") and part.startswith(_TAILS) for part in parts):
            return -1
        return text.count(b'"')

    def _marks(self, data: bytes) -> int:
        self.seen += len(data)
        if self.seen > _NUMPY_FROM:
            try:
                import numpy
            except ImportError:
                return data.count(b'"')
            return int(numpy.count_nonzero(numpy.frombuffer(data, numpy.uint8) == _QUOTE))
        return data.count(b'"')


def _as_dicts(messages: list) -> list[dict]:
    return [{"role": message.role, "content": message.content} for message in messages]


def _decoder_maker() -> Callable[[int], Callable] | None:
    """(least characters of a text) -> strict decoder of a row; None without msgspec."""
    try:
        import msgspec
    except ImportError:
        return None

    def decoder(least: int) -> Callable:
        said = Annotated[str, msgspec.Meta(min_length=least)]
        fields = [("role", Literal["system", "user", "assistant"]), ("content", said)]
        message = msgspec.defstruct("Message", fields, forbid_unknown_fields=True, gc=False)
        row = msgspec.defstruct("Row", [("messages", list[message])], forbid_unknown_fields=True, gc=False)
        return msgspec.json.Decoder(row).decode

    return decoder
