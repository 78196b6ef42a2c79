"""What dataset_prep.py does: validate, convert, inspect as functions from a request to a result."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gemma_trainer.data.convert import Writer, write_rows
from gemma_trainer.data.engine import Run
from gemma_trainer.data.judge import Judge
from gemma_trainer.data.measure import Measure
from gemma_trainer.data.model import Model, describe_model
from gemma_trainer.data.output import check_targets
from gemma_trainer.data.options import Options
from gemma_trainer.data.pipeline import check_files, first_facts, parse_mapping
from gemma_trainer.data.repair import CONVERTING
from gemma_trainer.data.repeats import REPEATS
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
        first = first_facts(self.files, request.task, request.delimiter, mapping)
        self.options = Options(
            task=first.task,
            family=self.model.family,
            layout=request.layout,
            mapping=mapping,
            delimiter=request.delimiter,
            asked=frozenset(request.repairs) | (CONVERTING if request.converting else frozenset()),
            renders_reasoning=self.model.renders_reasoning,
            max_length=None if self.model.tokenizer else request.max_length,
            has_margin=first.has_margin,
        )
        self.report = Report(request.max_errors, request.report)
        if self.model.note:
            self.report.notes.append(self.model.note)
        if request.task == "auto":
            self.report.notes.append(f"task {self.options.task} was told by the first row")

    def validate(self) -> dict:
        """Counts, problems by code, lengths (None without a model) and the hashes that name data and template."""
        measure = Measure(self.model, self.max_length) if self.model.tokenizer else None
        run = self._run(Judge(self.options, measure))
        for _ in run.parts():
            pass
        return {
            **self._facts(),
            "valid": self.report.valid,
            "tokens": run.lengths.as_dict() if measure else None,
            "repaired": dict(self.report.repaired),
            "data_hash": data_hash(self.files, run.watches),
        }

    def convert(self, out: Path, rejects: Path | None) -> dict:
        """Canonical rows in `out`, refused ones in `rejects`. Raises Failure."""
        refused_to = rejects or out.with_name(f"{out.name.removesuffix('.jsonl')}.rejects.jsonl")
        check_targets(self.files, [out, refused_to], self.overwrite)
        judge = Judge(self.options, sink=Writer(out.parent), told=False)
        run = self._run(judge)
        if "drop-duplicates" in self.options.asked:
            run = self._without_repeats(run)
        written = write_rows(run, out, refused_to)
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
        rows = check_files(self.files, self.options, self.report, keep_faulty=True, told=False)
        views = list(view_rows(rows, self.model, count, loss_on))
        return {**self._facts(), "rows_read": self.report.rows, "loss_on": loss_on, "rows": views}

    def _run(self, judge: Judge) -> Run:
        return Run(self.files, judge, self.report)

    def _without_repeats(self, run: Run) -> Run:
        """The same run with the rows refused that repeat others, which takes a pass to find."""
        first = Run(self.files, Judge(self.options), Report())
        for _ in first.parts():
            pass
        notes = first.comparison.notes(first.places)
        run.drop = {row: note for row, note in notes if note.code in REPEATS}
        run.starts = first.places.starts
        return run

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
