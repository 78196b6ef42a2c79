"""JSON in what a teacher says: fenced or not, with chatter around, slightly broken, cut at its end.

Only whole values are taken. What is repaired (quotes, commas, Python's words) must keep every letter and digit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from gemma_trainer.data.reading.parse import MAX_DEPTH, Decoder, parse_text, syntax_fault

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n`]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_QUOTES = "\"'"
_CLOSE = {"{": "}", "[": "]"}
_BEHIND = re.compile(r"\s*(?:[,:}\]]|\Z)")  # what follows the quote that closes a string
_WORDS = (("True", "true"), ("False", "false"), ("None", "null"))
_OBJECT_BEGINS = re.compile(r"\{\s*[\"']")
_JSON_BEGINS = re.compile(r"\{\s*[\"']|\[\s*(?:[{\[\"']|\Z)")  # else a bracket of prose
_BRACKET = re.compile(r"[{\[]")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\Z)|[{\[]', re.DOTALL)
_LAST = 8  # characters: a value that breaks there was cut
_TRIES = 200  # brackets that open nothing; text full of them is no JSON


class Found(NamedTuple):
    """`values` are whole, in order. `fault` tells what else was there: None, or why a piece was left out."""

    values: list
    fault: str | None = None


def find_values(text: str, keys: Collection[str] = ()) -> Found:
    """Objects and lists in a text. `keys` are those that a wanted object has: where one is cut or broken, reading goes
    on at the next object that begins with one of them."""
    text = text.strip().removeprefix("\ufeff")
    value, fault = parse_text(text)
    if fault is None:
        return Found([value])
    whole = _scan(text, keys)
    fenced = "\n".join(block.group(2) for block in _FENCE.finditer(text))
    if not fenced:
        return whole
    inside = _scan(fenced, keys)  # chatter around a fence may hold brackets
    return inside if inside.values else whole


def samples_in(text: str, keys: Collection[str], bare: bool = True) -> Found:
    """Objects that have one of `keys`, whether they stand alone, line by line, in a list or below a key of a wrapper.

    Where there are none and one key is wanted, `bare` takes a list of texts for its values.
    """
    found = find_values(text, keys)
    samples = [sample for value in found.values for sample in _samples(value, keys, MAX_DEPTH)]
    if bare and not samples and not found.fault and len(keys) == 1:
        lists = [value for one in found.values for value in (one, *(one.values() if isinstance(one, dict) else ()))]
        texts = next(
            (one for one in lists if isinstance(one, list) and one and all(isinstance(t, str) for t in one)), []
        )
        samples = [{next(iter(keys)): text} for text in texts]
    return Found(samples, found.fault)


def _samples(value: object, keys: Collection[str], depth: int) -> Iterator[dict]:
    if depth == 0:
        return
    if isinstance(value, dict) and any(key in value for key in keys):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _samples(item, keys, depth - 1)


def _scan(text: str, keys: Collection[str]) -> Found:
    decoder, values, fault, at, tries = Decoder(), [], None, 0, 0
    is_cut = False
    while tries < _TRIES and (at := _next_bracket(text, at, in_strings=not is_cut)) < len(text):
        try:
            value, end, wrong = decoder.value_at(text, at)
        except json.JSONDecodeError as error:
            found = syntax_fault(text, error)
            is_cut = is_cut or found.code == "json-cut" or error.pos >= len(text) - _LAST
            value, end, wrong = _repaired(text, at, found.message)
        if wrong is None:
            values.append(value)
            at = end
            continue
        tries += 1
        fault = fault or (wrong if _JSON_BEGINS.match(text, at) else None)
        at = _going_on(text, at, end, is_cut, keys)
    return Found(values, fault)


def _going_on(text: str, at: int, end: int, is_cut: bool, keys: Collection[str]) -> int:
    """Where to look next behind a bracket whose value is of no use: behind the value, or inside for whole ones."""
    if not _OBJECT_BEGINS.match(text, at):
        return at + 1
    if end > 0:
        return end
    if not is_cut:
        return _next_sample(text, at + 1, keys)
    return len(text) if not keys or _next_sample(text, at, keys) == at else at + 1  # a wrapper may hold whole samples


def _repaired(text: str, start: int, fault: str) -> tuple[object, int, str | None]:
    """(value, end, None), or (None, end, fault); `end` is -1 where the bracket at `start` never closes."""
    end = _end_of(text, start)
    if end < 0:
        return None, -1, fault
    import json_repair

    span = text[start:end]
    try:
        value = json_repair.loads(span, skip_json_loads=True)
    except (ValueError, RecursionError):
        return None, end, fault
    written = json.dumps(value, ensure_ascii=False)
    same = isinstance(value, dict if text[start] == "{" else list) and _letters(span) == _letters(written)
    return (value, end, None) if same and not _has_stray_quote(value) else (None, end, fault)


def _has_stray_quote(value: object) -> bool:
    """Whether a repair has taken the quote around a string for a part of it."""
    if isinstance(value, str):
        return any(value.startswith(mark) != value.endswith(mark) for mark in _QUOTES)
    items = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return any(map(_has_stray_quote, items))


def _letters(text: str) -> list[str]:
    """Letters and digits of a JSON or Python text, without escapes, and its words in JSON's way."""
    for word, ours in _WORDS:
        text = re.sub(rf"\b{word}\b", ours, text)
    return re.findall(r"\w", re.sub(r"\\(?:u[0-9a-fA-F]{4}|.)", "", text))


def _end_of(text: str, start: int) -> int:
    """Behind the bracket that closes the one at `start`, or -1. Quotes inside strings need not be escaped."""
    open_brackets, at, quote = [], start, None
    while at < len(text):
        character = text[at]
        if quote:
            if character == "\\":
                at += 1
            elif character == quote and _BEHIND.match(text, at + 1):
                quote = None
        elif character in _QUOTES:
            quote = character
        elif character in _CLOSE:
            open_brackets.append(_CLOSE[character])
            if len(open_brackets) > MAX_DEPTH:
                return -1
        elif character in "}]":
            if open_brackets.pop() != character:
                return -1
            if not open_brackets:
                return at + 1
        at += 1
    return -1


def _next_bracket(text: str, start: int, in_strings: bool) -> int:
    """Where the next value may begin, else the end. What is cut is JSON up to there, and its strings hold no values."""
    pattern = _BRACKET if in_strings else _STRING_OR_BRACKET
    return next((found.start() for found in pattern.finditer(text, start) if found[0] in "{["), len(text))


def _next_sample(text: str, start: int, keys: Collection[str]) -> int:
    """Where the next object begins whose first key is one of `keys`, else the end: what is cut has no whole part."""
    if not keys:
        return len(text)
    names = "|".join(map(re.escape, keys))
    found = re.compile(rf"\{{\s*[\"']?(?:{names})[\"']?\s*:").search(text, start)
    return found.start() if found else len(text)
