"""Answers checked by a Python function of the user's, in processes of their own with a time limit."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

from gemma_trainer.rows.problems import USAGE, Failure

SECONDS = 10.0  # for one answer
_LOADING = 60.0  # for the file and what it imports
_LONGEST = 1 << 16  # bytes of a result
_WORKER = Path(__file__).with_name("verify_worker.py")


class Verifier:
    """`FILE.py:function`, called as function(answer, row): the answer's text and its prompt row with all columns.

    It gives True or False, or a number (the more the better). The file is code that the user passes: it runs with the
    user's rights, in `workers` processes, each replaced when an answer takes more than `seconds`.
    """

    def __init__(self, reference: str, seconds: float = SECONDS, workers: int | None = None):
        """Raises Failure (exit 2) when the file or the function is not there or cannot be loaded."""
        file, colon, self.function = reference.rpartition(":")
        if not colon or not self.function.isidentifier():
            raise Failure(USAGE, "usage", f"--verifier {reference} is not of the form FILE.py:function")
        self.file, self.seconds = Path(file), seconds
        self.asked = self.faults = 0
        self.last_fault = ""
        if not self.file.is_file():
            raise Failure(USAGE, "file-not-found", f"{file} does not exist", file=file)
        self.idle: queue.SimpleQueue = queue.SimpleQueue()
        self.idle.put(self._start())
        for _ in range(1, workers or min(8, os.cpu_count() or 1)):
            self.idle.put(None)  # started when it is needed

    async def score(self, answer: str, row: dict) -> tuple[float | None, str]:
        """(score, ""), where True is 1 and False is 0; (None, why) where the function fails or takes too long."""
        score, fault = await asyncio.to_thread(self._score, answer, row)
        self.asked += 1
        if score is None:
            self.faults, self.last_fault = self.faults + 1, fault
        return score, fault

    def close(self) -> None:
        """End the processes that are idle."""
        while not self.idle.empty():
            if worker := self.idle.get():
                _end(worker)

    def _score(self, answer: str, row: dict) -> tuple[float | None, str]:
        worker = self.idle.get()
        try:
            if worker is None or worker.poll() is not None:
                worker = self._start()
            told, is_sound = _exchange(worker, {"answer": answer, "row": row}, self.seconds)
            if not is_sound:
                _end(worker)
                worker = None
            return told.get("score"), told.get("fault", "")
        finally:
            self.idle.put(worker)

    def _start(self) -> subprocess.Popen:
        words = [sys.executable, str(_WORKER), str(self.file), self.function]
        worker = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        told, _ = _told(worker, 0, _LOADING)
        if "fault" in told:
            _end(worker)
            text = f"{self.file}:{self.function}: {told['fault']}"
            raise Failure(USAGE, "verifier-broken", text, file=str(self.file))
        return worker


_ENDED = {"fault": "the verifier's process ended"}
_numbers = itertools.count(1)


def _exchange(worker: subprocess.Popen, question: dict, seconds: float) -> tuple[dict, bool]:
    """(what the worker tells, whether it can be asked again)."""
    number = next(_numbers)
    try:
        worker.stdin.write(json.dumps({"number": number, **question}).encode() + b"\n")
        worker.stdin.flush()
    except OSError:
        return _ENDED, False
    return _told(worker, number, seconds)


def _told(worker: subprocess.Popen, number: int, seconds: float) -> tuple[dict, bool]:
    """The worker's line about a question. Whatever else it writes, it is not believed from then on."""
    until, said = time.monotonic() + seconds, b""
    with selectors.DefaultSelector() as selector:
        selector.register(worker.stdout, selectors.EVENT_READ)
        while not said.endswith(b"\n"):
            if len(said) > _LONGEST or not selector.select(max(0.0, until - time.monotonic())):
                return {"fault": f"no result within {seconds:g} seconds"}, False
            if not (piece := os.read(worker.stdout.fileno(), 1 << 16)):
                return _ENDED, False
            said += piece
    try:
        told = json.loads(said)
        if told.pop("number") == number:
            return told, True
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    return {"fault": "the verifier's process writes where its results go"}, False


def _end(worker: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)  # with what it started
    worker.wait()
    worker.stdin.close()
    worker.stdout.close()
