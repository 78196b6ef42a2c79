"""What a teacher model answered: empty, cut, looping, refusing."""

from __future__ import annotations

import re
from collections import Counter

from gemma_trainer.data.notes import Notes
from gemma_trainer.rows.content import fold

_LONG = 300  # characters; a real answer that opens with an apology goes on
_CUT = frozenset({"length", "max_tokens"})
_BLOCKED = frozenset({"content_filter", "safety", "recitation", "blocklist", "prohibited_content", "refusal", "error"})
# First person, unable, and right behind it a verb of serving the request: not every "sorry" and not every "cannot".
_OPENING = (
    r"^\W*(?:(?:i['’]m|i am) (?:really |very |so )?sorry|sorry|my apologies|i apologi[sz]e|unfortunately"
    r"|as an? (?:ai|language model)\b|i\b)"
)
_UNABLE = (
    r"\b(?:can(?:['’]t|not| not)|(?:un|not )able to|won['’]t|will not|(?:must|have to) (?:\w+ly )?decline(?: to)?"
    r"|(?:do not|don['’]t) feel comfortable|not comfortable)(?: be able to)?(?: \w+ly)?"
)
_HELP = r"(?:help|assist|helping|assisting)(?: you)?(?: with\b| in\b|[.,;!]|\s*$)"
_SERVE = (
    r"(?:provid|compl|fulfil|answer|generat|creat|writ|produc|translat|discuss|shar|do|continu|engag|support|respond)"
    r"(?:e|l|y|ing)?\b"
)
_REFUSAL = re.compile(rf"{_OPENING}.{{0,80}}?{_UNABLE} (?:{_HELP}|{_SERVE})", re.IGNORECASE | re.DOTALL)
# Said of the request itself it stays a refusal, whatever consolation follows.
_PLAIN_REFUSAL = re.compile(
    rf"{_OPENING}.{{0,80}}?{_UNABLE} (?:(?:help|assist)(?: you)? with|fulfil+|comply with|complete|answer) "
    r"(?:this|that|your)(?: \w+)?[.,;!]",
    re.IGNORECASE | re.DOTALL,
)
_WORD = re.compile(r"\w+")
_RUN = re.compile(r"(\S{1,8}?)\1{40,}")


def check_response(text: str, prompt: str, finish_reason: object, notes: Notes) -> None:
    if not text.strip():
        notes.fault("response-empty", "the response is empty", "response")
        return
    reason = finish_reason.lower() if isinstance(finish_reason, str) else None
    if reason in _CUT:
        notes.fault("response-cut", "the response was cut at the token limit", "finish_reason")
    elif reason in _BLOCKED:
        notes.fault("response-blocked", f"finish_reason is {reason}", "finish_reason")
    if is_loop(text):
        notes.fault("response-loop", "the response repeats itself", "response")
    if fold(text) == fold(prompt):
        notes.fault("response-echo", "the response is the prompt", "response")
    if _PLAIN_REFUSAL.match(text) or (len(text) <= _LONG and _REFUSAL.match(text)):
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
