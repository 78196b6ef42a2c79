"""Tool declarations, calls and results of one row."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gemma_trainer.data.checking.characters import check_texts, texts_in
from gemma_trainer.data.checking.links import call_of
from gemma_trainer.data.checking.marks_in_text import tokens_in
from gemma_trainer.data.checking.padding import declared_arguments, without_padding
from gemma_trainer.data.checking.setting import Setting
from gemma_trainer.data.notes import Notes
from gemma_trainer.data.shown import CALLS, RESPONSES, RESULTS, TOOLS
from gemma_trainer.families.family import STANDARD_NAMES, Family
from gemma_trainer.rows.roles import ASSISTANT, TOOL

_NAME = re.compile(r"[\w.-]+")
_TYPES = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def check_tools(tools: list[dict] | None, setting: Setting, notes: Notes) -> None:
    """The declarations: whether the template shows them, and shows them whole."""
    if not tools:
        return
    family = setting.family
    for at, tool in enumerate(tools):
        check_texts(tool, notes, f"tools[{at}]")
        if not isinstance(tool["function"].get("description", ""), str):
            notes.fault("tools-invalid", "the description of a tool is no text", f"tools[{at}].function.description")
    if not family.tools:
        notes.fault("tools-ignored", f"the template of {family.title} does not show tools", "tools")
        return
    if setting.hides(TOOLS):
        _unwritten(TOOLS, setting, notes, "tools")
        return
    seen: set[str] = set()
    for at, tool in enumerate(tools):
        function = tool["function"]
        if function["name"] in seen:
            notes.fault("tool-repeated", f"the tool {_short(function['name'])} is declared twice", f"tools[{at}]")
        seen.add(function["name"])
        if not _NAME.fullmatch(function["name"]):
            notes.fault("tool-name-odd", f"the name {_short(function['name'])} is odd", f"tools[{at}].function.name")
        for token in _tokens(tool, family):
            notes.fault("control-token", f"the declaration holds the control token {token}", f"tools[{at}]")
        parameters = function.get("parameters")
        if parameters:
            path = f"tools[{at}].function.parameters"
            if not parameters.get("type"):
                notes.fault("tool-schema-lossy", "parameters without a type lose their closing brace", path)
            for where, text in _lossy(parameters.get("properties"), f"{path}.properties", family):
                notes.fault("tool-schema-lossy", text, where)


def _lossy(properties: object, path: str, family: Family) -> Iterator[tuple[str, str]]:
    """(path, what is lost) of arguments that the template does not write whole, at any depth."""
    if not isinstance(properties, dict):
        return
    for name, schema in properties.items():
        where = f"{path}.{_short(name)}"
        if "standard-names-lost" in family.traps and name in STANDARD_NAMES:
            yield where, "an argument of this name is left out"
            continue
        if not isinstance(schema, dict):
            yield where, "the schema of an argument is no object"
            continue
        kind = schema.get("type")
        if any(key in schema for key in ("anyOf", "oneOf", "allOf", "$ref")) and not kind:
            yield where, "anyOf, oneOf, allOf and $ref are rendered as an empty type"
        elif isinstance(kind, list):
            yield where, "a list of types is printed as a Python list"
        elif schema.get("enum") and str(kind).lower() != "string":
            yield where, "an enum of anything but strings is left out"
        elif not kind:
            yield where, "an argument without a type is rendered with an empty one"
        yield from _lossy(schema.get("properties"), f"{where}.properties", family)
        if isinstance(schema.get("items"), dict):
            yield from _lossy(schema["items"].get("properties"), f"{where}.items.properties", family)


def check_calls(
    messages: list[dict], tools: list[dict] | None, setting: Setting, notes: Notes, path: str, start: int, shift: int
) -> None:
    """Calls and results from index `start` on."""
    family = setting.family
    declared = declared_arguments(tools)
    caller: dict | None = None  # the message whose calls wait for results
    for at in range(start, len(messages)):
        message, where = messages[at], f"{path}[{at - shift}]"
        if message["role"] == TOOL:
            if not family.tools:
                notes.fault("tools-unsupported", f"{family.title} has no tool results", where)
                return
            if setting.hides(RESULTS):
                _unwritten(RESULTS, setting, notes, where)
                return
            caller = caller or _caller(messages, at)
            _check_result(message, caller, family, notes, where)
            continue
        caller = None
        if "tool_calls" not in message:
            continue
        if not family.tools:
            notes.fault("tools-unsupported", f"{family.title} makes no tool calls", f"{where}.tool_calls")
            return
        if setting.hides(CALLS):
            _unwritten(CALLS, setting, notes, f"{where}.tool_calls")
            return
        _check_message(message, declared, family, notes, where)
        if message.get("tool_responses"):  # Gemma 4's form of structured results, inside the message of the calls
            _check_responses(message["tool_responses"], setting, notes, f"{where}.tool_responses")
        else:
            _check_answered(messages, at, notes, where)


def _unwritten(what: str, setting: Setting, notes: Notes, where: str) -> None:
    """They would vanish from the text, and what answers them would be trained without a cause."""
    fix = f"Leave the row out, {setting.better_template}."
    notes.fault("tools-unsupported", f"the chat template in use does not write {what}", where, fix)


def _check_responses(responses: object, setting: Setting, notes: Notes, where: str) -> None:
    family = setting.family
    if not family.thinking:
        notes.fault("tools-unsupported", f"{family.title} does not render tool_responses", where)
    elif setting.hides(RESPONSES):
        _unwritten(RESPONSES, setting, notes, where)
    check_texts(responses, notes, where)
    for token in _tokens(responses, family):
        notes.fault("control-token", f"a result holds the control token {token}", where)


def _check_answered(messages: list[dict], at: int, notes: Notes, where: str) -> None:
    """Whether each call of the message at `at` has one result before the conversation goes on."""
    end = at + 1
    while end < len(messages) and messages[end]["role"] == TOOL:
        end += 1
    calls, results = len(messages[at]["tool_calls"]), end - at - 1
    ids = [message.get("tool_call_id") for message in messages[at + 1 : end]]
    given = [name for name in ids if name is not None]
    if results > calls or (len(set(given)) < len(given) and _have_own_ids(messages[at]["tool_calls"])):
        notes.fault("tool-result-repeated", f"{results} results for {calls} calls", where)
    elif results < calls and end < len(messages):
        notes.fault("tool-result-missing", f"{results} results for {calls} calls", where)


def _have_own_ids(calls: list[dict]) -> bool:
    ids = [call["id"] for call in calls if call.get("id") is not None]
    return len(ids) == len(set(ids)) == len(calls)


def _check_message(message: dict, declared: dict, family: Family, notes: Notes, where: str) -> None:
    ids = [call["id"] for call in message["tool_calls"] if call.get("id") is not None]
    if len(set(ids)) < len(ids):
        notes.fault("tool-id-repeated", "two calls have the same id", f"{where}.tool_calls")
    if "text-after-result" in family.traps and (message["content"] or "") and str(message["content"]).strip():
        notes.fault("text-beside-call", "text beside a call moves behind its result", f"{where}.content")
    for number, call in enumerate(message["tool_calls"]):
        function = call["function"]
        name, arguments = function["name"], function["arguments"]
        path = f"{where}.tool_calls[{number}].function"
        check_texts(call, notes, f"{where}.tool_calls[{number}]")
        for token in _tokens(function, family):
            notes.fault("control-token", f"the call holds the control token {token}", path)
        schema = declared.get(name)
        if not declared and not _NAME.fullmatch(name):
            notes.fault("tool-name-odd", f"the name {_short(name)} is odd", f"{path}.name")
        if schema is None:
            why = "is not declared" if declared else "is called and no tools are declared"
            notes.fault("tool-undeclared", f"the function {_short(name)} {why}", f"{path}.name")
        if padded := without_padding(arguments, schema or {})[1]:
            text = f"null arguments that the tool does not declare: {', '.join(map(_short, padded[:5]))}"
            notes.fault("null-padded-arguments", text, f"{path}.arguments")
        if schema is not None:
            _check_arguments(arguments, schema, notes, path)


def _check_arguments(arguments: dict, schema: dict, notes: Notes, path: str) -> None:
    for key, value in arguments.items():
        expected = schema.get(key)
        if expected is None:
            if schema and value is not None:
                notes.fault("argument-undeclared", f"the argument {_short(key)} is not declared", f"{path}.arguments")
        elif value is not None and not (_fits(value, expected) and _is_allowed(value, expected)):
            text = f"the argument {_short(key)} is not of its declared type or none of its values"
            notes.fault("argument-type", text, f"{path}.arguments.{_short(key)}")


def check_required(messages: list[dict], tools: list[dict] | None, notes: Notes, path: str) -> None:
    """Calls that leave out what their tool requires."""
    required = {}
    for tool in tools or ():
        names = (tool["function"].get("parameters") or {}).get("required")
        required[tool["function"]["name"]] = names if isinstance(names, list) else []
    for at, message in enumerate(messages):
        for number, call in enumerate(message.get("tool_calls") or ()):
            function = call["function"]
            for name in required.get(function["name"], ()):
                if name not in function["arguments"]:
                    text = f"the required argument {_short(str(name))} is missing"
                    notes.fault("argument-missing", text, f"{path}[{at}].tool_calls[{number}].function.arguments")


def _check_result(message: dict, caller: dict | None, family: Family, notes: Notes, where: str) -> None:
    for key in ("name", "tool_call_id", "content"):
        value = message.get(key)
        if key != "content" or isinstance(value, dict):  # texts of contents are looked at with those of all messages
            check_texts(value, notes, f"{where}.{key}")
            for token in _tokens(value, family):
                notes.fault("control-token", f"the {key} holds the control token {token}", f"{where}.{key}")
    if "empty-result-lost" in family.traps and not message["content"]:
        notes.fault("tool-result-empty", "an empty tool result is not rendered", f"{where}.content")
    if caller is None:
        notes.fault("tool-result-orphan", "a tool result follows no call", where)
        return
    calls, name = caller["tool_calls"], message.get("name")
    call = call_of(message, calls)
    if call is not None:
        if name and name != call["function"]["name"]:
            text = f"the result is named {_short(name)}, and its call {_short(call['function']['name'])}"
            notes.fault("tool-result-name", text, f"{where}.name")
    elif message.get("tool_call_id") is not None:
        notes.fault("tool-id-unknown", "tool_call_id names no call of the message before", f"{where}.tool_call_id")
    elif name:
        notes.fault("tool-id-unknown", "the name of the result is that of no call, or of several", f"{where}.name")
    else:
        notes.fault("tool-result-unnamed", "one of several calls, and no tool_call_id tells which", where)


def _caller(messages: list[dict], at: int) -> dict | None:
    while at and messages[at]["role"] == TOOL:
        at -= 1
    message = messages[at]
    return message if message["role"] == ASSISTANT and message.get("tool_calls") else None


def _fits(value: object, schema: object) -> bool:
    kind = schema.get("type") if isinstance(schema, dict) else None
    kinds = [kind] if isinstance(kind, str) else kind if isinstance(kind, list) else []
    allowed = [_TYPES[k.lower()] for k in kinds if isinstance(k, str) and k.lower() in _TYPES]
    if not allowed:
        return True
    if isinstance(value, bool):
        return any(bool in types for types in allowed)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return any(isinstance(value, types) for types in allowed)


def _is_allowed(value: object, schema: object) -> bool:
    allowed = schema.get("enum") if isinstance(schema, dict) else None
    return not isinstance(allowed, list) or not allowed or value in allowed


def _tokens(value: object, family: Family) -> list[str]:
    found = [token for _, text in texts_in(value, "") for token in tokens_in(text) if token in family.control_tokens]
    return list(dict.fromkeys(found))


def _short(name: str) -> str:
    return f"`{name[:40]}`"
