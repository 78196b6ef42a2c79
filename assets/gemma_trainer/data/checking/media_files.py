"""Whether media are what they claim to be, by their first bytes. Nothing is decoded."""

from __future__ import annotations

import base64
import binascii
from functools import lru_cache
from pathlib import Path

_HEAD = 192  # bytes; the second packet of an MPEG transport stream begins at 188
_BOX = b"ftyp"  # of ISO media files (MP4, M4A, HEIC, AVIF), behind a size of four bytes
_PICTURE_BRANDS = (b"avif", b"avis", b"heic", b"heix", b"mif1", b"msf1")
_EBML, _OGG = b"\x1aE\xdf\xa3", b"OggS"  # WebM and Matroska; Ogg
_STARTS = {
    "image": (b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*"),
    "audio": (b"ID3", b"fLaC", _OGG, _EBML, b"#!AMR"),
    "video": (_EBML, _OGG, b"\0\0\x01\xba", b"\0\0\x01\xb3", b"GIF89a", b"FLV\x01", b"0&\xb2u"),
}
_FORMS = {"image": (b"WEBP",), "audio": (b"WAVE", b"AIFF", b"AIFC"), "video": (b"AVI ",)}  # of RIFF and IFF files


@lru_cache(maxsize=4096)
def file_fault(path: Path, kind: str) -> tuple[str, str] | None:
    """(code, message) when the file of an image, audio or video is missing or not what it should be."""
    name = path.name[:60]
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except (OSError, ValueError):
        return "media-missing", f"the {kind} file {name} does not exist or cannot be read"
    fault = _fault(head, kind)
    return ("media-broken", f"the {kind} file {name} {fault}") if fault else None


def inline_fault(data: object, kind: str) -> tuple[str, str] | None:
    """The same for data that stand in the row: bytes, base64 text or a `data:` address."""
    if isinstance(data, str):
        head = _decoded(data)
        if head is None:
            return "media-broken", f"the {kind} is no base64"
    elif isinstance(data, bytes):
        head = data[:_HEAD]
    else:
        return None
    fault = _fault(head, kind)
    return ("media-broken", f"the {kind} in the row {fault}") if fault else None


def _decoded(text: str) -> bytes | None:
    if text.startswith("data:"):
        about, comma, text = text.partition(",")
        if not comma or not about.endswith(";base64"):
            return None
    digits = "".join(text[: 2 * _HEAD].split())
    try:
        return base64.b64decode(digits[: len(digits) // 4 * 4], validate=True)[:_HEAD]
    except (binascii.Error, ValueError):
        return None


def _fault(head: bytes, kind: str) -> str | None:
    """What is wrong with the first bytes, to follow the name of the file."""
    if not head:
        return "is empty"
    if head.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the file itself"
    if head.lstrip()[:9].lower().startswith((b"<!doctype", b"<html")):
        return "is a web page"
    if not _begins_like(head, kind):
        return f"does not begin like any {kind} format"
    if head.startswith(b"\x89PNG") and not _is_png(head):
        return "has a header that is damaged or cut"
    return None


def _begins_like(head: bytes, kind: str) -> bool:
    if head.startswith(_STARTS[kind]):
        return True
    if head[:4] in (b"RIFF", b"FORM"):
        return head[8:12] in _FORMS[kind]
    if head[4:8] == _BOX:
        return (head[8:12] in _PICTURE_BRANDS) is (kind == "image")
    if kind == "image":
        return head.startswith(b"BM") and head[6:10] == bytes(4)
    if kind == "audio":  # a frame of MPEG audio: eleven set bits
        return head[0] == 0xFF and len(head) > 1 and head[1] & 0xE0 == 0xE0
    return head[4:8] in (b"moov", b"mdat", b"wide", b"free") or (head[0] == 0x47 and head[188:189] == b"G")


def _is_png(head: bytes) -> bool:
    """Whether the first 33 bytes hold a whole header with a size."""
    whole = len(head) >= 33 and head.startswith(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    return whole and any(head[16:20]) and any(head[20:24])
