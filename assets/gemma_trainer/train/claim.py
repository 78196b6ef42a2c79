"""What may stand where a run wants to write: nothing, a run, what is left of one, or what is none of its business."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from gemma_trainer.models.resolve import read_run
from gemma_trainer.rows.problems import NO_SPACE, USAGE, Failure
from gemma_trainer.train.checkpoints import checkpoints_in, is_marked, remove
from gemma_trainer.train.write_json import write_json

LOCK = ".lock"
OVERWRITTEN = {"status": "overwritten"}  # run.json while --overwrite removes the run: no record
KINDS = {"command": str, "arguments": dict, "plan": dict, "status": str, "started": str}  # of what a record must hold
MORE = {"versions": dict, "metrics": dict, "events": list}  # and may hold
EVENT = {"passes", "step", "from", "to"}


def read_record(folder: Path) -> dict | None:
    """run.json, None where there is none or it is damaged."""
    record = read_run(folder)
    if record is None or not all(isinstance(record.get(name), kind) for name, kind in KINDS.items()):
        return None
    if not all(isinstance(record.get(name, kind()), kind) for name, kind in MORE.items()):
        return None
    sound = all(isinstance(event, dict) and event.keys() >= EVENT for event in record.get("events", []))
    return record if sound else None


def is_empty(folder: Path) -> bool:
    """Whether nothing is there but what a run leaves that ended before its first run.json."""
    return not folder.exists() or all(_is_leftover(entry) for entry in folder.iterdir())


def _is_leftover(entry: Path) -> bool:
    if entry.is_dir():
        return entry.name == "checkpoints" and not any(entry.iterdir())
    return entry.name == LOCK or (entry.name.startswith(".") and entry.name.endswith(".part"))


def marked_checkpoints(folder: Path) -> list[Path]:
    return list(filter(is_marked, checkpoints_in(folder / "checkpoints")))


def is_damaged_run(folder: Path) -> bool:
    """Whether a run without a record is there: with its lock, or with checkpoints that only a run marks so."""
    if read_record(folder) is not None:
        return False
    locked = (folder / "run.json").is_file() and (folder / LOCK).is_file()
    return locked or bool(marked_checkpoints(folder))


def damaged(folder: Path, whole: Path | None) -> Failure:
    """Exit 2 with what can be done with such a run. `whole`: its newest whole checkpoint."""
    what = "was being overwritten" if read_run(folder) == OVERWRITTEN else "is damaged or missing"
    kept = f"{whole} is its newest whole checkpoint" if whole else "it has no whole checkpoint"
    fix = "Pass --overwrite to begin anew"
    fix += f", or go on in another directory: --resume {whole} --output-dir OTHER." if whole else "."
    file = folder / "run.json"
    return Failure(USAGE, "run-damaged", f"{file} of a run {what}; {kept}", fix=fix, file=str(file))


def clear(folder: Path) -> None:
    """Remove a run, but for its lock. Killed at any moment, it leaves a damaged run, which --overwrite removes too: run.json
    goes last."""
    with writing(folder):
        write_json(folder / "run.json", OVERWRITTEN)
        for checkpoint in checkpoints_in(folder / "checkpoints"):
            remove(checkpoint)
        for entry in folder.iterdir():
            if entry.name in ("run.json", LOCK):
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        (folder / "run.json").unlink()


def check_writable(folder: Path) -> None:
    """Raises Failure (exit 2) where the folder, or the one that it would be made in, takes no files; touches nothing."""
    try:
        place = next(each for each in (folder.absolute(), *folder.absolute().parents) if _is_there(each))
    except OSError as error:
        raise _unwritable(folder, error.strerror) from None
    if not place.is_dir():
        raise Failure(USAGE, "output-unwritable", f"{place} is a file")
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        raise _unwritable(folder, "read-only, or not yours")


def _is_there(path: Path) -> bool:
    """Raises OSError for a name that cannot be, or may not be looked at."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):  # a parent tells of a file in the way
        return False
    return True


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raises Failure (exit 2) where the system refuses what is written; a full disk raises what it raised."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise
        raise _unwritable(folder, error.strerror or error) from None


def _unwritable(folder: Path, why: object) -> Failure:
    return Failure(USAGE, "output-unwritable", f"{folder} cannot be written: {why}")
