"""Preference rows: prompt, chosen, rejected, from the explicit and implicit forms of many tools."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from gemma_trainer.data.layouts.gemini import system_text
from gemma_trainer.data.layouts.layout_base import (
    CONVERSATIONS,
    Context,
    assembled,
    decoded_turns,
    only_one,
    stored_messages,
    with_column,
    without,
)
from gemma_trainer.data.layouts.layout_single import ANSWERS, QUESTIONS, question
from gemma_trainer.data.layouts.numbers import numbers_in
from gemma_trainer.data.notes import Refused
from gemma_trainer.data.reading.parse import parse_text
from gemma_trainer.rows.roles import ASSISTANT, USER

SIDES = ("chosen", "rejected")
_OPENAI = ("preferred_output", "non_preferred_output")  # also Together and Fireworks
_NAMES = {
    "chosen": ("chosen", _OPENAI[0], "chosen_response"),
    "rejected": ("rejected", _OPENAI[1], "rejected_response", "rejected_messages"),  # the last two also of ms-swift
}
_TURNS = re.compile(r"\n\n(Human|Assistant):(.*?)(?=\n\n(?:Human|Assistant):|\Z)", re.DOTALL)
_COLUMNS = frozenset(name for names in _NAMES.values() for name in names)
_ASKING = ("instruction", *QUESTIONS, "input")


def is_pair(fields: Mapping) -> bool:
    return not _COLUMNS.isdisjoint(fields)


def is_scored(fields: Mapping) -> bool:
    """A prompt with several answers and a score for each; Vertex AI writes `contents` with scored `completions`."""
    if "contents" in fields:
        return isinstance(fields.get("completions"), list)
    return isinstance(fields.get("responses"), list) and isinstance(fields.get("scores"), list)


def read_preference(fields: dict, context: Context) -> dict:
    """`{"prompt", "chosen", "rejected"}` as lists of messages. Raises Refused.

    Without a prompt it is the longest common opening of both conversations, counted in messages, never in characters.
    """
    fields = _named(fields, context)
    for side in SIDES:
        if side not in fields:
            raise Refused("target-missing", f"the row has no {side}", side)
    fields = decoded_turns(fields, "prompt", SIDES, context.notes)
    if "prompt" not in fields and all(_is_transcript(fields[side]) for side in SIDES):
        context.converted("transcripts of Human and Assistant became messages")
        fields = {**fields, **{side: _turns_of(fields[side]) for side in SIDES}}
    chosen, rejected = (context.turns(fields[side], ASSISTANT, side) for side in SIDES)
    rest = without(fields, "prompt", *SIDES)
    prompt = None
    if "prompt" in fields:
        prompt = context.turns(fields["prompt"], USER, "prompt")
    elif chosen[0]["role"] == rejected[0]["role"] == ASSISTANT:
        prompt, rest = _asked(rest, context)
    if prompt:
        chosen, rejected = _without_prompt(prompt, chosen, rejected, context)
    elif isinstance(fields["chosen"], str) or isinstance(fields["rejected"], str):
        raise Refused("prompt-missing", "the row has no prompt", "prompt")
    else:
        prompt, chosen, rejected = _shared_opening(chosen, rejected)
    prompt, rest = with_column(prompt, rest, context, "prompt")
    made = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
    return assembled(made, numbers_in(rest, context.notes), context.notes)


def read_scored(fields: dict, context: Context) -> dict:
    """The best answer, and for preferences the worst beside it with the distance of the scores as margin."""
    fields = _vertex(fields)
    answers, scores = fields.get("responses"), fields.get("scores")
    if not (isinstance(answers, list) and isinstance(scores, list) and len(answers) == len(scores) and answers):
        raise Refused("scores-invalid", "responses and scores are no lists with one score for each response", "scores")
    if not all(isinstance(s, int | float) and not isinstance(s, bool) and math.isfinite(s) for s in scores):
        raise Refused("scores-invalid", "a score is no finite number", "scores")
    rest = without(fields, "prompt")
    prompt = context.turns(fields["prompt"], USER, "prompt") if "prompt" in fields else None
    if prompt is None:
        prompt, rest = _asked(rest, context)
    if not prompt:
        raise Refused("prompt-missing", "the row has no prompt", "prompt")
    prompt, rest = with_column(prompt, rest, context)
    if context.task == "prompts":
        return assembled({"prompt": prompt}, rest, context.notes)
    best, worst = scores.index(max(scores)), scores.index(min(scores))
    chosen = context.turns(answers[best], ASSISTANT, f"responses[{best}]")
    if context.task not in ("dpo", "rm"):
        return assembled({"messages": [*prompt, *chosen]}, rest, context.notes)
    if scores[best] == scores[worst]:
        raise Refused("scores-all-equal", "all responses have the same score", "scores")
    rejected = context.turns(answers[worst], ASSISTANT, f"responses[{worst}]")
    made = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
    if "margin" not in rest:
        made["margin"] = scores[best] - scores[worst]
    return assembled(made, numbers_in(rest, context.notes), context.notes)


def _named(fields: dict, context: Context) -> dict:
    """The fields with the columns of other tools under the names prompt, chosen and rejected."""
    if "chosen" in fields and "rejected" in fields:
        return fields
    found = {side: next((name for name in names if name in fields), None) for side, names in _NAMES.items()}
    if any(name in _OPENAI for name in found.values()):
        fields = _openai(fields)
    if found["chosen"] is None and found["rejected"] in ("rejected_response", "rejected_messages"):
        fields = _swift(fields, found["rejected"], context)
    names = {name: side for side, name in found.items() if name is not None}
    if any(name != side for name, side in names.items()):
        context.converted("other names of columns became prompt, chosen and rejected")
    return {names.get(name, name): value for name, value in fields.items()}


def _openai(fields: dict) -> dict:
    """`{"input": {"messages", "tools", ...}, "preferred_output", "non_preferred_output"}`."""
    asked = fields.get("input")
    if isinstance(asked, str) and asked.lstrip().startswith("{"):
        asked, _ = parse_text(asked)
    if isinstance(asked, list | str):
        return {("prompt" if name == "input" else name): value for name, value in fields.items()}
    if not isinstance(asked, dict) or "messages" not in asked:
        raise Refused("prompt-missing", "the column input has no messages", "input.messages")
    rest = {name: value for name, value in asked.items() if name != "messages" and value is not None}
    return {"prompt": asked["messages"], **rest, **without(fields, "input")}


def _swift(fields: dict, rejected: str, context: Context) -> dict:
    """ms-swift: the preferred answer is the last message, or the response to a query."""
    key = next((name for name in CONVERSATIONS if name in fields), None)
    if key is None:
        answer = only_one(fields, (*ANSWERS, "completion"), "the answer", "chosen", context)
        if answer is None:
            raise Refused("target-missing", "the row has no chosen", "chosen")
        return {("chosen" if name == answer else name): value for name, value in fields.items()}
    messages = context.messages(fields[key], key)
    if messages[-1]["role"] != ASSISTANT:
        raise Refused(
            "target-missing", f"`{key}` does not end with the preferred answer", f"{key}[{len(messages) - 1}]"
        )
    rest = without(fields, key)
    other = stored_messages(fields[rejected], rejected) or fields[rejected]
    if other is not fields[rejected]:
        context.notes.repair("text-decoded", "messages were stored as JSON text", rejected)
        rest[rejected] = other
    if not isinstance(other, str) and context.turns(other, ASSISTANT, rejected)[0]["role"] != ASSISTANT:
        return {"chosen": messages, **rest}  # two whole conversations
    return {"prompt": messages[:-1], "chosen": messages[-1:], **rest}


def _asked(fields: dict, context: Context) -> tuple[list[dict] | None, dict]:
    """(prompt or None, columns left): the conversation so far (LLaMA-Factory) or a question (axolotl's names)."""
    key = next((name for name in (*CONVERSATIONS, "contents") if name in fields), None)
    if key is not None:
        context.converted(f"`{key}` became the prompt")
        return context.messages(fields[key], "prompt"), without(fields, key)
    if any(name in fields for name in _ASKING):
        context.converted("the question became the prompt")
        return question(fields, context)
    return None, fields


def _vertex(fields: dict) -> dict:
    """`completions: [{"score", "completion"}]` as responses and scores."""
    completions = fields.get("completions")
    if "contents" not in fields or not isinstance(completions, list):
        return fields
    pairs = [(one.get("completion"), one.get("score")) for one in completions if isinstance(one, dict)]
    name = "systemInstruction"
    instruction = {"system": system_text(fields[name], name)} if name in fields else {}
    rest = without(fields, "completions", name)
    return {
        **rest,
        **instruction,
        "responses": [answer for answer, _ in pairs],
        "scores": [score for _, score in pairs],
    }


def _is_transcript(value: object) -> bool:
    """Whether a text is a dialogue as in Anthropic's hh-rlhf: `Human: ...`, `Assistant: ...` in turn."""
    if not isinstance(value, str) or not value.lstrip().startswith("Human:"):
        return False
    speakers = [speaker for speaker, _ in _TURNS.findall(f"\n\n{value.lstrip()}")]
    return len(speakers) > 1 and speakers == ["Human", "Assistant"] * (len(speakers) // 2)


def _turns_of(text: str) -> list[dict]:
    turns = _TURNS.findall(f"\n\n{text.lstrip()}")
    return [{"role": USER if who == "Human" else ASSISTANT, "content": said.strip()} for who, said in turns]


def _shared_opening(chosen: list[dict], rejected: list[dict]) -> tuple[list[dict], list[dict], list[dict]]:
    shared = 0
    for left, right in zip(chosen, rejected, strict=False):
        if left != right:
            break
        shared += 1
    while shared and (shared >= min(len(chosen), len(rejected)) or chosen[shared - 1]["role"] == ASSISTANT):
        shared -= 1  # each side keeps an answer of its own, and an answer that begins alike is no prompt
    if shared == 0 or any(not _is_answer(side[shared:]) for side in (chosen, rejected)):
        raise Refused("prompts-differ", "chosen and rejected do not open with the same prompt", "chosen")
    return chosen[:shared], chosen[shared:], rejected[shared:]


def _without_prompt(
    prompt: list[dict], chosen: list[dict], rejected: list[dict], context: Context
) -> tuple[list[dict], list[dict]]:
    """The answers alone, where they repeat the prompt they answer."""
    if chosen[0]["role"] == ASSISTANT or rejected[0]["role"] == ASSISTANT:
        return chosen, rejected
    size = len(prompt)
    for opening in (prompt, prompt[1:] if prompt[0]["role"] == "system" else prompt):
        size = len(opening)
        if _same(chosen[:size], opening) and _same(rejected[:size], opening):
            if len(chosen) == size or len(rejected) == size:
                raise Refused("target-missing", "an answer holds nothing but the prompt", "chosen")
            context.notes.repair("prompt-repeated", "chosen and rejected repeat the prompt", "chosen")
            return chosen[size:], rejected[size:]
    raise Refused("prompts-differ", "chosen or rejected opens with another prompt than `prompt`", "chosen")


def _same(left: list[dict], right: list[dict]) -> bool:
    return [(m["role"], m.get("content")) for m in left] == [(m["role"], m.get("content")) for m in right]


def _is_answer(messages: list[dict]) -> bool:
    return messages[0]["role"] == ASSISTANT and all(message["role"] in (ASSISTANT, "tool") for message in messages)
