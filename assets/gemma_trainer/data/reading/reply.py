"""The raw text of a teacher's reply -> samples: fenced or not, with chatter around, cut at the end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from gemma_trainer.data.reading.parse import MAX_DEPTH, Decoder, syntax_fault
from gemma_trainer.data.reading.raw import RawRow
from gemma_trainer.data.reading.read_json import is_message
from gemma_trainer.data.reading.sources import READ_ERRORS, open_bytes
from gemma_trainer.rows.problems import Problem

_BRACKETS = re.compile(r"[\[{\s]+")
SAMPLE_KEYS = frozenset(
    {"messages", "conversations", "contents", "instruction", "prompt", "completion", "response", "chosen", "text"}
    | {"question", "query", "problem"}
)


def read_reply(path: Path) -> Iterator[RawRow | Problem]:
    """Whole samples of a reply in order. One that is cut or broken becomes a row with a fault and its text."""
    with open_bytes(path) as stream:
        try:
            text = stream.read().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            yield Problem("invalid-utf8", f"byte {error.start + 1} of the reply is not UTF-8", str(path))
            return
        except READ_ERRORS:
            yield Problem("packed-cut", "the packed data ends or breaks before its end", str(path))
            return
    decoder, row, at, line, counted = Decoder(), 0, 0, 1, 0
    while (at := _next_bracket(text, at)) >= 0:
        line, counted = line + text.count("\n", counted, at), at
        try:
            value, end, fault = decoder.value_at(text, at)
        except json.JSONDecodeError as error:
            if not _opens_sample(text, at):
                deep = error.msg == "nested too deep"
                at = max(at + 1, _BRACKETS.match(text, at).end() - MAX_DEPTH) if deep else at + 1
                continue
            row += 1
            found = syntax_fault(text, error)
            code = "reply-cut" if found.code == "json-cut" else "reply-broken"
            end = _next_sample(text, at)
            problem = Problem(code, found.message, str(path), line, row)
            yield RawRow(None, line, row, problem, text[at:end].strip().encode("utf-8"))
            at = end
            continue
        if fault is not None:
            row += 1
            problem = Problem("reply-broken", fault.message, str(path), line, row)
            yield RawRow(None, line, row, problem, text[at:end].encode("utf-8"))
        elif is_sample(value):
            row += 1
            yield RawRow(value, line, row)
        else:
            end = at + 1  # an array or a wrapper: its samples are inside
        at = end


def is_sample(value: object) -> bool:
    if isinstance(value, list):
        return len(value) > 1 and all(is_message(item) for item in value)
    return isinstance(value, dict) and bool(value.keys() & SAMPLE_KEYS)


def _next_bracket(text: str, start: int) -> int:
    found = [at for at in (text.find("{", start), text.find("[", start)) if at >= 0]
    return min(found, default=-1)


def _opens_sample(text: str, at: int) -> bool:
    """Whether the object that begins here, broken as it is, has the first key of a sample."""
    head = text[at + 1 : at + 60].lstrip()
    return text[at] == "{" and any(head.startswith(f'"{key}"') for key in (*SAMPLE_KEYS, "id"))


def _next_sample(text: str, at: int) -> int:
    """Where the next object with a sample's first key begins, or the end."""
    start = at + 1
    while (start := text.find("{", start)) >= 0:
        if _opens_sample(text, start):
            return start
        start += 1
    return len(text)
