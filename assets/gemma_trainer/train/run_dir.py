"""The run directory: what a training script leaves, written so that a kill at any moment leaves it readable.

    run.json        resolved configuration, versions, hardware, data, status, metrics
    metrics.jsonl   one line per log step, appended
    loss.png        the curve
    checkpoints/    what a resumed run starts from
    README.md       model card
and, at the end, the adapter or the model with its tokenizer.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import time
from pathlib import Path

from gemma_trainer.data.output import replacing
from gemma_trainer.rows.problems import STOPPED, USAGE, Failure, Problem
from gemma_trainer.train.checkpoints import (
    checkpoints_in,
    is_marked,
    is_whole,
    mark_complete,
    read_mark,
    remove,
    step_of,
)
from gemma_trainer.train.claim import (
    LOCK,
    check_writable,
    clear,
    damaged,
    is_damaged_run,
    is_empty,
    read_record,
    writing,
)
from gemma_trainer.train.identity import differences, identity, kept_by
from gemma_trainer.train.write_json import write_json


class RunDirectory:
    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self._record: dict = {}
        self._lock = None  # held until the process ends, however it ends
        self.warnings: list[Problem] = []  # about what was found there

    @property
    def record(self) -> dict:
        """What run.json holds."""
        return self._record

    @property
    def metrics_so_far(self) -> dict:
        return self._record.get("metrics", {})

    def last_loss(self) -> float | None:
        return next((line["loss"] for line in reversed(self.metrics()) if "loss" in line), None)

    @property
    def run_file(self) -> Path:
        return self.path / "run.json"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    def open(self, resume: str, overwrite: bool) -> Path | None:
        """Claim the directory; return the checkpoint to resume from, or None for a fresh start.

        Raises Failure (exit 2) when the directory holds anything but an unfinished run of this kind.
        """
        check_writable(self.path)
        if (self.path / LOCK).exists():
            self._claim()
        checkpoint = self._where_to_begin(resume, overwrite)
        if overwrite and resume in ("auto", "never") and not is_empty(self.path):
            self._claim()
            clear(self.path)
        return checkpoint

    def refusal(self, resume: str, overwrite: bool, record: dict) -> Failure | None:
        """What `open` or `start` would raise, told without touching anything."""
        try:
            check_writable(self.path)
            checkpoint = self._where_to_begin(resume, overwrite)
            if not (overwrite and resume in ("auto", "never")):
                self._require_same(self.read(), record)
            _require_own(checkpoint, record)
        except Failure as failure:
            return failure
        return None

    def _where_to_begin(self, resume: str, overwrite: bool) -> Path | None:
        """As `open`, before anything is removed."""
        chosen = _chosen(resume)
        if is_empty(self.path):
            return chosen and _whole(chosen)
        previous = self.read()
        if previous is None and not is_damaged_run(self.path):
            text = f"{self.path} holds other files and is not a run directory, it stays as it is"
            raise Failure(USAGE, "output-exists", text, fix="Choose another --output-dir.")
        if overwrite and chosen is None:
            return None
        if previous is None:
            raise damaged(self.path, self.newest_checkpoint())
        done = previous["status"] == "done"
        if resume == "never" or (done and not overwrite):
            raise Failure(
                USAGE,
                "output-exists",
                f"{self.path} holds {'a finished run' if done else 'an unfinished run'}",
                fix="Choose another --output-dir or pass --overwrite.",
            )
        newest = self.newest_checkpoint()
        if chosen is None:
            return newest
        goes_on = not done and previous.get("begun_from") == str(chosen.resolve())
        return newest if goes_on and newest and step_of(newest) >= step_of(chosen) else _whole(chosen)

    def _claim(self) -> None:
        """Raises Failure (exit 2) while another process writes here."""
        if self._lock is not None:
            return
        with writing(self.path):
            self._lock = (self.path / LOCK).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.release()
            raise Failure(USAGE, "run-in-use", f"another process is writing to {self.path}") from None

    def release(self) -> None:
        """Leave the directory to another process, which claims it in its turn."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def newest_checkpoint(self) -> Path | None:
        """The newest checkpoint whose every file was on disk when the run was killed, and still is."""
        return max(filter(is_whole, checkpoints_in(self.checkpoints)), key=step_of, default=None)

    def drop_incomplete_checkpoints(self) -> None:
        """A warning tells of those that were whole once."""
        for checkpoint in checkpoints_in(self.checkpoints):
            if is_whole(checkpoint):
                continue
            if is_marked(checkpoint):
                text = f"{checkpoint} has lost files or parts of them, and was removed"
                self.warnings.append(Problem("checkpoint-damaged", text, file=str(checkpoint)))
            remove(checkpoint)

    def drop_checkpoints(self, after: float = math.inf, before: int = 0) -> None:
        """Remove the checkpoints of all steps after `after`, and of those before `before`."""
        for checkpoint in checkpoints_in(self.checkpoints):
            if step_of(checkpoint) > after or step_of(checkpoint) < before:
                remove(checkpoint)

    def mark_complete(self, step: int) -> Path:
        """The checkpoint of this step, which is on disk from now on."""
        checkpoint = self.checkpoints / f"checkpoint-{step}"
        mark_complete(checkpoint, step, identity(self._record))
        return checkpoint

    def read(self) -> dict | None:
        return read_record(self.path)

    def reread(self) -> None:
        """Take over what another process has written."""
        self._record = self.read() or self._record

    def start(self, record: dict, checkpoint: Path | None = None) -> None:
        """Write run.json. What stands there already, and the checkpoint to go on from, are compared first; Failure (exit 2)
        names what changed."""
        previous = self.read()
        self._require_same(previous, record)
        _require_own(checkpoint, record)
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self._claim()
        newest = self.newest_checkpoint()
        if checkpoint and newest and step_of(newest) > step_of(checkpoint):  # told to go back
            self.drop_checkpoints(after=step_of(checkpoint))
        chosen = _chosen(record.get("arguments", {}).get("resume", "auto"))
        before = previous or {"started": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        kept = {
            "started": before["started"],
            "metrics": before.get("metrics") or {},
            "events": before.get("events", []),
            "begun_from": str(chosen.resolve()) if chosen else before.get("begun_from"),
        }
        begun = {**record, "status": "running", **kept}
        with writing(self.path):
            write_json(self.run_file, begun)
        self._record = begun

    def _require_same(self, previous: dict | None, record: dict) -> None:
        changed = differences(previous, record) if previous is not None else []
        if not changed:
            return
        flags = kept_by(previous, record)
        fix = f"Pass {flags}, where this machine can" if flags else "Give the same arguments and data"
        fix += "; install the same versions, choose another --output-dir, or pass --overwrite."
        text = f"{self.path} was begun with other settings: {'; '.join(changed)}"
        raise Failure(USAGE, "resume-mismatch", text, fix=fix)

    def update(self, **values: object) -> None:
        self._record.update(values)
        write_json(self.run_file, self._record)

    def fail(self, failure: Failure) -> None:
        """Record why the run ended; what ended it may be a disk that takes no record."""
        status = "stopped" if failure.exit_code == STOPPED else "failed"
        with contextlib.suppress(OSError):
            self.update(status=status, error=failure.problem.as_dict())

    def shrunk(self, passes: str, step: int, before: int, after: int) -> None:
        """Record that memory ran out after `step`, and how many rows a pass of "training" or "evaluation" takes since."""
        event = {"event": "out-of-memory", "passes": passes, "step": step, "from": before, "to": after}
        self.update(events=[*self._record.get("events", []), event])

    def fitting(self, passes: str) -> int | None:
        """Rows a pass that such an event left, None without one."""
        events = (self.read() or {}).get("events", [])
        return min((event["to"] for event in events if event["passes"] == passes), default=None)

    def ended(self) -> dict:
        """What is told of a run that can go on; `step` is where. `status` is None before it was begun."""
        checkpoint = self.newest_checkpoint()
        return {
            "run": str(self.path),
            "status": (self.record or self.read() or {}).get("status"),
            "step": step_of(checkpoint) if checkpoint else 0,
        }

    def log(self, line: dict) -> None:
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()

    def metrics(self) -> list[dict]:
        """Every whole line of metrics.jsonl; a kill may have cut the last one."""
        return [line for line in map(_metrics_line, self._metrics_lines()) if line is not None]

    def _metrics_lines(self) -> list[bytes]:
        return self.metrics_file.read_bytes().splitlines() if self.metrics_file.is_file() else []

    def rewind_metrics(self, step: int, every: int = 1) -> None:
        """Drop what was logged after the checkpoint at `step`: the resumed run logs it again. A warning tells what is damaged
        of the lines before, or missing where there is one for each `every` steps."""
        texts = self._metrics_lines()
        bad = sum(_metrics_line(text) is None for text in texts[:-1])  # a kill may have cut the last one
        kept = [line for line in self.metrics() if line["step"] <= step]
        missing = max(0, step) // every - len({line["step"] for line in kept if "loss" in line})
        if step > 0 and (bad or missing > 0):
            text = f"{bad} damaged lines were dropped, and {max(0, missing)} lines up to step {step} are missing"
            self.warnings.append(Problem("metrics-incomplete", text, file=str(self.metrics_file)))
        with replacing(self.metrics_file, empty=True) as file:
            file.writelines(json.dumps(line) + "\n" for line in kept)


def _chosen(resume: str) -> Path | None:
    """The checkpoint that --resume names, None for its words."""
    return None if resume in ("auto", "never") else Path(resume).expanduser()


def _whole(checkpoint: Path) -> Path:
    if not is_whole(checkpoint):
        raise Failure(USAGE, "checkpoint-incomplete", f"--resume {checkpoint} is not a complete checkpoint")
    return checkpoint


def _metrics_line(text: bytes) -> dict | None:
    """None for a damaged one."""
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and isinstance(line.get("step"), int) else None


def _require_own(checkpoint: Path | None, record: dict) -> None:
    """Raises Failure (exit 2) for a checkpoint of a run with other settings, data or model."""
    theirs = (read_mark(checkpoint) or {}).get("run") if checkpoint else None
    if theirs not in (None, identity(record)):
        text = f"{checkpoint} was written by a run with other settings, data or model"
        raise Failure(USAGE, "resume-mismatch", text, fix="Remove it, or resume from another.", file=str(checkpoint))
