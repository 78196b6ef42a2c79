"""Preference rows as the trainers take them: both answers with their prompt, rendered and masked as in supervised tuning."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from typing import NamedTuple

from gemma_trainer.data.encode import Encoded, RowTokenizer
from gemma_trainer.data.lengths import sequences
from gemma_trainer.data.options import Row
from gemma_trainer.data.render import Rendered, Renderer
from gemma_trainer.data.view import row_view
from gemma_trainer.rows.problems import Problem
from gemma_trainer.train.encoded_cache import EncodingCache
from gemma_trainer.train.method import Method
from gemma_trainer.train.rows import EncodedSet, chunked, is_too_long, left_out, render_row

SIDES = ("chosen", "rejected")
LENGTH_RATIO = 1.5  # of the longer side's answers to the shorter's


class EncodedPair(NamedTuple):
    """Prompt and answer of both sides; a mask is 1 on the tokens of its answer. `margin` is None without one."""

    chosen: Encoded
    rejected: Encoded
    margin: float | None = None

    @property
    def length(self) -> int:
        """Of the longer side, in tokens."""
        return max(len(self.chosen.ids), len(self.rejected.ids))


class PairSet(EncodedSet):
    """As EncodedSet, of EncodedPair; a pair is as long as its longer side."""

    rows: list[EncodedPair]
    first: tuple[Rendered, Rendered] | None = None

    @property
    def tokens(self) -> int:
        return sum(len(side.ids) for pair in self.rows for side in pair[:2])

    @property
    def trained_tokens(self) -> int:
        return sum(sum(side.mask) for pair in self.rows for side in pair[:2])

    @property
    def lengths(self) -> list[int]:
        return [pair.length for pair in self.rows]

    def facts(self) -> dict:
        return super().facts() | {"answer_tokens": self.answer_tokens()}

    def views(self) -> list[dict]:
        sides = zip(SIDES, self.first, self.rows[0][:2], strict=True)
        return [{**row_view(*self.sources[0][1:], text, encoded), "side": side} for side, text, encoded in sides]

    def answer_tokens(self) -> dict[str, float]:
        """Mean length of the answers of each side, in trained tokens."""
        count = max(len(self.rows), 1)
        means = (sum(sum(pair[side].mask) for pair in self.rows) / count for side in (0, 1))
        return dict(zip(SIDES, means, strict=True))

    def length_warnings(self) -> list[Problem]:
        """Where length alone tells the sides apart."""
        chosen, rejected = self.answer_tokens().values()
        if max(chosen, rejected) <= LENGTH_RATIO * min(chosen, rejected):
            return []
        text = f"chosen answers have {chosen:.0f} tokens on average, rejected ones {rejected:.0f}"
        return [Problem("answer-lengths-differ", text)]


def encode_pairs(
    loaded: Iterable[Row], renderer: Renderer, tokenizer: RowTokenizer, *, max_length: int, overlong: str
) -> PairSet:
    """Render and encode pairs. One with a side over `max_length` tokens is dropped, cut at the end of that side, or
    refused; one that loses all of an answer, or all that tells its sides apart, is dropped in any case.

    Raises Failure (exit 3) when the template refuses a row, or when `overlong` is "error" and a row is too long.
    """
    result, cache = PairSet(), EncodingCache(tokenizer)
    for chunk in chunked(loaded):
        texts = [render_row(row, side, renderer, "assistant") for row in chunk for side in sequences(row.data)]
        sides = cache.encode_batch(texts)
        for at, row in enumerate(chunk):
            chosen, rejected = sides[2 * at : 2 * at + 2]
            if is_too_long(result, row, max(len(chosen.ids), len(rejected.ids)), max_length, overlong):
                if overlong == "drop":
                    continue
                chosen, rejected = (
                    Encoded(side.ids[:max_length], side.mask[:max_length]) for side in (chosen, rejected)
                )
            if not (any(chosen.mask) and any(rejected.mask)) or chosen.ids == rejected.ids:
                result.untrained += 1
                continue
            result.first = result.first or (texts[2 * at], texts[2 * at + 1])
            result.rows.append(EncodedPair(chosen, rejected, row.data.get("margin")))
            result.sources.append(row)
    result.warnings += left_out(result, max_length, overlong)
    return result


class PairMethod(Method):
    """What learns from pairs."""

    texts = 2

    def encode(self, rows: Iterable[Row], renderer: Renderer, tokenizer: RowTokenizer, args: Namespace) -> PairSet:
        return encode_pairs(rows, renderer, tokenizer, max_length=args.max_length, overlong=args.overlong)

    def sample(self, prepared) -> list[int]:
        return prepared.train.rows[0].chosen.ids
