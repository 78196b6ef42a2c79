"""Layouts of one question and its answer, in columns of many names."""

from __future__ import annotations

from collections.abc import Mapping

from gemma_trainer.data.layouts.layout_base import (
    Context,
    assembled,
    decoded_turns,
    only_one,
    refuse_bytes,
    text_in,
    with_column,
    without,
)
from gemma_trainer.data.notes import Refused
from gemma_trainer.data.reading.parse import parse_text
from gemma_trainer.rows.content import BLANK_WORDS
from gemma_trainer.rows.roles import ASSISTANT, USER

QUESTIONS = ("question", "query", "problem")
ANSWERS = ("output", "response", "answer", "solution", "target")
COMPLETIONS = ("completion", "response")


def asks(fields: Mapping) -> bool:
    return any(name in fields for name in (*QUESTIONS, "input"))


def is_qa(fields: Mapping) -> bool:
    return asks(fields) and any(name in fields for name in ANSWERS)


def read_alpaca(fields: dict, context: Context) -> dict:
    messages, rest = question(fields, context)
    if context.task == "prompts":
        return assembled({"prompt": messages}, rest, context.notes)
    key = only_one(fields, (*ANSWERS, "completion"), "the answer", "output", context)
    if key is None:
        raise Refused("target-missing", "the row has no output", "output")
    return _answered(messages, fields, key, without(rest, key), context)


def read_qa(fields: dict, context: Context) -> dict:
    messages, rest = question(fields, context)
    if context.task == "prompts":
        return assembled({"prompt": messages}, rest, context.notes)
    key = only_one(fields, ANSWERS, "the answer", "completion", context)
    if key is None:
        raise Refused("target-missing", "the row has no answer", "answer")
    return _answered(messages, fields, key, without(rest, key), context)


def read_prompt_completion(fields: dict, context: Context) -> dict:
    """Loss falls on the completion only, so what the assistant says in the prompt gets weight 0."""
    if "prompt" not in fields:
        raise Refused("wrong-layout", "there is no column prompt")
    key = only_one(fields, COMPLETIONS, "the answer", "completion", context)
    if key is None:
        raise Refused("target-missing", "the row has no completion", "completion")
    fields = decoded_turns(fields, "prompt", (key,), context.notes)
    prompt = context.turns(fields["prompt"], USER, "prompt")
    answer = context.turns(fields[key], ASSISTANT, key)
    prompt = [{"weight": 0, **m} if m["role"] == ASSISTANT else m for m in prompt]
    prompt, rest = with_column(prompt, without(fields, "prompt", key), context, "messages")
    return assembled({"messages": [*prompt, *answer]}, rest, context.notes)


def read_prompt(fields: dict, context: Context) -> dict:
    if "prompt" not in fields:
        if not asks(fields):
            raise Refused("wrong-layout", "there is no column prompt")
        messages, rest = question(fields, context)
        return assembled({"prompt": messages}, rest, context.notes)
    fields = decoded_turns(fields, "prompt", (), context.notes)
    messages = context.turns(fields["prompt"], USER, "prompt")
    messages, rest = with_column(messages, without(fields, "prompt"), context, "prompt")
    return assembled({"prompt": messages}, rest, context.notes)


def read_text(fields: dict, context: Context) -> dict:
    text = fields.get("text")
    refuse_bytes(text, "text")
    if not isinstance(text, str):
        code = "wrong-layout" if text is None else "content-type"
        raise Refused(code, "there is no text in the column text", "text")
    return assembled({"text": text}, fields, context.notes)


def read_stepwise(fields: dict, context: Context) -> dict:
    """Steps that are each labelled good or bad: one answer when all are good, else nothing that is trained here."""
    steps, labels = fields.get("completions"), fields.get("labels")
    lists = isinstance(steps, list) and isinstance(labels, list) and bool(steps) and len(steps) == len(labels)
    if not lists or not all(isinstance(step, str) for step in steps):
        raise Refused("steps-invalid", "completions and labels are no lists of text and labels, one for each", "labels")
    rest = without(fields, "completions", "labels")
    if context.task == "prompts":
        return read_prompt(rest, context)
    if not all(label in (True, 1) for label in labels):
        bad = sum(label not in (True, 1) for label in labels)
        raise Refused("steps-not-good", f"{bad} of {len(labels)} steps are not labelled good", "labels")
    return read_prompt_completion({**rest, "completion": "\n".join(steps)}, context)


def question(fields: dict, context: Context) -> tuple[list[dict], dict]:
    """(the messages that ask, the columns that are left): earlier turns, system text and further input included."""
    key = "instruction" if "instruction" in fields else only_one(fields, QUESTIONS, "the question", "prompt", context)
    key = key or ("input" if "input" in fields else None)
    if key is None:
        raise Refused("wrong-layout", "there is no column instruction or question")
    text = text_in(fields, key)
    more = next((name for name in ("input", "context") if name != key and name in fields), None)
    if more == "context" and not isinstance(fields[more], str):
        more = None  # a structure, which is left as a column
    extra = text_in(fields, more) if more else ""
    if extra in BLANK_WORDS:
        context.notes.fault("blank-as-word", f"the {more} is the word {extra}", more)
    if extra.strip():
        text = f"{text}\n{extra}"
    messages = [*history(fields), {"role": USER, "content": text}]
    return with_column(messages, without(fields, key, "history", *([more] if more else [])), context)


def history(fields: Mapping) -> list[dict]:
    """Earlier turns of a column `history`: `[[question, answer], ...]`, also as JSON text."""
    pairs = fields.get("history") or []
    if isinstance(pairs, str):
        pairs, fault = parse_text(pairs) if pairs.strip() else ([], None)
        pairs = None if fault else pairs
    if not isinstance(pairs, list):
        raise Refused("content-type", "the history is no list", "history")
    messages = []
    for at, pair in enumerate(pairs):
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            raise Refused("content-type", "a turn of the history is no [question, answer]", f"history[{at}]")
        messages += [{"role": USER, "content": pair[0]}, {"role": ASSISTANT, "content": pair[1]}]
    return messages


def _answered(messages: list[dict], fields: dict, key: str, rest: dict, context: Context) -> dict:
    answer = {"role": ASSISTANT, "content": text_in(fields, key)}
    return assembled({"messages": [*messages, answer]}, rest, context.notes)
