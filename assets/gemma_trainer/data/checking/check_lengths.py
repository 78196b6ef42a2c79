"""Lengths: whose answers would be cut, and whether length alone tells the better answer."""

from __future__ import annotations

from dataclasses import dataclass

from gemma_trainer.rows.problems import Problem

_ENOUGH = 20  # pairs, before a set can be said to be biased
_MUCH = 1.5  # times as many characters


def cut_code(prompt_tokens: int, total_tokens: int, max_length: int | None) -> str | None:
    """The code for a row that is cut at `max_length` tokens; None when it fits.

    `prompt_tokens` are those in front of the first trained token.
    """
    if not max_length or total_tokens <= max_length:
        return None
    return "answer-wholly-cut" if prompt_tokens >= max_length else "answer-cut"


@dataclass
class LengthBias:
    """Lengths of the two answers of the pairs of a set, in characters. Parts of a set merge."""

    pairs: int = 0
    longer: int = 0  # pairs whose chosen answer is much longer
    shorter: int = 0  # or much shorter
    chosen: int = 0  # characters
    rejected: int = 0

    def add(self, chosen: int, rejected: int) -> None:
        self.pairs += 1
        self.longer += chosen > _MUCH * rejected
        self.shorter += rejected > _MUCH * chosen
        self.chosen += chosen
        self.rejected += rejected

    def merge(self, other: LengthBias) -> None:
        for name in ("pairs", "longer", "shorter", "chosen", "rejected"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def problem(self) -> Problem | None:
        """The warning about the set, when most of its pairs lean the same way."""
        if self.pairs < _ENOUGH or 2 * self.longer <= self.pairs:
            return None
        share = round(100 * self.longer / self.pairs)
        means = f"{self.chosen // self.pairs} and {self.rejected // self.pairs} characters on average"
        return Problem(
            "length-bias", f"chosen is much longer than rejected in {share} % of {self.pairs} pairs ({means})"
        )
