"""Canonical rows to a file, refused rows to another: what comes in is in one of the two."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from gemma_trainer.data.checking.check_media import is_local, source_of, sources
from gemma_trainer.data.exports.export import export_row
from gemma_trainer.data.model import Model
from gemma_trainer.data.notes import Notes, Refused
from gemma_trainer.data.options import Checked
from gemma_trainer.data.output import replacing
from gemma_trainer.data.running.engine import Run
from gemma_trainer.data.running.part import Part
from gemma_trainer.rows.problems import INTERNAL, Failure, Problem


@dataclass
class Written:
    """What a batch gives: lines of the output and entries of the rejects file. `read` is kept + refused, always."""

    lines: list[bytes] = field(default_factory=list)
    rejects: list[dict] = field(default_factory=list)

    def shift(self, lines: int, rows: int) -> None:
        for entry in self.rejects:
            entry["line"] += lines
            entry["row"] += rows

    def reject_lines(self) -> Iterator[bytes]:
        return (_json(entry).encode("utf-8", "replace") + b"\n" for entry in self.rejects)


class Writer:
    """The sink of `convert`: rows in the form `target`, ready for a file in `folder`."""

    needs_rows = False

    def __init__(self, folder: Path, target: str = "messages", model: Model | None = None):
        self.folder, self.target, self.model = folder, target, model

    def take(self, checked: Checked, part: Part) -> None:
        written = part.taken = part.taken or Written()
        problems = checked.problems
        if checked.data is not None:
            notes = Notes()
            line = self._line(checked.data, Path(checked.file).parent, part, notes)
            place = checked.file, checked.raw.line, checked.raw.row
            part.problems += [note.problem(*place) for note in notes.repairs]
            if line is not None:
                written.lines.append(line)
                return
            found = [note.problem(*place) for note in notes.found]
            part.problems += found
            part.valid -= 1
            problems = [*problems, *found]
        written.rejects.append(_reject(checked, problems))

    def take_line(self, line: bytes, row: dict, part: Part) -> bool:
        if self.target != "messages":
            return False
        written = part.taken = part.taken or Written()
        text = line.rstrip(b"\r\n")
        if b"\r" in text:  # a blank to JSON, the end of a line to many readers
            return False
        written.lines.append(text + b"\n")
        return True

    def _line(self, row: dict, folder: Path, part: Part, notes: Notes) -> bytes | None:
        """The line of a row; None, and why in `notes`, when it cannot be written."""
        row = _moved(row, folder, self.folder, part)
        try:
            row = export_row(row, self.target, self.model, notes)
        except Refused as refusal:
            notes.found.append(refusal.note)
            return None
        part.repaired.update(notes.silent)
        return _json(row).encode("utf-8") + b"\n"


class Totals(NamedTuple):
    """Row counts; `read` is `kept` + `refused`, always."""

    read: int
    kept: int
    refused: int


def write_rows(run: Run, out: Path, rejects: Path, overwrite: bool = False) -> Totals:
    """Write every row of a run, whose sink is a Writer, to `out` or to `rejects` (JSON Lines).

    Both appear whole or not at all, and only with rows. A reject holds the row as it was found, its file, line, codes
    and problems. Raises Failure.
    """
    kept = refused = 0
    before = run.report.rows
    with replacing(out, "wb", overwrite=overwrite) as good, replacing(rejects, "wb", overwrite=overwrite) as bad:
        for part in run.parts():
            if part.taken is None:
                continue
            kept += len(part.taken.lines)
            refused += len(part.taken.rejects)
            good.writelines(part.taken.lines)
            bad.writelines(part.taken.reject_lines())
    run.finish()
    totals = Totals(run.report.rows - before, kept, refused)
    if totals.read != kept + refused:
        raise Failure(INTERNAL, "internal", f"{totals.read} rows read, {kept} written and {refused} refused")
    return totals


def _reject(checked: Checked, problems: list[Problem]) -> dict:
    raw = checked.raw
    told = [{"code": p.code, "message": p.message, "path": p.path} for p in problems]
    entry = {
        "file": checked.file,
        "line": raw.line,
        "row": raw.row,
        "codes": [p["code"] for p in told],
        "problems": told,
    }
    if raw.source is None:
        return {**entry, "input": raw.value}
    try:
        return {**entry, "raw": raw.source.decode("utf-8")}
    except UnicodeDecodeError:
        return {**entry, "raw_base64": base64.b64encode(raw.source).decode("ascii")}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)  # readers give nothing else: see table_values.py


def _moved(row: dict, source: Path, target: Path, part: Part) -> dict:
    """The row with relative media paths that hold from the folder of the output."""
    columns = sources(row)
    parts = any(isinstance(m["content"], list) for key in ("messages", "prompt", "chosen", "rejected")
                for m in (row.get(key) or ()))  # fmt: skip
    if not (columns or parts) or source.resolve() == target.resolve():
        return row
    mover = _Mover(source, target)
    out = {key: mover.messages(value) if key in ("messages", "prompt", "chosen", "rejected") else value
           for key, value in row.items()}  # fmt: skip
    for column in columns:
        value = row[column]
        out[column] = [mover.source(one) for one in value] if isinstance(value, list) else mover.source(value)
    part.repaired["media-path"] += mover.moved
    return out


class _Mover:
    def __init__(self, source: Path, target: Path):
        self.folder, self.target, self.moved = source, target, 0

    def messages(self, messages: list[dict]) -> list[dict]:
        return [{**m, "content": [self.part(part) for part in m["content"]]} if isinstance(m["content"], list) else m
                for m in messages]  # fmt: skip

    def part(self, part: dict) -> dict:
        found = source_of(part)
        if found is None or part.get("type") == "text" or found[0] not in ("path", "url", "image", "audio", "video"):
            return part
        return {**part, found[0]: self.source(found[1])}

    def source(self, source: object) -> object:
        if isinstance(source, dict) and is_local(source.get("path")):
            return {**source, "path": self.source(source["path"])}
        if not is_local(source) or source.startswith("file://") or Path(source).is_absolute():
            return source
        self.moved += 1
        return os.path.relpath(self.folder / source, self.target)
