"""Characters that text should not hold, in contents as in tools, calls and results."""

from __future__ import annotations

from collections.abc import Iterator

from gemma_trainer.data.notes import Notes, key_path


def check_characters(text: str, notes: Notes, path: str) -> None:
    if "\0" in text:
        notes.fault("nul-character", "the text holds a NUL character", path)
    if "\ufffd" in text:
        notes.fault("replacement-character", f"U+FFFD at character {text.index(chr(0xFFFD)) + 1}", path)


def check_texts(value: object, notes: Notes, path: str) -> None:
    """The same for every text of an object, its keys among them."""
    for where, text in texts_in(value, path):
        check_characters(text, notes, where)


def texts_in(value: object, path: str) -> Iterator[tuple[str, str]]:
    """(path, text) of every text of a value, at any depth; keys stand at the place of what they name."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            where = key_path(path, key)
            yield where, str(key)
            yield from texts_in(item, where)
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from texts_in(item, f"{path}[{at}]")


def without_nul(value: object) -> object:
    """The value without NUL characters; the value itself when it holds none. Of keys that would become the same, both
    stay as they are."""
    if isinstance(value, str):
        return value.replace("\0", "") if "\0" in value else value
    if isinstance(value, dict):
        names = {key: without_nul(key) for key in value}
        names = names if len(set(names.values())) == len(names) else dict(zip(value, value, strict=True))
        clean = {names[key]: without_nul(item) for key, item in value.items()}
        return clean if clean != value else value
    if isinstance(value, list):
        clean = [without_nul(item) for item in value]
        return clean if clean != value else value
    return value
