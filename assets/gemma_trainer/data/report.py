"""Problems of a run, bounded: all are counted, few are kept, a file takes them all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from gemma_trainer.data.output import replacing
from gemma_trainer.data.reading.sources import shown
from gemma_trainer.rows.problems import Problem

MAX_ERRORS = 20


class Report:
    """Counts of rows and problems, and the first `limit` problems with at least one of each code among them.

    `rows` counts what was read, `valid` the rows without an error. `errors` and `warnings` are lists of Problem.
    With a `file` it is a context, at whose end the file is there, whole, or after an exception not at all.
    """

    def __init__(self, limit: int = MAX_ERRORS, file: str | Path | None = None):
        self.limit = limit
        self.rows = self.valid = 0
        self.file_errors = 0  # errors of a file as a whole, which no rejects file can hold
        self.layouts: Counter[str] = Counter()
        self.repaired: Counter[str] = Counter()
        self.errors_by_code: Counter[str] = Counter()
        self.warnings_by_code: Counter[str] = Counter()
        self.notes: list[str] = []
        self.explained: Counter[str] = Counter()  # problems that could have an explanation
        self._kept: dict[bool, list[tuple[int, Problem]]] = {True: [], False: []}
        self._firsts: dict[bool, list[tuple[int, Problem]]] = {True: [], False: []}
        self._added = 0
        self._stack = ExitStack()
        self._file = self._stack.enter_context(replacing(Path(file), empty=True)) if file else None

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *error) -> None:
        self._file = None
        self._stack.__exit__(*error)

    def add(self, problem: Problem, times: int = 1, written: bool = False) -> None:
        """A problem that stands for `times` rows; `written` where its line went to the file already."""
        if problem.file is not None and (name := shown(problem.file)) != problem.file:
            problem = replace(problem, file=name)
        is_error = problem.is_error
        counts = self.errors_by_code if is_error else self.warnings_by_code
        new = problem.code not in counts
        counts[problem.code] += times
        self.file_errors += is_error and problem.row is None
        self._added += 1
        place = self._added
        if new:
            self._firsts[is_error].append((place, problem))
        elif len(self._kept[is_error]) < self.limit:
            self._kept[is_error].append((place, problem))
        if self._file and not written:
            entry = {"severity": problem.severity, **problem.as_dict()}
            self._file.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def counts(self) -> dict:
        """What every result says of the rows: layouts, their number, problems by code."""
        return {
            "layout": self.layout,
            "layouts": dict(self.layouts),
            "rows": self.rows,
            "errors_by_code": dict(self.errors_by_code),
            "warnings_by_code": dict(self.warnings_by_code),
        }

    def write(self, lines: Iterable[str]) -> None:
        """Lines of another report for the file of this one."""
        if self._file:
            self._file.writelines(lines)

    @property
    def errors(self) -> list[Problem]:
        return self._shown(True)

    @property
    def warnings(self) -> list[Problem]:
        return self._shown(False)

    @property
    def layout(self) -> str | None:
        """The layout of the rows, `mixed` when there are several, None without a row."""
        return next(iter(self.layouts), None) if len(self.layouts) < 2 else "mixed"

    def _shown(self, is_error: bool) -> list[Problem]:
        firsts = self._firsts[is_error][: self.limit]
        rest = self._kept[is_error][: self.limit - len(firsts)]
        return [problem for _, problem in sorted([*firsts, *rest], key=lambda entry: entry[0])]
