"""Exact lengths of valid rows, by the model's own template and tokenizer."""

from __future__ import annotations

import contextlib

from gemma_trainer.data.checking.check_lengths import cut_code
from gemma_trainer.data.counting import PieceCounter, Size
from gemma_trainer.data.layouts.tokenised import trained_mask
from gemma_trainer.data.lengths import sequences
from gemma_trainer.data.model import Model
from gemma_trainer.data.notes import Notes
from gemma_trainer.data.reading.parse import loads
from gemma_trainer.data.running.part import Part

_PLAIN = 200  # characters without a blank are no prose
_CUT = {
    "answer-cut": "an answer would be cut at --max-length {most}: the row has {tokens} tokens",
    "answer-wholly-cut": "no answer would be left at --max-length {most}: {before} tokens stand before the first",
}


class Measure:
    """Counts the rows of a run. `max_length` in tokens, None for no limit."""

    def __init__(self, model: Model, max_length: int | None):
        self.renderer, self.max_length = model.renderer, max_length
        self.counter = PieceCounter(model.tokenizer, model.family)

    def look_ahead(self, lines: list[bytes]) -> None:
        """Count the texts of a block together, which is faster than row by row, whatever layout they are in."""
        texts: set[str] = set()
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                _gather(loads(line), texts)
        self.counter.count_ahead(texts)

    def row(self, row: dict, part: Part, notes: Notes) -> None:
        """Add a row's lengths to its part; what is wrong with them goes to its notes. Raises RenderError."""
        sizes = self._sizes(row)
        if not any(size.trained for size in sizes) and "prompt" not in row:
            notes.fault("no-trained-token", "not one token of the row carries loss")
            return
        self._add(sizes, part)
        longest = max(sizes)
        if self.max_length and longest.tokens > self.max_length:
            part.sums.lengths.over += 1
            notes.fault("over-length", f"{longest.tokens} tokens, over --max-length {self.max_length}")
            codes = {cut_code(size.before, size.tokens, self.max_length): size for size in sizes if size.trained}
            for code, size in codes.items():
                if code:
                    notes.fault(code, _CUT[code].format(most=self.max_length, tokens=size.tokens, before=size.before))

    def fits(self, row: dict, part: Part) -> bool:
        """As `row`, where there is nothing to tell; else False, and nothing is added."""
        sizes = self._sizes(row)
        if not all(size.trained for size in sizes) or (self.max_length and max(sizes).tokens > self.max_length):
            return False
        self._add(sizes, part)
        return True

    def _sizes(self, row: dict) -> list[Size]:
        if "input_ids" in row:
            return [Size.of(trained_mask(row) or [1] * len(row["input_ids"]))]
        prompt_only = "prompt" in row and "chosen" not in row
        return [self.counter.size(self.renderer.pieces(one, add_generation_prompt=prompt_only))
                for one in sequences(row)]  # fmt: skip

    @staticmethod
    def _add(sizes: list[Size], part: Part) -> None:
        longest = max(size.tokens for size in sizes)
        part.size = (longest, sum(size.trained for size in sizes), sum(size.tokens for size in sizes))
        part.sums.lengths.add(*part.size)


def _gather(value: object, texts: set[str]) -> None:
    """The texts in a JSON value, without the blanks around them, as templates write them."""
    kind = value.__class__
    if kind is str:
        if len(value) < _PLAIN or " " in value[:_PLAIN]:  # not packed media
            texts.add(value.strip())
    elif kind is list:
        for item in value:
            _gather(item, texts)
    elif kind is dict:
        for item in value.values():
            _gather(item, texts)
