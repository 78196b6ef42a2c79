"""Messages in the conventions of other tools -> messages with a role and a content.

Conventions: two keys of any names (unsloth), pairs of a question and an answer (ms-swift), Gemini's parts, Anthropic's
blocks. Messages with role/content or from/value pass through; chat.py reads those.
"""

from __future__ import annotations

from gemma_trainer.data.layouts.anthropic import from_blocks, has_blocks
from gemma_trainer.data.layouts.gemini import from_contents
from gemma_trainer.data.notes import Notes
from gemma_trainer.rows.roles import ASSISTANT, SYSTEM, USER, canonical_role

_SPEAKER, _SAID = {"role", "from"}, {"content", "value"}
# Fields of a message that are neither its role nor what it says.
_FIELDS = {"tool_calls", "function_call", "tool_call_id", "name", "weight", "parts"}
_FIELDS |= {"reasoning_content", "reasoning", "thinking", "tool_responses"}


def plain_messages(messages: list, path: str, notes: Notes) -> list:
    """The messages with a role and a content each, as far as the convention is known."""
    for message in messages:
        if message.__class__ is not dict:
            return messages
        if "role" in message:
            said = message.get("content")
            if said.__class__ is str or (said is None and message.get("tool_calls")):
                continue
        elif "from" in message and message.get("value").__class__ is str:
            continue
        break
    else:
        return messages  # most rows
    if not all(isinstance(message, dict) for message in messages):
        return messages
    keys = {key for message in messages for key, value in message.items() if value is not None}
    if "parts" in keys and "content" not in keys:
        return from_contents(messages, path, notes)
    if not keys & _SPEAKER and (pairs := _from_pairs(messages, keys, path, notes)):
        return pairs
    if not (keys & _SPEAKER and keys & _SAID):
        return _named(messages, keys, path, notes)
    if any(has_blocks(message.get("content")) for message in messages):
        notes.repair("layout-converted", "content blocks became messages", path)
        return from_blocks(messages, path, notes)
    return messages


def _from_pairs(messages: list[dict], keys: set[str], path: str, notes: Notes) -> list[dict]:
    """`[{"user": ..., "assistant": ...}, ...]`: a question and its answer in one object."""
    roles = {key: canonical_role(key) for key in keys if isinstance(key, str)}
    if len(roles) < len(keys) or not set(roles.values()) <= {SYSTEM, USER, ASSISTANT}:
        return []
    if len(set(roles.values())) < len(roles) or not {USER, ASSISTANT} <= set(roles.values()):
        return []
    ordered = [key for role in (SYSTEM, USER, ASSISTANT) for key in roles if roles[key] == role]
    notes.repair("layout-converted", "pairs of a question and an answer became messages", path)
    return [
        {"role": roles[key], "content": message[key]}
        for message in messages
        for key in ordered
        if message.get(key) is not None
    ]


def _named(messages: list[dict], keys: set[str], path: str, notes: Notes) -> list[dict]:
    """Messages with two keys of unknown names: one tells who speaks, the other what is said."""
    if len(keys) != 2 or keys & _FIELDS:
        return messages
    key = _role_key(messages, keys)
    if key is None or not all(isinstance(message.get(key), str) for message in messages):
        return messages
    said = next(iter(keys - {key}))
    notes.repair("layout-converted", f"the keys `{key[:30]}` and `{said[:30]}` became role and content", path)
    return [{"role": message[key], "content": message.get(said)} for message in messages]


def _role_key(messages: list[dict], keys: set[str]) -> str | None:
    if known := keys & _SPEAKER:
        return known.pop()
    if known := keys & _SAID:
        return next(iter(keys - known), None)
    values = {key: [message.get(key) for message in messages] for key in sorted(keys)}
    roles = [key for key, names in values.items() if all(isinstance(n, str) and canonical_role(n) for n in names)]
    if len(roles) == 1:
        return roles[0]
    left, right = (len({str(value) for value in names}) for names in values.values())
    return None if left == right else sorted(keys)[left > right]
