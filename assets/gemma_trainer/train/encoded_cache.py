"""What the tokenizer made of rendered texts, kept by their content: a second run over the same rows does not tokenise again.

Nothing can be out of date: the key is a hash of the texts themselves with their trained spans, which hold the data, the template
and what carries loss, and of the tokenizer. What is cut or left out is decided afterwards, on every run.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Iterator
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate, pairwise
from pathlib import Path

from gemma_trainer.data.encode import Encoded, RowTokenizer
from gemma_trainer.data.render import Rendered
from gemma_trainer.models.resolve import cache_root

VERSION = b"1"  # raise it with any change of what RowTokenizer.encode_batch gives
WORTH = 2**18  # characters; fewer are tokenised in a moment
LIMIT = 2 * 2**30  # bytes of all files; the ones that were not used for longest go first
KEY, CHECK = 20, 16  # bytes


class EncodingCache:
    """`encode_batch` as the tokenizer has it, of files of one batch each where the batch has been seen before."""

    def __init__(self, tokenizer: RowTokenizer):
        self.tokenizer = tokenizer

    @property
    def folder(self) -> Path:
        return cache_root() / "encoded"

    def encode_batch(self, rows: list[Rendered]) -> list[Encoded]:
        if getattr(self.tokenizer, "file", None) is None or sum(len(row.text) for row in rows) < WORTH:
            return self.tokenizer.encode_batch(rows)
        path = self.folder / self._key(rows)
        found = _read(path, len(rows))
        if found is None:
            found = self.tokenizer.encode_batch(rows)
            with contextlib.suppress(OSError):  # a full or read-only disk costs time, nothing else
                _write(path, found)
                _prune(self.folder)
        return found

    def _key(self, rows: list[Rendered]) -> str:
        digest = blake2b(self._tokenizer_hash, digest_size=KEY)
        for row in rows:
            text, spans = row.text.encode("utf-8", "surrogatepass"), repr([tuple(span) for span in row.spans]).encode()
            digest.update(b"%d %d\n" % (len(text), len(spans)))
            digest.update(text)
            digest.update(spans)
        return digest.hexdigest()

    @cached_property
    def _tokenizer_hash(self) -> bytes:
        import tokenizers

        digest = blake2b(self.tokenizer.file.read_bytes())
        digest.update(VERSION + tokenizers.__version__.encode())
        return digest.digest()


def _write(path: Path, rows: list[Encoded]) -> None:
    """A check sum, then numbers of 4 bytes: the length of each row, and all ids; then the masks, a byte a token."""
    numbers = array("i", [len(row.ids) for row in rows])
    for row in rows:
        numbers.extend(row.ids)
    body = numbers.tobytes() + b"".join(bytes(row.mask) for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_bytes(_check(path, body) + body)
    part.replace(path)


def _read(path: Path, count: int) -> list[Encoded] | None:
    """None where there is no whole file of so many rows."""
    try:
        content = path.read_bytes()
        os.utime(path)
    except OSError:
        return None
    check, body = content[:CHECK], content[CHECK:]
    if check != _check(path, body):
        return None
    lengths = array("i", body[: 4 * count])
    ends = list(accumulate(lengths, initial=0))
    ids = array("i", body[4 * count : 4 * (count + ends[-1])])
    mask = body[4 * (count + ends[-1]) :]
    return [Encoded(ids[start:end].tolist(), list(mask[start:end])) for start, end in pairwise(ends)]


def _check(path: Path, body: bytes) -> bytes:
    """Of the name too: a file that was copied over another holds other rows."""
    return blake2b(body, key=path.name.encode(), digest_size=CHECK).digest()


def _prune(folder: Path) -> None:
    room = LIMIT
    for path, stat in sorted(_files(folder), key=lambda each: -each[1].st_mtime_ns):
        room -= stat.st_size
        if room < 0:
            path.unlink(missing_ok=True)


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):  # another process may have removed it
            yield Path(entry.path), entry.stat()
