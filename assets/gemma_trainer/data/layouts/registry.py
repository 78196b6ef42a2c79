"""Raw row -> canonical row, by what the row holds. The first layout that matches wins.

Columns that no layout uses are kept as they are. The readers stand in layout_chat.py, layout_single.py, preferences.py,
rendered.py and tokenised.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from gemma_trainer.data.layouts.layout_base import CONVERSATIONS, Context, Layout
from gemma_trainer.data.layouts.layout_chat import read_gemini, read_messages, read_sharegpt
from gemma_trainer.data.layouts.layout_single import (
    ANSWERS,
    COMPLETIONS,
    QUESTIONS,
    asks,
    is_qa,
    read_alpaca,
    read_prompt,
    read_prompt_completion,
    read_qa,
    read_stepwise,
    read_text,
)
from gemma_trainer.data.layouts.preferences import is_pair, is_scored, read_preference, read_scored
from gemma_trainer.data.layouts.rendered import read_rendered, read_segments
from gemma_trainer.data.layouts.tokenised import is_tokenised, read_tokenised
from gemma_trainer.data.layouts.tools import canonical_tools
from gemma_trainer.data.notes import Notes, Refused
from gemma_trainer.data.reading.parse import parse_text

TASKS = ("sft", "dpo", "rm", "prompts", "responses")
LISTED = frozenset({"human", "gpt", "function_call", "observation", "function_response"})  # ShareGPT's own words
_DEVELOPER = frozenset({"developer"})
_NEEDED = {
    "sft": {"messages", "text", "input_ids"},
    "responses": {"messages"},
    "prompts": {"prompt"},
    "dpo": {"chosen"},
    "rm": {"chosen"},
}
_NO_OPTIONS = {"messages", "tools", "add_generation_prompt"}  # what the template is given in any case
_OFFERS = frozenset({"tools", "functions", "input"})  # columns that may declare tools
_LISTS = frozenset({"completions", "labels", "responses", "scores", "segments"})
_OF_LISTS = ("scored", "stepwise", "segments")
_PAIRS = ("dpo", "rm")
_FLAGS = frozenset({"label", "kto_tag"})  # of TRL and ms-swift, of LLaMA-Factory
_WORDS = {"true": True, "false": False}


class Canonical(NamedTuple):
    row: dict
    layout: str


def canonical_row(
    value: object, task: str, notes: Notes, layout: str = "auto", mapping: Mapping[str, str] | None = None, family=None
) -> Canonical:
    """The canonical row of a raw one and the name of the layout it had. Raises Refused.

    `layout` is a key of LAYOUTS or "auto"; `mapping` is {field: column}; `family` (a Family or None) tells whether a
    developer message needs renaming, and how rendered text is read.
    """
    value = _decoded(value, task, notes)
    bare = isinstance(value, list)
    if bare:
        value = {"messages": value}
    renamed = _renamed(value, mapping or {}, notes)
    fields = {key: item for key, item in renamed.items() if item is not None}
    name = LAYOUT_NAMES.get(layout, layout)
    if name == "auto":
        try:
            name, fields = _detected(fields, task, mapping or {}, notes)
        except Refused as refusal:
            raise _blamed_on_null(refusal, renamed, fields, task) from None
    if not _OFFERS.isdisjoint(fields):
        _set_tools(fields, notes)
    if "chat_template_kwargs" in fields:
        _set_options(fields)
    context = Context(task, notes, family, _known_roles(fields, family), frozenset(mapping or ()))
    row = LAYOUTS[name].read(fields, context)
    if not row.keys() & _NEEDED[task]:
        raise Refused("wrong-layout", f"the layout {name} does not fit --task {task}")
    if "messages" in row and not _FLAGS.isdisjoint(row):
        _check_flag(row, name, notes)
    if bare:
        name = "bare-list"
    if bare or LAYOUTS[name].converted:
        what = "a list of messages without a name became `messages`" if bare else f"the {name} layout became messages"
        notes.repair("layout-converted", what)
    if len(notes.repairs) > 1:
        _tell_once(notes)
    return Canonical(row, name)


def _tell_once(notes: Notes) -> None:
    """A row is converted once, in however many places."""
    found = [note for note in notes.repairs if note.code == "layout-converted"]
    if len(found) > 1:
        notes.repairs[:] = [note for note in notes.repairs if note not in found[1:] or note is found[0]]


def _known_roles(fields: Mapping, family) -> frozenset[str]:
    """Names of roles that are right where they stand: they are renamed without a word."""
    own = _DEVELOPER if family is not None and family.system == "turn" else frozenset()
    return own | LISTED if "conversations" in fields or "conversation" in fields else own


def detect_task(value: object) -> str | None:
    """The task that a raw row is made for; None where it does not tell: no layout, or an answer that is null."""
    if isinstance(value, str):
        value = _stored(value)
    if not isinstance(value, dict):
        return "sft" if value and isinstance(value, list) else None
    task = _task_of({key: item for key, item in value.items() if item is not None})
    if task == "prompts" and _task_of({key: "" if item is None else item for key, item in value.items()}) != task:
        return None
    return task


def _task_of(fields: Mapping) -> str | None:
    fields = _unpacked(fields)
    if not _first(fields, "sft"):
        fields = _folded(fields)
    if is_pair(fields) or (is_scored(fields) and not fields.keys() & {"messages", "conversations"}):
        return "dpo"
    if {"prompt", "response", "finish_reason"} <= fields.keys():
        return "responses"
    found = _first(fields, "sft")
    return "prompts" if found == "prompt" and "text" not in fields else "sft" if found else None


def detect_layout(fields: Mapping[str, object], task: str) -> str:
    """The layout of a row for a task. Raises Refused with the columns found when none fits."""
    found = _first(fields, task)
    if task in _PAIRS:
        if found:
            return found
        other = _first(fields, "sft")
        if other and other != "prompt":
            raise Refused("target-missing", f"--task {task} needs chosen and rejected; this row is of layout {other}")
        if other == "prompt":
            raise Refused("target-missing", "chosen and rejected are missing", "chosen")
        raise _unknown(fields)
    if task == "prompts":
        found = "prompt" if found in ("prompt-completion", "unpaired") else found
        found = "prompt" if found is None and asks(fields) else found
    elif is_pair(fields) and (found in (None, "prompt") or (found == "alpaca" and not fields.keys() & {*ANSWERS})):
        raise Refused("wrong-task", "the row has chosen and rejected: pass --task dpo or --task rm")
    elif found == "prompt":
        columns = ", ".join(str(key)[:40] for key in list(fields)[:12])
        text = f"the row has a prompt and no completion; columns found: {columns}"
        raise Refused("target-missing", text, "completion")
    if found is None:
        raise _unknown(fields)
    return found


def reader_of(fields: Mapping) -> Callable | None:
    """What would read a row of these fields: the same of two layouts that differ in name only."""
    name = _first(fields, "dpo" if is_pair(fields) else "sft")
    return LAYOUTS[name].read if name else None


def _first(fields: Mapping, task: str) -> str | None:
    if task in _PAIRS:
        return next((name for name in ("preference", "scored") if LAYOUTS[name].matches(fields)), None)
    return next((name for name, layout in LAYOUTS.items() if name != "preference" and layout.matches(fields)), None)


def _detected(fields: dict, task: str, mapping: Mapping, notes: Notes) -> tuple[str, dict]:
    """(layout, fields): by the mapped columns where they are a layout, else by all, else by all in small letters."""
    unpacked = _unpacked(fields)
    if unpacked is not fields and (name := _first(unpacked, task)) in _OF_LISTS:
        notes.repair("text-decoded", "lists were stored as JSON text")
        return name, unpacked
    refusals = []
    mapped = [{key: item for key, item in fields.items() if key in mapping}] if mapping else []
    for some in (*mapped, fields):
        try:
            return detect_layout(some, task), fields
        except Refused as refusal:
            refusals.append(refusal)
    folded = _folded(fields)
    try:
        name = detect_layout(folded, task)
    except Refused:
        raise refusals[-1] from None
    changed = next(str(key)[:40] for key in fields if key not in folded)
    notes.repair("column-renamed", f"the column `{changed}` was read without regard to case and blanks", changed)
    return name, dict(folded)


def _unpacked(fields: dict) -> dict:
    """The fields with lists in place of JSON text, in columns that some layouts want as lists."""
    if _LISTS.isdisjoint(fields):
        return fields
    lists = {}
    for name in _LISTS & fields.keys():
        text = fields[name]
        if isinstance(text, str) and text.lstrip().startswith("["):
            value, fault = parse_text(text)
            if fault is None:
                lists[name] = value
    return {**fields, **lists} if lists else fields


def _folded(fields: Mapping) -> Mapping:
    """The fields with known columns that are written in other letters under their own names."""
    names = {key: key.strip().lower() for key in fields if isinstance(key, str)}
    known = {key: name for key, name in names.items() if name in KNOWN and name not in fields}
    if not known or len(set(known.values())) < len(known):
        return fields
    return {known.get(key, key): item for key, item in fields.items()}


def _decoded(value: object, task: str, notes: Notes) -> dict | list:
    """The row itself, or what a row that is nothing but text stands for: a row in JSON, or a prompt."""
    if isinstance(value, str):
        row = _stored(value)
        if row is not None:
            notes.repair("text-decoded", "the row was stored as JSON text")
            return row
        if task == "prompts":
            notes.repair("layout-converted", "plain text became a prompt")
            return {"prompt": value}
    if isinstance(value, dict | list):
        return value
    raise Refused("row-not-object", "the row is neither an object nor a list of messages")


def _stored(text: str) -> dict | list | None:
    if text.lstrip()[:1] not in ("{", "["):
        return None
    row, fault = parse_text(text)
    return None if fault else row


def _unknown(fields: Mapping[str, object]) -> Refused:
    columns = ", ".join(str(key)[:40] for key in list(fields)[:12]) or "none with a value"
    known = "messages, conversations, contents, instruction/output, prompt/completion, question/answer, "
    known += "prompt/chosen/rejected, text, input_ids"
    return Refused("unknown-columns", f"columns found: {columns}; layouts known: {known}")


def _blamed_on_null(refusal: Refused, row: Mapping, fields: Mapping, task: str) -> Refused:
    """Why a row is of no layout: where one would match if a column were not null, that."""
    if refusal.note.code != "unknown-columns":
        return refusal
    filled = dict(fields)
    for name in (name for name in row if name not in fields):
        filled[name] = ""
        if _first(filled, task) or (task == "prompts" and asks(filled)):
            return Refused("target-missing", f"the column {name} is null", name)
    return refusal


def _renamed(value: dict, mapping: Mapping[str, str], notes: Notes) -> dict:
    if not mapping:
        return value
    columns = {column: field for field, column in mapping.items() if column in value}
    out = {}
    for key, item in value.items():
        if key in columns:
            out[columns[key]] = item
        elif key not in columns.values():
            out[key] = item
        elif item is not None:
            notes.repair("column-ignored", f"--map names another column for `{key}`, which is left out", key)
    return out


def _set_tools(fields: dict, notes: Notes) -> None:
    """Declared tools in their place: the column `functions` is OpenAI's old name of them."""
    asked = fields.get("input")
    if "tools" not in fields and isinstance(asked, dict) and asked.get("tools") is not None:
        fields["tools"] = asked["tools"]
        fields["input"] = {key: item for key, item in asked.items() if key != "tools"}
    if "tools" not in fields and isinstance(fields.get("functions"), list):
        fields["tools"] = fields.pop("functions")
        notes.repair("function-call-legacy", "functions became tools", "tools")
    if "tools" in fields:
        tools = canonical_tools(fields.pop("tools"), notes)
        if tools:
            fields["tools"] = tools


def _set_options(fields: dict) -> None:
    options = fields["chat_template_kwargs"]
    if isinstance(options, str):
        options, _ = parse_text(options) if options.strip() else ({}, None)
    if not isinstance(options, dict) or options.keys() & _NO_OPTIONS:
        raise Refused("template-kwargs-invalid", "chat_template_kwargs is no object of options", "chat_template_kwargs")
    fields["chat_template_kwargs"] = options


def is_flag(value: object) -> bool:
    return isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() in _WORDS)


def _check_flag(row: dict, layout: str, notes: Notes) -> None:
    """Rows of unpaired preferences: an answer that is labelled undesirable must not be learned. Raises Refused."""
    for name in _FLAGS:
        value = row.get(name)
        if is_flag(value):
            if value is False or (isinstance(value, str) and not _WORDS[value.strip().lower()]):
                raise Refused("answer-undesired", f"`{name}` says that the answer is undesirable", name)
        elif value == 0 and isinstance(value, int) and layout == "prompt-completion":
            notes.fault("label-as-number", f"`{name}` is 0, which may mark an undesirable answer", name)


def _has(*names: str):
    wanted = frozenset(names)
    return lambda fields: not wanted.isdisjoint(fields)


def _completes(fields: Mapping) -> bool:
    return "prompt" in fields and any(name in fields for name in COMPLETIONS)


def _is_unpaired(fields: Mapping) -> bool:
    return _completes(fields) and any(is_flag(fields.get(name)) for name in _FLAGS)


def _is_stepwise(fields: Mapping) -> bool:
    return "prompt" in fields and isinstance(fields.get("completions"), list) and "labels" in fields


LAYOUTS: dict[str, Layout] = {
    "messages": Layout(read_messages, _has("messages"), converted=False),
    "sharegpt": Layout(read_sharegpt, _has("conversations", "conversation")),
    "scored": Layout(read_scored, is_scored),
    "gemini": Layout(read_gemini, _has("contents")),
    "alpaca": Layout(read_alpaca, _has("instruction")),
    "stepwise": Layout(read_stepwise, _is_stepwise),
    "unpaired": Layout(read_prompt_completion, _is_unpaired, converted=False),
    "prompt-completion": Layout(read_prompt_completion, _completes, converted=False),
    "preference": Layout(read_preference, is_pair, converted=False),
    "prompt": Layout(read_prompt, _has("prompt"), converted=False),
    "qa": Layout(read_qa, is_qa),
    "segments": Layout(read_segments, _has("segments")),
    "pretokenized": Layout(read_tokenised, is_tokenised, converted=False),
    "text": Layout(read_text, _has("text"), converted=False),
    "rendered": Layout(read_rendered, lambda fields: False),  # only when asked: text may be meant as text
}
# Values of --from that name no layout of rows, or one by the tool that writes it.
LAYOUT_NAMES = {"openai": "messages", "anthropic": "messages", "vertex": "gemini", "teacher-reply": "auto"}
# Columns that are also known in other letters.
KNOWN = frozenset({*CONVERSATIONS, *QUESTIONS, *ANSWERS, *COMPLETIONS, *_LISTS}) | {
    "prompt", "instruction", "input", "context", "history", "system", "tools", "chosen", "rejected", "contents", "text",
    "input_ids", "label",
}  # fmt: skip
