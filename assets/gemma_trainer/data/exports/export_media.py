"""Media whose sources stand in a column of their own (`images`), for forms that name the source in each part."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterator

from gemma_trainer.data.checking.check_media import source_of, sources
from gemma_trainer.data.layouts.layout_base import without


def with_sources(row: dict, *keys: str) -> dict:
    """The row with sources in the parts of its messages, which stand under `keys`, in place of the columns; a column of
    which it cannot be told where its entries belong stays."""
    for column in sources(row):
        kind, listed = column.removesuffix("s"), row[column] if isinstance(row[column], list) else [row[column]]
        parts = [part for key in keys for message in row[key] for part in _parts(message, kind)]
        if len(parts) == len(listed) and not any(map(source_of, parts)):
            left = iter(listed)
            row = {**without(row, column), **{key: [_filled(m, kind, left) for m in row[key]] for key in keys}}
    return row


def _parts(message: dict, kind: str) -> list[dict]:
    content = message["content"]
    return [part for part in content if part.get("type") == kind] if isinstance(content, list) else []


def _filled(message: dict, kind: str, left: Iterator) -> dict:
    if not _parts(message, kind):
        return message
    content = [{**part, **_source(next(left))} if part.get("type") == kind else part for part in message["content"]]
    return {**message, "content": content}


def _source(source: object) -> dict:
    """Keys of a part: of an address, a path, or an entry of the Image and Audio features of `datasets`."""
    if not isinstance(source, dict):
        return {"url" if "://" in str(source) or str(source).startswith("data:") else "path": source}
    data = source.get("bytes") or source.get("base64")
    if data is None:
        return {key: value for key, value in source.items() if value is not None}
    mime = source.get("mime_type") or mimetypes.guess_type(source.get("path") or "")[0]
    return {"base64": data, **({"mime_type": mime} if mime else {})}
