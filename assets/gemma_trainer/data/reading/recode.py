"""Text in UTF-16 or UTF-32, or with lone carriage returns, as UTF-8 lines while it is read."""

from __future__ import annotations

import codecs
import io
from pathlib import Path
from typing import BinaryIO

from gemma_trainer.data.reading.sources import Watch, open_bytes

MARKS = {"utf-32-le": b"\xff\xfe\0\0", "utf-32-be": b"\0\0\xfe\xff", "utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff"}
# Which of the first four bytes are NUL when a text without a mark begins with ASCII.
_NULS = {
    (False, True, False, True): "utf-16-le",
    (True, False, True, False): "utf-16-be",
    (False, True, True, True): "utf-32-le",
    (True, True, True, False): "utf-32-be",
}
# A byte that no UTF-8 text holds stands for what cannot be decoded, so that its row is refused and no other.
codecs.register_error("mark-undecodable", lambda error: ("\udcff", error.end))


def encoding_of(head: bytes) -> str | None:
    """The wide encoding of a text by its first bytes; None for UTF-8 and its kin."""
    marked = next((name for name, mark in MARKS.items() if head.startswith(mark)), None)
    return marked or _NULS.get(tuple(byte == 0 for byte in head[:4]))


def recoded_head(head: bytes, encoding: str | None) -> bytes:
    """The start of a text in UTF-8, without a mark; a character that is cut at its end is left out."""
    if encoding is None:
        return head
    return _utf8(_decoder(encoding).decode(head.removeprefix(MARKS[encoding])))


def has_lone_returns(head: bytes) -> bool:
    """Whether CR alone ends the lines of a text."""
    return b"\r" in head.strip() and b"\n" not in head


def open_text(path: Path, encoding: str | None, lone_returns: bool, watch: Watch | None = None) -> BinaryIO:
    """The text of a file as UTF-8 bytes, with a byte order mark only where UTF-8 had one."""
    stream = open_bytes(path, watch)
    if encoding is None and not lone_returns:
        return stream
    return io.BufferedReader(_Recoded(stream, encoding, lone_returns), buffer_size=1 << 20)


class _Recoded(io.RawIOBase):
    def __init__(self, stream: BinaryIO, encoding: str | None, lone_returns: bool):
        self.stream, self.left, self.ended = stream, b"", False
        decoder = _decoder(encoding or "utf-8")
        self.decoder = io.IncrementalNewlineDecoder(decoder, translate=True) if lone_returns else decoder
        mark = MARKS.get(encoding, b"")
        start = stream.read(len(mark))
        self.start = b"" if start == mark else start

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        while not self.left and not self.ended:
            block = self.start + self.stream.read(1 << 18)
            self.start, self.ended = b"", not block
            self.left = _utf8(self.decoder.decode(block, final=self.ended))
        size = min(len(buffer), len(self.left))
        buffer[:size], self.left = self.left[:size], self.left[size:]
        return size

    def close(self) -> None:
        self.stream.close()
        super().close()


def _decoder(encoding: str) -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder(encoding)(errors="mark-undecodable")


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
