"""Tool declarations and tool calls of any convention -> canonical ones."""

from __future__ import annotations

from gemma_trainer.data.layouts.gemini import declared
from gemma_trainer.data.layouts.stored_text import decoded
from gemma_trainer.data.notes import Notes, Refused
from gemma_trainer.data.reading.parse import parse_text


def canonical_tools(tools: object, notes: Notes) -> list[dict] | None:
    """`[{type: function, function: {...}}]`, decoded from JSON text where needed; None when nothing is declared."""
    if isinstance(tools, str):
        if not tools.strip():
            return None
        tools, fault = parse_text(tools)
        if fault:
            raise Refused("tools-invalid", f"tools as text that is no JSON: {fault.message}", "tools")
        notes.silent.append("tools-decoded")
    if not tools and isinstance(tools, list | dict | type(None)):
        return None
    if isinstance(tools, dict):
        tools = [tools] if declared(tools) is not None else _listed(tools, "the tool", "tools", notes)
    if not isinstance(tools, list):
        raise Refused("tools-invalid", "tools are not a list", "tools")
    tools = [decoded(tool, "a tool", "tools-invalid", f"tools[{at}]", notes) for at, tool in enumerate(tools)]
    if any(isinstance(tool, dict) and declared(tool) is not None for tool in tools):
        notes.repair("tool-wrapped", "declarations of Gemini became tools", "tools")
        tools = [one for tool in tools for one in _declarations(tool)]
    return [_tool(tool, f"tools[{at}]", notes) for at, tool in enumerate(tools)]


def _declarations(tool: object) -> list:
    found = declared(tool) if isinstance(tool, dict) else None
    if found is None:
        return [tool]
    return [{"type": "function", "function": one} if isinstance(one, dict) else one for one in found]


def canonical_calls(calls: object, path: str, notes: Notes) -> list[dict]:
    calls = decoded(calls, "the list of tool calls", "tool-call-invalid", path, notes)
    calls = _listed(calls, "the call", path, notes)
    if not isinstance(calls, list):
        raise Refused("tool-call-invalid", "tool_calls are not a list", path)
    return [canonical_call(call, f"{path}[{at}]", notes) for at, call in enumerate(calls)]


def _listed(value: object, what: str, path: str, notes: Notes) -> object:
    """A list in place of one object that stands for a list of one."""
    if not isinstance(value, dict):
        return value
    notes.repair("tool-wrapped", f"{what} stood alone and became a list", path)
    return [value]


def canonical_call(call: object, path: str, notes: Notes) -> dict:
    """`{id?, type: function, function: {name, arguments: {...}}}`."""
    if not isinstance(call, dict):
        raise Refused("tool-call-invalid", "a tool call is no object", path)
    function = call.get("function")
    if function is None and "name" in call:
        notes.repair("tool-wrapped", "a flat call was wrapped", path)
        function = {key: call[key] for key in ("name", "arguments", "parameters") if call.get(key) is not None}
        call = {"id": call.get("id"), "function": function}
    if not isinstance(function, dict) or not _is_name(function.get("name")):
        raise Refused("tool-call-invalid", "a tool call has no function name", path)
    arguments = function.get("arguments", function.get("parameters"))
    clean = _arguments(arguments, f"{path}.function.arguments", notes)
    extra = {key: value for key, value in call.items() if key not in ("id", "type", "function") and value is not None}
    made = {"type": "function", "function": {"name": function["name"], "arguments": clean}, **extra}
    return made if call.get("id") is None else {"id": str(call["id"]), **made}


def _arguments(arguments: object, path: str, notes: Notes) -> dict:
    if isinstance(arguments, str):
        if not arguments.strip():
            notes.repair("arguments-decoded", "blank arguments became {}", path)
            return {}
        arguments, fault = parse_text(arguments)
        if fault:
            raise Refused("arguments-invalid", f"the arguments are text that is no JSON: {fault.message}", path)
        if isinstance(arguments, dict):
            notes.repair("arguments-decoded", "arguments were JSON text", path)
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise Refused("arguments-invalid", "the arguments are no JSON object", path)
    return arguments


def _tool(tool: object, path: str, notes: Notes) -> dict:
    if not isinstance(tool, dict):
        raise Refused("tools-invalid", "a tool is no object", path)
    if "function" not in tool and "name" in tool:
        notes.repair("tool-wrapped", "a flat declaration was wrapped", path)
        function = {key: value for key, value in tool.items() if key not in ("type", "cache_control")}
        if "input_schema" in function and "parameters" not in function:  # Anthropic's name
            function["parameters"] = function.pop("input_schema")
        tool = {"type": "function", "function": function}
    function = tool.get("function")
    if not isinstance(function, dict) or not _is_name(function.get("name")):
        raise Refused("tools-invalid", "a tool has no function name", path)
    tool = tool if tool.get("type") == "function" else {**tool, "type": "function"}
    tool = _without_nulls(tool, path, notes)
    parameters = tool["function"].get("parameters", {})
    if not _is_object_schema(parameters):
        text = "the parameters of a tool are no schema of an object"
        raise Refused("tools-invalid", text, f"{path}.function.parameters")
    return tool


def _is_object_schema(schema: object) -> bool:
    if not isinstance(schema, dict) or str(schema.get("type", "object")).lower() != "object":
        return False
    required = schema.get("required", [])
    named = isinstance(required, list) and all(isinstance(name, str) for name in required)
    return named and isinstance(schema.get("properties", {}), dict)


def _without_nulls(tool: dict, path: str, notes: Notes) -> dict:
    """Null keys of a schema mean nothing; only an enum, a const or a default may hold a null of its own."""
    clean = _drop_nulls(tool)
    if clean == tool:
        return tool
    notes.repair("null-padded-schema", "null keys of other tools were dropped", path)
    return clean


def _drop_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {
            key: item if key in ("enum", "const", "default", "examples") else _drop_nulls(item)
            for key, item in value.items()
            if item is not None or key in ("const", "default")
        }
    return [_drop_nulls(item) for item in value] if isinstance(value, list) else value


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
