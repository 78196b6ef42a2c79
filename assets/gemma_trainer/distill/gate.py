"""Whether an answer of a teacher is worth learning from, and if not, why."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from gemma_trainer.data.checking.check_teacher import BLOCKED, CUT, check_response, is_echo, is_loop
from gemma_trainer.data.checking.marks_in_text import foreign_format
from gemma_trainer.data.checking.process import process
from gemma_trainer.data.checking.setting import Setting
from gemma_trainer.data.notes import Notes
from gemma_trainer.data.options import DEFAULT_FAMILY, Options
from gemma_trainer.distill.language import wrong_language
from gemma_trainer.distill.request import Reply
from gemma_trainer.distill.similar import Similar
from gemma_trainer.distill.thinking import has_thinking_marks
from gemma_trainer.distill.tool_rows import tools_of
from gemma_trainer.distill.work import Reject
from gemma_trainer.families.catalogue import get_family
from gemma_trainer.families.family import Family
from gemma_trainer.rows.codes import CODES
from gemma_trainer.rows.content import fold, text_of

# Faults of a row that are those of marks which the teacher should not have written.
_MARKS = frozenset(
    {
        "control-token",
        "special-token",
        "foreign-token",
        "thought-unclosed",
        "thought-misplaced",
        "inline-thought",
        "think-tags",
    }
)
# Warnings that the answer's own text brings about.
_SPOILT = frozenset({"nul-character", "replacement-character", "foreign-markup", "terminator-in-answer"})
_LEAST = 100  # characters of an answer that can be a near-duplicate; shorter ones are alike for good reason


class Reason(NamedTuple):
    """`word` is what rejects are counted by, `detail` says more."""

    word: str
    detail: str = ""


@dataclass(frozen=True)
class GateOptions:
    """`language` is an ISO 639-1 code; `family` is the student's, whose template the row is for."""

    family: Family = field(default_factory=lambda: get_family(DEFAULT_FAMILY))
    language: str | None = None


def check(reply: Reply, prompt: list[dict], tools: list[dict] | None, options: GateOptions) -> list[Reason]:
    """Why the answer to `prompt` (messages) is refused; empty for a good one. Depends on nothing but its arguments."""
    reasons = _check_calls(reply, tools) if reply.tool_calls else _check_text(reply, prompt, options)
    if reply.reasoning_content and is_loop(reply.reasoning_content):
        reasons.append(Reason("loop", "the thinking repeats itself"))
    if not reasons:
        row = {"messages": [*prompt, reply.message], **({"tools": tools} if tools else {})}
        reasons = check_row(row, options.family, from_message=len(prompt))
    return list({reason.word: reason for reason in reversed(reasons)}.values())[::-1]


def _check_text(reply: Reply, prompt: list[dict], options: GateOptions) -> list[Reason]:
    notes = Notes()
    asked = {message["role"]: text_of(message["content"]) for message in prompt}  # the last of each role
    check_response(reply.content, asked.get("user", ""), reply.finish_reason, notes)
    reasons = [Reason(note.code.removeprefix("response-"), note.message) for note in notes.found]
    if is_echo(reply.content, asked.get("system", "")):
        reasons.append(Reason("echo", "the response is the system text"))
    if has_thinking_marks(reply.content) or foreign_format(reply.content):
        reasons.append(Reason("control-tokens", "marks of thinking or of turns stand in the response"))
    if options.language and (found := wrong_language(reply.content, options.language)):
        reasons.append(Reason("language", f"{found} instead of {options.language}"))
    return reasons


def _check_calls(reply: Reply, tools: list[dict] | None) -> list[Reason]:
    finish = (reply.finish_reason or "").lower()
    reasons = []
    if finish in CUT:
        reasons.append(Reason("cut", "the response was cut at the token limit"))
    elif finish in BLOCKED:
        reasons.append(Reason("blocked", f"finish_reason is {finish}"))
    if fault := tools_of(tools).fault(reply.tool_calls):
        reasons.append(Reason("tool-call-invalid", fault))
    return reasons


def check_row(row: dict, family: Family, task: str = "sft", from_message: int = 0) -> list[Reason]:
    """What `dataset_prep.py validate` would refuse in a row from a message on, or behind the prompt of a pair; what
    spoils a text also where it only warns."""
    notes = Notes()
    data, _ = process(row, Options(task=task, family=family), Setting(family, Path()), notes)
    before = ("prompt[", *(f"messages[{at}]" for at in range(from_message)))
    reasons = []
    for note in notes.found:
        if (note.path or "").startswith(before):
            continue
        if note.code in _MARKS:
            reasons.append(Reason("control-tokens", note.message))
        elif note.code in _SPOILT or CODES[note.code].severity == "error" or data is None:
            reasons.append(Reason("invalid", f"{note.code}: {note.message}"))
    return reasons


def rejected(row: dict, reasons: list[Reason], ids: list[str]) -> Reject:
    """The reject of a row, with the details of its reasons."""
    details = {reason.word: reason.detail for reason in reasons if reason.detail}
    return Reject([reason.word for reason in reasons], {**row, "details": details} if details else row, ids)


class SeenAnswers:
    """Answers in the order of items, told when one says what an earlier one said.

    The same short answer to another prompt is fine: labels are. A long one is boilerplate.
    """

    def __init__(self, threshold: float):
        """`threshold` of likeness, 0 to look for exact copies only. Raises Failure (exit 4) without rensa."""
        self.similar = Similar(threshold) if threshold else None
        self.exact: dict[int, str] = {}

    def check(self, prompt: list[dict], answer: dict, key: str) -> Reason | None:
        """Why the answer (a message) to a prompt is not new; a new one is remembered under `key`."""
        text = text_of(answer.get("content"))
        said, asked = fold(f"{text} {answer.get('tool_calls') or ''}"), fold(str(prompt))
        is_long = len(text) >= _LEAST
        prints = [hash_of(asked, said), *([hash_of(said)] if is_long else ())]
        if found := next((self.exact[one] for one in prints if one in self.exact), None):
            return Reason("duplicate", f"the same answer as {found}")
        if is_long and self.similar and (near := self._near(text, key)):
            return Reason("near-duplicate", f"{near[1]:.0%} like the answer of {near[0][0]}")
        self.exact.update(dict.fromkeys(prints, key))
        return None

    def _near(self, text: str, key: str) -> tuple[tuple, float] | None:
        """Other numbers make another answer: of a sum, a query, a table."""
        numbers = tuple(re.findall(r"\d+", text))
        return self.similar.add(text, (key, numbers), lambda other: other[1] == numbers)


def hash_of(*texts: str) -> int:
    """128 bits that are the same in every run."""
    joined = "\x1f".join(texts).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(joined, digest_size=16).digest(), "little")
