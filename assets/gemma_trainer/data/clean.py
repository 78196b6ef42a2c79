"""All rows or none: how training and evaluation read data."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gemma_trainer.data.model import Model
from gemma_trainer.data.options import Row
from gemma_trainer.data.pipeline import load_rows
from gemma_trainer.rows.commands import SCRIPTS, command
from gemma_trainer.rows.content import media_of
from gemma_trainer.rows.problems import DATA_INVALID, UNSUPPORTED, Failure, Problem


def read_clean(files: Iterable[Path], task: str, model: Model) -> tuple[list[Row], list[Problem]]:
    """(rows, warnings), checked against the model's family and template. Raises Failure (exit 3) with every
    kept problem when a single row is refused, and (exit 5) for images, sound and token ids.

    A run on what is left of damaged data would look like a run on all of it.
    """
    files = list(files)
    stream, report = load_rows(files, task=task, family=model.family, shown=model.renderer.shown)
    rows = list(stream)
    if report.errors_by_code:
        refused = report.rows - report.valid
        failure = Failure(
            DATA_INVALID,
            "data-refused",
            f"{refused} of {report.rows} rows are refused ({', '.join(report.errors_by_code)})",
            fix=command(
                SCRIPTS / "dataset_prep.py",
                *("convert", *files, "--family", model.family.name, *(["--task", task] if task != "sft" else [])),
                *("--out", "clean.jsonl", "--rejects", "rejects.jsonl"),
            ),
        )
        failure.details = report.errors
        raise failure
    for row in rows:
        _refuse_untold(row)
    return rows, report.warnings


def _refuse_untold(row: Row) -> None:
    """Text training would turn a picture into a bare placeholder, and token ids tell neither text nor turns.

    Raises Failure (exit 5).
    """
    if "input_ids" in row.data:
        text = "the row holds token ids, and training and evaluation start from text"
        raise Failure(UNSUPPORTED, "tokens-not-text", text, file=row.file, line=row.line, path="input_ids")
    for column in ("messages", "prompt", "chosen", "rejected"):
        for at, message in enumerate(row.data.get(column, ())):
            if media := media_of(message.get("content")):
                text = f"the row holds {media[0]}, and only text is trained and measured"
                path = f"{column}[{at}].content"
                raise Failure(UNSUPPORTED, "media-unsupported", text, file=row.file, line=row.line, path=path)
