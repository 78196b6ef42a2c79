"""What respond, synthesize and compare have in common."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from gemma_trainer.distill.criteria import Criteria
from gemma_trainer.distill.work import Ask, Item, Result, Results
from gemma_trainer.rows.problems import Problem


class Command(Protocol):
    """respond, synthesize or compare. Nothing but the arguments and the files they name shapes it.

    `criteria` are what its answers have to pass, `files` are its inputs, `warnings` what they made it say,
    `student_args` the flags of a second teacher that it asks too.
    """

    criteria: Criteria
    files: list[Path]
    warnings: list[Problem]
    student_args: Namespace | None

    def items(self) -> Iterable[Item]: ...

    async def work(self, item: Item, ask: Ask) -> Result:
        """May let RequestFailed pass: the item then counts as failed and gives nothing."""
        ...

    def settle(self, results: Results) -> Results:
        """Judge rows against each other: duplicates, novelty. `results` come in the order of items()."""
        ...

    def request_count(self) -> int:
        """How many requests the command makes if no answer has to be asked for again."""
        ...
