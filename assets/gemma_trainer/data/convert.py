"""Canonical rows to a file, refused rows to another: what comes in is in one of the two."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gemma_trainer.data.check_media import is_local, source_of, sources
from gemma_trainer.data.output import replacing
from gemma_trainer.data.pipeline import Checked
from gemma_trainer.data.report import Report
from gemma_trainer.rows.problems import INTERNAL, Failure, Problem


class Written(NamedTuple):
    """Row counts; `read` is `kept` + `refused`, always."""

    read: int
    kept: int
    refused: int


_REPEATS = {"duplicate-row", "duplicate-prompt"}


def write_rows(
    rows: Iterator[Checked], out: Path, rejects: Path, report: Report, drop_repeats: bool = False
) -> Written:
    """Write every row to `out` or to `rejects` (JSON Lines). Both appear whole or not at all, and only with rows.

    A reject holds the row as it was found, its file, line, codes and problems. Raises Failure.
    """
    kept = refused = 0
    before = report.rows
    with replacing(out) as good, replacing(rejects) as bad:
        for checked in rows:
            data, problems = checked.data, checked.problems
            repeats = [p for p in problems if p.code in _REPEATS] if drop_repeats else []
            line = None
            if data is not None and not repeats:
                try:
                    line = _json(_moved(data, Path(checked.file).parent, out.parent, report))
                except (TypeError, ValueError):
                    text = "the row holds a value that JSON cannot hold"
                    problem = Problem("not-json", text, checked.file, checked.raw.line, checked.raw.row)
                    report.add(problem)
                    problems = [*problems, problem]
            if line is None:
                refused += 1
                bad.write(_json(_reject(checked, problems), default=str) + "\n")
            else:
                kept += 1
                good.write(line + "\n")
    written = Written(report.rows - before, kept, refused)
    if written.read != kept + refused:
        raise Failure(INTERNAL, "internal", f"{written.read} rows read, {kept} written and {refused} refused")
    return written


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


def _json(value: object, default=None) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=default is not None, default=default)


def _moved(row: dict, source: Path, target: Path, report: Report) -> dict:
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
    report.repaired["media-path"] += mover.moved
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
