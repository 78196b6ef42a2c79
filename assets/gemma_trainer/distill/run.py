"""The loop of a run: items in, requests out, every answer kept, and files in order at every end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import NamedTuple, Protocol

from gemma_trainer.cli import log, signals
from gemma_trainer.distill.budget import Budget, BudgetSpent
from gemma_trainer.distill.command import Command
from gemma_trainer.distill.journal import Journal, encoded
from gemma_trainer.distill.output import Files, Growing, reject_row
from gemma_trainer.distill.request import Reply, Request
from gemma_trainer.distill.work import Item, Reject, RequestFailed, Result, Results
from gemma_trainer.rows.problems import REMOTE_FAILED, Failure

TOLD = 30.0  # seconds between lines of progress where there is no terminal


class Teacher(Protocol):
    """Used as `async with teacher`. `places` is how many requests it works on at a time; `notes` and `trouble`, the
    last one, are for people."""

    places: int
    notes: list[str]
    trouble: str
    retried: int

    async def __aenter__(self): ...

    async def __aexit__(self, *exc) -> None: ...

    async def ask(self, request: Request) -> Reply:
        """Raises RequestFailed, and Failure where no request has a chance."""
        ...


class Memo:
    """`await memo(request)`: from the journal, or from the teacher and into the journal. No request is sent twice."""

    def __init__(self, journal: Journal, teachers: dict[str, Teacher], free: set[str], budget: Budget):
        """`teachers` by the name that requests ask for; asking those in `free` costs no budget."""
        self.journal, self.teachers, self.budget, self.free = journal, teachers, budget, free
        self.sent = 0
        self.failed: dict[str, str] = {}  # reasons, by the ids of requests that this run has asked for
        self._pending: dict[str, asyncio.Future] = {}

    async def __call__(self, request: Request) -> Reply:
        """Raises RequestFailed, BudgetSpent, Failure."""
        if (reply := self.journal.get(request.id)) is not None:
            return reply
        if (reason := self.journal.failures.get(request.id)) is not None:
            self.failed[request.id] = reason
            raise RequestFailed(request.id, reason)
        if (pending := self._pending.get(request.id)) is not None:
            return await asyncio.shield(pending)
        pending = self._pending[request.id] = asyncio.get_running_loop().create_future()
        try:
            reply = await self._send(request)
        except BaseException as error:
            if isinstance(error, Exception):
                pending.set_exception(error)
                pending.exception()  # nobody else has to look at it
            else:
                pending.cancel()
            raise
        else:
            pending.set_result(reply)
            return reply
        finally:
            del self._pending[request.id]

    async def _send(self, request: Request) -> Reply:
        paid = request.model not in self.free
        if paid:
            self.budget.take()
        try:
            reply = await self.teachers[request.model].ask(request)
        except RequestFailed as failed:
            self.failed[request.id] = failed.reason
            self.journal.add_failure(request, failed.reason)
            raise
        finally:
            if paid:
                self.budget.release()
        self.journal.add(request, reply)
        self.sent += 1
        if paid:
            self.budget.add(reply)
        return reply


class _Place(NamedTuple):
    at: int
    size: int
    rows: int


class Spool:
    """Results of the items that are finished, on disk, to be read back in the order of items."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (for the whole run)
        self._places: dict[int, _Place] = {}
        self._end = 0

    def __len__(self) -> int:
        return len(self._places)

    def add(self, number: int, rows: list[bytes], rejects: list[bytes]) -> None:
        """Lines of an item's result as they stand in the files."""
        block = b"".join([*rows, *rejects])
        self._file.seek(self._end)
        self._file.write(block)
        self._places[number] = _Place(self._end, len(block), len(rows))
        self._end += len(block)

    def results(self, command: Command) -> Results:
        last = max(self._places, default=-1)  # of what may be a billion items
        for number, item in enumerate(islice(command.items(), last + 1)):
            if place := self._places.get(number):
                self._file.seek(place.at)
                lines = [json.loads(line) for line in self._file.read(place.size).splitlines()]
                rejects = [Reject(line.pop("reasons"), line, line.pop("ids")) for line in lines[place.rows :]]
                yield item, Result(lines[: place.rows], rejects)


@dataclass
class Ended:
    """How a run ended: `stopped` is None for all items done, else "interrupted", the BudgetSpent or the Failure."""

    spool: Spool
    stopped: str | BudgetSpent | Failure | None = None
    failed_items: int = 0
    seconds: float = 0.0


@dataclass
class Loop:
    """Works on `window` items at a time. `expected` requests are what the bar counts to."""

    command: Command
    ask: Memo
    files: Files
    window: int
    fresh: bool
    expected: int
    ended: Ended = field(init=False)

    async def run(self) -> Ended:
        """Raises Failure for what leaves nothing to settle, such as a full disk."""
        self.ended = Ended(Spool())
        started = time.monotonic()
        self._rows, self._rejects = (Growing(path, self.fresh) for path in (self.files.rows, self.files.rejects))
        try:
            async with contextlib.AsyncExitStack() as teachers:
                for teacher in dict.fromkeys(self.ask.teachers.values()):
                    await teachers.enter_async_context(teacher)
                await self._work()
        finally:
            self._rows.close()
            self._rejects.close()
            self.ended.seconds = time.monotonic() - started
        return self.ended

    async def _work(self) -> None:
        self._bar = Bar(self.expected, self.ask)
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        signals.instead = lambda: loop.call_soon_threadsafe(stop.set)  # the first one ends the loop, not the process
        source = enumerate(self.command.items())
        workers = [asyncio.create_task(self._worker(first, source)) for first in islice(source, self.window)]
        watcher, beat = asyncio.create_task(stop.wait()), asyncio.create_task(self._bar.beat())
        done = asyncio.gather(*workers)
        with self._bar:
            try:
                await asyncio.wait([done, watcher], return_when=asyncio.FIRST_COMPLETED)
                if not done.done():
                    self.ended.stopped = "interrupted"
                    log("stopping: what is finished is kept")
                elif error := done.exception():
                    self._broken(error)
            finally:
                signals.instead = None
                for task in (*workers, watcher, beat):
                    task.cancel()
                await asyncio.gather(*workers, watcher, beat, done, return_exceptions=True)

    def _broken(self, error: BaseException) -> None:
        if not isinstance(error, Failure) or error.exit_code != REMOTE_FAILED:
            raise error
        self.ended.stopped = error

    async def _worker(self, first: tuple[int, Item], source: Iterator[tuple[int, Item]]) -> None:
        for number, item in chain([first], source):
            try:
                self._keep(number, await self.command.work(item, self.ask))
            except RequestFailed:
                self.ended.failed_items += 1
            except BudgetSpent as spent:
                self.ended.stopped = spent
            self._bar.show()
            await asyncio.sleep(0)  # an item that was answered before does not wait, and signals have to be heard
            if self.ended.stopped:
                return

    def _keep(self, number: int, result: Result) -> None:
        rows = [encoded(row) for row in result.rows]
        rejects = [encoded(reject_row(reject)) for reject in result.rejects]
        self.ended.spool.add(number, rows, rejects)
        self._rows.add(rows)
        self._rejects.add(rejects)


class Bar:
    """Progress on stderr: a bar at a terminal, else a line now and then."""

    def __init__(self, expected: int, ask: Memo):
        self.expected, self.ask = expected, ask
        self._bar = None
        self._told = self._started = time.monotonic()

    def __enter__(self) -> Bar:
        if sys.stderr.isatty():
            with contextlib.suppress(ImportError):
                from tqdm import tqdm

                self._bar = tqdm(total=self.expected, unit="request", file=sys.stderr, mininterval=0.2)
        return self

    def __exit__(self, *exc) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self) -> None:
        done = len(self.ask.journal)
        if self._bar is not None:
            self._told = time.monotonic()
            if done > self._bar.n:
                self._bar.set_postfix_str(self._facts(), refresh=False)
                self._bar.update(done - self._bar.n)
        elif time.monotonic() - self._told > TOLD:
            self._tell()

    async def beat(self) -> None:
        """A sign of life while nothing is answered."""
        while True:
            await asyncio.sleep(TOLD / 2)
            if time.monotonic() - self._told > TOLD:
                self._tell()

    def _tell(self) -> None:
        self._told = time.monotonic()
        trouble = next((one.trouble for one in self.ask.teachers.values() if one.trouble), "")
        told = f"{len(self.ask.journal)} of about {self.expected} requests, {self._facts()}"
        log(f"{told}; the last trouble: {trouble}" if trouble else told)

    def _facts(self) -> str:
        seconds = max(time.monotonic() - self._started, 1e-6)
        budget = self.ask.budget
        cost = f", cost {budget.cost:.2f}" if budget.price_in or budget.price_out else ""
        return f"{self.ask.sent / seconds:.1f}/s, {budget.tokens:,} tokens{cost}"
