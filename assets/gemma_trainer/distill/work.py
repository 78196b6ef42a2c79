"""What the commands of distillation are made of: items, the work on each, and what comes of it.

The journal is a memo of requests. An item's work asks the teacher as often as it needs and is a pure function of the
item and the replies, so a restart repeats all work and no request, and an interrupted run ends with the same rows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gemma_trainer.distill.request import Reply, Request

Ask = Callable[[Request], Awaitable[Reply]]  # raises RequestFailed when there will be no answer


class RequestFailed(Exception):
    """A request that got no answer although it was tried as often as allowed. `reason` is for people."""

    def __init__(self, request_id: str, reason: str):
        super().__init__(reason)
        self.request_id = request_id
        self.reason = reason


class Item(NamedTuple):
    """One unit of work. `key` is unique within the command and the same in every run of it."""

    key: str
    data: Any


@dataclass
class Reject:
    """`row` is what would have been written, whole; `ids` are those of the requests it came from."""

    reasons: list[str]
    row: dict
    ids: list[str]


@dataclass
class Result:
    """Canonical rows, and the answers that are refused."""

    rows: list[dict] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)


Results = Iterator[tuple[Item, Result]]
