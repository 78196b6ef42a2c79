"""Who says how the processes of a run ended, on one stdout, once: the launcher of ours that started them, and of those that
another one started (torchrun, accelerate, a scheduler) the first."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from gemma_trainer.cli import Outcome, log, signals
from gemma_trainer.plan.processes import is_first
from gemma_trainer.rows.problems import Problem
from gemma_trainer.train.ranks import tell_others
from gemma_trainer.train.write_json import write_json

STDOUT = 1
LAUNCHER = "GEMMA_TRAINER_LAUNCHER"  # its process
ENDINGS = "GEMMA_TRAINER_ENDINGS"  # folder in which the processes it started leave how they ended
PATIENCE = 30  # seconds in which the first process finds what another found

STOPPING = threading.Event()  # a signal has come, and this process ends after its step


def launched() -> bool:
    """Whether this is one of the processes that `launch` started."""
    return ENDINGS in os.environ and not is_launcher()


def is_launcher() -> bool:
    return os.environ.get(LAUNCHER) == str(os.getpid())


def voice() -> Callable[[Outcome], None] | None:
    """None where the result is for this process to print. Otherwise its stdout is closed, and this is what takes its
    outcome."""
    if not launched() and is_first():
        return None
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
    if not launched():
        return _let_the_first_speak
    stop_with_launcher()
    return _leave_for_launcher


def _let_the_first_speak(outcome: Outcome) -> None:
    """Once a process has failed, torchrun ends the others, even the one that is about to tell what all have found, or this
    one alone."""
    for problem in outcome.errors:
        log(f"process {os.environ['RANK']}: {problem}")
    if not outcome.exit_code or "TORCHELASTIC_RUN_ID" not in os.environ or signals.heard:
        return
    tell_others(outcome.exit_code, outcome.errors[0])
    until = time.monotonic() + PATIENCE
    while not signals.heard and time.monotonic() < until:
        time.sleep(0.05)


def _leave_for_launcher(outcome: Outcome) -> None:
    if outcome.exit_code or is_first():
        with contextlib.suppress(OSError):  # of a launcher that is gone
            write_json(Path(os.environ[ENDINGS]) / f"{os.environ['RANK']}.json", asdict(outcome))


def first_ending(folder: Path) -> Outcome | None:
    """How the first process ended that failed, or else the one that gives the result."""
    outcomes = [_read(file) for file in sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime_ns)]
    return next((each for each in outcomes if each.exit_code), outcomes[-1] if outcomes else None)


def _read(file: Path) -> Outcome:
    values = json.loads(file.read_text("utf-8"))
    problems = {side: [Problem(**each) for each in values[side]] for side in ("errors", "warnings")}
    return Outcome(**{**values, **problems})


def stop_with_launcher() -> None:
    """Stop this process as SIGTERM does, the newest step saved, when the one that started it is gone."""

    def watch() -> None:
        while str(os.getppid()) == os.environ[LAUNCHER]:
            time.sleep(1)
        if not STOPPING.is_set():  # a second signal would end it at once
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
