"""Columns that hold numbers in one row and text in another: Arrow has one type a column."""

from __future__ import annotations

from gemma_trainer.rows.problems import Problem

_CANONICAL = frozenset({"messages", "prompt", "chosen", "rejected", "text", "tools"})  # the checks see to these
_MOST = 256  # columns that are watched, so that rows with keys of their own take no memory
_KINDS = {str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
Place = tuple[str | None, int | None]  # (file, line)


class ColumnTypes:
    """The types of the other columns of canonical rows, each with the place where it was first seen. Parts merge."""

    def __init__(self) -> None:
        self.seen: dict[str, dict[str, Place]] = {}

    def add(self, row: dict, file: str | None, line: int | None) -> None:
        for name, value in row.items():
            kind = None if name in _CANONICAL else _KINDS.get(value.__class__)
            if kind is None:
                continue
            kinds = self.seen.get(name)
            if kinds is None:
                if len(self.seen) >= _MOST:
                    continue
                kinds = self.seen[name] = {}
            if kind not in kinds:
                kinds[kind] = (file, line)

    def merge(self, later: ColumnTypes) -> None:
        """Take in a part that comes behind this one in the data."""
        for name, kinds in later.seen.items():
            if name in self.seen or len(self.seen) < _MOST:
                self.seen[name] = {**kinds, **self.seen.get(name, {})}

    def problems(self) -> list[Problem]:
        """One warning a column, at the first row that disagrees with the first of all."""
        found = []
        for name, kinds in self.seen.items():
            if len(kinds) > 1:
                (first, (file, line)), (second, (other_file, other_line)) = sorted(kinds.items(), key=_place)[:2]
                where = f"line {line}" if file == other_file else f"{file}:{line}"
                text = f"the column `{name[:40]}` holds {second} here and {first} in {where}"
                found.append(Problem("column-types-differ", text, other_file, other_line, path=name[:40]))
        return found


def _place(entry: tuple[str, Place]) -> tuple[str, int]:
    file, line = entry[1]
    return file or "", line or 0
