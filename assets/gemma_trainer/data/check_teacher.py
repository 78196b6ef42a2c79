"""What a teacher model answered: empty, cut, looping, refusing."""

from __future__ import annotations

import re
from collections import Counter

from gemma_trainer.data.notes import Notes

_LONG = 300  # characters; a real answer that opens with an apology goes on
# First person, unable, and a verb of serving the request: not every "sorry" and not every "cannot".
_REFUSAL = re.compile(
    r"^\W*(?:i['’]m (?:really |very |so )?sorry|sorry|i apologi[sz]e|unfortunately|as an ai\b|i)\b.{0,80}?"
    r"\b(?:can(?:['’]t|not| not)|unable to|not able to|won['’]t|must decline|have to decline)\b.{0,30}?"
    r"\b(?:assist|help|provide|comply|fulfil+|answer|generate|create|write|produce|translate|discuss|share|"
    r"do that|do this|continue|complete|engage|support)\b",
    re.IGNORECASE | re.DOTALL,
)
_WORD = re.compile(r"\w+")
_RUN = re.compile(r"(\S{1,8}?)\1{40,}")


def check_response(text: str, finish_reason: object, notes: Notes) -> None:
    if not text.strip():
        notes.fault("response-empty", "the response is empty", "response")
        return
    if finish_reason in ("length", "max_tokens", "MAX_TOKENS"):
        notes.fault("response-cut", "the response was cut at the token limit", "finish_reason")
    if is_loop(text):
        notes.fault("response-loop", "the response repeats itself", "response")
    if len(text) <= _LONG and _REFUSAL.match(text):
        notes.fault("response-refusal", "the whole response is a refusal", "response")


def is_loop(text: str) -> bool:
    """Whether a text says one thing over and over: one phrase or line fills most of it, or its end is one phrase."""
    words = _WORD.findall(text)
    if len(words) >= 24:
        for size in (1, 2, 3, 4):
            phrases = Counter(zip(*(words[at:] for at in range(size)), strict=False))
            if phrases.most_common(1)[0][1] * size > len(words) / 2:
                return True
        tail = words[-60:]
        if any(_repeats(tail, size) for size in range(1, len(tail) // 4 + 1)):
            return True
    lines = [line.strip() for line in text.splitlines() if _WORD.search(line)]
    if len(lines) >= 8 and Counter(lines).most_common(1)[0][1] > len(lines) / 2:
        return True
    run = _RUN.search(text)
    return bool(run and _WORD.search(run.group(1)))


def _repeats(words: list[str], size: int) -> bool:
    """Whether the end of a list is one run of `size` words, at least four times."""
    times = len(words) // size
    return words[-size:] * times == words[-size * times :]
