"""All rows or none: how training and evaluation read data."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gemma_trainer.data.model import Model
from gemma_trainer.data.options import Row
from gemma_trainer.data.pipeline import first_task, load_rows
from gemma_trainer.data.reading.sources import shown
from gemma_trainer.rows.commands import SCRIPTS, command
from gemma_trainer.rows.content import media_of
from gemma_trainer.rows.problems import DATA_INVALID, UNSUPPORTED, Failure, Problem

_PAIRS, _CHATS, _PROMPTS = (
    "pairs of a chosen and a rejected answer",
    "conversations to learn from",
    "prompts without answers",
)
_KINDS = {"dpo": _PAIRS, "rm": _PAIRS, "sft": _CHATS, "responses": _CHATS, "prompts": _PROMPTS}
_USES = {
    _PAIRS: "dpo_train.py or rm_train.py, and evaluate.py with --metric reward-accuracy",
    _CHATS: "sft_train.py, and evaluate.py without --metric reward-accuracy",
    _PROMPTS: "distill_dataset.py respond, by which a teacher answers them",
}


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
        text = f"{refused} of {report.rows} rows are refused ({', '.join(report.errors_by_code)})"
        made_for = task if report.valid else first_task(files, "auto")
        if _KINDS[made_for] != _KINDS[task]:
            text += f": they are {_KINDS[made_for]}, not {_KINDS[task]}"
            fix = f"Give {_KINDS[task]}, or use {_USES[_KINDS[made_for]]}."
        else:
            fix = _converting(files, task, model)
        failure = Failure(DATA_INVALID, "data-refused", text, fix=fix)
        failure.details = report.errors
        raise failure
    for row in rows:
        _refuse_untold(row)
    return rows, report.warnings


def _converting(files: list[Path], task: str, model: Model) -> str:
    """The command that leaves the rows without a fault."""
    family = [] if model.reference and model.origin != "asked for" else ["--family", model.family.name]
    known = ["--model", model.reference] if model.reference else []
    made = ["--task", task, *family, *known, "--out", "clean.jsonl", "--rejects", "rejects.jsonl"]
    return command(SCRIPTS / "dataset_prep.py", "convert", *map(shown, files), *made)


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
