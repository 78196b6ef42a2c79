"""Margins and scores of preference rows, which tables without types hold as text."""

from __future__ import annotations

import math

from gemma_trainer.data.notes import Notes

NAMES = ("score", "rating", "reward")
PAIRS = tuple((f"{n}_chosen", f"{n}_rejected") for n in NAMES) + tuple((f"chosen_{n}", f"rejected_{n}") for n in NAMES)
_COLUMNS = frozenset({"margin"}.union(*PAIRS))


def numbers_in(fields: dict, notes: Notes) -> dict:
    """The columns with numbers for text that is one; a blank cell is a missing value. Other text stays to be refused."""
    texts = {key: value for key, value in fields.items() if key in _COLUMNS and isinstance(value, str)}
    if not texts:
        return fields
    numbers = {key: _number(text) for key, text in texts.items()}
    for key in (key for key, number in numbers.items() if number is not None):
        notes.repair("number-as-text", f"{key} was text", key)
    fields = {key: item for key, item in fields.items() if key not in texts or texts[key].strip()}
    return {key: item if numbers.get(key) is None else numbers[key] for key, item in fields.items()}


def scores_of(row: dict) -> tuple[float, float] | None:
    """(score of chosen, score of rejected) where a row has both as numbers."""
    for names in PAIRS:
        scores = tuple(row.get(name) for name in names)
        if all(isinstance(score, int | float) and not isinstance(score, bool) for score in scores):
            return scores
    return None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
