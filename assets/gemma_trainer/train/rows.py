"""Rows as the trainer takes them: ids and mask of every row, with what was cut, dropped or held out told."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from gemma_trainer.data.encode import Encoded, RowTokenizer
from gemma_trainer.data.options import Row
from gemma_trainer.data.output import replacing
from gemma_trainer.data.render import Rendered, Renderer
from gemma_trainer.data.view import painted, row_view
from gemma_trainer.families.family import RenderError
from gemma_trainer.rows.problems import DATA_INVALID, Failure, Problem
from gemma_trainer.train.encoded_cache import EncodingCache

BATCH = 1024  # rows encoded at a time, over all cores


@dataclass
class EncodedSet:
    """Rows ready to train on. `first` is the first of them as text; `warnings` tell what was left out."""

    rows: list[Encoded] = field(default_factory=list)
    sources: list[Row] = field(default_factory=list)
    first: Rendered | None = None
    overlong: int = 0  # over --max-length: dropped, or cut
    untrained: int = 0  # nothing left to train: dropped
    warnings: list[Problem] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(len(row.ids) for row in self.rows)

    @property
    def trained_tokens(self) -> int:
        return sum(sum(row.mask) for row in self.rows)

    @property
    def lengths(self) -> list[int]:
        return [len(row.ids) for row in self.rows]

    @property
    def longest(self) -> int:
        return max(self.lengths, default=0)

    def facts(self) -> dict:
        """What the plan says of the training rows."""
        return {
            "train_rows": len(self.rows),
            "train_tokens": self.tokens,
            "trained_tokens": self.trained_tokens,
            "longest": self.longest,
        }

    def views(self) -> list[dict]:
        """The first row for people, see data/view.py."""
        return [row_view(*self.sources[0][1:], self.first, self.rows[0])]


def encode_rows(
    loaded: Iterable[Row],
    renderer: Renderer,
    tokenizer: RowTokenizer,
    *,
    loss_on: str,
    max_length: int,
    overlong: str,
) -> EncodedSet:
    """Render and encode rows; those over `max_length` tokens are dropped, cut at the end, or refused.

    Raises Failure (exit 3) when the template refuses a row, or when `overlong` is "error" and a row is too long.
    """
    result, cache = EncodedSet(), EncodingCache(tokenizer)
    for chunk in chunked(loaded):
        texts = [render_row(row, row.data, renderer, loss_on) for row in chunk]
        for row, text, encoded in zip(chunk, texts, cache.encode_batch(texts), strict=True):
            if is_too_long(result, row, len(encoded.ids), max_length, overlong):
                if overlong == "drop":
                    continue
                encoded = Encoded(encoded.ids[:max_length], encoded.mask[:max_length])
            if not any(encoded.mask):
                result.untrained += 1
                continue
            result.first = result.first or text
            result.rows.append(encoded)
            result.sources.append(row)
    result.warnings += left_out(result, max_length, overlong)
    return result


def is_too_long(result: EncodedSet, row: Row, tokens: int, max_length: int, overlong: str) -> bool:
    """Whether a row has to be dropped or cut, which is counted then. Raises Failure (exit 3) when `overlong` is "error"."""
    if tokens <= max_length:
        return False
    result.overlong += 1
    if overlong == "error":
        message = f"{tokens} tokens, --max-length is {max_length}"
        raise Failure(DATA_INVALID, "overlong-refused", message, file=row.file, line=row.line)
    return True


def chunked(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows in lists of BATCH."""
    rows = iter(rows)
    while chunk := list(islice(rows, BATCH)):
        yield chunk


def left_out(result: EncodedSet, max_length: int, overlong: str) -> list[Problem]:
    """What became of rows that are too long."""
    problems = []
    if result.overlong:
        done = "cut" if overlong == "truncate" else "left out"
        text = f"{result.overlong} rows over {max_length} tokens were {done}"
        problems.append(Problem("rows-overlong", text))
    if result.untrained:
        text = f"{result.untrained} rows have nothing left to learn within {max_length} tokens and were left out"
        problems.append(Problem("rows-overlong", text))
    return problems


def render_row(row: Row, data: dict, renderer: Renderer, loss_on: str) -> Rendered:
    """The text of `data`, a conversation of the row. Raises Failure (exit 3), which names file and line."""
    try:
        return renderer.render(data, loss_on=loss_on)
    except RenderError as error:
        raise Failure(
            DATA_INVALID, "rows-not-renderable", str(error), file=row.file, line=row.line, path=error.path
        ) from None


def masked_sample(encoded: EncodedSet, colour: bool) -> str:
    """The first row as the model reads it, both sides of a preference, with what carries loss marked."""
    return "\n".join(painted(view, colour) for view in encoded.views())


def check_trained(encoded: EncodedSet, what: str) -> None:
    """A run never starts with no trained token. Raises Failure (exit 3)."""
    if not encoded.rows:
        left = f" ({encoded.overlong} overlong, {encoded.untrained} without a trained token)"
        code = "no-trained-token" if encoded.untrained else "no-rows"
        raise Failure(
            DATA_INVALID,
            code,
            f"no row of {what} is left to train on" + left * bool(encoded.overlong + encoded.untrained),
        )
    if not encoded.trained_tokens:
        raise Failure(DATA_INVALID, "no-trained-token", f"no token of {what} would carry loss")


def write_rows(rows: Iterable[Row], path: Path) -> None:
    """The rows as canonical JSONL, for evaluate.py."""
    with replacing(path) as file:
        for row in rows:
            file.write(json.dumps(row.data, ensure_ascii=False) + "\n")
