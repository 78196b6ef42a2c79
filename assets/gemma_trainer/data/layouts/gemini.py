"""Gemini's and Vertex AI's `contents` -> messages: parts with text, media, calls and results.

https://ai.google.dev/api/caching#Content. Keys are read as the REST API writes them (functionCall) and as the Python
library does (function_call).
"""

from __future__ import annotations

from collections.abc import Callable

from gemma_trainer.data.notes import Notes, Refused
from gemma_trainer.data.reading.parse import parse_text
from gemma_trainer.rows.roles import ASSISTANT, USER

KINDS = ("image", "audio", "video")
_RESULT = "result"  # the key under which a result that is no object is sent


def from_contents(contents: list[dict], path: str, notes: Notes) -> list[dict]:
    """Messages of contents. One content may give results and a message behind them. Raises Refused."""
    notes.repair("layout-converted", "contents of Gemini became messages", path)
    return [made for at, content in enumerate(contents) for made in _message(content, f"{path}[{at}]")]


def system_text(value: object, path: str) -> object:
    """The content of a system instruction: text, or a content with parts of text, also as JSON text."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        stored, _ = parse_text(value)
        value = stored if isinstance(stored, dict) and "parts" in stored else value
    if isinstance(value, dict):
        value = value.get("parts")
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise Refused("content-type", "the system instruction is neither text nor parts", path)
    return _said([_part(part, f"{path}.parts[{at}]") for at, part in enumerate(value)])


def declared(tool: dict) -> list | None:
    """The declarations inside `{"functionDeclarations": [...]}`, types in small letters; None for another tool."""
    found = pick(tool, "functionDeclarations", "function_declarations")
    if not isinstance(found, list):
        return None
    return [with_types_of(one, str.lower) if isinstance(one, dict) else one for one in found]


def pick(value: dict, *names: str) -> object:
    """The first of several spellings of a key that is there and not null."""
    return next((value[name] for name in names if value.get(name) is not None), None)


def with_types(schema: object, written: Callable[[str], str]) -> object:
    """A schema with the names of types in small letters (str.lower, JSON Schema) or capitals (str.upper, Vertex AI)."""
    if isinstance(schema, list):
        return [with_types(item, written) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out = {}
    for key, value in schema.items():
        if key == "type" and isinstance(value, str):
            out[key] = written(value)
        elif key == "properties" and isinstance(value, dict):
            out[key] = {name: with_types(inner, written) for name, inner in value.items()}
        else:
            out[key] = with_types(value, written) if key in ("items", "anyOf", "oneOf", "allOf") else value
    return out


def with_types_of(function: dict, written: Callable[[str], str]) -> dict:
    """A declared function with the types of its schemas written so."""
    schemas = ("parameters", "response")
    return {key: with_types(value, written) if key in schemas else value for key, value in function.items()}


def _message(content: dict, where: str) -> list[dict]:
    parts = content.get("parts")
    if not isinstance(parts, list):
        return [content]
    said, calls, thoughts, results = [], [], [], []
    for at, raw in enumerate(parts):
        path = f"{where}.parts[{at}]"
        part = {k: v for k, v in raw.items() if v is not None} if isinstance(raw, dict) else raw
        if isinstance(part, dict) and (call := pick(part, "functionCall", "function_call")) is not None:
            calls.append(_call(call, path))
        elif isinstance(part, dict) and (result := pick(part, "functionResponse", "function_response")) is not None:
            results.append(_result(result, path))
        elif isinstance(part, dict) and part.get("thought") is True and isinstance(part.get("text"), str):
            thoughts.append(part["text"])
        else:
            said.append(_part(part, path))
    if results and not (said or calls or thoughts):
        return results
    rest = {key: value for key, value in content.items() if key != "parts"}
    role = ASSISTANT if rest.get("role") == "model" else rest.get("role") or USER
    made = {**rest, "role": role, "content": _said(said) if said else None if calls else ""}
    if calls and role != ASSISTANT:
        raise Refused("tool-call-invalid", "a function call of another speaker than the model", where)
    if calls:
        made["tool_calls"] = calls
    if thoughts:
        made["reasoning_content"] = "\n\n".join(thoughts)
    return [*results, made]


def _said(parts: list[dict]) -> object:
    return parts[0]["text"] if len(parts) == 1 and parts[0].keys() == {"type", "text"} else parts


def _part(part: object, path: str) -> dict:
    """A part of ours. Raises Refused for code that the service ran and other parts nobody else has."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return {"type": "text", **{key: value for key, value in part.items() if key != "thought" or value}}
    for names, source, key in (
        (("inlineData", "inline_data"), ("data",), "base64"),
        (("fileData", "file_data"), ("fileUri", "file_uri"), "url"),
    ):
        media = pick(part, *names) if isinstance(part, dict) else None
        if isinstance(media, dict):
            return _media(media, source, key, path)
    raise Refused("part-invalid", "a part is neither text, media, a call nor a result", path)


def _media(media: dict, source: tuple[str, ...], key: str, path: str) -> dict:
    kind = pick(media, "mimeType", "mime_type")
    name = kind.split("/")[0] if isinstance(kind, str) else None
    data = pick(media, *source)
    if name not in KINDS or not isinstance(data, str):
        raise Refused("part-invalid", "media without data, or of no type image, audio or video", path)
    return {"type": name, key: data, "mime_type": kind}


def _call(call: object, path: str) -> dict:
    if not isinstance(call, dict):
        raise Refused("tool-call-invalid", "a function call is no object", path)
    arguments = pick(call, "args", "arguments")
    function = {"name": call.get("name"), "arguments": {} if arguments is None else arguments}
    return {"id": call.get("id"), "type": "function", "function": function}


def _result(result: object, path: str) -> dict:
    if not isinstance(result, dict) or not isinstance(result.get("name"), str):
        raise Refused("tool-call-invalid", "a function response has no name", path)
    content = result.get("response")
    if isinstance(content, dict) and content.keys() == {_RESULT}:
        content = content[_RESULT]
    made = {"role": "tool", "name": result["name"], "content": "" if content is None else content}
    return {**made, "tool_call_id": result["id"]} if result.get("id") is not None else made


def response_of(content: object) -> dict:
    """The object that a result is sent as: the reverse of what is read."""
    return content if isinstance(content, dict) and content.keys() != {_RESULT} else {_RESULT: content}
