"""Where new samples come from: rows that show what is wanted, declared tools, passages of documents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from gemma_trainer.data.clean import read_clean
from gemma_trainer.data.layouts.tools import canonical_tools
from gemma_trainer.data.model import Model
from gemma_trainer.data.notes import Notes, Refused
from gemma_trainer.data.pipeline import first_task
from gemma_trainer.data.reading.parse import parse_text
from gemma_trainer.data.reading.sources import expand
from gemma_trainer.rows.content import is_blank, text_of
from gemma_trainer.rows.problems import DATA_INVALID, USAGE, Failure, Problem

PASSAGE = 2000  # characters
_HEADING = re.compile(r"#{1,6} [^\n]*|[^\n]+\n[=-]{3,}")
_LEAST = 80  # characters of a passage that something can be asked about


class Seed(NamedTuple):
    """The first question of a row, with its system text and its answer where there are any."""

    prompt: str
    system: str | None = None
    answer: str | None = None


class Passage(NamedTuple):
    """A piece of a document; `number` counts from 1."""

    file: str
    number: int
    text: str


def read_seeds(files: list[Path], student: Model) -> tuple[list[Seed], list[Problem]]:
    """(seeds, warnings) of prompt rows or rows with answers. Raises Failure (exit 3) for rows that are refused."""
    task = "sft" if first_task(files, "auto") == "sft" else "prompts"
    rows, warnings = read_clean(files, task, student)
    seeds = [_seed(row.data.get("prompt") or row.data["messages"]) for row in rows if "text" not in row.data]
    seeds = list(dict.fromkeys(seed for seed in seeds if seed and not is_blank(seed.prompt)))
    if not seeds:
        raise Failure(DATA_INVALID, "no-rows", "the seeds hold no question", file=str(files[0]))
    return seeds, warnings


def _seed(messages: list[dict]) -> Seed | None:
    said = {"system": None, "user": None, "assistant": None}
    for message in messages:
        role, text = message["role"], text_of(message["content"])
        if said.get(role, text) is None:
            said[role] = text
    return Seed(said["user"], said["system"], said["assistant"]) if said["user"] else None


def read_tools(path: Path) -> list[dict]:
    """Canonical declarations from a JSON file: a list of tools, or JSON Lines of them. Raises Failure (exit 2)."""
    text = _text_of_file(path)
    value, fault = parse_text(text)
    if fault is not None:
        lines = [parse_text(line) for line in text.splitlines() if line.strip()]
        if not lines or any(fault for _, fault in lines):
            raise Failure(USAGE, "tools-invalid", f"{path}: {fault.message}", file=str(path))
        value = [one for one, _ in lines]
    if isinstance(value, dict) and "tools" in value:
        value = value["tools"]
    try:
        tools = canonical_tools(value, Notes())
    except Refused as refusal:
        where = f" ({refusal.note.path})" if refusal.note.path else ""
        raise Failure(USAGE, "tools-invalid", f"{path}: {refusal}{where}", file=str(path)) from None
    if not tools:
        raise Failure(USAGE, "tools-invalid", f"{path} declares no tool", file=str(path))
    return tools


def read_passages(names: Iterable[str]) -> tuple[list[Path], list[Passage]]:
    """(files, passages) of text files. Raises Failure (exit 2)."""
    files = expand(list(names))
    passages = [passage for file in files for passage in _passages(file)]
    if not passages:
        raise Failure(USAGE, "no-rows", f"the documents hold no passage of at least {_LEAST} characters")
    return files, passages


def _passages(file: Path) -> Iterator[Passage]:
    pieces = cut_text(_text_of_file(file))
    yield from (Passage(str(file), number, text) for number, text in enumerate(pieces, 1) if len(text) >= _LEAST)


def cut_text(text: str, longest: int = PASSAGE) -> list[str]:
    """Pieces of at most `longest` characters that end at paragraphs, else at sentences, else at blanks. A heading stays
    with what follows it."""
    blocks = [block.strip() for block in re.split(r"\n\s*\n", text) if block.strip()]
    joined: list[str] = []
    for block in blocks:
        if joined and _HEADING.fullmatch(joined[-1]):
            joined[-1] += f"\n\n{block}"
        else:
            joined.append(block)
    pieces: list[str] = []
    for part in (part for block in joined for part in _short(block, longest)):
        if pieces and len(pieces[-1]) + 2 + len(part) <= longest:
            pieces[-1] += f"\n\n{part}"
        else:
            pieces.append(part)
    return pieces


def _short(block: str, longest: int) -> Iterator[str]:
    while len(block) > longest:
        head = block[:longest]
        ends = [found.end() for found in re.finditer(r"[.!?]\s+|[。！？]", head)] or [head.rfind(" ") + 1]
        at = ends[-1] or longest
        yield block[:at].strip()
        block = block[at:].strip()
    if block:
        yield block


def _text_of_file(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise Failure(USAGE, "file-not-found", f"{path} does not exist", file=str(path)) from None
    except UnicodeDecodeError as error:
        text = f"{path}: byte {error.start + 1} is not UTF-8 text"
        raise Failure(USAGE, "invalid-utf8", text, fix="Give plain text files in UTF-8.", file=str(path)) from None
    except OSError as error:
        raise Failure(USAGE, "usage", f"{path} cannot be read: {error.strerror}", file=str(path)) from None
