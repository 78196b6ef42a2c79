"""Preference rows: whether the pair says anything."""

from __future__ import annotations

import math
import re

from gemma_trainer.data.check_media import check_media
from gemma_trainer.data.check_tools import check_tools
from gemma_trainer.data.checks import Setting, check_conversation, check_renders
from gemma_trainer.data.notes import Notes
from gemma_trainer.data.numbers import scores_of
from gemma_trainer.rows.content import text_of
from gemma_trainer.rows.roles import ASSISTANT, TOOL, USER

SIDES = ("chosen", "rejected")
_FOLD = re.compile(r"[\W_]+")


def check_preference(row: dict, setting: Setting, notes: Notes) -> None:
    prompt = row["prompt"]
    check_tools(row.get("tools"), prompt, setting.family, notes)
    if prompt[-1]["role"] not in (USER, TOOL):
        text = f"the prompt ends with the {prompt[-1]['role']}"
        notes.fault("prompt-last-role", text, f"prompt[{len(prompt) - 1}]")
    else:
        check_conversation(prompt, row, setting, notes, "prompt")
    for side in SIDES:
        answer = row[side]
        if answer[0]["role"] != ASSISTANT:
            text = f"an answer begins with the {answer[0]['role']}"
            notes.fault("answer-role", text, f"{side}[0].role")
        elif not all(message["role"] in (ASSISTANT, TOOL) for message in answer):
            notes.fault("answer-role", "an answer holds turns of other speakers", side)
        else:
            check_conversation([*prompt, *answer], row, setting, notes, side, start=len(prompt), shift=len(prompt))
    _check_difference(row, notes)
    _check_margin(row, notes)
    check_media(row, [*prompt, *row["chosen"]], setting, notes)
    for side in SIDES:
        check_renders([*prompt, *row[side]], row, setting.family, notes, side)


def answer_text(messages: list[dict]) -> str:
    """What an answer says and calls, as one text to compare by."""
    said = [text_of(message.get("content")).strip() for message in messages]
    calls = [repr(message["tool_calls"]) for message in messages if message.get("tool_calls")]
    return "\n".join([*said, *calls])


def _check_difference(row: dict, notes: Notes) -> None:
    chosen, rejected = answer_text(row["chosen"]), answer_text(row["rejected"])
    reasons = [[m.get("reasoning_content") for m in row[side]] for side in SIDES]
    if chosen == rejected and reasons[0] == reasons[1]:
        if _media(row["chosen"]) == _media(row["rejected"]):
            notes.fault("pair-identical", "chosen and rejected are the same", "chosen")
    elif chosen and _folded(chosen) == _folded(rejected) and reasons[0] == reasons[1]:
        notes.fault("pair-near-identical", "chosen and rejected differ in case, blanks or punctuation only", "chosen")


def _check_margin(row: dict, notes: Notes) -> None:
    if "margin" in row:
        margin = row["margin"]
        if isinstance(margin, bool) or not isinstance(margin, int | float) or not abs(margin) < math.inf:
            notes.fault("margin-invalid", "the margin is no finite number", "margin")
        elif margin < 0:
            notes.fault("margin-negative", "the margin is negative", "margin")
    scores = scores_of(row)
    if scores and scores[0] < scores[1]:
        notes.fault("scores-inverted", "the chosen answer has the lower score", "chosen")


def _folded(text: str) -> str:
    return _FOLD.sub(" ", text).strip().casefold() or text


def _media(messages: list[dict]) -> list:
    parts = [part for m in messages if isinstance(m["content"], list) for part in m["content"]]
    return [part for part in parts if part.get("type") != "text"]
