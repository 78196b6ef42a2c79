"""Raw row -> canonical row, by what the row holds. The first layout that matches wins.

Formats: TRL (messages, prompt/completion, preference, text), OpenAI chat, ShareGPT, Alpaca, and bare lists of messages.
Columns that no layout uses are kept as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from gemma_trainer.data.chat import canonical_messages, messages_of, with_system
from gemma_trainer.data.notes import Notes, Refused
from gemma_trainer.data.parse import parse_text
from gemma_trainer.data.preferences import preference_row
from gemma_trainer.data.read_json import is_message
from gemma_trainer.data.tools import canonical_tools

TASKS = ("sft", "dpo", "rm", "prompts", "responses")
LISTED = frozenset({"human", "gpt", "function_call", "observation", "function_response"})  # ShareGPT's own words
_MESSAGES, _CONVERSATIONS = ("messages",), ("conversations", "conversation")
_RIVALS = ("prompt", "completion", "chosen", "rejected")  # a trainer that sees these takes another path
_NEEDED = {
    "sft": {"messages", "text"},
    "responses": {"messages"},
    "prompts": {"prompt"},
    "dpo": {"chosen"},
    "rm": {"chosen"},
}
_NO_OPTIONS = {"messages", "tools", "add_generation_prompt"}  # what the template is given in any case
_BLANK_WORDS = frozenset({"nan", "NaN", "None", "<NA>"})


class Canonical(NamedTuple):
    row: dict
    layout: str


def canonical_row(
    value: object, task: str, notes: Notes, layout: str = "auto", mapping: Mapping[str, str] | None = None, family=None
) -> Canonical:
    """The canonical row of a raw one and the name of the layout it had. Raises Refused.

    `layout` is a key of LAYOUTS or "auto"; `mapping` is {field: column}; `family` (a Family or None) tells whether a
    developer message needs renaming.
    """
    value = _decoded(value, task, notes)
    bare = isinstance(value, list)
    if bare:
        value = {"messages": value}
    fields = {key: item for key, item in _renamed(value, mapping or {}).items() if item is not None}
    name = LAYOUT_NAMES.get(layout, layout)
    if name == "auto":
        name = detect_layout(fields, task)
    known = {"developer"} if family is not None and family.system == "turn" else set()
    context = _Context(task, notes, frozenset(known | (LISTED if name == "sharegpt" else set())))
    if "tools" in fields:
        tools = canonical_tools(fields.pop("tools"), notes)
        if tools:
            fields["tools"] = tools
    options = fields.get("chat_template_kwargs", {})
    if not isinstance(options, dict) or options.keys() & _NO_OPTIONS:
        raise Refused("template-kwargs-invalid", "chat_template_kwargs is no object of options", "chat_template_kwargs")
    row = LAYOUTS[name](fields, context)
    if not row.keys() & _NEEDED[task]:
        raise Refused("wrong-layout", f"the layout {name} does not fit --task {task}")
    if bare:
        name = "bare-list"
        notes.repair("layout-converted", "a list of messages without a name became `messages`")
    elif name in ("sharegpt", "alpaca"):
        notes.repair("layout-converted", f"the {name} layout became messages")
    return Canonical(row, name)


def _decoded(value: object, task: str, notes: Notes) -> dict | list:
    """The row itself, or what a row that is nothing but text stands for: a row in JSON, or a prompt."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        row, fault = parse_text(value)
        if fault is None:
            notes.repair("text-decoded", "the row was stored as JSON text")
            return row
    elif isinstance(value, str) and task == "prompts":
        notes.repair("layout-converted", "plain text became a prompt")
        return {"prompt": value}
    if isinstance(value, dict | list):
        return value
    raise Refused("row-not-object", "the row is neither an object nor a list of messages")


def detect_task(value: object) -> str:
    """The task that a raw row is made for."""
    if not isinstance(value, dict):
        return "sft"
    keys = {key for key, item in value.items() if item is not None}
    if keys & {"chosen", "rejected"}:
        return "dpo"
    if {"prompt", "response"} <= keys and "finish_reason" in keys:
        return "responses"
    return "prompts" if "prompt" in keys and not keys & {"completion", "response", "messages", "text"} else "sft"


def detect_layout(fields: Mapping[str, object], task: str) -> str:
    """The layout of a row for a task. Raises Refused with the columns found when none fits."""
    preference = "chosen" in fields or "rejected" in fields
    if task in ("dpo", "rm"):
        if preference:
            return "preference"
        other = _sft_layout(fields)
        if other and other != "prompt":
            raise Refused("target-missing", f"--task {task} needs chosen and rejected; this row is of layout {other}")
        if other == "prompt":
            raise Refused("target-missing", "chosen and rejected are missing", "chosen")
        raise _unknown(fields)
    found = _sft_layout(fields)
    if task == "prompts":
        return "prompt" if found == "prompt-completion" else found or _raise(_unknown(fields))
    if found in (None, "prompt") and preference:
        raise Refused("wrong-task", "the row has chosen and rejected: pass --task dpo or --task rm")
    if found == "prompt":
        raise Refused("target-missing", "the row has a prompt and no completion", "completion")
    return found or _raise(_unknown(fields))


def _sft_layout(fields: Mapping[str, object]) -> str | None:
    if "messages" in fields:
        return "messages"
    if "conversations" in fields or "conversation" in fields:
        return "sharegpt"
    if "instruction" in fields:
        return "alpaca"
    if "prompt" in fields:
        return "prompt-completion" if "completion" in fields or "response" in fields else "prompt"
    return "text" if "text" in fields else None


def _unknown(fields: Mapping[str, object]) -> Refused:
    columns = ", ".join(str(key)[:40] for key in list(fields)[:12]) or "none with a value"
    known = "messages, conversations, instruction/output, prompt/completion, prompt/chosen/rejected, text"
    return Refused("unknown-columns", f"columns found: {columns}; layouts known: {known}")


def _raise(error: Exception):
    raise error


def _renamed(value: dict, mapping: Mapping[str, str]) -> dict:
    if not mapping:
        return value
    columns = {column: field for field, column in mapping.items()}
    kept = {key: item for key, item in value.items() if key not in mapping or key in columns}
    return {columns.get(key, key): item for key, item in kept.items()}


class _Context(NamedTuple):
    task: str
    notes: Notes
    known_roles: frozenset[str]

    def messages(self, value: object, path: str) -> list[dict]:
        return canonical_messages(messages_of(value, path, self.notes), path, self.notes, self.known_roles)

    def says_same(self, value: object, messages: list[dict]) -> bool:
        try:
            return self._replace(notes=Notes()).messages(value, "messages") == messages
        except Refused:
            return False


def _messages(fields: dict, context: _Context) -> dict:
    return _conversation(fields, _MESSAGES, context)


def _sharegpt(fields: dict, context: _Context) -> dict:
    return _conversation(fields, _CONVERSATIONS, context)


def _conversation(fields: dict, names: tuple[str, ...], context: _Context) -> dict:
    key = next((name for name in (*names, *_MESSAGES, *_CONVERSATIONS) if name in fields), None)
    if key is None:
        raise Refused("wrong-layout", f"there is no column {names[0]}")
    rest = {name: item for name, item in fields.items() if name not in (*_MESSAGES, *_CONVERSATIONS)}
    for rival in _RIVALS:
        if rest.pop(rival, None) is not None:
            context.notes.repair("column-ignored", f"`{key}` wins, the column `{rival}` is left out", rival)
    messages = context.messages(fields[key], "messages")
    for other in (*_MESSAGES, *_CONVERSATIONS):
        if other in fields and other != key and not context.says_same(fields[other], messages):
            context.notes.repair("column-ignored", f"`{key}` wins, the column `{other}` is left out", other)
    if isinstance(rest.get("system"), str):
        system = rest.pop("system")
        longer = with_system(messages, system)
        if longer is not messages:
            if names == _MESSAGES:
                context.notes.repair("system-column", "the column `system` became the first message", "messages[0]")
            messages = longer
        elif system.strip():
            rest["system"] = system
    if context.task == "prompts":
        return {**rest, "prompt": messages}
    return {"messages": messages, **rest}


def _alpaca(fields: dict, context: _Context) -> dict:
    question = _text(fields, "instruction")
    extra = _text(fields, "input")
    if extra in _BLANK_WORDS:
        context.notes.fault("blank-as-word", f"the input is the word {extra}", "input")
    if extra.strip():
        question = f"{question}\n{extra}"
    messages = [{"role": "user", "content": question}]
    for at, pair in enumerate(_history(fields)):
        path = f"history[{at}]"
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            raise Refused("content-type", "a turn of the history is no [question, answer]", path)
        messages[-1:-1] = [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    messages = with_system(messages, fields.get("system"))
    used = {"instruction", "input", "output", "response", "system", "history"}
    rest = {key: item for key, item in fields.items() if key not in used}
    if context.task == "prompts":
        return {**rest, "prompt": messages}
    answer = _target(fields, ("output", "response"))
    return {"messages": [*messages, {"role": "assistant", "content": answer}], **rest}


def _history(fields: dict) -> list:
    history = fields.get("history") or []
    if not isinstance(history, list):
        raise Refused("content-type", "the history is no list", "history")
    return history


def _prompt_completion(fields: dict, context: _Context) -> dict:
    """Loss falls on the completion only, so what the assistant says in the prompt gets weight 0."""
    if "prompt" not in fields:
        raise Refused("wrong-layout", "there is no column prompt")
    prompt = _turns(fields["prompt"], "user", "prompt", context)
    key = "completion" if "completion" in fields else "response"
    if key not in fields:
        raise Refused("target-missing", "the row has no completion", "completion")
    answer = _turns(fields[key], "assistant", key, context)
    prompt = [{"weight": 0, **m} if m["role"] == "assistant" else m for m in prompt]
    prompt = with_system(prompt, fields.get("system"))
    rest = {name: item for name, item in fields.items() if name not in ("prompt", key, "system")}
    return {"messages": [*prompt, *answer], **rest}


def _prompt(fields: dict, context: _Context) -> dict:
    if "prompt" not in fields:
        raise Refused("wrong-layout", "there is no column prompt")
    prompt = with_system(_turns(fields["prompt"], "user", "prompt", context), fields.get("system"))
    rest = {name: item for name, item in fields.items() if name not in ("prompt", "system")}
    return {**rest, "prompt": prompt}


def _turns(value: object, role: str, path: str, context: _Context) -> list[dict]:
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if is_message(value):
        value = [value]
    if not isinstance(value, list):
        raise Refused("content-type", f"{path} is neither text nor a list of messages", path)
    return context.messages(value, path)


def _preference(fields: dict, context: _Context) -> dict:
    return preference_row(fields, context.notes, lambda value, role, path: _turns(value, role, path, context))


def _plain_text(fields: dict, context: _Context) -> dict:
    text = fields.get("text")
    if not isinstance(text, str):
        code = "wrong-layout" if text is None else "content-type"
        raise Refused(code, "there is no text in the column text", "text")
    return fields


def _text(fields: dict, key: str) -> str:
    value = fields.get(key, "")
    if not isinstance(value, str):
        raise Refused("content-type", f"{key} is no text", key)
    return value


def _target(fields: dict, keys: tuple[str, ...]) -> str:
    key = next((key for key in keys if key in fields), None)
    if key is None:
        raise Refused("target-missing", f"the row has no {keys[0]}", keys[0])
    return _text(fields, key)


LAYOUTS: dict[str, Callable[[dict, _Context], dict]] = {
    "messages": _messages,
    "sharegpt": _sharegpt,
    "alpaca": _alpaca,
    "prompt-completion": _prompt_completion,
    "preference": _preference,
    "text": _plain_text,
    "prompt": _prompt,
}
LAYOUT_NAMES = {"openai": "messages", "teacher-reply": "auto"}  # values of --from that name no layout of rows
