"""Rows against each other: duplicates, contradictions, leaks between splits, margins that only some rows have."""

from __future__ import annotations

from typing import NamedTuple

from gemma_trainer.data.check_pairs import answer_text
from gemma_trainer.data.notes import Notes
from gemma_trainer.rows.content import fold, text_of

_SPLIT_COLUMNS = ("split", "subset", "fold", "partition")


def prompt_text(row: dict) -> str:
    """What a row is asked, case and blanks folded: equal for rows that must not stand on both sides of a split."""
    if "text" in row and "messages" not in row:
        return fold(row["text"])
    messages = row.get("prompt") or _until_answer(row["messages"])
    return fold("\n".join(f"{message['role']}: {_said(message)}" for message in messages))


def _until_answer(messages: list[dict]) -> list[dict]:
    first = next((at for at, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    return messages[:first] or messages[:1]


def _said(message: dict) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else f"{text_of(content)}{content or ''}"


class Place(NamedTuple):
    """Where a row stands; rows that share a line differ in `row`."""

    file: str  # empty when there is one file only
    line: int | None  # or the row where there are no lines
    row: int


class Across:
    """Remembers a 64-bit hash and a line of every row of a run."""

    def __init__(self, task: str):
        self.task = task
        self.rows: dict[int, Place] = {}
        self.prompts: dict[int, tuple[str, Place]] = {}
        self.pairs: dict[int, Place] = {}
        self.ids: dict[object, Place] = {}
        self.margin: tuple[bool, Place] | None = None

    def check(self, row: dict, where: Place, notes: Notes) -> None:
        """`where` is named when a later row repeats this one."""
        split = next((row[name] for name in _SPLIT_COLUMNS if isinstance(row.get(name), str)), None)
        if self.task == "prompts" or split is not None:
            self._check_prompt(row, split, where, notes)
        if self.task in ("dpo", "rm"):
            self._check_pair(row, where, notes)
        elif self.task != "prompts":
            self._first(self.rows, _row_key(row), where, notes, "duplicate-row", "the same row")
        if self.task in ("prompts", "responses") and isinstance(row.get("id"), str | int):
            self._first(self.ids, row["id"], where, notes, "duplicate-id", "the same id")

    def _check_prompt(self, row: dict, split: str | None, where, notes: Notes) -> None:
        key = hash(prompt_text(row))
        seen = self.prompts.setdefault(key, (split, where))
        if seen[1] == where:
            return
        if split is not None and seen[0] is not None and seen[0] != split:
            notes.fault(
                "split-leak", f"the prompt is in `{seen[0][:20]}` ({_at(seen[1])}) and `{split[:20]}`", "prompt"
            )
        elif self.task == "prompts":
            notes.fault("duplicate-prompt", f"the same prompt as {_at(seen[1])}", "prompt")

    def _check_pair(self, row: dict, where, notes: Notes) -> None:
        prompt = prompt_text(row)
        chosen, rejected = answer_text(row["chosen"]), answer_text(row["rejected"])
        if self._first(self.rows, hash((prompt, chosen, rejected)), where, notes, "duplicate-row", "the same row"):
            return
        other = self.pairs.get(hash((prompt, rejected, chosen)))
        if other and chosen != rejected:
            notes.fault("pair-contradiction", f"{_at(other)} prefers the opposite", "chosen")
        self.pairs.setdefault(hash((prompt, chosen, rejected)), where)
        has_margin = "margin" in row
        if self.margin is None:
            self.margin = (has_margin, where)
        elif self.margin[0] != has_margin:
            this, first = ("a", "none") if has_margin else ("no", "one")
            notes.fault("margin-missing", f"{this} margin here, {first} in {_at(self.margin[1])}", "margin")

    def _first(self, seen: dict, key: object, where, notes: Notes, code: str, what: str) -> bool:
        """Note a repeat; true when there is one."""
        first = seen.setdefault(key, where)
        if first == where:
            return False
        notes.fault(code, f"{what} as {_at(first)}")
        return True


def _row_key(row: dict) -> int:
    if "messages" not in row:
        return hash(row["text"])
    parts = []
    for message in row["messages"]:
        content = message["content"]
        if content.__class__ is str and len(message) == 2:
            parts.append(content)
        else:
            parts.append(repr(message))
    return hash(tuple(parts))


def _at(where: Place) -> str:
    return f"{where.file}:{where.line}" if where.file else f"line {where.line}"
