"""Values that tables hold as JSON text."""

from __future__ import annotations

from gemma_trainer.data.notes import Notes, Refused
from gemma_trainer.data.reading.parse import parse_text


def decoded(value: object, what: str, code: str, path: str, notes: Notes) -> object:
    """The value itself, or what its text stands for. Raises Refused with `code` for text that is no JSON."""
    if not isinstance(value, str):
        return value
    value, fault = parse_text(value)
    if fault:
        raise Refused(code, f"{what} as text that is no JSON: {fault.message}", path)
    notes.repair("text-decoded", f"{what} was stored as JSON text", path)
    return value
