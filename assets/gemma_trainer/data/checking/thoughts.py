"""Thinking inside the text of an answer: where it begins and ends, and what of it can move into reasoning_content."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gemma_trainer.families.family import Family
from gemma_trainer.rows.content import is_blank

_CHANNEL = (r"<\|channel>(?:(?:thought|analysis)\n)?", r"<channel\|>")
_THINK = (r"<think(?:ing)?>", r"</think(?:ing)?>")
_CHANNELS = re.compile(r"<\|channel>.*?<channel\|>", re.DOTALL)
_CODE, _LETTER = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL), re.compile(r"[^\n]")
_CODES = ("inline-thought", "think-tags")
# Reasoning models' replies often begin inside the thought; an answer about the tag has it within a line.
_CLOSES = re.compile(rf"^\s*{_THINK[1]}\s*$", re.MULTILINE)


class Marks:
    """Pairs of marks around thinking, as regular expressions for what opens and what closes it."""

    def __init__(self, pairs: Iterable[tuple[str, str]], flags: int = 0):
        pairs = list(pairs)
        self.openings = [re.compile(rf"\s*{opening}", flags) for opening, _ in pairs]
        self.closings = [re.compile(closing, flags) for _, closing in pairs]

    def leading(self, text: str) -> tuple[int, str, str | None] | None:
        """(number of the pair, thought, what follows) of a text that begins with thinking; None follows an open one."""
        for number, (opening, closing) in enumerate(zip(self.openings, self.closings, strict=True)):
            if begin := opening.match(text):
                if end := closing.search(text, begin.end()):
                    return number, text[begin.end() : end.start()], text[end.end() :]
                return number, text[begin.end() :], None
        return None

    def closed_only(self, text: str) -> tuple[str, str] | None:
        """(thought, what follows) of a text whose one mark closes a thought that the prompt had opened."""
        bare = without_code(text)
        for opening, closing in zip(self.openings, self.closings, strict=True):
            if not opening.search(bare) and len(ends := list(closing.finditer(bare))) == 1:
                return text[: ends[0].start()], text[ends[0].end() :]
        return None


_ANY, _TAGS = Marks((_CHANNEL, _THINK)), Marks([_THINK])


def without_code(text: str) -> str:
    """The text with code blanked out, line breaks aside; equal in length."""
    return _CODE.sub(lambda found: _LETTER.sub(" ", found[0]), text)


def has_open_tag(text: str) -> bool:
    """Whether the text begins with a `<think>` that never closes."""
    found = _TAGS.leading(text)
    return found is not None and found[2] is None


def has_tags(text: str) -> bool:
    """Whether `<think>` tags mark thinking, as opposed to a text that is about them."""
    return _TAGS.leading(text) is not None or bool(_CLOSES.search(without_code(text)))


def visible(text: str) -> str:
    """What a text of an answer says beside its thinking."""
    if "think" in text or "<|channel>" in text:
        text = _CHANNELS.sub("", _split(text)[1])
    return "" if is_blank(text) else text.strip()


def moved(message: dict, family: Family) -> tuple[dict, list[str]]:
    """(the message with the thinking at the start of its content in reasoning_content, codes of what was moved).

    The same message and no codes where the family has no place for it, or where marks would be left behind: thinking
    within or behind the answer has no place of its own.
    """
    content, known = message["content"], message.get("reasoning_content", "")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not family.thinking or not parts or parts[0].get("type") != "text" or not isinstance(known, str):
        return message, []
    thoughts, rest, codes = _split(parts[0]["text"])
    others = [part["text"] for part in parts[1:] if part.get("type") == "text"]
    if not codes or any(_is_marked(text) for text in (known, *thoughts, rest, *others)) or _is_nested(thoughts, rest):
        return message, []
    if isinstance(content, str):
        content = rest
    else:
        content = [{**parts[0], "text": rest}, *parts[1:]] if rest or not parts[1:] else parts[1:]
    reasons = [known, *(thought for thought in thoughts if thought.strip() != known.strip())]
    reasoning = "\n\n".join(filter(None, reasons))
    return {**message, "content": content, **({"reasoning_content": reasoning} if reasoning else {})}, codes


def _split(text: str) -> tuple[list[str], str, list[str]]:
    """(thoughts, what follows them, codes of their kinds); all that closes before the answer begins."""
    thoughts, codes, rest = [], [], text
    while (found := _ANY.leading(rest)) and found[2] is not None:
        number, thought, rest = found
        thoughts.append(thought.strip())
        codes.append(_CODES[number])
    if not codes and _CLOSES.search(without_code(text)) and (found := _TAGS.closed_only(text)):
        thoughts, rest, codes = [found[0].strip()], found[1], ["think-tags"]
    if codes:
        rest = rest.lstrip(" \t").lstrip("\r\n")  # blanks behind a line break may be the indentation of code
    return thoughts, rest, list(dict.fromkeys(codes))


def _is_marked(text: str) -> bool:
    """Whether marks of thinking are left in a text."""
    channel = any(pattern.search(text) for pattern in (_ANY.openings[0], _ANY.closings[0]))
    return channel or has_tags(text)


def _is_nested(thoughts: Iterable[str], rest: str) -> bool:
    """Whether a tag behind the thoughts may be the one that closes them, of tags inside of tags."""
    opening, closing = _TAGS.openings[0], _TAGS.closings[0]
    return bool(closing.search(rest)) and any(opening.search(thought) for thought in thoughts)
