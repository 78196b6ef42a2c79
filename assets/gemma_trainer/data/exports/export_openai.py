"""OpenAI's chat format for fine-tuning: arguments as JSON text, an id for every call, image_url parts."""

from __future__ import annotations

import json

from gemma_trainer.data.exports.export_media import with_sources
from gemma_trainer.data.exports.export_turns import beside, lossy, with_ids
from gemma_trainer.data.notes import Notes, Refused
from gemma_trainer.rows.roles import TOOL

_ADDRESSES = ("http://", "https://", "data:")
_OWN = frozenset({"role", "content", "tool_calls", "tool_call_id", "name", "weight", "refusal"})


def to_openai(row: dict, model, notes: Notes) -> dict:
    row = with_sources(row, "messages")
    return beside({"messages": _messages(row["messages"], "messages", notes)}, row, ("messages",), notes)


def pair_to_openai(row: dict, model, notes: Notes) -> dict:
    """`{"input": {"messages", "tools"}, "preferred_output", "non_preferred_output"}`."""
    row = with_sources(row, "prompt", "chosen", "rejected")
    prompt = _messages(row["prompt"], "prompt", notes)
    asked = {"messages": prompt, **({"tools": row["tools"]} if row.get("tools") else {})}
    sides = {
        name: _messages([*row["prompt"], *row[side]], side, notes)[len(prompt) :]
        for name, side in (("preferred_output", "chosen"), ("non_preferred_output", "rejected"))
    }
    return beside({"input": asked, **sides}, row, ("prompt", "chosen", "rejected", "tools"), notes)


def _messages(messages: list[dict], path: str, notes: Notes) -> list[dict]:
    return [_message(m, f"{path}[{at}]", notes) for at, m in enumerate(with_ids(messages, path, notes))]


def _message(message: dict, where: str, notes: Notes) -> dict:
    for key in message.keys() - _OWN:
        lossy(notes, f"OpenAI's format does not know `{str(key)[:30]}`", f"{where}.{str(key)[:30]}")
    content = message["content"]
    out = dict(message)
    if message["role"] == TOOL and not isinstance(content, str) and not _is_text(content):
        lossy(notes, "a structured result became JSON text", f"{where}.content")
        out["content"] = json.dumps(content, ensure_ascii=False)
    elif isinstance(content, list):
        out["content"] = [_part(part, f"{where}.content[{at}]", notes) for at, part in enumerate(content)]
    if message.get("tool_calls"):
        out["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    return out


def _is_text(content: object) -> bool:
    return isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content)


def _call(call: dict) -> dict:
    function = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def _part(part: dict, path: str, notes: Notes) -> dict:
    kind = part.get("type")
    if kind in ("text", "input_audio"):
        return part
    source = next((part[key] for key in ("url", "path", "image") if isinstance(part.get(key), str)), None)
    if kind != "image" or (source is None and not isinstance(part.get("base64"), str)):
        raise Refused("export-impossible", f"OpenAI's format has no place for this {kind}", path)
    if source is None:
        source = f"data:{part.get('mime_type', 'image/png')};base64,{part['base64']}"
    elif not source.startswith(_ADDRESSES):
        lossy(notes, "the path of a file stands where OpenAI wants an address", path)
    return {"type": "image_url", "image_url": {"url": source}}
