"""Train and held-out sides that share no prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gemma_trainer.data.convert import Writer, Written
from gemma_trainer.data.options import Checked, Row
from gemma_trainer.data.output import replacing
from gemma_trainer.data.running.engine import Run
from gemma_trainer.data.running.keys import prompt_text
from gemma_trainer.data.running.part import Part

TRAIN, EVAL = "train", "eval"


def split_by_prompt(rows: Iterable[Row], eval_fraction: float, seed: int = 0) -> tuple[list[Row], list[Row]]:
    """(train, held out). The side of a row is a function of its prompt and the seed alone.

    So no prompt is on both sides, and rows that are added later move none of the others.
    """
    train: list[Row] = []
    held_out: list[Row] = []
    for row in rows:
        (held_out if is_held_out(prompt_text(row.data), eval_fraction, seed) else train).append(row)
    return train, held_out


def is_held_out(key: str, eval_fraction: float, seed: int = 0) -> bool:
    """Whether rows of this key, a prompt or the name of a group, are held out."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8, salt=_salt(seed))
    return int.from_bytes(digest.digest(), "big") < eval_fraction * 2**64


def _salt(seed: int) -> bytes:
    return (seed % 2**64).to_bytes(8, "big")


@dataclass
class Sides(Written):
    """What a batch gives: `lines` are those of the training side."""

    held_out: list[bytes] = field(default_factory=list)


class Splitter(Writer):
    """The sink of `split`. With `group` rows of equal value in that column stay together; those without one, and all
    without `group`, are told apart by their prompt."""

    def __init__(self, folder: Path, eval_fraction: float, seed: int, group: str | None = None):
        super().__init__(folder)
        self.eval_fraction, self.seed, self.group = eval_fraction, seed, group

    def take(self, checked: Checked, part: Part) -> None:
        sides = part.taken = part.taken or Sides()
        before = len(sides.lines)
        super().take(checked, part)
        if len(sides.lines) > before:
            self._place(checked.data, sides, part)

    def take_line(self, line: bytes, row: dict, part: Part) -> bool:
        sides = part.taken = part.taken or Sides()
        taken = super().take_line(line, row, part)
        if taken:
            self._place(row, sides, part)
        return taken

    def _place(self, row: dict, sides: Sides, part: Part) -> None:
        """Move the last line to the other side where its row is held out, and note side and prompt of the row."""
        prompt = prompt_text(row)
        group = row.get(self.group) if self.group else None
        key = prompt if group is None else f"{self.group}={group}"
        held_out = is_held_out(key, self.eval_fraction, self.seed)
        if held_out:
            sides.held_out.append(sides.lines.pop())
        part.keys.put_prompt(part.rows, prompt, EVAL if held_out else TRAIN)


def write_sides(run: Run, train: Path, held_out: Path, rejects: Path, overwrite: bool = False) -> dict[str, int]:
    """Write the rows of a run, whose sink is a Splitter, to three files, each whole or not at all. Raises Failure."""
    counts = {TRAIN: 0, EVAL: 0, "rejected": 0}
    place = partial(replacing, mode="wb", overwrite=overwrite)
    with place(train) as one, place(held_out) as other, place(rejects) as bad:
        for part in run.parts():
            sides = part.taken
            if sides is None:
                continue
            one.writelines(sides.lines)
            other.writelines(sides.held_out)
            bad.writelines(sides.reject_lines())
            counts[TRAIN] += len(sides.lines)
            counts[EVAL] += len(sides.held_out)
            counts["rejected"] += len(sides.rejects)
    run.finish()
    return counts
