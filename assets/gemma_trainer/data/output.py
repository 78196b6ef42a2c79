"""Files that are written whole or not at all, and never over what should stay."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from gemma_trainer.rows.problems import USAGE, Failure


def check_targets(files: Iterable[Path], targets: list[Path], overwrite: bool) -> None:
    """Raise Failure (exit 2) where a target is an input, exists already, is no regular file, or is named twice."""
    inputs = {path.resolve() for path in files}
    for at, target in enumerate(targets):
        if target.resolve() in inputs:
            raise Failure(USAGE, "usage", f"{target} is an input file", fix="Write to another file.")
        if target.exists() and not target.is_file():
            text = f"{target} is a folder or a device, not a file"
            raise Failure(USAGE, "output-unwritable", text, fix="Write to a file.", file=str(target))
        if target.exists() and not overwrite:
            raise Failure(USAGE, "output-exists", f"{target} exists", file=str(target))
        if target.resolve() in {other.resolve() for other in targets[:at]}:
            raise Failure(USAGE, "usage", f"{target} is named twice")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(target, error) from None


@contextmanager
def replacing(path: Path, mode: str = "w") -> Iterator[IO]:
    """A file, of UTF-8 text or in mode "wb", that takes the place of `path` once it is whole and holds something.

    Raises Failure (exit 2).
    """
    _sweep(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        file = part.open(mode, **({} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}))
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        with file:
            yield file
        if part.stat().st_size:
            part.replace(path)
        elif path.exists():
            path.unlink()  # --overwrite: an older file must not pass for this run's
    finally:
        part.unlink(missing_ok=True)


def _sweep(path: Path) -> None:
    """Remove what writers of `path` left behind that were killed."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        writer = part.suffixes[-2][1:]
        if writer.isdigit() and not _is_alive(int(writer)):
            part.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True


def _unwritable(path: Path, error: OSError) -> Failure:
    text = f"{path} cannot be written: {error.strerror or error}"
    return Failure(USAGE, "output-unwritable", text, file=str(path))
