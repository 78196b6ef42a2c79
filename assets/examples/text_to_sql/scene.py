"""What one row of the data set shows: tables with drawn names, drawn columns in drawn order, drawn data."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tables import Column, Table, relations

RECORDS = 5
Value = int | str | None


@dataclass
class Shown:
    """A table as a row shows it. `columns`: name in the schema -> column; keys are in `records` only."""

    table: Table
    name: str
    columns: dict[str, Column]
    records: list[dict[str, Value]]

    @property
    def label(self) -> str:
        """Name of the column that names a record."""
        return next(name for name, column in self.columns.items() if column is self.table.columns[0])

    @property
    def key(self) -> str:
        """Name of the column by which other tables point at this one."""
        return f"{self.table.singular}_id"

    def pick(self, rng: random.Random, count: int = 1, number: bool | None = None, label: bool = True) -> list[str]:
        """Names of distinct columns, of numbers or of texts. LookupError when too few are shown."""
        fit = [n for n, c in self.columns.items() if number in (None, c.is_number) and (label or n != self.label)]
        if len(fit) < count:
            raise LookupError("too few columns")
        return rng.sample(fit, count)

    def term(self, name: str) -> str:
        return self.columns[name].term

    def values(self, name: str, at_least: int = 1) -> list[Value]:
        """Distinct values, sorted. LookupError when there are fewer than `at_least`."""
        values = sorted({record[name] for record in self.records})
        if len(values) < at_least:
            raise LookupError("too few values")
        return values

    def short(self) -> str:
        """The line that the prompt shows."""
        return f"{self.name}({', '.join(self.records[0])})"

    def ddl(self) -> str:
        """Statements that make the table and its data."""
        fields = ", ".join(f"{name} {self._type(name)}" for name in self.records[0])
        data = ",".join(f"({','.join(map(_literal, record.values()))})" for record in self.records)
        return f"CREATE TABLE {self.name}({fields}); INSERT INTO {self.name} VALUES{data};"

    def _type(self, name: str) -> str:
        return "TEXT" if name in self.columns and not self.columns[name].is_number else "INTEGER"


def _literal(value: Value) -> str:
    return "NULL" if value is None else str(value) if isinstance(value, int) else f"'{value}'"


class Scene:
    """Draws the tables of one row. Names are drawn once a row: its tables follow one convention."""

    def __init__(self, rng: random.Random, tables: dict[str, Table]):
        self.rng, self.tables = rng, tables
        self.names: dict[str, str] = {}

    def table(self) -> Shown:
        keys = {"id": 0} if self.rng.random() < 0.25 else {}
        return self._show(self.rng.choice(list(self.tables.values())), keys, (3, 5))

    def bystander(self, other: Shown) -> Shown:
        """A table that the question is not about."""
        rest = [table for table in self.tables.values() if table is not other.table]
        return self._show(self.rng.choice(rest), {}, (2, 3))

    def pair(self) -> list[Shown]:
        """Two tables, the first of which points at the second."""
        child, parent = self.rng.choice(relations(self.tables))
        key = {f"{parent.singular}_id": RECORDS}
        return [self._show(child, key, (2, 3)), self._show(parent, {"id": 0}, (2, 3))]

    def _show(self, table: Table, keys: dict[str, int], size: tuple[int, int]) -> Shown:
        """`keys`: name of a key column -> how many records it points at, 0 for the table's own id."""
        label, *rest = table.columns
        drawn = [label, *self.rng.sample(rest, min(len(rest), self.rng.randint(*size) - 1))]
        self.rng.shuffle(drawn)
        columns = {self._name(column): column for column in drawn}
        labels = self.rng.sample(label.pool, RECORDS)
        records = []
        for i in range(RECORDS):
            ids = {name: self.rng.randint(1, target) if target else i + 1 for name, target in keys.items()}
            cells = {name: labels[i] if c is label else c.draw(self.rng) for name, c in columns.items()}
            records.append({**ids, **cells})
        return Shown(table, self._name(table), columns, records)

    def _name(self, thing: Table | Column) -> str:
        if thing.term not in self.names:
            self.names[thing.term] = self.rng.choice(thing.names)
        return self.names[thing.term]
