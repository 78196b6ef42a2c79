"""Images, audio and video of one row: their number, their files, and whether the family takes them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from gemma_trainer.data.notes import Notes

_KINDS = {"image": "image", "audio": "audio", "input_audio": "audio", "video": "video"}
_COLUMNS = {"image": ("images", "image"), "audio": ("audios", "audio"), "video": ("videos", "video")}
_SOURCES = ("path", "url", "base64", "data", "bytes", "image", "audio", "video", "input_audio")
_REMOTE = ("http://", "https://", "data:", "gs://", "s3://", "hf://")
# First bytes of the usual formats, as {offset: beginnings}.
_MAGIC = {
    "image": {0: (b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF8", b"BM", b"II*\0", b"MM\0*"), 4: (b"ftyp",), 8: (b"WEBP",)},
    "audio": {0: (b"ID3", b"\xff", b"fLaC", b"OggS", b"\x1aE\xdf\xa3"), 4: (b"ftyp",), 8: (b"WAVE",)},
    "video": {0: (b"\x1aE\xdf\xa3", b"\0\0\x01", b"GIF8", b"G"), 4: (b"ftyp", b"moov", b"mdat"), 8: (b"AVI ",)},
}


def check_media(row: dict, messages: list[dict], setting, notes: Notes) -> None:
    """Media parts and columns of a row. `messages` are all messages that are rendered together."""
    parts = [
        (f"[{at}].content[{number}]", part)
        for at, message in enumerate(messages)
        if isinstance(message["content"], list)
        for number, part in enumerate(message["content"])
        if part.get("type") in _KINDS
    ]
    for kind, columns in _COLUMNS.items():
        column = next((name for name in columns if row.get(name) not in (None, [], "")), None)
        own = [(where, part) for where, part in parts if _KINDS[part["type"]] == kind]
        placeholder = setting.family.placeholders.get(kind)
        written = _written(messages, placeholder) if placeholder else 0
        if column is None and not own and not written:
            continue
        if (own or column) and placeholder is None:
            where = f"messages{own[0][0]}" if own else column
            notes.fault("modality-unsupported", f"{setting.family.title} takes no {kind}", where)
            continue
        _check_kind(kind, row, column, own, written, setting, notes)


def sources(row: dict) -> list[str]:
    """Media columns of a row that hold local paths."""
    return [name for columns in _COLUMNS.values() for name in columns if name in row]


def is_local(source: object) -> bool:
    """Whether a source is the path of a file, as opposed to an address or the data itself."""
    return isinstance(source, str) and not source.startswith(_REMOTE) and len(source) < 1024 and "\n" not in source


def source_of(part: dict) -> tuple[str, object] | None:
    """(key, value) of where a media part takes its data from."""
    return next(((key, part[key]) for key in _SOURCES if part.get(key) is not None and key != "type"), None)


def _check_kind(kind: str, row: dict, column: str | None, own: list, written: int, setting, notes: Notes) -> None:
    listed = (row[column] if isinstance(row[column], list) else [row[column]]) if column else []
    places = len(own) + written
    if column and len(listed) != places:
        text = f"{len(listed)} in the column {column}, {places} places in the messages"
        notes.fault("media-count", text, column)
    elif written and not column:
        text = f"a placeholder for {kind} in the text, and no {kind} in the row"
        notes.fault("placeholder-without-media", text, "messages")
    for at, source in enumerate(listed):
        _check_file(source, kind, setting.folder, notes, f"{column}[{at}]")
    for where, part in own:
        found = source_of(part)
        if found is None:
            if not column:
                notes.fault("media-source-missing", f"the {kind} part names no file", f"messages{where}")
        elif found[0] in ("path", "url", "image", "audio", "video"):
            _check_file(found[1], kind, setting.folder, notes, f"messages{where}")


def _check_file(source: object, kind: str, folder: Path, notes: Notes, where: str) -> None:
    if isinstance(source, dict):  # the Image and Audio features of datasets: {"bytes", "path"}
        if source.get("bytes") is not None or source.get("array") is not None or source.get("url") is not None:
            return
        source = source.get("path")
        if source is None:
            notes.fault("media-source-missing", f"the {kind} names no file", where)
            return
    if not isinstance(source, str | bytes):
        notes.fault("media-source-missing", f"the {kind} names no file", where)
        return
    if not is_local(source):
        return
    fault = _file_fault(folder / source.removeprefix("file://"), kind)
    if fault:
        notes.fault(*fault, where)


@lru_cache(maxsize=4096)
def _file_fault(path: Path, kind: str) -> tuple[str, str] | None:
    try:
        with path.open("rb") as file:
            head = file.read(33)
    except (OSError, ValueError):
        return "media-missing", f"the {kind} file {path.name[:60]} does not exist or cannot be read"
    if not head:
        return "media-broken", f"the {kind} file {path.name[:60]} is empty"
    if not any(head.startswith(beginnings, at) for at, beginnings in _MAGIC[kind].items()):
        return "media-broken", f"the file {path.name[:60]} does not begin like any {kind} format"
    if head.startswith(b"\x89PNG") and not _is_png(head):
        return "media-broken", f"the header of the image file {path.name[:60]} is damaged or cut"
    return None


def _is_png(head: bytes) -> bool:
    """Whether the first 33 bytes hold a whole header with a size."""
    whole = len(head) == 33 and head.startswith(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    return whole and any(head[16:20]) and any(head[20:24])


def _written(messages: list[dict], placeholder: str) -> int:
    count = 0
    for message in messages:
        content = message["content"]
        if content.__class__ is str:
            count += content.count(placeholder)
        elif isinstance(content, list):
            count += sum(p["text"].count(placeholder) for p in content if p.get("type") == "text")
    return count
