"""Checkpoints of a run: which are whole, of which run, and how they go."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

from gemma_trainer.train.write_json import write_json

COMPLETE = "complete.json"  # stands in a checkpoint once every file of it is on disk
NAME = re.compile(r"checkpoint-(\d+)")


def step_of(checkpoint: Path) -> int:
    """The step after which a checkpoint was written: N of checkpoint-N, -1 for another name."""
    found = NAME.fullmatch(checkpoint.name)
    return int(found[1]) if found else -1


def size_of(checkpoint: Path) -> int:
    """In bytes."""
    return sum(_files(checkpoint).values())


def mark_complete(checkpoint: Path, step: int, identity: str) -> None:
    """Sync a checkpoint to disk, then say that it is whole, which files it has, and of which run it is."""
    for path in (*checkpoint.rglob("*"), checkpoint):  # folders too: they hold the names
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    write_json(checkpoint / COMPLETE, {"step": step, "run": identity, "files": _files(checkpoint)})


def is_marked(checkpoint: Path) -> bool:
    return (checkpoint / COMPLETE).is_file()


def is_whole(checkpoint: Path) -> bool:
    """Whether it was written to its end and every file still has its size."""
    mark = read_mark(checkpoint)
    if mark is None or mark.get("step") != step_of(checkpoint):
        return False
    return _files(checkpoint).items() >= mark.get("files", {}).items()


def read_mark(checkpoint: Path) -> dict | None:
    """What complete.json says, None where there is none or it is damaged."""
    try:
        mark = json.loads((checkpoint / COMPLETE).read_bytes())
    except (OSError, ValueError):
        return None
    return mark if isinstance(mark, dict) and isinstance(mark.get("files", {}), dict) else None


def checkpoints_in(folder: Path) -> list[Path]:
    """All of them, whole or not, the oldest first."""
    return sorted((each for each in folder.glob("checkpoint-*") if step_of(each) >= 0), key=step_of)


def remove(checkpoint: Path) -> None:
    """No checkpoint is called whole that has begun to go."""
    (checkpoint / COMPLETE).unlink(missing_ok=True)
    shutil.rmtree(checkpoint)


def _files(checkpoint: Path) -> dict[str, int]:
    """{name: bytes}"""
    found = (file for file in checkpoint.rglob("*") if file.is_file() and file.name != COMPLETE)
    return {file.relative_to(checkpoint).as_posix(): file.stat().st_size for file in found}
