"""ShareGPT, as LLaMA-Factory and axolotl read it: from/value, function_call and observation turns, columns system and
tools."""

from __future__ import annotations

import json

from gemma_trainer.data.exports.export_turns import beside, lossy, said
from gemma_trainer.data.layouts.layout_base import without
from gemma_trainer.data.notes import Notes, Refused
from gemma_trainer.rows.roles import ASSISTANT, SYSTEM, TOOL

_FROM = {"user": "human", ASSISTANT: "gpt", SYSTEM: "system", TOOL: "observation"}
_KEPT = "only some readers of ShareGPT know `{}`"


def to_sharegpt(row: dict, model, notes: Notes) -> dict:
    turns, columns = _turns(row["messages"], row, "messages", notes)
    return beside({"conversations": turns, **columns}, row, ("messages", "tools"), notes)


def pair_to_sharegpt(row: dict, model, notes: Notes) -> dict:
    """LLaMA-Factory's ranking: the conversation so far and two answers of one turn each. Raises Refused."""
    turns, columns = _turns(row["prompt"], row, "prompt", notes)
    sides = {}
    for side in ("chosen", "rejected"):
        if len(row[side]) != 1:
            raise Refused("export-impossible", "the form takes answers of one message only", side)
        sides[side] = _turn(row[side][0], f"{side}[0]", notes)
    return beside({"conversations": turns, **sides, **columns}, row, ("prompt", "chosen", "rejected", "tools"), notes)


def _turns(messages: list[dict], row: dict, path: str, notes: Notes) -> tuple[list[dict], dict]:
    """(turns, columns): system text at the start is a column where it is nothing but text."""
    columns = {}
    first = messages[0]
    if row.get("tools"):
        columns["tools"] = json.dumps(row["tools"], ensure_ascii=False)
    start = 0
    alone = first["role"] == SYSTEM and first.keys() == {"role", "content"} and len(messages) > 1
    if alone and "system" not in row and isinstance(first["content"], str) and first["content"].strip():
        columns["system"] = first["content"]
        start = 1
    return [_turn(m, f"{path}[{at}]", notes) for at, m in enumerate(messages) if at >= start], columns


def _turn(message: dict, where: str, notes: Notes) -> dict:
    rest = without(message, "role", "content", "tool_calls")
    for key in rest.keys() - {"tool_call_id", "name"}:
        lossy(notes, _KEPT.format(str(key)[:30]), f"{where}.{str(key)[:30]}")
    if not message.get("tool_calls"):
        return {"from": _FROM[message["role"]], "value": said(message, where, notes), **rest}
    if said(message, where, notes).strip():
        raise Refused("export-impossible", "a turn of calls has no place for text", where)
    calls = [{**({"id": call["id"]} if "id" in call else {}), **call["function"]} for call in message["tool_calls"]]
    value = json.dumps(calls[0] if len(calls) == 1 else calls, ensure_ascii=False)
    return {"from": "function_call", "value": value, **rest}
