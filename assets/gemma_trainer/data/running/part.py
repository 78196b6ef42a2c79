"""What came of one batch of rows: counts and findings that can be added up, whoever judged the batch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from gemma_trainer.data.running.keys import Keys
from gemma_trainer.data.running.sums import Sums
from gemma_trainer.rows.problems import Problem

EXPLAINED_ROWS = 3  # of each code


@dataclass
class Part:
    """`layouts` is {layout: [rows, line of the first]}. `taken` is what the sink of the run made of the rows."""

    keys: Keys
    rows: int = 0
    valid: int = 0
    lines: int = 0
    layouts: dict[str, list[int]] = field(default_factory=dict)
    repaired: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)
    hints: dict[int, str] = field(default_factory=dict)  # {index of a problem: what the schema says}
    sums: Sums = field(default_factory=Sums)
    size: tuple[int, int, int] | None = None  # of the row at hand: longest side, trained, all tokens
    once: set[str] = field(default_factory=set)  # codes that are told once a file
    taken: object = None

    def saw(self, layout: str, line: int, rows: int = 1) -> None:
        self.layouts.setdefault(layout, [0, line])[0] += rows

    def shift(self, lines: int, rows: int) -> None:
        """Move the part behind so many lines and rows of its file."""
        for entry in self.layouts.values():
            entry[1] += lines
        self.problems = [shifted(problem, lines, rows) for problem in self.problems]
        self.sums.shift(lines)
        if hasattr(self.taken, "shift"):
            self.taken.shift(lines, rows)


def shifted(problem: Problem, lines: int, rows: int) -> Problem:
    return replace(
        problem,
        line=problem.line + lines if problem.line is not None else None,
        row=problem.row + rows if problem.row is not None else None,
    )
