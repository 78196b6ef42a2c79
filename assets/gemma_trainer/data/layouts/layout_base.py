"""What the readers of all layouts share: the context of a row, and how a canonical row is put together."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gemma_trainer.data.layouts.anthropic import text_blocks
from gemma_trainer.data.layouts.chat import canonical_messages, is_parts, messages_of, with_system
from gemma_trainer.data.layouts.conventions import plain_messages
from gemma_trainer.data.notes import Notes, Refused
from gemma_trainer.data.reading.parse import parse_text
from gemma_trainer.data.reading.read_json import is_message
from gemma_trainer.families.family import Family
from gemma_trainer.rows.content import media_of, text_of
from gemma_trainer.rows.roles import ASSISTANT, canonical_role

CONVERSATIONS = ("messages", "conversations", "conversation")
TOKENS = ("input_ids", "labels", "attention_mask", "assistant_masks", "completion_mask")
_TOKENS = frozenset(TOKENS)
# Columns that make a trainer, or the next reader, take another path than the row that was made.
_RIVALS = {
    "messages": frozenset({*CONVERSATIONS, "contents", "prompt", "completion", "chosen", "rejected", *TOKENS}),
    "chosen": frozenset({"messages", "completion", *TOKENS}),
    "text": frozenset({*CONVERSATIONS, "prompt", "completion", "chosen", "rejected", *TOKENS}),
    "input_ids": frozenset({*CONVERSATIONS, "prompt", "completion", "chosen", "rejected", "text"}),
    "prompt": frozenset({*CONVERSATIONS, "contents", "chosen", "rejected", *TOKENS}),
}
_PRINTED = re.compile(r"""\s*\[\s*\{\s*'(?:role|from|content|value)':""")


class Layout(NamedTuple):
    """`matches` looks at the columns of a row that are not null. `converted` tells that trainers do not take it."""

    read: Callable[[dict, Context], dict]
    matches: Callable[[Mapping], bool]
    converted: bool = True


class Context(NamedTuple):
    task: str
    notes: Notes
    family: Family | None = None
    known_roles: frozenset[str] = frozenset()
    mapped: frozenset[str] = frozenset()  # fields that --map names

    def messages(self, value: object, path: str) -> list[dict]:
        """Canonical messages of a list in any convention. Raises Refused."""
        messages = plain_messages(messages_of(value, path, self.notes), path, self.notes)
        return canonical_messages(messages, path, self.notes, self.known_roles)

    def turns(self, value: object, role: str, path: str) -> list[dict]:
        """Messages of a field that holds text, one message or several."""
        if isinstance(value, str):
            return [{"role": role, "content": value}]
        if is_contents(value):
            value = [{**value, "role": value.get("role") or role}]
        elif is_message(value) and not isinstance(value.get("role", value.get("from")), list):
            value = [value]
        refuse_bytes(value, path)
        if not isinstance(value, list | dict):
            raise Refused("content-type", f"{path} is neither text nor a list of messages", path)
        return self.messages(value, path)

    def says_same(self, value: object, messages: list[dict]) -> bool:
        try:
            return self._replace(notes=Notes()).messages(value, "messages") == messages
        except Refused:
            return False

    def converted(self, what: str) -> None:
        self.notes.repair("layout-converted", what)


def assembled(made: dict, rest: Mapping, notes: Notes) -> dict:
    """The canonical row: what was made and the columns that are left, rivals of it aside."""
    if not rest:
        return made
    kind = next(key for key in _RIVALS if key in made)
    rivals = _RIVALS[kind] & rest.keys() - made.keys()
    if "input_ids" not in rest:
        rivals -= _TOKENS  # columns of those names and another meaning
    others = {name for name in made.keys() & rest.keys() if made[name] is not rest[name]}
    for rival in sorted(rivals | others):
        notes.repair("column-ignored", f"`{kind}` wins, the column `{rival}` is left out", rival)
    return {**made, **{name: value for name, value in rest.items() if name not in made and name not in rivals}}


def with_column(messages: list[dict], rest: dict, context: Context, told: str | None = None) -> tuple[list[dict], dict]:
    """(messages, columns left): text of the column `system` in front, unless the messages have system text of their own.

    It may be Anthropic's blocks of text. `told` is the path of the messages in layouts to which the column does not belong:
    trainers would pass it over.
    """
    if "system" not in rest:
        return messages, rest
    system = rest["system"]
    if isinstance(system, list):
        system = text_blocks(system)
    longer = with_system(messages, system)
    if longer is not messages:
        if told:
            context.notes.repair("system-column", "the column `system` became the first message", f"{told}[0]")
        return context.messages(longer, "messages"), without(rest, "system")
    if not isinstance(system, str) and not is_parts(system):
        return messages, rest
    says = text_of(system).strip() or media_of(system)
    if says and says != text_of(messages[0]["content"]).strip():
        context.notes.repair("column-ignored", "the system message wins, the column `system` is left out", "system")
    return messages, without(rest, "system")


def without(fields: Mapping, *names: str) -> dict:
    return {name: value for name, value in fields.items() if name not in names}


def only_one(fields: Mapping, names: tuple[str, ...], what: str, field: str, context: Context) -> str | None:
    """The one column of several names that is there and says something, or one that --map names.

    Raises Refused where two of them say different things.
    """
    found = [name for name in names if name in fields]
    named = [name for name in found if name in context.mapped]
    telling = [name for name in found if isinstance(fields[name], list | dict | str) and fields[name]]
    if not named and len({repr(fields[name]) for name in telling}) > 1:
        shown = " and ".join(f"`{name}`" for name in telling)
        raise Refused("columns-ambiguous", f"{shown} could each be {what}: name one with --map {field}=...", telling[0])
    return next(iter(named or telling or found), None)


def text_in(fields: Mapping, name: str) -> str:
    """The text of a column, empty when it is absent. Raises Refused for anything else."""
    value = fields.get(name, "")
    refuse_bytes(value, name)
    if not isinstance(value, str):
        raise Refused("content-type", f"{name} is no text", name)
    return value


def refuse_bytes(value: object, path: str) -> None:
    """Raise Refused for bytes of a table where text is wanted."""
    if isinstance(value, dict) and value.keys() == {"base64"}:
        fix = "Write the column as text: only its writer knows the encoding of the bytes."
        raise Refused("content-type", f"{path} holds bytes, not text", path, fix)


def is_contents(value: object) -> bool:
    """Whether a value is one message of Gemini."""
    return isinstance(value, dict) and isinstance(value.get("parts"), list)


def stored_messages(value: object, path: str) -> list | None:
    """The messages that a text stands for, where it is a JSON list of nothing else. Raises Refused for Python's print."""
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return None
    if _PRINTED.match(value):
        raise Refused("python-literal", "a printed Python list, not JSON", path)
    messages, fault = parse_text(value)
    if fault or not isinstance(messages, list) or not messages or not all(is_message(m) for m in messages):
        return None
    names = [message.get("role", message.get("from")) for message in messages]
    known = all(isinstance(name, str) and canonical_role(name) for name in names)
    return messages if known else None


def decoded_turns(fields: dict, asked: str, answers: tuple[str, ...], notes: Notes) -> dict:
    """Columns that hold messages as JSON text, decoded.

    An answer that is JSON is an answer: it is decoded only where every answer in text is a list of messages that ends
    with the assistant, and the prompt or another answer is such a list too.
    """
    columns = (asked, *answers)
    for name in columns:
        if (text := fields.get(name)).__class__ is str and text.lstrip().startswith("["):
            break
    else:
        return fields  # most rows
    found = {name: stored_messages(fields.get(name), name) for name in columns}
    texts = [name for name in answers if isinstance(fields.get(name), str)]
    lists = sum(found[name] is not None or isinstance(fields.get(name), list) for name in columns)
    if lists < 2 or not all(found[name] and _ends_spoken(found[name]) for name in texts):
        found = {asked: found[asked]}
    decoded = {name: messages for name, messages in found.items() if messages}
    for name in decoded:
        notes.repair("text-decoded", "messages were stored as JSON text", name)
    return {**fields, **decoded} if decoded else fields


def _ends_spoken(messages: list[dict]) -> bool:
    last = messages[-1]
    return canonical_role(str(last.get("role", last.get("from")))) == ASSISTANT
