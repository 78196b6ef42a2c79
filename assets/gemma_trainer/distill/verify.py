"""Answers checked by a Python function of the user's, in processes of their own with a time limit."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import selectors
import signal
import subprocess
import sys
from pathlib import Path

from gemma_trainer.rows.problems import USAGE, Failure

SECONDS = 10.0  # for one answer
_LOADING = 60.0  # for the file and what it imports
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
        if not self.file.is_file():
            raise Failure(USAGE, "file-not-found", f"{file} does not exist", file=file)
        self.idle: queue.SimpleQueue = queue.SimpleQueue()
        self.idle.put(self._start())
        for _ in range(1, workers or min(8, os.cpu_count() or 1)):
            self.idle.put(None)  # started when it is needed

    async def score(self, answer: str, row: dict) -> tuple[float | None, str]:
        """(score, ""), where True is 1 and False is 0; (None, why) where the function fails or takes too long."""
        return await asyncio.to_thread(self._score, answer, row)

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
            told = _exchange(worker, {"answer": answer, "row": row}, self.seconds)
            if told is None:
                _end(worker)
                worker = None
                return None, f"no result within {self.seconds:g} seconds"
            return told.get("score"), told.get("fault", "")
        finally:
            self.idle.put(worker)

    def _start(self) -> subprocess.Popen:
        words = [sys.executable, str(_WORKER), str(self.file), self.function]
        worker = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        told = _told(worker, _LOADING)
        if told is None or "fault" in told:
            _end(worker)
            why = told["fault"] if told else "it does not load"
            raise Failure(USAGE, "verifier-broken", f"{self.file}:{self.function}: {why}", file=str(self.file))
        return worker


def _exchange(worker: subprocess.Popen, question: dict, seconds: float) -> dict | None:
    try:
        worker.stdin.write(json.dumps(question).encode() + b"\n")
        worker.stdin.flush()
    except OSError:
        return {"fault": "the verifier's process ended"}
    return _told(worker, seconds)


def _told(worker: subprocess.Popen, seconds: float) -> dict | None:
    """The next line of a worker, None when it does not come in time."""
    with selectors.DefaultSelector() as selector:
        selector.register(worker.stdout, selectors.EVENT_READ)
        if not selector.select(seconds):
            return None
    line = worker.stdout.readline()
    return json.loads(line) if line.endswith(b"\n") else {"fault": "the verifier's process ended"}


def _end(worker: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)  # with what it started
    worker.wait()
    worker.stdin.close()
    worker.stdout.close()
