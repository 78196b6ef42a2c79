"""Files -> batches -> parts -> a report, in one process or several. Memory holds a few batches, whatever the files hold."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from gemma_trainer.data.notes import Note
from gemma_trainer.data.options import Place
from gemma_trainer.data.reading.raw import Batch
from gemma_trainer.data.reading.read import read_batches
from gemma_trainer.data.reading.reply import read_reply
from gemma_trainer.data.reading.sources import Watch
from gemma_trainer.data.report import Report
from gemma_trainer.data.running.judge import Judge
from gemma_trainer.data.running.optional import import_numpy
from gemma_trainer.data.running.part import EXPLAINED_ROWS, Part
from gemma_trainer.data.running.places import Places
from gemma_trainer.data.running.quotes import NUMPY_FROM
from gemma_trainer.data.running.repeats import Comparison
from gemma_trainer.data.running.sums import Sums
from gemma_trainer.data.running.workers import can_fork, in_processes
from gemma_trainer.rows.problems import Problem

_NO_TURNS = {"text", "pretokenized"}  # layouts that stay what they are beside conversations


@dataclass
class Run:
    """One pass over files. `advance` is told the stored bytes that were read; `splits` names the split that a file is
    of, where its name tells one; `drop` are notes for rows, counted from 0 through all files, that are refused."""

    files: list[Path]
    judge: Judge
    report: Report
    workers: int = 1
    advance: Callable[[int], object] = lambda size: None
    splits: dict[Path, str] = field(default_factory=dict)
    drop: dict[int, Note] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)  # first rows of the batches, known from an earlier pass

    def __post_init__(self):
        self.sums = Sums()
        self.dropped: list[int] = []  # rows of `drop` in order
        self.watches: dict[Path, Watch] = {}
        self.places = Places()
        self.comparison = Comparison(self.judge.options.task)

    @property
    def _in_parallel(self) -> bool:
        return self.workers > 1 and can_fork()

    def parts(self) -> Iterator[Part]:
        """The parts in order, each after it was told to the report."""
        self.dropped = sorted(self.drop)
        judged = self._in_processes() if self._in_parallel else self._in_order()
        teller = None
        for file, batch, part in judged:
            if teller is None or teller.file != file:
                teller = _Teller(file, self.report, self.judge.told)
            self.comparison.add(self.places.rows, part.keys)
            self.places.add(file, batch, part, teller.lines, teller.rows)
            teller.tell(part)
            self.sums.merge(part.sums)
            yield part

    def read(self) -> None:
        """Read everything, where the parts themselves are of no use."""
        for _ in self.parts():
            pass

    def finish(self) -> None:
        """Tell what rows are to each other, now that all are read. A set without any row is an error."""
        repeats = () if self.drop else self.comparison.problems(self.places)
        finish(self.report, chain(repeats, self.sums.problems()), self.files)

    def _in_order(self) -> Iterator[tuple[Path, Batch, Part]]:
        place = None
        for at, (file, batch) in enumerate(self._batches()):
            if place is None or place.file != file:
                place = Place(file)
            part = self.judge.part(batch, place, self.splits.get(file), self._dropped(at))
            place = Place(file, place.line + part.lines, place.row + part.rows)
            yield file, batch, part

    def _in_processes(self) -> Iterator[tuple[Path, Batch, Part]]:
        tasks = ((batch, Place(file), self.splits.get(file), self._dropped(at))
                 for at, (file, batch) in enumerate(self._batches()))  # fmt: skip
        if sum(file.stat().st_size for file in self.files) > NUMPY_FROM:
            import_numpy()  # once, for all workers
        before = None
        for (batch, place, _, _), part in in_processes(self.judge.part, tasks, self.workers):
            if before is None or before.file != place.file:
                before = place
            if not isinstance(batch, list):  # judged without knowing how much stands before it
                part.shift(before.line, before.row)
            before = Place(place.file, before.line + part.lines, before.row + part.rows)
            yield place.file, batch, part

    def _batches(self) -> Iterator[tuple[Path, Batch]]:
        options = self.judge.options
        for file in self.files:
            if options.layout == "teacher-reply":
                yield file, list(read_reply(file))
                continue
            watch = self.watches[file] = Watch(self.advance)
            for batch in read_batches(file, options.delimiter, watch, spans=self._in_parallel):
                yield file, batch

    def _dropped(self, batch: int) -> dict[int, Note]:
        if not self.drop:
            return {}
        start = self.starts[batch]
        first, last = bisect_left(self.dropped, start), len(self.dropped)
        if batch + 1 < len(self.starts):
            last = bisect_left(self.dropped, self.starts[batch + 1])
        return {row - start: self.drop[row] for row in self.dropped[first:last]}


def finish(report: Report, problems: Iterable[Problem], files: list[Path]) -> None:
    """End a report with what rows are to each other. A set without any row is an error."""
    for problem in problems:
        report.add(problem)
    if files and report.valid == 0 and not report.errors_by_code:
        text = "the data holds no whole row" if report.rows else "the data holds no row"
        report.add(Problem("no-rows", text, file=str(files[0]) if len(files) == 1 else None))


class _Teller:
    """Tells the parts of one file to the report; what holds for a whole file is told once."""

    def __init__(self, file: Path, report: Report, told: bool):
        self.file, self.report, self.told = file, report, told
        self.lines = self.rows = 0
        self.said: set[str] = set()
        self.layout: tuple[str, int] | None = None  # and the line where it was seen first
        self.others: set[str] = set()

    def tell(self, part: Part) -> None:
        report = self.report
        report.rows += part.rows
        report.valid += part.valid
        report.repaired.update(part.repaired)
        once = set()
        for at, problem in enumerate(part.problems):
            if problem.code not in self.said:
                report.add(self._explained(problem, part.hints.get(at)))
            if problem.code in part.once:
                once.add(problem.code)
        self.said |= once
        for layout, (rows, line) in part.layouts.items():
            report.layouts[layout] += rows
            self.layout = self.layout or (layout, line)
            if layout != self.layout[0]:
                self._mixed(layout, rows, line)
        self.lines += part.lines
        self.rows += part.rows

    def _explained(self, problem: Problem, hint: str | None) -> Problem:
        """With what the schema says, for the first few of a code in the whole run, however it is cut into batches."""
        told = self.report.explained
        told[problem.code] += 1
        if hint is None or told[problem.code] > EXPLAINED_ROWS:
            return problem
        return replace(problem, message=f"{problem.message} ({hint})")

    def _mixed(self, layout: str, rows: int, line: int) -> None:
        apart = bool({layout, self.layout[0]} & _NO_TURNS)
        if not apart:
            self.report.repaired["mixed-layouts"] += rows
            if not self.told:
                return
        if layout in self.others:
            self.report.warnings_by_code["mixed-layouts"] += rows
            return
        self.others.add(layout)
        text = f"layout {layout}, while line {self.layout[1]} has {self.layout[0]}"
        fix = "Put the rows of each layout into a file of their own." if apart else None
        self.report.add(Problem("mixed-layouts", text, str(self.file), line, fix=fix), times=rows)
