"""Files that stand in the place of data, told by their first bytes: archives, web pages, pointers."""

from __future__ import annotations

from typing import NamedTuple


class Other(NamedTuple):
    """What a file is instead, and how to come to the data."""

    what: str
    fix: str


_UNPACK = "Unpack it and name the files that come out: `{}`."
_STARTS = (
    (b"PK\x03\x04", Other("a zip archive, as spreadsheets (.xlsx) are too", _UNPACK.format("unzip FILE") + " Save a spreadsheet as CSV.")),
    (b"\xfd7zXZ\0", Other("packed by xz", _UNPACK.format("xz -dk FILE"))),
    (b"BZh91AY&SY", Other("packed by bzip2", _UNPACK.format("bzip2 -dk FILE"))),
    (b"7z\xbc\xaf\x27\x1c", Other("a 7z archive", _UNPACK.format("7z x FILE"))),
    (b"Rar!\x1a\x07", Other("a rar archive", _UNPACK.format("unrar x FILE"))),
    (b"SQLite format 3\0", Other("an SQLite database", "Export the table as CSV: `sqlite3 -csv -header FILE \"select * from TABLE\"`.")),
    (b"version https://git-lfs", Other("a Git LFS pointer, not the file itself", "Fetch the file: `git lfs pull`.")),
)  # fmt: skip
_TAR = Other("a tar archive", _UNPACK.format("tar -xf FILE"))
_PAGE = Other(
    "a web page, not the file itself", "Download the file: its address on a hub has /resolve/, not /blob/, in it."
)


def not_data(head: bytes) -> Other | None:
    """What the unpacked start of a file shows it to be, where that is no data."""
    found = next((other for start, other in _STARTS if head.startswith(start)), None)
    if found or head[257:262] == b"ustar":
        return found or _TAR
    return _PAGE if head.lstrip()[:9].lower().startswith((b"<!doctype", b"<html")) else None
