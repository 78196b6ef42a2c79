"""How good an answer is: exact match, similarity, equal results of two SQL queries. Standard library only."""

from __future__ import annotations

import re
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from difflib import SequenceMatcher
from typing import Literal

METRICS = ("exact", "similarity", "sql", "loss")  # values of --metric
LABELS = {  # keys of a summary
    "exact_match": "exact match",
    "similarity": "similarity",
    "sql_match": "SQL result match",
    "loss": "loss per token",
    "reward_accuracy": "reward accuracy",
    "reward_margin": "reward margin",
}

SqlVerdict = bool | Literal["both-empty", "gold-broken"]

# Bounds of one query, so that a bad answer costs a second at most and not the run.
MAX_ROWS = 10_000
MAX_CELLS = 10_000_000  # characters and bytes in all cells of a result
MAX_VALUE = 1_000_000  # bytes in one value, and in a query
MAX_STEPS = 20_000_000  # instructions of SQLite's virtual machine
MAX_SECONDS = 2.0
_STEPS_PER_CHECK = 10_000

_QUERY_MAY = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_SCHEMA_MAY_NOT = {
    sqlite3.SQLITE_ATTACH,
    sqlite3.SQLITE_DETACH,
    sqlite3.SQLITE_PRAGMA,
    sqlite3.SQLITE_CREATE_VTABLE,
}
# They make values of any size in one step; Python 3.10 cannot cap the size of a value.
_FUNCTIONS_REFUSED = {"load_extension", "zeroblob", "randomblob", "printf", "format", "fts3_tokenizer"}
# ValueError: a NUL character or a lone surrogate. sqlite3.Warning: several statements (Python 3.10, 3.11).
_FAULTS = (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError)

Row = tuple[int | float | str | bytes | None, ...]


def exact_match(prediction: str, target: str) -> bool:
    """Equal texts; white space around them does not count."""
    return prediction.strip() == target.strip()


def similarity(prediction: str, target: str) -> float:
    """Share of matching characters, 0 to 1: difflib's ratio, 2 x matches / length of both."""
    return SequenceMatcher(None, prediction.strip(), target.strip(), autojunk=False).ratio()


def sql_match(prediction: str, target: str, schema: str) -> SqlVerdict:
    """Whether two queries give the same result on the tables that `schema` makes (SQL, data too).

    Results are compared in order when the outermost SELECT of `target` orders them, else as multisets; 1
    equals 1.0, and other numbers are compared to nine digits. Names of result columns do not count.
    A prediction that is no SQL, writes, is several statements, or takes too long is False. "both-empty":
    neither result holds a value, which proves nothing. "gold-broken": `schema` or `target` itself fails.
    Never raises.
    """
    with closing(_connect()) as database:
        try:
            _limited(database, _schema_action)
            database.executescript(schema)
            database.commit()
            gold = _run(database, target)
        except _FAULTS:
            return "gold-broken"
        try:
            answer = _run(database, prediction)
        except _FAULTS:
            return False
    if not _has_value(gold) and not _has_value(answer):
        return "both-empty"
    if _orders(target):
        return gold == answer
    return Counter(gold) == Counter(answer)


def _connect() -> sqlite3.Connection:
    database = sqlite3.connect(":memory:", isolation_level=None)
    if hasattr(database, "setlimit"):  # Python 3.11
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
        database.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, MAX_VALUE)
        database.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    return database


def _limited(database: sqlite3.Connection, authorizer: Callable[..., int]) -> None:
    """Allow what `authorizer` allows, and a bounded number of steps and seconds from now on."""
    deadline, checks = time.monotonic() + MAX_SECONDS, 0

    def over() -> bool:
        nonlocal checks
        checks += 1
        return checks * _STEPS_PER_CHECK > MAX_STEPS or time.monotonic() > deadline

    database.set_authorizer(authorizer)
    database.set_progress_handler(over, _STEPS_PER_CHECK)


def _schema_action(action: int, first: str | None, second: str | None, *_: object) -> int:
    """Files and settings are out of reach of the schema; tables, views and their data are its own."""
    refused = action in _SCHEMA_MAY_NOT or (action == sqlite3.SQLITE_FUNCTION and second in _FUNCTIONS_REFUSED)
    return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK


def _query_action(action: int, first: str | None, second: str | None, *_: object) -> int:
    """Queries read."""
    refused = action not in _QUERY_MAY or (action == sqlite3.SQLITE_FUNCTION and second in _FUNCTIONS_REFUSED)
    return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK


def _run(database: sqlite3.Connection, query: str) -> list[Row]:
    """The rows of one query with comparable numbers. Raises one of _FAULTS."""
    _limited(database, _query_action)
    rows: list[Row] = []
    size = 0
    for row in database.execute(query):
        size += sum(len(value) for value in row if isinstance(value, str | bytes))
        if len(rows) == MAX_ROWS or size > MAX_CELLS:
            raise sqlite3.DataError("result too large")
        rows.append(tuple(map(_comparable, row)))
    return rows


def _comparable(value: int | float | str | bytes | None) -> int | float | str | bytes | None:
    return float(f"{value:.9g}") if isinstance(value, float) and not value.is_integer() else value


def _has_value(rows: list[Row]) -> bool:
    return any(value is not None for row in rows for value in row)


_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/", re.DOTALL)
_INNERMOST = re.compile(r"\([^()]*\)")


def _orders(query: str) -> bool:
    """ORDER BY outside of parentheses, names, texts and comments: a subquery's or a window's does not count."""
    bare = _QUOTED.sub(" ", query)
    while bare != (outer := _INNERMOST.sub(" ", bare)):
        bare = outer
    return re.search(r"\border\s+by\b", bare, re.IGNORECASE) is not None
