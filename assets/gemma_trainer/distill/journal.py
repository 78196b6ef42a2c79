"""Every answer that was paid for, one line a request, and the requests that failed for good."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from gemma_trainer.data.output import replacing
from gemma_trainer.distill.request import Reply, Request, Usage
from gemma_trainer.rows.problems import NO_SPACE, STOPPED, USAGE, Failure, Problem

SYNC = 5.0  # seconds after which the disk is made to keep what was written
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode  # json.dumps makes one for each call


class Lines:
    """A file of JSON lines that only grows; a line that a killed run left cut is dropped.

    One run at a time: raises Failure (exit 2) while another has it open, and (exit 6) when the disk is full.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            self._file = path.open("a+b", buffering=0)
        except OSError as error:
            text = f"{path} cannot be written: {error.strerror}"
            raise Failure(USAGE, "output-unwritable", text, file=str(path)) from None
        _lock(self._file, path)
        self.end = _whole(self._file)
        self._file.truncate(self.end)
        self._synced = time.monotonic()

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """(offset, line) of what stands there."""
        at = 0
        with self.path.open("rb") as file:
            for line in file:
                yield at, line
                at += len(line)

    def append(self, line: bytes) -> int:
        """Write the line and give its offset."""
        at = self.end
        try:
            written = self._file.write(line)
            if written != len(line):
                raise OSError(NO_SPACE[0], os.strerror(NO_SPACE[0]))
        except OSError as error:
            self._file.truncate(at)
            if error.errno not in NO_SPACE:
                raise
            text = f"{self.path} cannot be written further: {error.strerror}"
            raise Failure(STOPPED, "disk-full", text, file=str(self.path)) from None
        self.end += len(line)
        if time.monotonic() - self._synced > SYNC:
            self.sync()
        return at

    def read(self, at: int) -> dict:
        self._file.seek(at)
        block = b""
        while b"\n" not in block:
            block += self._file.read(1 << 14)
        return json.loads(block[: block.index(b"\n")])

    def sync(self) -> None:
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def close(self) -> None:
        """A file without lines is removed while it is locked, see `_lock`."""
        self.sync()
        if not self.end:
            with contextlib.suppress(PermissionError):  # Windows keeps what is open
                self.path.unlink(missing_ok=True)
        self._file.close()


class Journal:
    """A memo of requests: `get` answers what was asked before. Replies stay on disk, in memory are only their places.

    `unused` are the answers of earlier runs that nobody has asked for yet; `warnings` tell of lines that are no
    answers, which are left where they stand. `each` is called with every answer that is found: (model, reply).
    """

    def __init__(
        self,
        replies: Path,
        failed: Path,
        retry_failed: bool = False,
        each: Callable[[str, Reply], object] = lambda model, reply: None,
    ):
        self._replies = Lines(replies)
        self._places: dict[bytes, int] = {}
        damaged = []
        for number, (at, line) in enumerate(self._replies, 1):
            if (told := read_line(line)) is None:
                damaged.append(number)
            elif (key := bytes.fromhex(told.id)) not in self._places:
                self._places[key] = at
                each(told.model, told.reply)
        self.unused = set(self._places)
        if retry_failed and failed.exists():
            with replacing(failed, empty=True):
                pass
        self._failed = Lines(failed)
        self.failures: dict[str, str] = {}
        unread = []
        for number, (_, line) in enumerate(self._failed, 1):
            try:
                told = json.loads(line)
                self.failures[bytes.fromhex(told["id"]).hex()] = str(told["reason"])
            except (ValueError, LookupError, TypeError, RecursionError):
                unread.append(number)
        for known in [key for key in self.failures if bytes.fromhex(key) in self._places]:
            del self.failures[known]
        self.warnings = [*_damage(replies, damaged), *_damage(failed, unread)]

    def __len__(self) -> int:
        return len(self._places)

    def get(self, request_id: str) -> Reply | None:
        key = bytes.fromhex(request_id)
        at = self._places.get(key)
        if at is None:
            return None
        self.unused.discard(key)
        return _reply(self._replies.read(at)["reply"])

    def add(self, request: Request, reply: Reply) -> None:
        line = {"id": request.id, "request": request.as_dict(), "reply": reply.as_dict()}
        self._places[bytes.fromhex(request.id)] = self._replies.append(encoded(line))

    def add_failure(self, request: Request, reason: str) -> None:
        self.failures[request.id] = reason
        self._failed.append(encoded({"id": request.id, "reason": reason, "request": request.as_dict()}))

    def close(self) -> None:
        self._replies.close()
        self._failed.close()


def encoded(value: object) -> bytes:
    """The value as one line of JSON, without halves of surrogate pairs."""
    text = _encode(value)
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        return sound(text).encode() + b"\n"


def sound(text: str) -> str:
    """The text with U+FFFD for halves of surrogate pairs, which a teacher may write and no file can hold."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Told(NamedTuple):
    """A line of the journal: the id of a request, the name of the model that was asked, and its reply."""

    id: str
    model: str
    reply: Reply


def read_line(line: bytes) -> Told | None:
    """None for a line that is damaged."""
    from msgspec import ValidationError, convert

    try:
        told = json.loads(line)
        reply = convert(told["reply"], Reply, strict=True)
        is_sound = len(bytes.fromhex(told["id"])) == 16 and all(isinstance(c, dict) for c in reply.tool_calls or ())
        return Told(told["id"], str(told["request"]["model"]), reply) if is_sound else None
    except (ValueError, LookupError, TypeError, RecursionError, ValidationError):
        return None


def _damage(path: Path, lines: list[int]) -> list[Problem]:
    """What is to be told of lines that cannot be read."""
    if not lines:
        return []
    others = f" and {len(lines) - 1} more cannot" if len(lines) > 1 else " cannot"
    text = f"line {lines[0]}{others} be read; what stood there is asked again"
    return [Problem("journal-damaged", text, file=str(path), line=lines[0])]


def _reply(told: dict) -> Reply:
    return Reply(**{**told, "usage": Usage(**told["usage"])})


def _whole(file) -> int:
    """The size up to the last line that ends."""
    at = file.seek(0, os.SEEK_END)
    while at > 0:
        start = max(0, at - (1 << 16))
        file.seek(start)
        found = file.read(at - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        at = start
    return 0


def _lock(file, path: Path) -> None:
    """Raises Failure where another process holds the file, or has just removed it: what is written then has no name.

    The lock ends with the process, however it ends.
    """
    with contextlib.suppress(ImportError):  # Windows
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = os.path.samestat(os.fstat(file.fileno()), path.stat())
        except OSError:
            is_ours = False
        if not is_ours:
            raise Failure(USAGE, "run-in-progress", f"another run is writing {path}", file=str(path))
