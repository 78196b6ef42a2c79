"""Preference rows: whether the pair says anything."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import chain, zip_longest

from gemma_trainer.data.checking.check_media import check_media
from gemma_trainer.data.checking.check_tools import check_required, check_tools
from gemma_trainer.data.checking.checks import check_conversation, check_options, rendered
from gemma_trainer.data.checking.setting import Setting
from gemma_trainer.data.layouts.numbers import scores_of
from gemma_trainer.data.notes import Notes
from gemma_trainer.data.shown import CALL_REASONING, REASONING
from gemma_trainer.families.family import Family
from gemma_trainer.rows.content import are_plain, packed, text_of, without_ids
from gemma_trainer.rows.roles import ASSISTANT, TOOL, USER

SIDES = ("chosen", "rejected")
LARGEST_MARGIN = 1_000_000  # rewards are some tens at most: what is far beyond drowns every other row, then overflows
_BESIDE = ("reasoning_content", "tool_calls", "tool_responses")  # what an answer may hold beside its content
_WORDS, _LETTERS = re.compile(r"\S+"), re.compile(r"[^\W_]+")


def check_preference(row: dict, setting: Setting, notes: Notes) -> None:
    prompt = row["prompt"]
    check_options(row, notes)
    check_tools(row.get("tools"), setting, notes)
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
            if answer[-1]["role"] == TOOL:
                notes.fault("ends-with-tool", "the last message is a tool result", f"{side}[{len(answer) - 1}]")
    if row.get("tools"):
        for name in ("prompt", *SIDES):
            check_required(row[name], row["tools"], notes, name)
    _check_difference(row, setting, notes)
    _check_echo(row, notes)
    _check_margin(row, notes)
    check_media(row, {"prompt": prompt, "chosen": row["chosen"]}, setting, notes)
    if not _is_plain(row):
        _check_rendered(row, setting.family, notes)


def differ_plainly(asked: str, chosen: str, rejected: str) -> bool:
    """Whether the checks of a pair find nothing in plain texts: both answers differ, and neither is the question."""
    same = chosen.strip() == rejected.strip() or _same(_LETTERS, chosen, rejected)
    return not same and not _same(_WORDS, asked, chosen) and not _same(_WORDS, asked, rejected)


def answer_text(messages: list[dict]) -> str:
    """What an answer thinks, says and calls, as one text to compare by."""
    first = messages[0]
    if len(messages) == 1 and len(first) == 2 and first["content"].__class__ is str:  # most answers
        return first["content"].strip()
    return "\n".join(chain.from_iterable(map(_said, without_ids(messages))))


def _said(message: dict) -> Iterator[str]:
    content = message["content"]
    yield packed([message.get("name"), content]) if message["role"] == TOOL else text_of(content).strip()
    for name in _BESIDE:
        if message.get(name):
            yield packed(message[name])


def _check_difference(row: dict, setting: Setting, notes: Notes) -> None:
    chosen, rejected = (answer_text([_shown(m, setting) for m in row[side]]) for side in SIDES)
    if chosen == rejected:
        if _media(row["chosen"]) == _media(row["rejected"]):
            notes.fault("pair-identical", "chosen and rejected are the same", "chosen")
    elif _same(_LETTERS, chosen, rejected):
        notes.fault("pair-near-identical", "chosen and rejected differ in case, blanks or punctuation only", "chosen")


def _shown(message: dict, setting: Setting) -> dict:
    """The message without reasoning that the template in use leaves out."""
    if "reasoning_content" not in message:
        return message
    hidden = setting.hides(CALL_REASONING if "tool_calls" in message else REASONING)
    return {**message, "reasoning_content": None} if hidden else message


def _is_plain(row: dict) -> bool:
    """Whether both answers are texts that the template writes as they are."""
    if row.get("tools") or not all(are_plain(row[name]) for name in ("prompt", *SIDES)):
        return False
    return all(len(row[side]) == 1 and "<" not in row[side][0]["content"] for side in SIDES)


def _check_rendered(row: dict, family: Family, notes: Notes) -> None:
    """Whether the family's renderer takes both sides, and writes anything of what they differ in."""
    texts = [rendered([*row["prompt"], *row[side]], row, family, notes, side) for side in SIDES]
    if texts[0] is not None and texts[0] == texts[1] and _media(row["chosen"]) == _media(row["rejected"]):
        text = f"the template of {family.title} writes chosen and rejected the same"
        deleted = any(note.code == "inline-thought" for note in notes.found)
        notes.fault(
            "pair-identical", text, "chosen", "`convert` keeps the thinking that tells them apart." if deleted else None
        )


def _check_echo(row: dict, notes: Notes) -> None:
    question = row["prompt"][-1]
    asked = text_of(question["content"]) if question["role"] == USER else ""
    for side in SIDES:
        said = text_of(row[side][0]["content"])
        if asked and _same(_WORDS, asked, said):
            notes.fault("answer-echo", "the answer repeats the question", side)


def _check_margin(row: dict, notes: Notes) -> None:
    if "margin" in row:
        margin = row["margin"]
        if isinstance(margin, bool) or not isinstance(margin, int | float) or not abs(margin) < math.inf:
            notes.fault("margin-invalid", "the margin is no finite number", "margin")
        elif abs(margin) > LARGEST_MARGIN:
            notes.fault("margin-invalid", f"the margin is beyond {LARGEST_MARGIN:,}", "margin")
        elif margin < 0:
            notes.fault("margin-negative", "the margin is negative", "margin")
    scores = scores_of(row) if len(row) > 3 else None
    if scores and scores[0] < scores[1]:
        notes.fault("scores-inverted", "the chosen answer has the lower score", "chosen")
    elif scores and scores[0] == scores[1]:
        notes.fault("scores-equal", "chosen and rejected have the same score", "chosen")


def _same(pattern: re.Pattern, left: str, right: str) -> bool:
    """Whether two texts hold the same matches, case aside. Most texts differ at the first, so no more is looked at."""
    pairs = zip_longest(pattern.finditer(left), pattern.finditer(right))
    first = next(pairs, None)
    return first is not None and all(a and b and a[0].casefold() == b[0].casefold() for a, b in chain([first], pairs))


def _media(messages: list[dict]) -> list:
    parts = [part for m in messages if isinstance(m["content"], list) for part in m["content"]]
    return [part for part in parts if part.get("type") != "text"]
