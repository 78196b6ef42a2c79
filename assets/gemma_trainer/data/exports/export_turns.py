"""What the forms share: text of messages, ids of calls, and telling what is lost."""

from __future__ import annotations

import json

from gemma_trainer.data.checking.links import call_of
from gemma_trainer.data.layouts.registry import reader_of
from gemma_trainer.data.notes import Notes, Refused
from gemma_trainer.rows.content import media_of, text_of
from gemma_trainer.rows.roles import ASSISTANT, TOOL

ROW_KEYS = ("messages", "text", "tools", "chat_template_kwargs", "images", "audios", "videos")


# What readers of one form or another take for a part of the conversation, where it is there.
OPTIONAL = {"system", "systemInstruction", "system_instruction", "history"}


def lossy(notes: Notes, what: str, path: str) -> None:
    notes.repair("export-lossy", what, path)


def beside(made: dict, row: dict, used: tuple[str, ...], notes: Notes) -> dict:
    """The exported row with the columns that are left of the canonical one, all but those that `made` has itself or
    that would make a reader take the row for another form."""
    out, form = dict(made), reader_of(made)
    for name, value in row.items():
        if name in used:
            continue
        if name in made or name in OPTIONAL:
            lossy(notes, f"the form uses the name of the column `{name}`, which is left out", name)
        elif value is not None and reader_of({**out, name: value}) is not form:
            lossy(notes, f"with the column `{name}` the row would be another form, so it is left out", name)
        else:
            out[name] = value
    return out


def plain_text(message: dict, where: str, notes: Notes) -> str:
    """What a message says, for a form that has text only. Raises Refused for media, calls and thinking."""
    for key, what in (("tool_calls", "tool calls"), ("reasoning_content", "thinking")):
        if message.get(key):
            raise Refused("export-impossible", f"the form has no place for {what}", f"{where}.{key}")
    _tell_extra(message, {"role", "content", "weight"}, where, notes)
    return said(message, where, notes)


def said(message: dict, where: str, notes: Notes) -> str:
    """The content as text. Raises Refused for media."""
    content = message["content"]
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if media_of(content):
        raise Refused("export-impossible", f"the form has no place for {media_of(content)[0]}", f"{where}.content")
    if message["role"] == TOOL and not _is_text(content):
        lossy(notes, "a structured result became JSON text", f"{where}.content")
        return json.dumps(content, ensure_ascii=False)
    lossy(notes, "parts of text became one text", f"{where}.content")
    return text_of(content)


def with_ids(messages: list[dict], path: str, notes: Notes) -> list[dict]:
    """Messages in which each call has an id and each result names the call it answers. Raises Refused."""
    out, calls = [], []
    for at, message in enumerate(messages):
        if message.get("tool_calls"):
            calls = [{**c, "id": c.get("id") or f"call_{at}_{n}"} for n, c in enumerate(message["tool_calls"])]
            if calls != message["tool_calls"]:
                message = {**message, "tool_calls": calls}
                notes.silent.append("call-ids")
        elif message["role"] == TOOL:
            call = call_of(message, calls)
            if call is None and not message.get("tool_call_id"):
                call = _same_place(out, calls, message)
            if call is None:
                raise Refused("export-impossible", "it cannot be told which call a result answers", f"{path}[{at}]")
            message = {**message, "tool_call_id": call["id"]}
        out.append(message)
    return out


def refuse_weightless(messages: list[dict], form: str) -> None:
    """Raises Refused where an answer carries no loss, in a form that cannot say so."""
    for at, message in enumerate(messages):
        if message["role"] == ASSISTANT and message.get("weight") == 0:
            raise Refused(
                "export-impossible", f"{form} cannot leave an answer out of the loss", f"messages[{at}].weight"
            )


def _tell_extra(message: dict, known: set[str], where: str, notes: Notes) -> None:
    for key in message.keys() - known:
        lossy(notes, f"the form has no place for `{str(key)[:30]}`", f"{where}.{str(key)[:30]}")


def _is_text(content: object) -> bool:
    return isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content)


def _same_place(before: list[dict], calls: list[dict], message: dict) -> dict | None:
    """The call in the place of this result, where calls and results stand in the same order."""
    place = 0
    while place < len(before) and before[-1 - place]["role"] == TOOL:
        place += 1
    if place >= len(calls):
        return None
    call = calls[place]
    return call if message.get("name") in (None, call["function"]["name"]) else None
