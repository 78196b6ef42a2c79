"""Repairs of canonical messages: those that lose nothing are always made, the others only when asked for.

Training, `validate` and `convert` all work on repaired rows; each repair is counted by its code.
"""

from __future__ import annotations

import json
import re

from gemma_trainer.data.checking.characters import without_nul
from gemma_trainer.data.checking.links import link_results
from gemma_trainer.data.checking.marks_in_text import ending
from gemma_trainer.data.checking.padding import declared_arguments, without_padding
from gemma_trainer.data.checking.thoughts import moved
from gemma_trainer.data.layouts.chat import is_parts
from gemma_trainer.data.notes import Notes
from gemma_trainer.families.family import Family
from gemma_trainer.rows.content import is_blank, media_of, says_nothing, text_of
from gemma_trainer.rows.roles import ASSISTANT, SYSTEM, TOOL, USER

ASKED = {
    "merge-turns": "join neighbours of the same role with a blank line",
    "drop-dangling": "drop the last messages that no answer follows",
    "drop-null-arguments": "drop null arguments that the called tool does not declare",
    "drop-duplicates": "move repeated rows (or prompts) to the rejects",
    "strip-nul": "remove NUL characters",
}
# Done by `convert` unasked. Elsewhere rows are taken as they stand, and what the template does to them is told.
CONVERTING = frozenset({"move-thoughts"})
_EMPTY_THOUGHT = "<|channel>thought\n<channel|>"
_SWITCH = re.compile(r"\s*<\|think\|>\s*")
_TRAIN_FLAGS = ("train", "training", "loss")  # of axolotl and ms-swift
_TEXTS = ("messages", "prompt", "chosen", "rejected", "text", "tools")  # columns that are rendered


def strip_nul(row: dict, notes: Notes) -> dict:
    """The row without NUL characters in what is rendered."""
    changed = {}
    for column in _TEXTS:
        if (clean := without_nul(value := row.get(column))) is not value:
            changed[column] = clean
            notes.repair("nul-character", "NUL characters were removed", column)
    return {**row, **changed} if changed else row


def switch_thinking(row: dict, family: Family, notes: Notes) -> dict:
    """The row with a `<|think|>` that opens its system text as an option of the template, which writes the same."""
    key = "prompt" if "prompt" in row else "messages"
    messages = row.get(key)
    if not family.thinking or not messages or messages[0]["role"] != SYSTEM:
        return row
    first, *rest = messages
    content, options = first["content"], row.get("chat_template_kwargs") or {}
    match = _SWITCH.match(content) if content.__class__ is str else None
    if not match or not rest or options.get("enable_thinking", True) is not True:
        return row  # for the checks to refuse
    notes.repair("think-switch", "<|think|> became chat_template_kwargs", f"{key}[0].content")
    text = content[match.end() :]
    messages = [{**first, "content": text}, *rest] if text else rest
    return {**row, key: messages, "chat_template_kwargs": {**options, "enable_thinking": True}}


def repair_messages(
    messages: list[dict], family: Family, notes: Notes, path: str = "messages", asked: frozenset[str] = frozenset()
) -> list[dict]:
    """The repaired messages, the same list when nothing was to be done."""
    if "merge-turns" in asked:
        messages = _merge_turns(messages, path, notes)
    if "drop-dangling" in asked and path == "messages":
        messages = _drop_dangling(messages, path, notes)
    if len(messages) > 1 and messages[0]["role"] == SYSTEM and says_nothing(messages[0]["content"]):
        notes.repair("system-empty", "a system message without text was dropped", f"{path}[0]")
        messages = messages[1:]
    if family.system == "refused" and messages and messages[0]["role"] == SYSTEM:
        messages = _fold_system(messages, path, notes)
    out = messages
    for at, message in enumerate(messages):
        clean = _message(message, f"{path}[{at}]", family, notes, asked)
        if clean is not message:
            out = list(messages) if out is messages else out
            out[at] = clean
    return out


def link_tools(messages: list[dict], family: Family, notes: Notes, path: str = "messages") -> list[dict]:
    """Tool results with the id or name of their call filled in, where the row tells it."""
    return link_results(messages, family, notes, path) if any(m["role"] == TOOL for m in messages) else messages


def drop_null_arguments(messages: list[dict], tools: list[dict] | None, notes: Notes, path: str) -> list[dict]:
    """Messages whose calls carry no null argument that their tool does not declare."""
    declared = declared_arguments(tools)
    out = list(messages)
    for at, message in enumerate(messages):
        calls = message.get("tool_calls") or ()
        clean = [_call_without_nulls(call, declared) for call in calls]
        if clean != list(calls):
            out[at] = {**message, "tool_calls": clean}
            notes.repair("null-padded-arguments", "null arguments were dropped", f"{path}[{at}].tool_calls")
    return out if out != messages else messages


def _call_without_nulls(call: dict, declared: dict[str, dict]) -> dict:
    function = call["function"]
    kept, _ = without_padding(function["arguments"], declared.get(function["name"], {}))
    return {**call, "function": {**function, "arguments": kept}}


def _message(message: dict, where: str, family: Family, notes: Notes, asked: frozenset[str]) -> dict:
    if len(message) > 2 and message["role"] == ASSISTANT and "weight" not in message:
        message = _train_flag(message, where, notes)
    content = message["content"]
    if content.__class__ is list and (joined := _joined(content, message["role"], family)) is not content:
        notes.repair("parts-joined", "parts of text became one text", f"{where}.content")
        message = {**message, "content": (content := joined)}
    if message["role"] == ASSISTANT:
        if content.__class__ is str and "<" in content:
            message = _answer(message, content, f"{where}.content", family, notes)
        if "move-thoughts" in asked and "<" in text_of(content):
            message = _thoughtless(message, f"{where}.content", family, notes)
    elif message["role"] == TOOL and content.__class__ is not str and content is not None:
        message = _tool_result(message, where, family, notes)
    return message


def _train_flag(message: dict, where: str, notes: Notes) -> dict:
    flag = next((name for name in _TRAIN_FLAGS if isinstance(message.get(name), bool)), None)
    if flag is None:
        return message
    notes.repair("train-flag", f"`{flag}` became weight", f"{where}.{flag}")
    return {**{key: value for key, value in message.items() if key != flag}, "weight": int(message[flag])}


def _joined(parts: list[dict], role: str, family: Family) -> list[dict] | str:
    """The content as its family's template takes it whole; the same list when it does already."""
    tells_objects = family.tools and not family.thinking  # would print the parts of a result as an object
    if role == TOOL:
        return text_of(parts) if tells_objects and is_parts(parts) and _all_text(parts) else parts
    if not family.placeholders and _all_text(parts):
        return text_of(parts)
    if role == SYSTEM:
        return system_text(parts) if family.system == "folded" and len(parts) > 1 and _all_text(parts) else parts
    out = parts[:1]
    for part in parts[1:]:
        if _is_bare(part) and _is_bare(out[-1]) and _blank_between(out[-1]["text"], part["text"]):
            out[-1] = {"type": "text", "text": out[-1]["text"] + part["text"]}
        else:
            out.append(part)
    return out if len(out) < len(parts) else parts


def system_text(content: str | list[dict]) -> str:
    """System text as one; between its parts a blank, as Gemma 4's template puts it."""
    if isinstance(content, str):
        return content.strip()
    return " ".join(part["text"].strip() for part in content if part.get("type") == "text")


def _is_bare(part: dict) -> bool:
    return part.get("type") == "text" and len(part) == 2 and not is_blank(part["text"])


def _blank_between(left: str, right: str) -> bool:
    return left[-1:].isspace() or right[:1].isspace()


def _all_text(parts: list) -> bool:
    return bool(parts) and all(part.get("type") == "text" for part in parts)


def _answer(message: dict, content: str, path: str, family: Family, notes: Notes) -> dict:
    clean = content
    while end := ending(clean, family):
        clean = clean.rstrip().removesuffix(end)
        notes.repair("terminator-in-answer", f"the answer ended with {end}", path)
    if clean.lstrip().startswith(_EMPTY_THOUGHT):
        clean = clean.lstrip().removeprefix(_EMPTY_THOUGHT)
        notes.repair("empty-thought", "the answer began with an empty thought", path)
    return message if clean == content else {**message, "content": clean}


def _thoughtless(message: dict, path: str, family: Family, notes: Notes) -> dict:
    message, codes = moved(message, family)
    for code in codes:
        notes.repair(code, "thinking in the content became reasoning_content", path)
    return message


def _tool_result(message: dict, where: str, family: Family, notes: Notes) -> dict:
    """Structured results as JSON text, except for templates that write objects as they are."""
    content = message["content"]
    if is_parts(content) or (isinstance(content, dict) and family.tools and not family.thinking):
        return message
    notes.repair("tool-result-encoded", "a structured result became JSON text", f"{where}.content")
    return {**message, "content": json.dumps(content, ensure_ascii=False)}


def _fold_system(messages: list[dict], path: str, notes: Notes) -> list[dict]:
    if len(messages) < 2 or messages[1]["role"] != USER or media_of(messages[0]["content"]):
        return messages
    notes.repair("system-folded", "the system text went in front of the first user text", f"{path}[0]")
    system, user = system_text(messages[0]["content"]), messages[1]
    content = user["content"]
    if isinstance(content, str):
        content = f"{system}\n\n{content}"
    else:
        content = [{"type": "text", "text": f"{system}\n\n"}, *(content or ())]
    return [{**user, "content": content}, *messages[2:]]


def _merge_turns(messages: list[dict], path: str, notes: Notes) -> list[dict]:
    out = messages[:1]
    for at, message in enumerate(messages[1:], 1):
        if _are_one_turn(out[-1], message):
            out[-1] = {**out[-1], "content": _with_blank_line(out[-1]["content"], message["content"])}
            notes.repair("turns-merged", f"two {message['role']} turns became one", f"{path}[{at}]")
        else:
            out.append(message)
    return out


def _are_one_turn(first: dict, second: dict) -> bool:
    """Whether nothing but what is said tells two messages apart; reasoning before the first stays before both."""
    plain = {"role", "content", "weight"}
    same = first["role"] == second["role"] != TOOL and first.get("weight") == second.get("weight")
    known = first.keys() <= plain | {"reasoning_content"} and second.keys() <= plain
    return same and known and all(message["content"] not in (None, []) for message in (first, second))


def _with_blank_line(left: str | list[dict], right: str | list[dict]) -> str | list[dict]:
    if isinstance(left, str) and isinstance(right, str):
        return f"{left}\n\n{right}"
    left, right = ([{"type": "text", "text": c}] if isinstance(c, str) else c for c in (left, right))
    if left[-1].get("type") == right[0].get("type") == "text":
        text = {"type": "text", "text": f"{left[-1]['text']}\n\n{right[0]['text']}"}
        return [*left[:-1], text, *right[1:]]
    return [*left, *right]


def _drop_dangling(messages: list[dict], path: str, notes: Notes) -> list[dict]:
    end = len(messages)
    while end and messages[end - 1]["role"] != ASSISTANT:
        end -= 1
    if end in (0, len(messages)):
        return messages
    notes.repair("ends-with-user", f"{len(messages) - end} messages without an answer were dropped", f"{path}[{end}]")
    return messages[:end]
