"""Rows that are token ids already: their lengths, masks and labels. Nothing else of them can be judged."""

from __future__ import annotations

from collections.abc import Mapping

from gemma_trainer.data.layouts.layout_base import Context, assembled, without
from gemma_trainer.data.layouts.stored_text import decoded
from gemma_trainer.data.notes import Notes, Refused

MASKS = ("attention_mask", "assistant_masks", "completion_mask")
IGNORED = -100  # a label that carries no loss, in PyTorch and everywhere after it
_BOS_ID = 2  # of every Gemma tokenizer


def is_tokenised(fields: Mapping) -> bool:
    return "input_ids" in fields


def read_tokenised(fields: dict, context: Context) -> dict:
    """`input_ids` with `labels` or masks, kept as they are; lists that tables store as text are decoded."""
    if "input_ids" not in fields:
        raise Refused("wrong-layout", "there is no column input_ids")
    names = [name for name in ("input_ids", "labels", *MASKS) if name in fields]
    made = {name: decoded(fields[name], name, "tokens-invalid", name, context.notes) for name in names}
    return assembled(made, without(fields, *made), context.notes)


def check_tokenised(row: dict, notes: Notes) -> None:
    """Faults of a row of token ids: equal lengths, masks of 0 and 1, labels that are the ids, something to train."""
    ids = row["input_ids"]
    if not _integers(ids) or not ids or min(ids) < 0:
        notes.fault("tokens-invalid", "input_ids is no list of token ids", "input_ids")
        return
    given = [name for name in ("labels", *MASKS) if name in row]
    for name in given:
        if not _integers(row[name], flags=name != "labels"):
            notes.fault("tokens-invalid", f"{name} is no list of {'numbers' if name == 'labels' else '0 and 1'}", name)
        elif len(row[name]) != len(ids):
            notes.fault("tokens-length", f"{len(ids)} ids and {len(row[name])} values of {name}", name)
        else:
            continue
        return
    if "labels" in row:
        _check_labels(ids, row["labels"], notes)
    if ids[:2] == [_BOS_ID, _BOS_ID]:
        notes.fault("tokens-two-bos", "the ids begin with two <bos>", "input_ids")
    trained = trained_tokens(row)
    if trained is None:
        notes.fault("tokens-unmasked", "neither labels nor a mask of the answers: loss on everything", "input_ids")
    elif trained == 0:
        notes.fault("no-trained-token", "not one token of the row carries loss", given[0])


def trained_tokens(row: dict) -> int | None:
    """Number of tokens that carry loss; None without labels and masks of answers."""
    counts = [sum(label != IGNORED for label in row["labels"])] if "labels" in row else []
    counts += [sum(row[name]) for name in MASKS[1:] if name in row]
    return min(counts, default=None)


def trained_mask(row: dict) -> list[int] | None:
    """1 for each id that carries loss, by the labels, else by a mask of the answers; None without either."""
    if "labels" in row:
        return [int(label != IGNORED) for label in row["labels"]]
    return next((row[name] for name in MASKS[1:] if name in row), None)


def _check_labels(ids: list[int], labels: list[int], notes: Notes) -> None:
    wrong = [at for at, (token, label) in enumerate(zip(ids, labels, strict=True)) if label not in (token, IGNORED)]
    if not wrong:
        return
    shifted = all(label in (token, IGNORED) for token, label in zip(ids[1:], labels, strict=False))
    why = "labels are those of the next token: trainers shift them themselves" if shifted else (
        f"{len(wrong)} labels are neither the id nor {IGNORED}"
    )  # fmt: skip
    notes.fault("labels-invalid", why, f"labels[{wrong[0]}]")


def _integers(values: object, flags: bool = False) -> bool:
    if not isinstance(values, list):
        return False
    if flags:
        return all(value in (0, 1) and isinstance(value, int) for value in values)
    return all(value.__class__ is int for value in values)
