"""The one judge of a row: layout, repair, checks. Whoever validates, converts, shows or trains rows asks it."""

from __future__ import annotations

from gemma_trainer.data.checking import repair
from gemma_trainer.data.checking.check_pairs import SIDES, check_preference
from gemma_trainer.data.checking.check_teacher import check_response
from gemma_trainer.data.checking.check_text import repair_text
from gemma_trainer.data.checking.check_tools import check_required
from gemma_trainer.data.checking.checks import check_prompt, check_sft, check_text_row
from gemma_trainer.data.checking.setting import Setting
from gemma_trainer.data.layouts.registry import canonical_row
from gemma_trainer.data.layouts.tokenised import check_tokenised
from gemma_trainer.data.notes import Notes, Refused
from gemma_trainer.data.options import Options
from gemma_trainer.rows.content import text_of


def process(value: object, options: Options, setting: Setting, notes: Notes) -> tuple[dict | None, str | None]:
    """(canonical row or None, layout or None) of one raw row; what was found is in `notes`."""
    try:
        row, layout = canonical_row(value, options.task, notes, options.layout, options.mapping, options.family)
    except Refused as refusal:
        notes.found.append(refusal.note)
        return None, None
    if "strip-nul" in options.asked:
        row = repair.strip_nul(row, notes)
    row = repair.switch_thinking(row, options.family, notes)
    if "chosen" in row:
        row = _repaired_pair(row, options, notes)
        check_preference(row, setting, notes)
    elif "messages" in row:
        row = _repaired(row, "messages", options, notes)
        if options.task == "responses":
            _check_response(row, notes)
        if not any(note.code == "response-empty" for note in notes.found):
            check_sft(row, setting, notes)
        if row.get("tools"):
            check_required(row["messages"], row["tools"], notes, "messages")
    elif "prompt" in row:
        row = _repaired(row, "prompt", options, notes)
        check_prompt(row, setting, notes)
    elif "input_ids" in row:
        check_tokenised(row, notes)
    else:
        check_text_row(row, setting, notes)
        row = repair_text(row, options.family)
    return row, layout


def _repaired(row: dict, column: str, options: Options, notes: Notes) -> dict:
    messages = repair.link_tools(_mended(row, column, options, notes), options.family, notes, column)
    return row if messages is row[column] else {**row, column: messages}


def _repaired_pair(row: dict, options: Options, notes: Notes) -> dict:
    changed = {}
    row = _repaired(row, "prompt", options, notes)
    prompt = row["prompt"]
    for side in SIDES:
        answer = _mended(row, side, options, notes)
        if any(message["role"] == "tool" for message in answer):
            linked = repair.link_tools([*prompt, *answer], options.family, notes, side)
            answer = linked[len(prompt) :]
        if answer is not row[side]:
            changed[side] = answer
    return {**row, **changed} if changed else row


def _mended(row: dict, column: str, options: Options, notes: Notes) -> list[dict]:
    """The messages of a column, each for itself repaired."""
    messages = repair.repair_messages(row[column], options.family, notes, column, options.asked)
    if "drop-null-arguments" in options.asked:
        messages = repair.drop_null_arguments(messages, row.get("tools"), notes, column)
    return messages


def _check_response(row: dict, notes: Notes) -> None:
    answer = next((m for m in reversed(row["messages"]) if m["role"] == "assistant"), None)
    if answer is not None and "tool_calls" not in answer:
        asked = next((m for m in reversed(row["messages"]) if m["role"] == "user"), {"content": ""})
        check_response(text_of(answer["content"]), text_of(asked["content"]), row.get("finish_reason"), notes)
