"""What was found in one row while it went through layouts, repairs and checks."""

from __future__ import annotations

from typing import NamedTuple

from gemma_trainer.rows.problems import Problem

_KEY = 40  # characters of a key that a path may show


class Note(NamedTuple):
    """`code` is a key of CODES, `path` points into the canonical row, `fix` is there where that of CODES is not it."""

    code: str
    message: str
    path: str | None = None
    fix: str | None = None

    def problem(self, file: str, line: int | None, row: int) -> Problem:
        """As a fault of one row."""
        return Problem(self.code, self.message, file, line, row, self.path, self.fix)


def key_path(path: str, key: object) -> str:
    """The path of what stands under a key of the object at `path`; of a long key the start."""
    return f"{path}.{str(key)[:_KEY]}".lstrip(".")


class Refused(Exception):
    """A row that cannot be made canonical."""

    def __init__(self, code: str, message: str, path: str | None = None, fix: str | None = None):
        super().__init__(message)
        self.note = Note(code, message, path, fix)


class Notes:
    """`found` are faults, `repairs` are changes that made the row canonical. A silent repair has no code of its own."""

    __slots__ = ("found", "repairs", "silent")

    def __init__(self):
        self.found: list[Note] = []
        self.repairs: list[Note] = []
        self.silent: list[str] = []

    def fault(self, code: str, message: str, path: str | None = None, fix: str | None = None) -> None:
        self.found.append(Note(code, message, path, fix))

    def repair(self, code: str, message: str, path: str | None = None) -> None:
        self.repairs.append(Note(code, message, path))
