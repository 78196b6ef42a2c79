"""What dataset_prep.py does: validate, convert, inspect as functions from a request to a result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gemma_trainer.data.convert import Written, write_rows
from gemma_trainer.data.lengths import Lengths, counted
from gemma_trainer.data.model import Model, describe_model
from gemma_trainer.data.output import check_targets
from gemma_trainer.data.pipeline import Checked, Options, check_files, parse_mapping, resolve_task
from gemma_trainer.data.repair import CONVERTING
from gemma_trainer.data.report import MAX_ERRORS, Report
from gemma_trainer.data.sources import data_hash, expand
from gemma_trainer.data.view import view_rows
from gemma_trainer.rows.problems import Problem


@dataclass
class Request:
    """The flags that the three commands share."""

    data: list[str]
    task: str = "auto"
    family: str = "auto"
    model: str | None = None
    max_length: int | None = 2048
    layout: str = "auto"
    mapping: list[str] = field(default_factory=list)
    delimiter: str | None = None
    repairs: list[str] = field(default_factory=list)
    converting: bool = False
    max_errors: int = MAX_ERRORS
    report: str | None = None
    overwrite: bool = False


class Session:
    """Files, options, model and report of one command. Raises Failure for what cannot be found or read."""

    def __init__(self, request: Request):
        self.files = expand(request.data)
        self.model: Model = describe_model(request.family, request.model)
        mapping = parse_mapping(request.mapping)
        self.max_length, self.overwrite = request.max_length, request.overwrite
        if request.report:
            check_targets(self.files, [Path(request.report)], request.overwrite)
        self.options = Options(
            task=resolve_task(self.files, request.task, request.delimiter, mapping),
            family=self.model.family,
            layout=request.layout,
            mapping=mapping,
            delimiter=request.delimiter,
            asked=frozenset(request.repairs) | (CONVERTING if request.converting else frozenset()),
            renders_reasoning=self.model.renders_reasoning,
            max_length=None if self.model.tokenizer else request.max_length,
        )
        self.report = Report(request.max_errors, request.report)
        if self.model.note:
            self.report.notes.append(self.model.note)
        if request.task == "auto":
            self.report.notes.append(f"task {self.options.task} was told by the first row")

    def validate(self) -> dict:
        """Counts, problems by code, lengths (None without a model) and the hashes that name data and template."""
        lengths = Lengths(self.max_length)
        for _ in self._rows(lengths):
            pass
        return {
            **self._facts(),
            "valid": self.report.valid,
            "tokens": lengths.as_dict() if self.model.tokenizer else None,
            "repaired": dict(self.report.repaired),
            "data_hash": data_hash(self.files),
        }

    def convert(self, out: Path, rejects: Path | None) -> dict:
        """Canonical rows in `out`, refused ones in `rejects`. Raises Failure."""
        refused_to = rejects or out.with_name(f"{out.name.removesuffix('.jsonl')}.rejects.jsonl")
        check_targets(self.files, [out, refused_to], self.overwrite)
        drop = "drop-duplicates" in self.options.asked
        written: Written = write_rows(self._rows(None), out, refused_to, self.report, drop)
        if written.refused:
            text = f"{written.refused} of {written.read} rows were refused: {refused_to}"
            self.report.add(Problem("rows-refused", text, file=str(refused_to)))
        return {
            **self._facts(),
            "rows_out": written.kept,
            "rejected": written.refused,
            "repaired": dict(self.report.repaired),
            "out": str(out) if written.kept else None,
            "rejects": str(refused_to) if written.refused else None,
        }

    def inspect(self, count: int, loss_on: str) -> dict:
        """The first `count` rows as they are rendered, faulty ones too where the template takes them."""
        views = list(view_rows(self._rows(None, keep_faulty=True), self.model, count, loss_on))
        return {**self._facts(), "rows_read": self.report.rows, "loss_on": loss_on, "rows": views}

    def _rows(self, lengths: Lengths | None, keep_faulty: bool = False) -> Iterator[Checked]:
        rows = check_files(self.files, self.options, self.report, keep_faulty=keep_faulty, told=lengths is not None)
        return counted(rows, self.model, lengths, self.report) if lengths and self.model.tokenizer else rows

    def _facts(self) -> dict:
        report = self.report
        return {
            "task": self.options.task,
            "family": self.options.family.name,
            "family_from": self.model.origin,
            "layout": report.layout,
            "layouts": dict(report.layouts),
            "rendering": self.model.renderer.origin,
            "template_hash": self.model.renderer.template_hash,
            "rows": report.rows,
            "errors_by_code": dict(report.errors_by_code),
            "warnings_by_code": dict(report.warnings_by_code),
            "notes": list(report.notes),
        }
