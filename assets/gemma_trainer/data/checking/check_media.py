"""Images, audio and video of one row: their number, their files, and whether the family takes them."""

from __future__ import annotations

from pathlib import Path

from gemma_trainer.data.checking.media_files import file_fault, inline_fault
from gemma_trainer.data.notes import Notes

_KINDS = {"image": "image", "audio": "audio", "input_audio": "audio", "video": "video"}
_COLUMNS = {"image": ("images", "image"), "audio": ("audios", "audio"), "video": ("videos", "video")}
_NAMES = {name for names in _COLUMNS.values() for name in names}
_SOURCES = ("path", "url", "base64", "data", "bytes", "image", "audio", "video", "input_audio")
_INLINE = ("bytes", "base64", "data")
_REMOTE = ("http://", "https://", "data:", "gs://", "s3://", "hf://")


def check_media(row: dict, lists: dict[str, list[dict]], setting, notes: Notes) -> None:
    """Media parts and columns of a row. `lists` are {path: messages} of all that are rendered together."""
    messages = [message for own in lists.values() for message in own]
    if not row.keys() & _NAMES and not any(map(_may_hold_media, messages)):
        return
    parts = [
        (f"{path}[{at}].content[{number}]", part)
        for path, own in lists.items()
        for at, message in enumerate(own)
        if isinstance(message["content"], list)
        for number, part in enumerate(message["content"])
        if part.get("type") in _KINDS
    ]
    for kind, columns in _COLUMNS.items():
        column = next((name for name in columns if not _is_blank(row.get(name))), None)
        own = [(where, part) for where, part in parts if _KINDS[part["type"]] == kind]
        placeholder = setting.family.placeholders.get(kind)
        written = _written(messages, placeholder) if placeholder else 0
        if column is None and not own and not written:
            continue
        if (own or column) and placeholder is None:
            where = own[0][0] if own else column
            notes.fault("modality-unsupported", f"{setting.family.title} takes no {kind}", where)
            continue
        _check_kind(kind, row, column, own, written, setting, notes)


def _may_hold_media(message: dict) -> bool:
    content = message["content"]
    return content.__class__ is list or (content.__class__ is str and "<" in content)


def sources(row: dict) -> list[str]:
    """Media columns of a row that hold local paths."""
    return [name for columns in _COLUMNS.values() for name in columns if not _is_blank(row.get(name))]


def _is_blank(column: object) -> bool:
    """Whether a row has nothing in a column of media: an empty cell of a table is an empty text."""
    return column in (None, []) or _names_nothing(column)


def _names_nothing(source: object) -> bool:
    return isinstance(source, str) and not source.strip()


def is_local(source: object) -> bool:
    """Whether a source is the path of a file, as opposed to an address or the data itself."""
    if not isinstance(source, str) or _names_nothing(source) or source.startswith(_REMOTE):
        return False
    return len(source) < 1024 and "\n" not in source


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
        notes.fault("placeholder-without-media", text)
    for at, source in enumerate(listed):
        _check_source(source, kind, setting.folder, notes, f"{column}[{at}]")
    for where, part in own:
        found = source_of(part)
        if found is None:
            if not column:
                notes.fault("media-source-missing", f"the {kind} part names no file", where)
        elif found[0] in _INLINE:
            _tell(inline_fault(found[1], kind), notes, where)
        else:
            _check_source(found[1], kind, setting.folder, notes, where)


def _check_source(source: object, kind: str, folder: Path, notes: Notes, where: str) -> None:
    if isinstance(source, dict):  # the Image and Audio features of datasets, OpenAI's input_audio
        data = next((source[key] for key in _INLINE if source.get(key) is not None), None)
        if data is not None:
            _tell(inline_fault(data, kind), notes, where)
            return
        if source.get("array") is not None or source.get("url") is not None:
            return
        source = source.get("path")
    if isinstance(source, bytes) or (isinstance(source, str) and source.startswith("data:")):
        _tell(inline_fault(source, kind), notes, where)
    elif not isinstance(source, str) or _names_nothing(source):
        notes.fault("media-source-missing", f"the {kind} names no file", where)
    elif is_local(source):
        _tell(file_fault(folder / source.removeprefix("file://"), kind), notes, where)


def _tell(fault: tuple[str, str] | None, notes: Notes, where: str) -> None:
    if fault:
        notes.fault(*fault, where)


def _written(messages: list[dict], placeholder: str) -> int:
    count = 0
    for message in messages:
        content = message["content"]
        if content.__class__ is str:
            count += content.count(placeholder)
        elif isinstance(content, list):
            count += sum(p["text"].count(placeholder) for p in content if p.get("type") == "text")
    return count
