"""What a teacher model answered: empty, cut, looping, refusing, copying."""

from __future__ import annotations

import re
import zlib
from collections import Counter

from gemma_trainer.data.checking.refusals import is_refusal
from gemma_trainer.data.notes import Notes
from gemma_trainer.rows.content import fold, is_blank

CUT = frozenset({"length", "max_tokens"})
BLOCKED = frozenset({"content_filter", "safety", "recitation", "blocklist", "prohibited_content", "refusal", "error"})
# Han, kana and Hangul have no blanks between words: each letter counts as one.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\U00020000-\U0003ffff]|\w+")
_NUMBERING = re.compile(r"^\W*(?:\d{1,4}[.):]\s+)?")
_SENTENCE = re.compile(r"[.!?\u3002\uff01\uff1f\u0964\n]+")
_RUN = re.compile(r"(.{1,80}?)\1{19,}", re.DOTALL)
_RULER = 80  # characters
_WORDS, _WORDS_LOOKED_AT = 24, 60  # least words of a loop; at the end
_TAIL, _PIECE = 240, 60  # characters of a run at the end, and by which it is found
_MOST, _DISTINCT = 0.65, 0.25  # of all words: those of one phrase, and different ones; in lists and code more differ
_DENSE = 0.4  # what zlib leaves of text in which something stands twenty times over
_PLAIN, _PLAIN_SHORT, _PLAIN_LONG = 0.4, 0.8, 1500  # more than it leaves of any loop, long and short; characters
_COPIED = 40  # characters; a shorter prompt can be part of a good answer
_AROUND = 12  # characters that a copy may have around it, such as "Question:"


def check_response(text: str, prompt: str, finish_reason: object, notes: Notes) -> None:
    if is_blank(text):
        notes.fault("response-empty", "the response is empty", "response")
        return
    reason = finish_reason.lower() if isinstance(finish_reason, str) else None
    if reason in CUT:
        notes.fault("response-cut", "the response was cut at the token limit", "finish_reason")
    elif reason in BLOCKED:
        notes.fault("response-blocked", f"finish_reason is {reason}", "finish_reason")
    if is_loop(text):
        notes.fault("response-loop", "the response repeats itself", "response")
    if is_echo(text, prompt):
        notes.fault("response-echo", "the response is the prompt", "response")
    if is_refusal(text, prompt):
        notes.fault("response-refusal", "the whole response is a refusal", "response")


def is_echo(text: str, prompt: str) -> bool:
    """Whether a text is a copy of the prompt and nothing else; case, blanks and what stands around it aside."""
    if len(text) > 2 * len(prompt) + 100:
        return False
    said, asked = _bare(text), _bare(prompt)
    if said == asked:
        return bool(said)
    return len(asked) >= _COPIED and asked in said and len(said) - len(asked) <= _AROUND


def _bare(text: str) -> str:
    return "".join(_WORD.findall(fold(text)))


def is_loop(text: str) -> bool:
    """Whether a text says one thing over and over: one phrase or line fills most of it, or its end is one phrase."""
    if _ends_in_a_run(text):
        return True
    density = _density(text)
    if density > (_PLAIN if len(text) > _PLAIN_LONG else _PLAIN_SHORT):
        return False  # nothing in it stands there often
    words = _WORD.findall(text)
    if len(words) >= _WORDS and len(set(words)) < _DISTINCT * len(words):
        for size in (1, 2, 3, 4):
            phrases = Counter(zip(*(words[at:] for at in range(size)), strict=False))
            if phrases.most_common(1)[0][1] * size > len(words) * _MOST:
                return True
    lines = [_NUMBERING.sub("", line).strip() for line in text.splitlines() if _WORD.search(line)]
    sentences = [part.strip() for part in _SENTENCE.split(text) if len(_WORD.findall(part)) >= 3]
    if any(len(parts) >= 8 and _fills(parts) for parts in (lines, sentences)):
        return True
    return density < _DENSE and any(map(_is_long, _RUN.finditer(text)))


def _fills(parts: list[str]) -> bool:
    """Whether one part makes up more than half of all."""
    return Counter(parts).most_common(1)[0][1] > len(parts) / 2


def _is_long(run: re.Match[str]) -> bool:
    """Longer than the zeros of a number or the ruler of a table."""
    return len(run[0]) >= _RULER and bool(_WORD.search(run[1]))


def _density(text: str) -> float:
    """What zlib leaves of a text, 1 for a short one."""
    stored = text.encode("utf-8", "replace")
    return len(zlib.compress(stored, 1)) / len(stored) if len(stored) > 40 else 1.0


def _ends_in_a_run(text: str) -> bool:
    """Whether the end is one phrase over and over: by words, or by characters in any script."""
    text = text.rstrip()
    words = _WORD.findall(text[-10 * _WORDS_LOOKED_AT :])[-_WORDS_LOOKED_AT:]
    if len(words) >= _WORDS and any(_repeats(words, size) for size in range(1, len(words) // 4 + 1)):
        return True
    last = text.rfind(text[-_PIECE:], 0, len(text) - 1)
    period = len(text) - _PIECE - last
    length = max(4 * period, _TAIL)
    if last < 0 or length > len(text) or not _WORD.search(text[-period:]):
        return False
    return text[period - length :] == text[-length:-period]


def _repeats(words: list[str], size: int) -> bool:
    """Whether a list is one run of `size` words, at least four times."""
    times = len(words) // size
    return words[-size:] * times == words[-size * times :]
