"""Where row N of a set stands: its file, line and row."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

from gemma_trainer.data.reading.raw import Batch, RawRow, blocks_of
from gemma_trainer.data.reading.read_lines import lines_of_rows
from gemma_trainer.data.reading.sources import shown
from gemma_trainer.data.running.part import Part

_JOINED = "json-extra-data"  # several rows on a line, which as many blank lines would hide


class Spot(NamedTuple):
    """`line` is None in Parquet and Arrow."""

    file: str
    line: int | None
    row: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else f"{self.file} row {self.row}"


class _Block(NamedTuple):
    file: Path
    line: int  # lines and rows of the file before the block
    row: int
    lines: array | None  # line of each row within the file, where it is not simply the next one


class Places:
    """Grows by one entry a batch; rows count from 0 through all files."""

    def __init__(self):
        self.rows = 0
        self.starts: list[int] = []
        self.blocks: list[_Block] = []

    def add(self, file: Path, batch: Batch, part: Part, line: int, row: int) -> None:
        """A batch before which `line` lines and `row` rows of its file stand."""
        lines = None
        if isinstance(batch, list):
            lines = array("Q", [item.line or 0 for item in batch if isinstance(item, RawRow)])
        elif part.rows != part.lines or _JOINED in part.repaired or any(p.code == _JOINED for p in part.problems):
            lines, before = array("Q"), line
            for block in blocks_of(batch, file):
                lines.extend(before + at for at in lines_of_rows(block, file))
                before += len(block.lines)
        self.starts.append(self.rows)
        self.blocks.append(_Block(file, line, row, lines))
        self.rows += part.rows

    def add_file(self, file: Path, rows: int, one_row_a_line: bool) -> None:
        """A whole file, of which no more is known."""
        lines = None if one_row_a_line else array("Q", bytes(8 * rows))
        self.starts.append(self.rows)
        self.blocks.append(_Block(file, 0, 0, lines))
        self.rows += rows

    @property
    def one_row_a_line(self) -> bool:
        return all(block.lines is None for block in self.blocks)

    def spot(self, row: int) -> Spot:
        at = bisect_right(self.starts, row) - 1
        block, inside = self.blocks[at], row - self.starts[at]
        line = block.line + inside + 1 if block.lines is None else block.lines[inside] or None
        return Spot(shown(block.file), line, block.row + inside + 1)
