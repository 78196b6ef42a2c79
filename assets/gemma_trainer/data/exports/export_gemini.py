"""Gemini's and Vertex AI's `contents`: parts, functionCall and functionResponse, declarations with types in capitals."""

from __future__ import annotations

import mimetypes

from gemma_trainer.data.checking.links import call_of
from gemma_trainer.data.exports.export_media import with_sources
from gemma_trainer.data.exports.export_turns import beside, lossy
from gemma_trainer.data.layouts.gemini import KINDS, response_of, with_types_of
from gemma_trainer.data.layouts.layout_base import without
from gemma_trainer.data.notes import Notes, Refused
from gemma_trainer.rows.content import says_nothing
from gemma_trainer.rows.roles import ASSISTANT, SYSTEM, TOOL

_OWN = frozenset({"role", "content", "tool_calls", "reasoning_content"})
_OF_RESULT = frozenset({"role", "content", "tool_call_id", "name"})


def to_gemini(row: dict, model, notes: Notes) -> dict:
    row = with_sources(row, "messages")
    messages = row["messages"]
    made: dict = {}
    start = 0
    if messages[0]["role"] == SYSTEM:
        _tell_extra(messages[0], "messages[0]", notes)
        start = 1
        if says_nothing(messages[0]["content"]):
            lossy(notes, "a blank system message is left out", "messages[0]")
        else:
            made["systemInstruction"] = {"parts": _parts(messages[0], "messages[0]", notes)}
    made["contents"] = _contents(messages, start, notes)
    if row.get("tools"):
        made["tools"] = [
            {"functionDeclarations": [with_types_of(tool["function"], str.upper) for tool in row["tools"]]}
        ]
    return beside(made, row, ("messages", "tools"), notes)


def _contents(messages: list[dict], start: int, notes: Notes) -> list[dict]:
    contents: list[dict] = []
    calls: list[dict] = []
    previous = None
    for at in range(start, len(messages)):
        message, where = messages[at], f"messages[{at}]"
        role = message["role"]
        _tell_extra(message, where, notes)
        if role == SYSTEM:
            raise Refused("export-impossible", "Gemini takes system text at the start only", where)
        if role == TOOL:
            part = _result(message, calls, where)
            if previous == TOOL:
                contents[-1]["parts"].append(part)
            else:
                contents.append({"role": "user", "parts": [part]})
        else:
            calls = message.get("tool_calls") or calls
            parts = _parts(message, where, notes)
            contents.append({"role": "model" if role == ASSISTANT else "user", "parts": parts})
        previous = role
    return contents


def _parts(message: dict, where: str, notes: Notes) -> list[dict]:
    content, calls = message["content"], message.get("tool_calls") or ()
    thought = message.get("reasoning_content")
    parts = [{"text": thought, "thought": True}] if thought else []
    if isinstance(content, list):
        parts += [_part(part, f"{where}.content[{at}]", notes) for at, part in enumerate(content)]
    elif content or not calls:
        parts.append({"text": content or ""})
    return parts + [{"functionCall": _call(call)} for call in calls]


def _part(part: dict, path: str, notes: Notes) -> dict:
    kind = part.get("type")
    if kind == "text":
        return without(part, "type")
    source = next((part[key] for key in ("url", "path", kind) if isinstance(part.get(key), str)), None)
    guessed = mimetypes.guess_type(source.split("?")[0])[0] if source else None
    mime = part.get("mime_type") or guessed
    if kind not in KINDS or not isinstance(mime, str) or mime.split("/")[0] != kind:
        raise Refused("export-impossible", f"it cannot be told of which type this {kind} is", path)
    if isinstance(part.get("base64"), str):
        return {"inlineData": {"mimeType": mime, "data": part["base64"]}}
    if source is None:
        raise Refused("export-impossible", f"this {kind} names no file", path)
    if "://" not in source:
        lossy(notes, "the path of a file stands where Gemini wants an address", path)
    return {"fileData": {"mimeType": mime, "fileUri": source}}


def _call(call: dict) -> dict:
    function = call["function"]
    made = {"name": function["name"], "args": function["arguments"]}
    return {**made, "id": call["id"]} if "id" in call else made


def _result(message: dict, calls: list[dict], where: str) -> dict:
    call = call_of(message, calls)
    name = message.get("name") or (call and call["function"]["name"])
    if not name:
        raise Refused("export-impossible", "it cannot be told which function a result is of", where)
    made = {"name": name, "response": response_of(message["content"])}
    if message.get("tool_call_id") is not None:
        made["id"] = message["tool_call_id"]
    return {"functionResponse": made}


def _tell_extra(message: dict, where: str, notes: Notes) -> None:
    for key in message.keys() - (_OF_RESULT if message["role"] == TOOL else _OWN):
        text = f"Gemini's format does not know `{str(key)[:30]}`"
        if key == "weight" and message["role"] == ASSISTANT and message[key] == 0:
            raise Refused("export-impossible", "Gemini cannot leave an answer out of the loss", f"{where}.weight")
        lossy(notes, text, f"{where}.{str(key)[:30]}")
