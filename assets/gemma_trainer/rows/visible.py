"""Text of the data on a terminal, which must not take it for commands."""

from __future__ import annotations

import re

# Controls but tab and line feed, U+2028 and U+2029, marks that change the direction of what is shown, halves of pairs.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def visible(text: str) -> str:
    """The text with escapes, such as \\x1b, for the characters that act on a terminal instead of being shown."""
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
