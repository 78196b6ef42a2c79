"""Which message a template refuses: Jinja tells why, and not where."""

from __future__ import annotations

import re
from collections.abc import Callable

from gemma_trainer.families.family import RenderError

_MESSAGE = re.compile(r"messages(?:\[(\d+)\])?")


def blamed(
    error: RenderError, render: Callable[[list[dict], list[dict] | None], object], messages: list[dict], tools
) -> RenderError:
    """The error with a path: the first message from which on every opening of the conversation is refused alike, or
    the tools when without them it is not. An error that has a path stays as it is."""
    if error.code != "template-refused" or error.path != "messages":
        return error

    def is_the_same(messages: list[dict], tools) -> bool:
        try:
            render(messages, tools)
        except RenderError as other:
            return str(other) == str(error)
        return False

    if tools and not is_the_same(messages, None):
        return RenderError(error.code, str(error), "tools")
    end = len(messages)
    while end and is_the_same(messages[: end - 1], tools):
        end -= 1
    if not end:
        return RenderError(error.code, f"{error}; no single message is to blame", "messages")
    return RenderError(error.code, str(error), f"messages[{end - 1}]")


def path_in_row(path: str | None, row: dict, side: str | None = None) -> str | None:
    """A path into the messages that were rendered as one into the row: its prompt, or the answer of a preference."""
    found = _MESSAGE.match(path or "")
    if not found or "prompt" not in row:
        return path
    shift = len(row["prompt"])
    if "chosen" not in row or (found[1] and int(found[1]) < shift):
        return path.replace("messages", "prompt", 1)
    side = side or ("chosen" if row["messages"][shift:] == row["chosen"] else "rejected")
    return path.replace(found[0], f"{side}[{int(found[1]) - shift}]" if found[1] else side, 1)
