"""How rows are read and judged: what every stage of the path of rows must agree on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from gemma_trainer.data.reading.raw import RawRow
from gemma_trainer.families.catalogue import get_family
from gemma_trainer.families.family import Family
from gemma_trainer.rows.problems import Problem

DEFAULT_FAMILY = "gemma4"


@dataclass(frozen=True)
class Options:
    """`shown` is what the chat template in use writes, see shown.py; None while it is unknown."""

    task: str = "sft"
    family: Family = field(default_factory=lambda: get_family(DEFAULT_FAMILY))
    layout: str = "auto"
    mapping: Mapping[str, str] = field(default_factory=dict)
    delimiter: str | None = None
    asked: frozenset[str] = frozenset()  # repairs asked for, keys of repair.ASKED
    shown: frozenset[str] | None = None
    max_length: int | None = None  # tokens; guessed from characters here
    has_margin: bool | None = None  # whether the first valid row has a margin: then all must, or none


class Row(NamedTuple):
    """A canonical row and where it came from."""

    data: dict
    file: str
    line: int | None
    row: int


class Checked(NamedTuple):
    """A raw row with what came of it: `data` is None when the row is refused, `problems` tell why."""

    raw: RawRow
    data: dict | None
    problems: list[Problem]
    repairs: list[str]
    file: str


class Place(NamedTuple):
    """Where a batch starts: lines and rows before it in its file."""

    file: Path
    line: int = 0
    row: int = 0
