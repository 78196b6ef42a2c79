"""Layouts that hold whole conversations: messages, ShareGPT, Gemini's contents."""

from __future__ import annotations

from gemma_trainer.data.layouts.chat import with_system
from gemma_trainer.data.layouts.gemini import system_text
from gemma_trainer.data.layouts.layout_base import CONVERSATIONS, Context, assembled, with_column, without
from gemma_trainer.data.notes import Refused

_INSTRUCTIONS = ("systemInstruction", "system_instruction")


def read_messages(fields: dict, context: Context) -> dict:
    return _conversation(fields, CONVERSATIONS, context)


def read_sharegpt(fields: dict, context: Context) -> dict:
    return _conversation(fields, ("conversations", "conversation", "messages"), context)


def read_gemini(fields: dict, context: Context) -> dict:
    """`contents` with `systemInstruction` and tools, as Vertex AI takes them for tuning."""
    if "contents" not in fields:
        raise Refused("wrong-layout", "there is no column contents")
    messages = context.messages(fields["contents"], "contents")
    name = next((name for name in _INSTRUCTIONS if name in fields), None)
    if name is not None:
        messages = with_system(messages, system_text(fields[name], name))
    return _row(messages, without(fields, "contents", *_INSTRUCTIONS), context)


def _conversation(fields: dict, names: tuple[str, ...], context: Context) -> dict:
    key = next((name for name in names if name in fields), None)
    if key is None:
        raise Refused("wrong-layout", f"there is no column {names[0]}")
    rest = without(fields, *CONVERSATIONS)
    messages = context.messages(fields[key], "messages")
    for other in CONVERSATIONS:
        if other in fields and other != key and not context.says_same(fields[other], messages):
            context.notes.repair("column-ignored", f"`{key}` wins, the column `{other}` is left out", other)
    messages, rest = with_column(messages, rest, context, "messages" if key == "messages" else None)
    return _row(messages, rest, context)


def _row(messages: list[dict], rest: dict, context: Context) -> dict:
    key = "prompt" if context.task == "prompts" else "messages"
    return assembled({key: messages}, rest, context.notes)
