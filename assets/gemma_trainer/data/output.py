"""Files that are written whole or not at all, and never over what should stay."""

from __future__ import annotations

import glob
import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from gemma_trainer.rows.problems import NO_SPACE, STOPPED, USAGE, Failure

_BUFFER = 1 << 18  # bytes


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
def replacing(path: Path, mode: str = "w", empty: bool = False, overwrite: bool = True) -> Iterator[IO]:
    """A file, of UTF-8 text or in mode "wb", that takes the place of `path` once it is whole and, unless it may be
    `empty`, holds something.

    Raises Failure: exit 2 where it cannot be written, or where without `overwrite` another run has made `path`
    meanwhile; exit 6 where the disk is full.
    """
    _sweep(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        file = io.BufferedWriter(_Target(part, path), _BUFFER)
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        with file if "b" in mode else io.TextIOWrapper(file, "utf-8", newline="\n") as opened:
            yield opened
        if empty or part.stat().st_size:
            if not overwrite:
                _keep_out(part, path)
            part.replace(path)
        elif path.exists() and overwrite:
            path.unlink()  # --overwrite: an older file must not pass for this run's
    finally:
        part.unlink(missing_ok=True)


def _keep_out(part: Path, path: Path) -> None:
    """Take the name `path`, unless somebody else has it by now: a link, unlike a rename, replaces nothing."""
    try:
        os.link(part, path)
    except FileExistsError:
        text = f"{path} was made by another run meanwhile"
        raise Failure(USAGE, "output-exists", text, file=str(path)) from None
    except OSError:  # a file system without links
        return


class _Target(io.FileIO):
    """What is written to the place of `path`; a refusal names it."""

    def __init__(self, part: Path, path: Path):
        super().__init__(part, "w")
        self.path = path

    def write(self, data) -> int | None:
        try:
            return super().write(data)
        except OSError as error:
            raise _unwritable(self.path, error) from None


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
    except OSError:
        pass  # another user's
    return True


def _unwritable(path: Path, error: OSError) -> Failure:
    if error.errno in NO_SPACE:
        return Failure(STOPPED, "disk-full", f"{path} cannot be written whole: {error.strerror}", file=str(path))
    text = f"{path} cannot be written: {error.strerror or error}"
    return Failure(USAGE, "output-unwritable", text, file=str(path))
