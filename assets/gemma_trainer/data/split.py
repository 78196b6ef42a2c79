"""Train and held-out sides that share no prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from gemma_trainer.data.keys import prompt_text
from gemma_trainer.data.options import Row


def split_by_prompt(rows: Iterable[Row], eval_fraction: float, seed: int = 0) -> tuple[list[Row], list[Row]]:
    """(train, held out). The side of a row is a function of its prompt and the seed alone.

    So no prompt is on both sides, and rows that are added later move none of the others.
    """
    train: list[Row] = []
    held_out: list[Row] = []
    for row in rows:
        (held_out if is_held_out(row.data, eval_fraction, seed) else train).append(row)
    return train, held_out


def is_held_out(row: dict, eval_fraction: float, seed: int = 0) -> bool:
    digest = hashlib.blake2b(prompt_text(row).encode("utf-8", "surrogatepass"), digest_size=8, salt=_salt(seed))
    return int.from_bytes(digest.digest(), "big") < eval_fraction * 2**64


def _salt(seed: int) -> bytes:
    return (seed % 2**64).to_bytes(8, "big")
