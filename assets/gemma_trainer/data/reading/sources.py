"""Which files are meant, and their bytes: folders, globs, stdin, gzip and zstd."""

from __future__ import annotations

import glob
import gzip
import io
import json
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from gemma_trainer.data.reading.hashing import content_digest, joint_hash
from gemma_trainer.rows.problems import USAGE, Failure, missing

DATA_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow")
PACKED_SUFFIXES = (".gz", ".zst")
READ_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile)
# Names of files about a data set, not of it, each with a key that it has.
_ABOUT_DATASETS = {
    "state.json": "_data_files",
    "dataset_info.json": "features",
    "dataset_infos.json": "features",
    "dataset_dict.json": "splits",
}
HEAD = 1 << 20  # bytes that are looked at to tell a format
_BLOCK = 1 << 20


def expand(names: Iterable[str]) -> list[Path]:
    """The data files that names stand for: files, folders (all data files below), globs, `-` for stdin.

    Raises Failure (exit 2) for a name that stands for nothing.
    """
    files: list[Path] = []
    for name in names:
        path = Path(name).expanduser()
        if not name.strip():
            raise Failure(USAGE, "file-not-found", "a name of DATA is empty", fix="Is a variable of the shell unset?")
        if name == "-":
            files.append(_spooled_stdin())
        elif path.is_dir():
            files.extend(_files_below(path))
        elif path.is_file():
            files.append(path)
        elif path.exists():
            text = f"{name} is a pipe or a device, which cannot be read twice"
            raise Failure(USAGE, "file-not-found", text, file=name, fix="Pipe rows to `-`, or write them to a file.")
        elif any(mark in name for mark in "*?["):
            found = sorted(Path(match) for match in glob.glob(str(path), recursive=True) if Path(match).is_file())  # noqa: PTH207
            if not found:
                raise Failure(USAGE, "file-not-found", f"no file matches {name}")
            files.extend(found)
        else:
            raise Failure(USAGE, "file-not-found", f"{name} does not exist", file=name)
    return list(dict.fromkeys(files))


def shown(file: str | Path | None) -> str | None:
    """What people call a file: `-` for stdin, else its path."""
    return None if file is None else "-" if _SPOOLS and str(file) == _SPOOLS[0].name else str(file)


def home(file: Path) -> Path:
    """The folder from which relative paths in a file start: of stdin the current one."""
    return Path(shown(file)).parent


def suffix(path: Path) -> str:
    """The suffix that tells the format, in lower case: `.jsonl` of `rows.JSONL.gz`."""
    suffixes = [part.lower() for part in path.suffixes]
    while suffixes and suffixes[-1] in PACKED_SUFFIXES:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


class Watch:
    """Sees the stored bytes of one file go by: counts and hashes them, and tells `advance` how many there were."""

    def __init__(self, advance: Callable[[int], object] = lambda size: None):
        self.size, self.digest, self.advance = 0, content_digest(), advance

    def see(self, block) -> None:
        self.size += len(block)
        self.digest.update(block)
        self.advance(len(block))


class _Watched(io.FileIO):
    """A file whose reads a Watch sees."""

    def __init__(self, path: Path, watch: Watch):
        super().__init__(path)
        self.watch = watch

    def readinto(self, buffer) -> int:
        size = super().readinto(buffer)
        self.watch.see(memoryview(buffer)[:size])
        return size


def open_bytes(path: Path, watch: Watch | None = None) -> BinaryIO:
    """The unpacked bytes of a file; gzip and zstd are told by their first bytes, not by the suffix.

    Raises Failure for a file that cannot be opened.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(4)
        raw = _Watched(path, watch) if watch else path.open("rb", buffering=0)
        stored = io.BufferedReader(raw, _BLOCK)
        if magic[:2] == b"\x1f\x8b":
            return gzip.GzipFile(fileobj=stored)
        if magic == b"\x28\xb5\x2f\xfd":
            return _open_zstd(path, stored)
        return stored
    except OSError as error:
        raise Failure(USAGE, "file-unreadable", f"{path}: {error.strerror or error}", file=str(path)) from None


def read_head(path: Path, size: int = HEAD) -> tuple[bytes, bool]:
    """(first unpacked bytes, whether the packed data breaks within them)."""
    head = b""
    with open_bytes(path) as stream:
        read = getattr(stream, "read1", stream.read)  # gives what is there before the data breaks
        try:
            while len(head) < size and (block := read(size - len(head))):
                head += block
        except READ_ERRORS:
            return head, True
    return head, False


def data_hash(files: Iterable[Path], seen: Mapping[Path, Watch] | None = None) -> str:
    """XXH3-128 over the stored bytes; of several files, over their hashes in order. `seen` spares a second reading."""
    return joint_hash([_file_hash(path, (seen or {}).get(path)) for path in files])


def _file_hash(path: Path, watch: Watch | None) -> str:
    if watch is None or watch.size != path.stat().st_size:
        watch = Watch()
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                watch.see(block)
    return watch.digest.hexdigest()


def _is_hidden(path: Path) -> bool:
    """Copies that editors and systems keep beside the data, such as .ipynb_checkpoints, are no data."""
    return any(part.startswith(".") for part in path.parts)


def _files_below(folder: Path) -> Iterator[Path]:
    found = [path for path in sorted(folder.rglob("*"))
             if suffix(path) in DATA_SUFFIXES and path.is_file() and not _is_hidden(path.relative_to(folder))]  # fmt: skip
    about = {path: listed for path in found if (listed := _about_dataset(path)) is not None}
    found = [
        path for path in found if path not in about and not _is_cache(path, about.get(path.with_name("state.json")))
    ]
    if not found:
        raise Failure(USAGE, "file-not-found", f"{folder} holds no data file ({', '.join(DATA_SUFFIXES)})")
    return iter(found)


def _about_dataset(path: Path) -> list[str] | None:
    """The data files that a file about a data set of `datasets` lists, which state.json alone does; None for other files,
    which hold rows whatever their names."""
    key = _ABOUT_DATASETS.get(path.name)
    if key is None or path.stat().st_size > HEAD or f'"{key}"'.encode() not in (text := path.read_bytes()):
        return None
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, dict):
        return None
    listed = told.get("_data_files")
    return [file.get("filename") for file in listed if isinstance(file, dict)] if isinstance(listed, list) else []


def _is_cache(path: Path, listed: list[str] | None) -> bool:
    """Whether a file lies beside a stored data set, whose files are listed, as what `map` keeps there does."""
    return bool(listed) and path.suffix == ".arrow" and path.name not in listed


def _spooled_stdin() -> Path:
    """Stdin, read once, as a file that is gone with the process: telling a format needs a second look."""
    if _SPOOLS:
        return Path(_SPOOLS[0].name)
    spool = tempfile.NamedTemporaryFile(prefix="stdin-", suffix=".data")  # noqa: SIM115
    shutil.copyfileobj(sys.stdin.buffer, spool)
    spool.flush()
    _SPOOLS.append(spool)
    return Path(spool.name)


_SPOOLS: list = []  # keeps the files of stdin until the process ends


def _open_zstd(path: Path, stored: BinaryIO) -> BinaryIO:
    try:
        import pyarrow
    except ImportError:
        raise missing("pyarrow", f"reading {path.name}", "data") from None
    stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(stored, mode="r"), "zstd")
    return io.BufferedReader(_Unpacked(stream, pyarrow.ArrowException), buffer_size=_BLOCK)


class _Unpacked(io.RawIOBase):
    """The bytes of a zstd stream. Raises EOFError where it is cut or damaged, as gzip does."""

    def __init__(self, stream, error: type[Exception]):
        self.stream, self.errors = stream, (error, OSError)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        try:
            block = self.stream.read(len(buffer))
        except self.errors as error:
            raise EOFError(str(error)) from None
        buffer[: len(block)] = block
        return len(block)

    def close(self) -> None:
        self.stream.close()
        super().close()
