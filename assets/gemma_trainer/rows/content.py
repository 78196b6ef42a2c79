"""What a message says: helpers for content that is a string, a list of parts or null."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

# Characters that print nothing, beside white space: NUL, zero-width ones, soft hyphen, word joiner, byte order mark.
UNSEEN = "\0\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
_SEEN = re.compile(rf"[^\s{UNSEEN}]")
# What exporters write for a missing value.
BLANK_WORDS = frozenset({"nan", "NaN", "NaT", "None", "<NA>", "#N/A", "NULL"})


def text_of(content: object) -> str:
    """The text of a content, media parts left out."""
    if isinstance(content, str):
        return content
    return "".join(text for text in _part_texts(content))


def texts(message: dict) -> Iterator[tuple[str, str]]:
    """(path below the message, text) of every text in content and reasoning."""
    content = message.get("content")
    if isinstance(content, str):
        yield "content", content
    elif isinstance(content, list):
        for at, part in enumerate(content):
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                yield f"content[{at}].text", part["text"]
    if isinstance(message.get("reasoning_content"), str):
        yield "reasoning_content", message["reasoning_content"]


def are_plain(messages: list[dict]) -> bool:
    """Whether messages hold a role and a text, and nothing else."""
    return all(len(message) == 2 and message["content"].__class__ is str for message in messages)


def says_nothing(content: object) -> bool:
    """Whether there is neither visible text nor a media part."""
    if isinstance(content, str):
        return is_blank(content)
    if not isinstance(content, list):
        return not content  # an object is a structured result of a tool
    return not any(part.get("type") != "text" or not is_blank(part.get("text") or "") for part in content)


def is_blank(text: str) -> bool:
    """Whether a text shows nothing: white space and invisible characters only."""
    bare = text.strip()
    return not bare or (bare[0] in UNSEEN and not _SEEN.search(bare))


def media_of(content: object) -> list[str]:
    """Types of the parts that are not text: image, audio, video."""
    parts = content if isinstance(content, list) else []
    return [part["type"] for part in parts if isinstance(part, dict) and part.get("type") not in (None, "text")]


def fold(text: str) -> str:
    """The text with case and blanks folded: equal for texts that say the same."""
    return " ".join(text.split()).casefold()


def packed(value: object) -> str:
    """Equal for equal values, in whatever order their keys stand."""
    try:
        return json.dumps(value, sort_keys=True, default=str)
    except TypeError:  # keys of several types have no order
        return repr(value)


def without_ids(messages: list[dict]) -> list[dict]:
    """Messages without the ids that link results to calls: no template writes them, and the order tells the same."""
    return [
        {key: _functions(item) if key == "tool_calls" else item for key, item in m.items() if key != "tool_call_id"}
        for m in messages
    ]


def _functions(calls: list[dict]) -> list[dict]:
    return [call["function"] for call in calls]


def _part_texts(content: object) -> Iterator[str]:
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield part["text"]
