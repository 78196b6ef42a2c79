"""What the fast paths share: strict decoders, and what in a text needs the slow path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from gemma_trainer.data.checking.marks_in_text import WATCHED
from gemma_trainer.data.options import Options
from gemma_trainer.data.running.part import Part
from gemma_trainer.rows.content import is_blank

LESS_THAN, BRACKET, QUOTE, NUL = b'<["\0'
HIDDEN_QUOTE = b"\\u0022"  # a quotation mark that the line does not show
Take = Callable[[bytes, dict, Part], bool]  # uses an accepted line and its row, or sends it the slow way by False
Slow = Callable[[bytes], None]  # judges the next line of the batch
_BYTES_PER_TOKEN = 4  # a guessed length is never above this share of the bytes
_UNDECODED = "\ufffd".encode()
# What stands behind the `<` or begins with the bracket of anything that a check looks for.
_TAILS = tuple(mark[1:] for mark in WATCHED if mark[0] == "<")
_STARTS = frozenset(tail[:1] for tail in _TAILS)
_BRACKETED = tuple(mark.encode() for mark in WATCHED if mark[0] in "[{")


class Plain:
    """What the fast paths take from the options of a run."""

    def __init__(self, options: Options):
        self.takes_system = options.family.system != "refused"
        self.limit = options.max_length * _BYTES_PER_TOKEN if options.max_length else 1 << 60


def is_harmless(text: bytes, contents: list[str]) -> bool:
    """Whether the joined contents of a line hold nothing that a check looks for."""
    if NUL in text or (BRACKET in text and any(mark in text for mark in _BRACKETED)):
        return False
    if not text.isascii() and (_UNDECODED in text or any(map(is_blank, contents))):
        return False
    tails = text.decode().split("<")[1:] if LESS_THAN in text else ()
    return not any(tail[:1] in _STARTS and tail.startswith(_TAILS) for tail in tails)


def holds_strings(line: bytes, count: int, text: bytes) -> bool:
    """Whether a line holds so many strings and no more; `text` is what those say that are not keys or roles."""
    if QUOTE in text and HIDDEN_QUOTE in line:
        return False
    return line.count(b'"') == 2 * count + text.count(b'"')


def message_type(least: int) -> type | None:
    """A message of a role, and a text of at least so many characters; None without msgspec."""
    try:
        import msgspec
    except ImportError:
        return None
    fields = [("role", Literal["system", "user", "assistant"]), ("content", text_type(least))]
    return msgspec.defstruct("Message", fields, forbid_unknown_fields=True, gc=False)


def text_type(least: int):
    import msgspec

    return Annotated[str, msgspec.Meta(min_length=least)]


def row_decoder(**fields: object) -> Callable:
    """A decoder of lines that hold an object of exactly these fields. It raises ValueError for any other line."""
    import msgspec

    row = msgspec.defstruct("Row", list(fields.items()), forbid_unknown_fields=True, gc=False)
    return msgspec.json.Decoder(row).decode


def as_dicts(messages: list) -> list[dict]:
    return [{"role": message.role, "content": message.content} for message in messages]
