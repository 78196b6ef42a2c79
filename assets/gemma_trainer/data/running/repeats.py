"""Rows of a set that repeat each other, found in memory that does not grow with their number.

Keys wait in a temporary file in the order of rows. At the end they are gone through in parts, one share of all possible
keys at a time, so that only that share is held.
"""

from __future__ import annotations

import shutil
import tempfile
from array import array
from collections.abc import Iterator
from functools import partial
from typing import BinaryIO, NamedTuple

from gemma_trainer.data.notes import Note
from gemma_trainer.data.running.keys import Keys, Table
from gemma_trainer.data.running.optional import import_numpy
from gemma_trainer.data.running.places import Places
from gemma_trainer.rows.problems import Problem

REPEATS = frozenset({"duplicate-row", "duplicate-prompt"})  # what `--repair drop-duplicates` moves to the rejects
TABLES, TAGGED = ("rows", "prompts", "pairs", "ids"), ("prompts", "pairs")
_SHARE, _NUMPY_SHARE = 1 << 16, 1 << 18  # keys held at a time


class Repeat(NamedTuple):
    """Row `row` has the key of `first`; rows count from 0 through the whole set."""

    row: int
    tag: int
    first: int
    first_tag: int


class Spool:
    """The keys of all rows of a run for one comparison."""

    def __init__(self):
        self.blocks: list[tuple[int, int]] = []  # (first row, keys), as they lie in the files
        self.size = 0
        self.keys = self.tags = None

    def add(self, first_row: int, table: Table) -> None:
        """The keys of a batch whose first row is row `first_row` of the set."""
        if not table.keys:
            return
        if self.keys is None:
            self.keys = tempfile.TemporaryFile()  # noqa: SIM115
            self.tags = tempfile.TemporaryFile() if table.tags is not None else None  # noqa: SIM115
        self.blocks.append((first_row, len(table.keys)))
        self.size += len(table.keys)
        self.keys.write(table.keys)
        if self.tags:
            self.tags.write(table.tags)

    def repeats(self, tags_differ: bool = False, tagged: bool = False) -> list[Repeat]:
        """Every row whose key an earlier one has, in order of rows; or those only that differ from it in their tag. With
        `tagged` rows of tag 0 are passed over."""
        doubled = set().union(*(keys for keys, _ in self._doubled()))
        return self._places_of(doubled, tags_differ, tagged) if doubled else []

    def count(self) -> int:
        """How many rows have the key of an earlier one."""
        return sum(count for _, count in self._doubled())

    def _doubled(self) -> Iterator[tuple[set[int], int]]:
        """(keys that several rows have, how many rows come too often), share by share."""
        if self.keys is None:
            return
        numpy = import_numpy() if self.size > _SHARE else None
        held, find = (_SHARE, _repeated) if numpy is None else (_NUMPY_SHARE, partial(_repeated_by_numpy, numpy))
        shares = (self.size // held).bit_length()  # the highest bits of a key tell its share
        for share in range(1 << shares):
            self.keys.seek(0)
            yield find(iter(lambda: self.keys.read(8 * held), b""), share, 64 - shares)

    def _places_of(self, doubled: set[int], tags_differ: bool, tagged: bool) -> list[Repeat]:
        firsts: dict[int, tuple[int, int]] = {}
        found = []
        for start, keys, tags in self._blocks():
            for at, key in enumerate(keys):
                if key in doubled:
                    tag = tags[at] if tags else 0
                    if tagged and not tag:
                        continue
                    if key in firsts:
                        if not tags_differ or tag != firsts[key][1]:
                            found.append(Repeat(start + at, tag, *firsts[key]))
                    else:
                        firsts[key] = (start + at, tag)
        return found

    def _blocks(self) -> Iterator[tuple[int, array, array | None]]:
        """(first row, keys, tags) of each batch."""
        self.keys.seek(0)
        if self.tags:
            self.tags.seek(0)
        for start, size in self.blocks:
            yield start, _array(self.keys.read(8 * size)), _array(self.tags.read(8 * size)) if self.tags else None


class Comparison:
    """What the rows of a run are to each other: repeats, contradictions, prompts on both sides of a split."""

    def __init__(self, task: str):
        self.task = task
        self.spools = {name: Spool() for name in TABLES}
        self.names: dict[int, str] = {}

    def write(self, out: BinaryIO) -> dict[str, list]:
        """All keys to a file; {table: [[first row, keys], ...]} tells `read` what lies where."""
        for spool in self.spools.values():
            for file in filter(None, (spool.keys, spool.tags)):
                file.seek(0)
                shutil.copyfileobj(file, out)
        return {name: spool.blocks for name, spool in self.spools.items()}

    def read(self, stored: BinaryIO, blocks: dict[str, list], first_row: int) -> None:
        """Add keys that `write` has written, of rows behind `first_row` others."""
        for name, spool in self.spools.items():
            tables = [Table(name in TAGGED) for _ in blocks[name]]
            for column in ("keys", "tags") if name in TAGGED else ("keys",):
                for table, (_, size) in zip(tables, blocks[name], strict=True):
                    getattr(table, column).frombytes(stored.read(8 * size))
            for table, (start, _) in zip(tables, blocks[name], strict=True):
                spool.add(first_row + start, table)

    def repeated(self, name: str) -> int:
        """How many rows have the key of an earlier one in a table."""
        return self.spools[name].count()

    def add(self, first_row: int, keys: Keys) -> None:
        """The keys of a batch whose first row is row `first_row` of the set."""
        for name, spool in self.spools.items():
            spool.add(first_row, getattr(keys, name))
        self.names.update(keys.names)

    def notes(self, places: Places) -> Iterator[tuple[int, Note]]:
        """(row, what is wrong with it beside another one), table by table."""
        for repeat in self.spools["rows"].repeats():
            yield repeat.row, Note("duplicate-row", f"the same row as {_at(repeat, places)}")
        leaks = self.task != "prompts"  # prompts that only stand there twice are none of a fault in other tasks
        for repeat in self.spools["prompts"].repeats(tags_differ=leaks, tagged=leaks):
            if note := self._prompt_note(repeat, places):
                yield repeat.row, note
        for repeat in self.spools["pairs"].repeats(tags_differ=True):
            yield repeat.row, Note("pair-contradiction", f"{_at(repeat, places)} prefers the opposite", "chosen")
        for repeat in self.spools["ids"].repeats():
            yield repeat.row, Note("duplicate-id", f"the same id as {_at(repeat, places)}", "id")

    def problems(self, places: Places) -> Iterator[Problem]:
        for row, note in self.notes(places):
            yield note.problem(*places.spot(row))

    def _prompt_note(self, repeat: Repeat, places: Places) -> Note | None:
        split, other = self.names.get(repeat.tag), self.names.get(repeat.first_tag)
        if split is not None and other is not None and split != other:
            text = f"the prompt is in `{other[:20]}` ({_at(repeat, places)}) and `{split[:20]}`"
            return Note("split-leak", text, "prompt")
        if self.task == "prompts":
            return Note("duplicate-prompt", f"the same prompt as {_at(repeat, places)}", "prompt")
        return None


def _at(repeat: Repeat, places: Places) -> str:
    """The earlier row of a repeat, as short as it can be told."""
    first, row = places.spot(repeat.first), places.spot(repeat.row)
    return str(first) if first.file != row.file else f"line {first.line}" if first.line else f"row {first.row}"


def _array(stored: bytes) -> array:
    values = array("Q")
    values.frombytes(stored)
    return values


def _repeated(blocks: Iterator[bytes], share: int, shift: int) -> tuple[set[int], int]:
    """Of the keys of one share: those that stand there repeatedly, and how often one comes again."""
    seen: set[int] = set()
    doubled: set[int] = set()
    more = 0
    for block in blocks:
        for key in _array(block):
            if key >> shift != share or not key:
                continue
            if key in seen:
                doubled.add(key)
                more += 1
            else:
                seen.add(key)
    return doubled, more


def _repeated_by_numpy(numpy, blocks: Iterator[bytes], share: int, shift: int) -> tuple[set[int], int]:
    """As `_repeated`."""
    mine = []
    for block in blocks:
        keys = numpy.frombuffer(block, numpy.uint64)
        mine.append(keys[(keys >> shift == share) & (keys != 0)] if shift < 64 else keys[keys != 0])
    keys = numpy.concatenate(mine)
    keys.sort()
    again = keys[1:][keys[1:] == keys[:-1]]
    return set(again.tolist()), len(again)
