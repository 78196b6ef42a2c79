"""Preference rows: prompt, chosen, rejected, from explicit and implicit forms."""

from __future__ import annotations

from collections.abc import Callable

from gemma_trainer.data.notes import Notes, Refused
from gemma_trainer.data.numbers import numbers_in
from gemma_trainer.rows.roles import ASSISTANT

Turns = Callable[[object, str, str], list[dict]]  # (value, role of plain text, path) -> canonical messages


def preference_row(fields: dict, notes: Notes, turns: Turns) -> dict:
    """`{"prompt", "chosen", "rejected"}` as lists of messages. Raises Refused.

    Without a prompt it is the longest common opening of both conversations, counted in messages, never in characters.
    """
    for side in ("chosen", "rejected"):
        if side not in fields:
            raise Refused("target-missing", f"the row has no {side}", side)
    chosen, rejected = (turns(fields[side], ASSISTANT, side) for side in ("chosen", "rejected"))
    if "prompt" not in fields and chosen[0]["role"] == rejected[0]["role"] == ASSISTANT:
        fields = _with_prompt(fields, notes)
    if "prompt" in fields:
        prompt = turns(fields["prompt"], "user", "prompt")
        chosen, rejected = _without_prompt(prompt, chosen, rejected, notes)
    else:
        if isinstance(fields["chosen"], str) or isinstance(fields["rejected"], str):
            raise Refused("prompt-missing", "the row has no prompt", "prompt")
        prompt, chosen, rejected = _shared_opening(chosen, rejected)
    rest = {key: value for key, value in fields.items() if key not in ("prompt", "chosen", "rejected")}
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected, **numbers_in(rest, notes)}


def _with_prompt(fields: dict, notes: Notes) -> dict:
    """LLaMA-Factory's form: the conversation so far, and two answers to it."""
    key = next((key for key in ("messages", "conversations", "conversation") if key in fields), None)
    if key is None:
        return fields
    notes.repair("layout-converted", f"`{key}` became the prompt of the pair")
    return {("prompt" if name == key else name): value for name, value in fields.items()}


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
    prompt: list[dict], chosen: list[dict], rejected: list[dict], notes: Notes
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
            notes.repair("prompt-repeated", "chosen and rejected repeat the prompt", "chosen")
            return chosen[size:], rejected[size:]
    raise Refused("prompts-differ", "chosen or rejected opens with another prompt than `prompt`", "chosen")


def _same(left: list[dict], right: list[dict]) -> bool:
    return [(m["role"], m.get("content")) for m in left] == [(m["role"], m.get("content")) for m in right]


def _is_answer(messages: list[dict]) -> bool:
    return messages[0]["role"] == ASSISTANT and all(message["role"] in (ASSISTANT, "tool") for message in messages)
