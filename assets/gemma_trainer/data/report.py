"""Problems of a run, bounded: all are counted, few are kept, a file takes them all."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from gemma_trainer.rows.problems import USAGE, Failure, Problem

MAX_ERRORS = 20


class Report:
    """Counts of rows and problems, and the first `limit` problems with at least one of each code among them.

    `rows` counts what was read, `valid` the rows without an error. `errors` and `warnings` are lists of Problem.
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
        self._kept: dict[bool, list[tuple[int, Problem]]] = {True: [], False: []}
        self._firsts: dict[bool, list[tuple[int, Problem]]] = {True: [], False: []}
        self._added = 0
        self._file = _open(file) if file else None

    def add(self, problem: Problem, times: int = 1) -> None:
        """A problem that stands for `times` rows."""
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
        if self._file:
            entry = {"severity": problem.severity, **problem.as_dict()}
            self._file.write(json.dumps(entry, ensure_ascii=False) + "\n")

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

    def close(self) -> None:
        if self._file:
            self._file.close()

    def _shown(self, is_error: bool) -> list[Problem]:
        firsts = self._firsts[is_error][: self.limit]
        rest = self._kept[is_error][: self.limit - len(firsts)]
        return [problem for _, problem in sorted([*firsts, *rest], key=lambda entry: entry[0])]


def _open(file: str | Path):
    try:
        return Path(file).open("w", encoding="utf-8")
    except OSError as error:
        text = f"--report {file}: {error.strerror or error}"
        raise Failure(USAGE, "file-unreadable", text, file=str(file)) from None
