"""Messages of any convention -> canonical messages. Nothing is changed in place; what is clean is passed on."""

from __future__ import annotations

import re

from gemma_trainer.data.layouts.tools import canonical_call, canonical_calls
from gemma_trainer.data.notes import Notes, Refused
from gemma_trainer.data.reading.parse import parse_text
from gemma_trainer.rows.roles import ASSISTANT, CALL, SYSTEM, TOOL, canonical_role

_PLAIN = frozenset({"system", "user", "assistant"})
_REASONING = ("reasoning_content", "reasoning", "thinking")
_PART_TYPES = frozenset({"text", "image", "audio", "video", "input_audio"})
_PRINTED = re.compile(r"\s*\[\s*\{\s*'|\s*\[\s*\{\s*\"\w+\":\s*'")


def messages_of(value: object, path: str, notes: Notes) -> list:
    """A list of messages, decoded from JSON text where it is stored as such. Raises Refused."""
    if isinstance(value, str):
        if _PRINTED.match(value):
            raise Refused("python-literal", "a printed Python list, not JSON", path)
        value, fault = parse_text(value)
        if fault or not isinstance(value, list):
            reason = fault.message if fault else "it is no list"
            raise Refused("messages-type", f"messages as text that is no JSON list: {reason}", path)
        notes.repair("text-decoded", "messages were stored as JSON text", path)
    if isinstance(value, dict) and (columns := _columns(value)):
        notes.repair("layout-converted", "messages stored column by column became a list", path)
        value = columns
    if not isinstance(value, list):
        raise Refused("messages-type", f"messages are {_kind(value)}, not a list", path)
    if not value:
        raise Refused("messages-empty", "the list of messages is empty", path)
    return value


def _columns(value: dict) -> list[dict]:
    """`{"role": [...], "content": [...]}`, which Arrow makes of lists of objects, as messages; none for other objects."""
    columns = {key: items for key, items in value.items() if items is not None}
    if not columns or not all(isinstance(items, list) for items in columns.values()):
        return []
    if not {"role", "from"} & columns.keys() or len({len(items) for items in columns.values()}) > 1:
        return []
    return [dict(zip(columns, items, strict=True)) for items in zip(*columns.values(), strict=True)]


def canonical_messages(messages: list, path: str, notes: Notes, known: frozenset[str] = frozenset()) -> list[dict]:
    """Canonical messages. Raises Refused after all faults are noted when one has no canonical form.

    `known` are role names that need no warning when they are renamed.
    """
    out: list | None = None
    broken = False
    for at, message in enumerate(messages):
        if (
            message.__class__ is dict
            and len(message) == 2
            and (role := message.get("role")).__class__ is str
            and role in _PLAIN
            and message.get("content").__class__ is str
        ):
            continue  # most messages of most rows
        where = f"{path}[{at}]"
        try:
            clean = _message(message, at, where, notes, known)
        except Refused as refusal:
            notes.found.append(refusal.note)
            broken = True
            continue
        if clean is not message:
            out = list(messages) if out is None else out
            out[at] = clean
    if broken:
        refusal = notes.found.pop()
        raise Refused(*refusal)
    out = messages if out is None else out
    _note_mixture(messages, path, notes)
    return out


def _message(message: object, at: int, where: str, notes: Notes, known: frozenset[str]) -> dict:
    if not isinstance(message, dict):
        raise Refused("messages-type", f"a message is {_kind(message)}, not an object", where)
    fields = {key: value for key, value in message.items() if value is not None or key == "content"}
    role = _role(fields, at, where, notes, known)
    content = _said(fields, where)
    if role == CALL:
        clean = _call_turn(content, where, notes)
        _reasoning(fields, clean, where, notes)
        _weigh(fields, clean, where)
        return {**fields, **clean}
    clean = {"role": role, "content": _content(content, role, f"{where}.content", notes)}
    _calls(fields, clean, where, notes)
    _names(fields, where, notes)
    _reasoning(fields, clean, where, notes)
    _weigh(fields, clean, where)
    if clean["content"] is None and "tool_calls" not in clean:
        if role == ASSISTANT and "content" in message:
            raise Refused("answer-empty", "the content of an assistant message is null", f"{where}.content")
        an = "an" if role == ASSISTANT else "a"
        raise Refused("content-missing", f"{an} {role} message has no content", f"{where}.content")
    clean.update(fields)
    same = clean == message and list(clean) == list(message)
    return message if same and type(clean.get("weight")) is type(message.get("weight")) else clean  # True == 1


def _role(fields: dict, at: int, where: str, notes: Notes, known: frozenset[str]) -> str:
    """The canonical role; the key that held it is taken out of `fields`."""
    key = "role" if "role" in fields else "from"
    if key not in fields:
        raise Refused("role-missing", "a message has neither role nor from", f"{where}.role")
    name = fields.pop(key)
    role = canonical_role(name, first=at == 0) if isinstance(name, str) else None
    if role is None:
        shown = f"`{name[:30]}`" if isinstance(name, str) else _kind(name)
        raise Refused("role-unknown", f"{shown} is no role", f"{where}.{key}")
    if key == "role" and isinstance(fields.get("from"), str):
        other = canonical_role(fields["from"], first=at == 0)
        if other not in (None, role):
            raise Refused("message-ambiguous", "the role of a message is not that of its `from`", f"{where}.from")
        if other:
            del fields["from"]
    if name != role and role != CALL and name not in known:
        notes.repair("role-renamed", f"role `{name[:30]}` means {role}", f"{where}.{key}")
    return role


def _said(fields: dict, where: str) -> object:
    """The content; the keys that hold it are taken out of `fields`."""
    value = fields.pop("value", None)
    content = fields.pop("content", None)
    if value is not None and content is not None and value != content:
        raise Refused("message-ambiguous", "a message has a content and another value", f"{where}.value")
    return value if content is None else content


def _content(content: object, role: str, path: str, notes: Notes) -> object:
    if content is None or isinstance(content, str):
        return content
    if role == TOOL and not is_parts(content):
        return content  # a structured result: the family decides
    if not isinstance(content, list):
        raise Refused("content-type", f"content is {_kind(content)}, not text or parts", path)
    parts = [_part(part, f"{path}[{at}]", notes) for at, part in enumerate(content)]
    return content if all(new is old for new, old in zip(parts, content, strict=True)) else parts


def _part(part: object, path: str, notes: Notes) -> dict:
    if not isinstance(part, dict):
        raise Refused("part-invalid", f"a part is {_kind(part)}, not an object", path)
    kind = part.get("type")
    if None in part.values():
        part = {key: value for key, value in part.items() if value is not None}
        notes.repair("null-part-keys", "null keys were dropped", path)
    if kind == "image_url":
        link = part.get("image_url")
        url = link.get("url") if isinstance(link, dict) else link
        if not isinstance(url, str):
            raise Refused("part-invalid", "an image_url part has no url", path)
        notes.repair("image-url-part", "image_url became image", path)
        return {"type": "image", "url": url}
    if not isinstance(kind, str) or kind not in _PART_TYPES:
        shown = f"`{kind[:30]}`" if isinstance(kind, str) else _kind(kind)
        raise Refused("part-invalid", f"{shown} is no type of part", path)
    if kind == "text" and not isinstance(part.get("text"), str):
        raise Refused("part-invalid", f"the text of a part is {_kind(part.get('text'))}", path)
    return part


def _calls(fields: dict, clean: dict, where: str, notes: Notes) -> None:
    calls = fields.pop("tool_calls", None) or None
    legacy = fields.pop("function_call", None) or None
    if calls is None and legacy is None:
        return
    if clean["role"] != ASSISTANT:
        raise Refused("tool-call-invalid", f"a {clean['role']} message makes tool calls", f"{where}.tool_calls")
    made = canonical_calls(calls, f"{where}.tool_calls", notes) if calls else []
    if legacy is not None:
        notes.repair("function-call-legacy", "function_call became tool_calls", f"{where}.function_call")
        old = canonical_call(legacy, f"{where}.function_call", notes)
        if made and old["function"] not in [call["function"] for call in made]:
            text = "a message has tool_calls and another function_call"
            raise Refused("message-ambiguous", text, f"{where}.function_call")
        made = made or [old]
    if made:
        clean["tool_calls"] = made


def _names(fields: dict, where: str, notes: Notes) -> None:
    for key in ("tool_call_id", "name"):
        value = fields.get(key, "")
        if isinstance(value, int | float):
            fields[key] = str(value)
            notes.silent.append("name-as-text")
        elif not isinstance(value, str):
            raise Refused("content-type", f"{key} is {_kind(value)}, not text", f"{where}.{key}")


def _reasoning(fields: dict, clean: dict, where: str, notes: Notes) -> None:
    for key in _REASONING:
        text = fields.get(key)
        if isinstance(text, str):
            del fields[key]
            if not text.strip():
                continue
            if text.strip() != clean.get("reasoning_content", text).strip():
                raise Refused("message-ambiguous", "two fields of a message tell different reasoning", f"{where}.{key}")
            if "reasoning_content" not in clean:
                clean["reasoning_content"] = text
                if key != "reasoning_content":
                    notes.silent.append("reasoning-key")


def _call_turn(content: object, where: str, notes: Notes) -> dict:
    """A turn that is nothing but a call: `{"from": "function_call", "value": "{name, arguments}"}`."""
    value = content
    if isinstance(content, str):
        value, fault = parse_text(content)
        if fault:
            raise Refused("tool-call-invalid", f"a call is no JSON: {fault.message}", where)
    calls = value if isinstance(value, list) else [value]
    quiet = Notes()  # the flat form is what this layout uses
    made = [canonical_call(call, f"{where}[{at}]", quiet) for at, call in enumerate(calls)]
    notes.found.extend(quiet.found)
    return {"role": ASSISTANT, "content": "", "tool_calls": made}


def _weigh(fields: dict, clean: dict, where: str) -> None:
    if "weight" in fields:
        weight = fields.pop("weight")
        if weight not in (0, 1):
            raise Refused("weight-invalid", "the weight is neither 0 nor 1", f"{where}.weight")
        clean["weight"] = int(weight)


def _note_mixture(messages: list[dict], path: str, notes: Notes) -> None:
    old = sum("from" in message and "role" not in message for message in messages)
    if 0 < old < len(messages):
        notes.repair("mixed-conventions", "from/value and role/content stand side by side", path)


def with_system(messages: list[dict], system: object) -> list[dict]:
    """The messages with system text in front, where there is some and none yet."""
    says = bool(system.strip()) if isinstance(system, str) else is_parts(system) and bool(system)
    if not says or messages[0]["role"] == SYSTEM:
        return messages
    return [{"role": SYSTEM, "content": system}, *messages]


def is_parts(content: object) -> bool:
    """Whether a content is a list of parts, as opposed to a structured result."""
    known = (*_PART_TYPES, "image_url")
    return isinstance(content, list) and all(isinstance(part, dict) and part.get("type") in known for part in content)


def _kind(value: object) -> str:
    """The JSON name of a value's type."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)
