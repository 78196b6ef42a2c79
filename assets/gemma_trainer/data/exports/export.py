"""Canonical rows -> the forms that other trainers take. What a form cannot hold is refused or told, never dropped."""

from __future__ import annotations

from collections.abc import Callable

from gemma_trainer.data.encode import Encoded
from gemma_trainer.data.exports.export_gemini import to_gemini
from gemma_trainer.data.exports.export_openai import pair_to_openai, to_openai
from gemma_trainer.data.exports.export_sharegpt import pair_to_sharegpt, to_sharegpt
from gemma_trainer.data.exports.export_turns import ROW_KEYS, beside, lossy, plain_text, refuse_weightless
from gemma_trainer.data.layouts.layout_base import without
from gemma_trainer.data.layouts.tokenised import IGNORED
from gemma_trainer.data.lengths import render_all
from gemma_trainer.data.notes import Notes, Refused
from gemma_trainer.families.family import RenderError
from gemma_trainer.rows.problems import USAGE, Failure
from gemma_trainer.rows.roles import ASSISTANT, SYSTEM, USER

Export = Callable[[dict, object, Notes], dict]  # (canonical row, Model, notes) -> row of the form


def check_target(target: str, model) -> None:
    """Whether rows can be written in a form at all. Raises Failure (exit 2)."""
    if target == "pretokenized" and model.tokenizer is None:
        raise Failure(USAGE, "usage", "--to pretokenized needs a tokenizer", fix="Pass --model.")


def export_row(row: dict, target: str, model, notes: Notes | None = None) -> dict:
    """A canonical row in the form `target`, a key of EXPORTS. Nothing of `row` is changed.

    What readers of that form will not see is told to `notes` as export-lossy. Raises Refused (export-impossible, or
    the code of the template) for a row that the form cannot hold.
    """
    notes = Notes() if notes is None else notes
    if target == "messages":
        return row
    if "chosen" in row:
        return _pick(PAIR_EXPORTS, target, "pairs")(row, model, notes)
    if "messages" not in row and not (target == "pretokenized" and ("text" in row or "input_ids" in row)):
        kind = next((name for name in ("text", "input_ids", "prompt") if name in row), "nothing")
        raise Refused("export-impossible", f"a row of `{kind}` has no form in {target}", kind)
    return EXPORTS[target](row, model, notes)


def _pick(exports: dict[str, Export], target: str, what: str) -> Export:
    if target not in exports:
        raise Refused("export-impossible", f"{target} has no form for {what}", "chosen")
    return exports[target]


def to_messages(row: dict, model, notes: Notes) -> dict:
    return row


def to_prompt_completion(row: dict, model, notes: Notes) -> dict:
    """TRL's form: loss on the last answer only."""
    messages = row["messages"]
    if messages[-1]["role"] != ASSISTANT or messages[-1].get("weight") == 0:
        raise Refused("export-impossible", "the row does not end with an answer that is trained", "messages")
    if len(messages) == 1:
        raise Refused("export-impossible", "the row has no prompt", "messages")
    prompt = messages[:-1]
    if any(message["role"] == ASSISTANT and message.get("weight") != 0 for message in prompt):
        lossy(notes, "answers before the last one carry no loss", "messages")
    prompt = [without(m, "weight") if m["role"] == ASSISTANT else m for m in prompt]
    return beside({"prompt": prompt, "completion": messages[-1:]}, row, ("messages",), notes)


def to_alpaca(row: dict, model, notes: Notes) -> dict:
    """`instruction`, `input`, `output`, with `system` and `history`: text in turns, nothing else."""
    refuse_weightless(row["messages"], "alpaca")
    if row.get("tools"):
        raise Refused("export-impossible", "alpaca has no place for tools", "tools")
    messages = row["messages"]
    system = messages[0] if messages[0]["role"] == SYSTEM else None
    turns = messages[1:] if system else messages
    roles = [message["role"] for message in turns]
    if not turns or len(turns) % 2 or roles != [USER, ASSISTANT] * (len(turns) // 2):
        raise Refused("export-impossible", "alpaca holds questions and answers in turn only", "messages")
    if system and not plain_text(system, "messages[0]", notes).strip():
        raise Refused("export-impossible", "alpaca has no place for a blank system message", "messages[0]")
    first = 1 if system else 0
    texts = [plain_text(message, f"messages[{at}]", notes) for at, message in enumerate(turns, first)]
    made = {"instruction": texts[-2], "input": "", "output": texts[-1]}
    if system:
        made["system"] = plain_text(system, "messages[0]", Notes())
    if len(texts) > 2:
        made["history"] = [[texts[at], texts[at + 1]] for at in range(0, len(texts) - 2, 2)]
    return beside(made, row, ("messages", "tools"), notes)


def to_pretokenized(row: dict, model, notes: Notes) -> dict:
    """Ids and masks as the model's own template and tokenizer give them; `labels` are unshifted. Raises Refused."""
    if "input_ids" in row:
        return row
    try:
        (rendered,) = render_all(row, model)
    except RenderError as error:
        raise Refused(error.code, str(error), error.path) from None
    return tokenised_row(row, model.tokenizer.encode(rendered), notes)


def tokenised_row(row: dict, encoded: Encoded, notes: Notes) -> dict:
    """The row as ids and masks of its rendered text; its other columns are kept. Raises Refused without a trained token."""
    ids, mask = encoded
    if not any(mask):
        raise Refused("no-trained-token", "not one token of the row carries loss", "messages")
    made = {
        "input_ids": ids,
        "attention_mask": [1] * len(ids),
        "labels": [token if kept else IGNORED for token, kept in zip(ids, mask, strict=True)],
        "assistant_masks": mask,
    }
    return beside(made, row, ROW_KEYS, notes)


EXPORTS: dict[str, Export] = {
    "messages": to_messages,
    "prompt-completion": to_prompt_completion,
    "sharegpt": to_sharegpt,
    "alpaca": to_alpaca,
    "openai": to_openai,
    "gemini": to_gemini,
    "pretokenized": to_pretokenized,
}
PAIR_EXPORTS: dict[str, Export] = {"sharegpt": pair_to_sharegpt, "openai": pair_to_openai}
