"""Exact lengths of valid rows, by the model's own template and tokenizer."""

from __future__ import annotations

from gemma_trainer.data.counting import PieceCounter, Size
from gemma_trainer.data.lengths import sequences
from gemma_trainer.data.model import Model
from gemma_trainer.data.notes import Notes
from gemma_trainer.data.part import Part


class Measure:
    """Counts the rows of a run. `max_length` in tokens, None for no limit."""

    def __init__(self, model: Model, max_length: int | None):
        self.renderer, self.max_length = model.renderer, max_length
        self.counter = PieceCounter(model.tokenizer, model.family)

    def row(self, row: dict, part: Part, notes: Notes) -> None:
        """Add a row's lengths to its part; what is wrong with them goes to its notes. Raises RenderError."""
        if "input_ids" in row:
            sizes = [_given(row)]
        else:
            prompt_only = "prompt" in row and "chosen" not in row
            self.counter.begin_row()
            sizes = [self.counter.size(self.renderer.pieces(one, add_generation_prompt=prompt_only))
                     for one in sequences(row)]  # fmt: skip
        trained = sum(size.trained for size in sizes)
        if trained == 0 and "prompt" not in row:
            notes.fault("no-trained-token", "not one token of the row carries loss")
            return
        longest = max(size.tokens for size in sizes)
        part.lengths.add(longest, sum(size.tokens for size in sizes), trained)
        if self.max_length and longest > self.max_length:
            part.lengths.over += 1
            notes.fault("over-length", f"{longest} tokens, over --max-length {self.max_length}")

    def plain(self, messages: list, part: Part) -> bool:
        """As `row`, for a conversation of {role, content} alone; False when there is something to tell."""
        self.counter.begin_row()
        size = self.counter.size(self.renderer.pieces({"messages": messages}))
        if size.trained == 0 or (self.max_length and size.tokens > self.max_length):
            return False
        part.lengths.add(size.tokens, size.tokens, size.trained)
        return True


def _given(row: dict) -> Size:
    """The size of a row that comes as token ids."""
    ids = row["input_ids"]
    if "labels" in row:
        mask = [label != -100 for label in row["labels"]]
    else:
        mask = row.get("assistant_masks") or row.get("completion_mask") or [1] * len(ids)
    return Size(len(ids), sum(mask), mask.index(1) if 1 in mask else len(mask))
