"""Text rows: plain text, or a conversation that is rendered already, as its family's template would render it."""

from __future__ import annotations

import re
from functools import lru_cache

from gemma_trainer.data.checking.marks_in_text import foreign_format, foreign_tokens, is_special, owners, tokens_in
from gemma_trainer.data.checking.thoughts import visible
from gemma_trainer.data.notes import Notes
from gemma_trainer.families.family import Family
from gemma_trainer.rows.content import BLANK_WORDS

_INSTRUCTION = re.compile(r"^###\s*(?:Instruction|Input|Response|Question|Answer|Human|Assistant)\b", re.MULTILINE)


def check_text(text: str, family: Family, notes: Notes) -> None:
    """Faults of a text that is not blank."""
    tokens = set(tokens_in(text))
    foreign = sorted(token for token in tokens & foreign_tokens(family) if "turn" in token)
    if family.turn_start in tokens:
        _check_rendered(text, family, notes)
    elif foreign:
        title = owners(foreign[0])
        notes.fault("text-wrong-family", f"the text is rendered for {title}, not for {family.title}", "text")
    else:
        _check_plain(text, family, notes)


def surplus_bos(text: str, family: Family) -> int:
    """How many `<bos>` at the start of a text are too many: all where tokenizers add their own, else all but one."""
    count = _leading_bos(text, family)
    return max(0, count - 1) if "no-bos" in family.traps else count


def _leading_bos(text: str, family: Family) -> int:
    bare, count = text.lstrip(), 0
    while bare.startswith(family.bos * (count + 1)):
        count += 1
    return count


def said(text: str, family: Family) -> str:
    """A text without the marks around it that begin and end a sequence."""
    bos = family.bos * _leading_bos(text, family)
    return text.strip().removeprefix(bos).removesuffix(family.eos).rstrip().removesuffix(family.turn_end)


def repair_text(row: dict, family: Family) -> dict:
    """The row without the `<bos>` in front of its text that are too many."""
    if surplus := surplus_bos(row["text"], family):
        return {**row, "text": row["text"].lstrip().removeprefix(family.bos * surplus)}
    return row


def _check_plain(text: str, family: Family, notes: Notes) -> None:
    for token in dict.fromkeys(tokens_in(said(text, family))):
        if is_special(token, family) or token == family.eos:
            notes.fault("special-token", f"the text holds the special token {token}", "text")
        elif token in family.control_tokens and token not in family.placeholders.values():
            notes.fault("control-token", f"the text holds the control token {token}", "text")
    if other := foreign_format(text):
        notes.fault("foreign-markup", f"marks of {other} stand in the text", "text")
    elif len(set(_INSTRUCTION.findall(text))) > 1:
        notes.fault("text-instruction-style", "`### Instruction` prompts as text", "text")
    else:
        start = f"; the tokenizer of {family.title} adds no {family.bos}" if "no-bos" in family.traps else ""
        notes.fault("text-plain", f"a text column: no turns, loss on everything{start}", "text")
    if text[-1:] in " \t":
        notes.fault("trailing-blank", "the text ends in a blank", "text")


def _check_rendered(text: str, family: Family, notes: Notes) -> None:
    turns = text.split(family.turn_start)[1:]
    faults: dict[str, str] = {}  # each told once
    for number, turn in enumerate(turns, 1):
        which = "the last turn" if number == len(turns) else f"turn {number}"
        role, _, body = said(turn, family).partition("\n")
        if role.strip() in ("model", "") and not visible(body):
            faults.setdefault("answer-empty", f"{which} is the model's and says nothing")
            continue
        if body.strip() in BLANK_WORDS:
            faults.setdefault("blank-as-word", f"{which} is the word {body.strip()}")
        if not _is_closed(turn, family):
            faults.setdefault("text-terminator-missing", f"{which} lacks {family.turn_end}")
    for code, message in faults.items():
        notes.fault(code, message, "text")
    notes.fault("text-rendered", "the text is rendered already: loss covers the prompts too", "text")
    _check_turns(text, family, notes)


def _is_closed(turn: str, family: Family) -> bool:
    """A turn ends with the terminator, or waits for the result of its call."""
    return family.turn_end in turn or (family.result is not None and turn.rstrip().endswith(family.result[0]))


def _check_turns(text: str, family: Family, notes: Notes) -> None:
    """Headers and line breaks, as in `<start_of_turn>user\\n...<end_of_turn>\\n<start_of_turn>model\\n`."""
    header, behind = _turn_patterns(family)
    known = {"user", "model"} | ({"system", "developer"} if family.system == "turn" else set())
    for match in header.finditer(text):
        role, end = match.groups()
        if role.lower() not in known:
            what = f"{family.turn_start}{role[:30]} is no header of {family.title}"
            notes.fault("text-role-unknown", what, "text")
            return
        if end != "\n" or role != role.lower():
            notes.fault("text-turns-differ", f"no line break behind {family.turn_start}{role[:30]}", "text")
            return
    if behind.search(text):
        notes.fault("text-turns-differ", f"{family.turn_end} is not followed by a line break and a turn", "text")


@lru_cache(maxsize=16)
def _turn_patterns(family: Family) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """A header as (role, what follows it); what stands wrongly behind a terminator."""
    start, end, eos = map(re.escape, (family.turn_start, family.turn_end, family.eos))
    return re.compile(rf"{start}([^\s<]*)(\s?)"), re.compile(rf"{end}(?!\s*\Z|\s*{eos}\s*\Z|\n{start})")
