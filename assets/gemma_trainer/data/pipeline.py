"""The one path of rows: read, layout, repair, check. Scripts that validate, convert, show or train all walk it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from gemma_trainer.data import repair
from gemma_trainer.data.across import Across, Place
from gemma_trainer.data.check_pairs import SIDES, check_preference
from gemma_trainer.data.check_teacher import check_response
from gemma_trainer.data.check_tools import check_required
from gemma_trainer.data.checks import Setting, check_prompt, check_sft, check_text_row, repair_text
from gemma_trainer.data.layouts import canonical_row, detect_task
from gemma_trainer.data.notes import Note, Notes, Refused
from gemma_trainer.data.raw import RawRow
from gemma_trainer.data.read import read_rows
from gemma_trainer.data.reply import read_reply
from gemma_trainer.data.report import Report
from gemma_trainer.data.sources import expand
from gemma_trainer.families.catalogue import get_family
from gemma_trainer.families.family import Family
from gemma_trainer.rows.codes import CODES
from gemma_trainer.rows.content import text_of
from gemma_trainer.rows.problems import USAGE, Failure, Problem

DEFAULT_FAMILY = "gemma4"
# Said once a file: they hold for every row of it.
ONCE = frozenset({"layout-converted", "text-plain", "text-rendered"})
# Faults of a file that reading it gets over without loss: `convert` has mended them in what it writes.
MENDED = frozenset(
    {"encoding-unsupported", "lone-carriage-returns", "byte-order-mark", "not-json-lines", "json-extra-data"}
)
LOOKED_AT = 100  # rows, to learn which columns there are
REJECT_KEYS = frozenset({"file", "line", "row", "codes", "problems", "input"})  # see convert.py
CHARACTERS_PER_TOKEN = 4  # of English text; only to guess a length without a tokenizer
WIDE_PER_TOKEN = 1.5  # of Chinese, Japanese and Korean
_WIDE = re.compile(r"[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]")


@dataclass(frozen=True)
class Options:
    """How rows are read. `renders_reasoning` is None while the chat template in use is unknown."""

    task: str = "sft"
    family: Family = field(default_factory=lambda: get_family(DEFAULT_FAMILY))
    layout: str = "auto"
    mapping: Mapping[str, str] = field(default_factory=dict)
    delimiter: str | None = None
    asked: frozenset[str] = frozenset()  # repairs asked for, keys of repair.ASKED
    renders_reasoning: bool | None = None
    max_length: int | None = None  # tokens; guessed from characters here


class Row(NamedTuple):
    """A canonical row and where it came from."""

    data: dict
    file: str
    line: int | None
    row: int


class Checked(NamedTuple):
    """A raw row with what came of it: `data` is None when the row is refused, `problems` tell why."""

    raw: RawRow
    data: dict | None
    problems: list[Problem]
    repairs: list[str]
    file: str


def load_rows(
    paths: str | Path | Iterable[str | Path],
    task: str = "sft",
    family: Family | str = "auto",
    *,
    report: Report | None = None,
    **options,
) -> tuple[Iterator[Row], Report]:
    """(rows, report): valid canonical rows, streamed, exactly as `dataset_prep.py validate` judges them.

    The report fills while the rows are read and is complete when they are exhausted; rows with an error are in the
    report only. `options` are fields of Options. `family` "auto" is Gemma 4, which the report's notes then tell.
    Raises Failure for a missing file or package.
    """
    report = report or Report()
    names = [str(paths)] if isinstance(paths, str | Path) else [str(path) for path in paths]
    if isinstance(family, str):
        if family == "auto":
            report.notes.append(f"family {DEFAULT_FAMILY} is assumed: pass --family or --model")
        family = get_family(DEFAULT_FAMILY if family == "auto" else family)
    settings = Options(task=task, family=family, **options)
    checked = check_files(expand(names), settings, report)
    return (Row(c.data, c.file, c.raw.line, c.raw.row) for c in checked if c.data is not None), report


def resolve_task(files: list[Path], task: str, delimiter: str | None = None, mapping: Mapping | None = None) -> str:
    """The task itself, or for "auto" the one that the first readable row is made for."""
    if task != "auto" and not mapping:
        return task
    values = [item.value for item in islice(_readable(files, delimiter), LOOKED_AT if mapping else 1)]
    if mapping:
        _check_mapping(mapping, values)
    value = values[0] if values else None
    if isinstance(value, dict) and mapping:
        value = {**value, **{name: value[column] for name, column in mapping.items() if column in value}}
    return task if task != "auto" else "sft" if value is None else detect_task(value)


def _check_mapping(mapping: Mapping, values: list[object]) -> None:
    """Raises Failure (exit 2) for a column that no row has: a typing error would otherwise change what is read."""
    columns = list(dict.fromkeys(name for value in values if isinstance(value, dict) for name in value))
    lacking = [column for column in mapping.values() if column not in columns]
    if columns and lacking:
        text = f"--map names columns that the data has not: {', '.join(lacking)}"
        raise Failure(USAGE, "usage", f"{text} (it has {', '.join(columns)[:200]})", fix="Name columns of the data.")


def _readable(files: list[Path], delimiter: str | None) -> Iterator[RawRow]:
    for file in files:
        for item in read_rows(file, delimiter):
            if isinstance(item, RawRow) and item.fault is None:
                yield item._replace(value=unwrapped(item.value))


def unwrapped(value: object) -> object:
    """The row inside an entry of a rejects file, so that a corrected one can be converted again."""
    return value["input"] if isinstance(value, dict) and value.keys() == REJECT_KEYS else value


def check_files(
    files: list[Path], options: Options, report: Report, keep_faulty: bool = False, told: bool = True
) -> Iterator[Checked]:
    """Every row of the files, each judged and told to the report. A set without any row is an error.

    `keep_faulty` leaves rows with an error their data, for a look at them. Without `told` repairs are counted only:
    whoever writes the repaired rows has dealt with them.
    """
    across = Across(options.task)
    for file in files:
        yield from _check_file(file, options, report, across, keep_faulty, told, several=len(files) > 1)
    if report.valid == 0 and not report.errors_by_code:
        text = "the data holds no whole row" if report.rows else "the data holds no row"
        report.add(Problem("no-rows", text, file=str(files[0]) if len(files) == 1 else None))
    report.close()


def _check_file(
    file: Path, options: Options, report: Report, across: Across, keep_faulty: bool, told: bool, several: bool
) -> Iterator[Checked]:
    setting = Setting(options.family, file.parent, options.renders_reasoning)
    said: set[str] = set()
    first_layout: tuple[str, int | None] | None = None
    read = read_reply(file) if options.layout == "teacher-reply" else read_rows(file, options.delimiter)
    for item in read:
        if isinstance(item, Problem):
            if item.code in MENDED and options.asked >= repair.CONVERTING:
                report.repaired[item.code] += 1
            else:
                report.add(item)
            continue
        report.rows += 1
        if item.fault:
            report.add(item.fault)
            yield Checked(item, None, [item.fault], [], str(file))
            continue
        notes = Notes()
        data, layout = process(unwrapped(item.value), options, setting, notes)
        where = item.line or item.row
        if layout:
            report.layouts[layout] += 1
            first_layout = first_layout or (layout, where)
            if layout != first_layout[0]:
                notes.repair("mixed-layouts", f"layout {layout}, while line {first_layout[1]} has {first_layout[0]}")
        if data is not None:
            across.check(data, Place(str(file) if several else "", where, item.row), notes)
            if options.max_length:
                _guess_length(data, options.max_length, notes)
        yield _judged(item, data, notes, file, report, said, keep_faulty, told)


def _judged(
    raw: RawRow, data: dict | None, notes: Notes, file: Path, report: Report, said: set, keep_faulty: bool, told: bool
) -> Checked:
    """The row with its problems told to the report."""
    refused = data is None or any(CODES[note.code].severity == "error" for note in notes.found)
    report.valid += not refused
    problems = [_problem(note, raw, file) for note in notes.found]
    tellable = problems + [_problem(note, raw, file) for note in notes.repairs] if told else problems
    for problem in tellable:
        if problem.code not in said:
            report.add(problem)
    once = ONCE | {"unknown-columns"} if raw.header else ONCE
    said.update(problem.code for problem in tellable if problem.code in once)
    repairs = [note.code for note in notes.repairs] + notes.silent
    if not refused:
        report.repaired.update(repairs)
    return Checked(raw, None if refused and not keep_faulty else data, problems, repairs, str(file))


def _problem(note: Note, raw: RawRow, file: Path) -> Problem:
    """Unknown columns of a table are a fault of the line that names them."""
    in_header = note.code == "unknown-columns" and raw.header
    return Problem(note.code, note.message, str(file), raw.header if in_header else raw.line, raw.row, note.path)


def process(value: object, options: Options, setting: Setting, notes: Notes) -> tuple[dict | None, str | None]:
    """(canonical row or None, layout or None) of one raw row; what was found is in `notes`."""
    try:
        row, layout = canonical_row(value, options.task, notes, options.layout, options.mapping, options.family)
    except Refused as refusal:
        notes.found.append(refusal.note)
        return None, None
    if "chosen" in row:
        row = _repaired_pair(row, options, notes)
        check_preference(row, setting, notes)
    elif "messages" in row:
        row = _repaired_chat(row, options, notes)
        if options.task == "responses":
            _check_response(row, notes)
        if not any(note.code == "response-empty" for note in notes.found):
            check_sft(row, setting, notes)
        if row.get("tools"):
            check_required(row["messages"], row["tools"], notes, "messages")
    elif "prompt" in row:
        check_prompt(row, setting, notes)
    else:
        check_text_row(row, setting, notes)
        row = repair_text(row, options.family)
    return row, layout


def _repaired_chat(row: dict, options: Options, notes: Notes) -> dict:
    messages = repair.repair_messages(row["messages"], options.family, notes, "messages", options.asked)
    messages = repair.link_tools(messages, options.family, notes)
    if "drop-null-arguments" in options.asked:
        messages = repair.drop_null_arguments(messages, row.get("tools"), notes, "messages")
    return row if messages is row["messages"] else {**row, "messages": messages}


def _repaired_pair(row: dict, options: Options, notes: Notes) -> dict:
    family = options.family
    prompt = repair.repair_messages(row["prompt"], family, notes, "prompt", options.asked)
    prompt = repair.link_tools(prompt, family, notes, "prompt")
    changed = {} if prompt is row["prompt"] else {"prompt": prompt}
    for side in SIDES:
        answer = repair.repair_messages(row[side], family, notes, side, options.asked)
        if any(message["role"] == "tool" for message in answer):
            linked = repair.link_tools([*prompt, *answer], family, notes, side)
            answer = linked[len(prompt) :]
        if answer is not row[side]:
            changed[side] = answer
    return {**row, **changed} if changed else row


def _check_response(row: dict, notes: Notes) -> None:
    answer = next((m for m in reversed(row["messages"]) if m["role"] == "assistant"), None)
    if answer is not None and "tool_calls" not in answer:
        asked = next((m for m in reversed(row["messages"]) if m["role"] == "user"), {"content": ""})
        check_response(text_of(answer["content"]), text_of(asked["content"]), row.get("finish_reason"), notes)


def _guess_length(row: dict, max_length: int, notes: Notes) -> None:
    texts = [_said(row.get(key)) for key in ("messages", "text", "chosen", "rejected")]
    text = _said(row.get("prompt")) + max(texts, key=len)
    characters = len(text)
    if characters <= max_length:
        return
    wide = 0 if text.isascii() else len(_WIDE.findall(text))
    tokens = int((characters - wide) / CHARACTERS_PER_TOKEN + wide / WIDE_PER_TOKEN)
    if tokens > max_length:
        text = f"about {tokens} tokens ({characters} characters), over --max-length {max_length}"
        notes.fault("over-length", text)


def _said(value: object) -> str:
    if isinstance(value, list):
        return "".join(text_of(message.get("content")) for message in value)
    return value if isinstance(value, str) else ""


def parse_mapping(words: Iterable[str]) -> dict[str, str]:
    """{field: column} of words such as `prompt=question`. Raises Failure (exit 2)."""
    mapping = {}
    for word in words:
        name, _, column = word.partition("=")
        if not name or not column:
            raise Failure(USAGE, "usage", f"--map {word} is not of the form field=column")
        mapping[name] = column
    return mapping
