"""What a message says: helpers for content that is a string, a list of parts or null."""

from __future__ import annotations

import re
from collections.abc import Iterator

_BLANKS = re.compile(r"\s+")


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
    elif content:
        for at, part in enumerate(content):
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                yield f"content[{at}].text", part["text"]
    if isinstance(message.get("reasoning_content"), str):
        yield "reasoning_content", message["reasoning_content"]


def says_nothing(content: object) -> bool:
    """Whether there is neither visible text nor a media part."""
    if isinstance(content, str):
        return not content.strip()
    if not content:
        return True
    return not any(part.get("type") != "text" or (part.get("text") or "").strip() for part in content)


def media_of(content: object) -> list[str]:
    """Types of the parts that are not text: image, audio, video."""
    parts = content if isinstance(content, list) else []
    return [part["type"] for part in parts if isinstance(part, dict) and part.get("type") not in (None, "text")]


def fold(text: str) -> str:
    """The text with case and blanks folded: equal for texts that say the same."""
    return _BLANKS.sub(" ", text).strip().casefold()


def _part_texts(content: object) -> Iterator[str]:
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield part["text"]
