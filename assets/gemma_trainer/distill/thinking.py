"""The raw text of an answer -> what is said and what is thought, where a server leaves both in one text."""

from __future__ import annotations

import re

from gemma_trainer.data.checking.marks_in_text import ending
from gemma_trainer.data.checking.thoughts import Marks, without_code
from gemma_trainer.families.catalogue import get_family

# (opening, closing) of a thought, as models write them.
_PAIRS = (
    (r"<(?:seed:)?think(?:ing)?>", r"</(?:seed:)?think(?:ing)?>"),  # Qwen, DeepSeek, and most others
    (r"<thought>", r"</thought>"),
    (r"<\|channel>(?:thought|analysis)?\n?", r"<channel\|>"),  # Gemma 4
    (r"<unused94>(?:thought)?\n?", r"<unused95>"),  # MedGemma
    (r"<\|channel\|>\s*(?:analysis|commentary)\s*<\|message\|>", r"<\|end\|>"),  # gpt-oss
    (r"\[THINK\]", r"\[/THINK\]"),  # Mistral
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),  # Kimi
    (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>"),  # Cohere
    (r"<\|begin_of_thought\|>", r"<\|end_of_thought\|>"),
)
_MARKS = Marks(_PAIRS, re.IGNORECASE)
_ANY = re.compile("|".join(mark for pair in _PAIRS for mark in pair), re.IGNORECASE)
# Headers in front of an answer, and marks around it.
_HEAD = re.compile(
    r"\s*(?:<\|start\|>assistant|<\|channel\|>\s*final\s*<\|message\|>|<\|START_RESPONSE\|>|<\|begin_of_solution\|>"
    r"|<\|im_start\|>\s*assistant\b|<start_of_turn>\s*model\b|<\|turn>\s*model\b"
    r"|<\|start_header_id\|>\s*assistant\s*<\|end_header_id\|>)"
)
_TAIL = re.compile(r"(?:<\|return\|>|<\|END_RESPONSE\|>|<\|end_of_solution\|>)\s*$")


def split_thinking(text: str) -> tuple[str, str | None]:
    """(content, reasoning or None). Marks of a turn's begin and end around the answer are taken off too.

    A thought that never closes leaves no content. A closing mark alone, as servers give where the prompt opened the
    thought, ends one. Marks further inside the answer stay, for the gate to tell.
    """
    thoughts: list[str] = []
    rest = _without_head(text)
    while found := _MARKS.leading(rest):
        _, thought, rest = found
        thoughts.append(thought.strip())
        rest = _without_head(rest or "")
    if not thoughts and (found := _MARKS.closed_only(rest)):
        thought, rest = found
        thoughts.append(thought.strip())
        rest = _without_head(rest)
    if thoughts:
        rest = rest.lstrip(" \t")  # of an answer without a thought they may be the indentation of code
    return _without_tail(rest).lstrip("\r\n").rstrip(), "\n\n".join(filter(None, thoughts)) or None


def has_thinking_marks(text: str) -> bool:
    """Whether a thought opens or closes somewhere in the text, outside of code."""
    return any(sign in text for sign in "<[\u25c1") and bool(_ANY.search(without_code(text)))


def _without_head(text: str) -> str:
    while found := _HEAD.match(text):
        text = text[found.end() :]
    return text


def _without_tail(text: str) -> str:
    family = get_family("gemma4")
    while found := (_TAIL.search(text) or ending(text, family)):
        text = text[: found.start()] if isinstance(found, re.Match) else text.rstrip().removesuffix(found)
    return text
