"""What dataset_prep.py does: each command as a function from a request to a result."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gemma_trainer.data.checking.repair import CONVERTING
from gemma_trainer.data.convert import Writer, write_rows
from gemma_trainer.data.lengths import Lengths
from gemma_trainer.data.measure import Measure
from gemma_trainer.data.model import Model, describe_model
from gemma_trainer.data.options import Options
from gemma_trainer.data.output import check_targets
from gemma_trainer.data.pipeline import check_columns, check_files, first_task, parse_mapping, with_margin
from gemma_trainer.data.reading.hashing import algorithm
from gemma_trainer.data.reading.sources import data_hash, expand
from gemma_trainer.data.report import MAX_ERRORS, Report
from gemma_trainer.data.running.engine import Run
from gemma_trainer.data.running.judge import Judge, Sink
from gemma_trainer.data.running.records import Merged, find_record, read_records, record_path, write_record, write_shard
from gemma_trainer.data.running.repeats import REPEATS, Comparison
from gemma_trainer.data.running.workers import usable_cores
from gemma_trainer.data.shape import Shapes
from gemma_trainer.data.split import EVAL, TRAIN, Splitter, write_sides
from gemma_trainer.data.stats import Stats
from gemma_trainer.data.view import view_rows
from gemma_trainer.rows.problems import NO_SPACE, STOPPED, USAGE, Failure, Problem

LONG = 20  # seconds that one process may take before it is told that there could be more
_SPLIT = re.compile("(train|eval|valid|validation|val|dev|test|heldout)")
_SPLIT_NAMES = re.compile(rf"(?:^|[^a-z]){_SPLIT.pattern}(?:[^a-z]|$)")
_SAME_SPLIT = dict.fromkeys(("valid", "validation", "val", "dev", "heldout"), "eval")


@dataclass
class Request:
    """The flags that the commands share."""

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
    workers: int = 1
    shard: tuple[int, int] = (1, 1)  # number, from 1, of how many


class Session:
    """Files, options, model and report of one command. Raises Failure for what cannot be found or read."""

    def __init__(self, request: Request):
        self.request = request
        self.files = expand(request.data)
        self.model: Model = describe_model(request.family, request.model)
        mapping = parse_mapping(request.mapping)
        if request.report:
            check_targets(self.files, [Path(request.report)], request.overwrite)
        files = self.files
        task = first_task(files, request.task, request.delimiter, mapping)
        number, of = request.shard
        self.files = files[number - 1 :: of]
        options = Options(
            task=task,
            family=self.model.family,
            layout=request.layout,
            mapping=mapping,
            delimiter=request.delimiter,
            asked=frozenset(request.repairs) | (CONVERTING if request.converting else frozenset()),
            shown=self.model.renderer.shown,
            max_length=None if self.model.tokenizer else request.max_length,
        )
        self.options = with_margin(files, options)
        self.report = Report(request.max_errors, request.report)
        self.notes: list[str] = [self.model.note] if self.model.note else []
        if request.task == "auto":
            self.notes.append(f"task {self.options.task} was told by the first row that tells one")
        self.advance: Callable[[int], object] = lambda size: None
        self.retry: Callable[[Path], str | None] = lambda rejects: None  # the command for rejects that were corrected

    @property
    def stored_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.files)

    def check_targets(self, *targets: Path) -> None:
        """Raise Failure (exit 2) for outputs that may not be written, or are the same file, the report included."""
        report = [Path(self.request.report)] if self.request.report else []
        check_targets(self.files, [*report, *targets], self.request.overwrite)

    def validate(self, records: Path | None = None) -> dict:
        """Counts, problems by code, lengths (None without a model) and the hashes that name data and template.

        With `records` each file's result is kept in that folder, and files that have one are not read again.
        """
        if records is not None:
            return self._validate_files(records)
        started = time.monotonic()
        run = self._pass(self._judge())
        self._suggest_workers(time.monotonic() - started)
        return self._validated(run.sums.lengths, data_hash(self.files, run.watches))

    def convert(self, out: Path, rejects: Path | None, target: str = "messages") -> dict:
        """Rows in the form of `target` in `out`, refused ones in `rejects`. Raises Failure."""
        refused_to = rejects or _beside(out, "rejects")
        self.check_targets(out, refused_to)
        run = self._run(Judge(self.options, sink=Writer(out.parent, target, self.model), told=False))
        if "drop-duplicates" in self.options.asked:
            run.drop, run.starts = self._repeats()
        written = write_rows(run, out, refused_to, self.request.overwrite)
        self._tell_refused(written.refused, written.read, refused_to)
        return {
            **self._facts(),
            "to": target,
            "rows_out": written.kept,
            "rejected": written.refused,
            "repaired": dict(self.report.repaired),
            "out": str(out) if written.kept else None,
            "rejects": str(refused_to) if written.refused else None,
        }

    def split(self, train: Path, held_out: Path, eval_fraction: float, seed: int, group: str | None) -> dict:
        """Rows on two sides that share no prompt. Raises Failure."""
        if group is not None:
            check_columns(self.files, self.options.delimiter, [group], "--group")
        rejects = _beside(train, "rejects")
        self.check_targets(train, held_out, rejects)
        run = self._run(Judge(self.options, sink=Splitter(train.parent, eval_fraction, seed, group), told=False))
        counts = write_sides(run, train, held_out, rejects, self.request.overwrite)
        self._tell_refused(counts["rejected"], self.report.rows, rejects)
        for side in (TRAIN, EVAL):
            if not counts[side] and self.report.valid:
                self.report.add(Problem("split-side-empty", f"no row fell on the {side} side"))
        files = {TRAIN: train, EVAL: held_out, "rejects": rejects}
        return {
            **self._facts(),
            "train_rows": counts[TRAIN],
            "eval_rows": counts[EVAL],
            "rejected": counts["rejected"],
            "duplicates": self._duplicates(run.comparison),
            **{name: str(file) if file.exists() else None for name, file in files.items()},
        }

    def inspect(self, count: int, loss_on: str, whole: bool = False) -> dict:
        """The first `count` rows as they are rendered, faulty ones too where the template takes them. `whole` reads
        on to the end and gives what `stats` does as well."""
        report = Report() if whole else self.report
        views = self.views(count, loss_on, report)
        if not views and "pretokenized" in report.layouts:
            self.notes.append("rows of token ids have no text that could be shown")
        elif not views and report.rows:
            why = "they are refused, see the errors, or the template does not render them"
            self.notes.append(f"{report.rows} rows were read, and none can be shown: {why}")
        facts = self.stats() if whole else self._facts()
        return {**facts, "rows_read": self.report.rows, "loss_on": loss_on, "rows": views}

    def views(self, count: int, loss_on: str, report: Report) -> list[dict]:
        """The first rows as the model sees them; what is wrong up to there goes to `report`."""
        rows = check_files(self.files, self.options, report, keep_faulty=True, told=False)
        return list(view_rows(rows, self.model, count, loss_on))

    def stats(self) -> dict:
        """What the rows hold: lengths, roles, turns, tools, scripts, repeats."""
        run = self._run(self._judge(Shapes()))
        stats = Stats()
        for part in run.parts():
            if part.taken is not None:
                stats.merge(part.taken)
        run.finish()
        return {
            **self._validated(run.sums.lengths, data_hash(self.files, run.watches)),
            "stats": stats.as_dict(self.request.max_length),
            "duplicates": self._duplicates(run.comparison),
        }

    def _suggest_workers(self, seconds: float) -> None:
        cores = usable_cores()
        if self.request.workers == 1 < cores and seconds > LONG:
            self.notes.append(f"{cores} cores are there: --workers {cores} shares the work")

    def _judge(self, sink: Sink | None = None) -> Judge:
        return Judge(self.options, Measure(self.model, self.request.max_length) if self.model.tokenizer else None, sink)

    def _run(self, judge: Judge) -> Run:
        return Run(self.files, judge, self.report, self.request.workers, self.advance, _splits(self.files))

    def _pass(self, judge: Judge) -> Run:
        run = self._run(judge)
        run.read()
        run.finish()
        return run

    def _repeats(self) -> tuple[dict, list[int]]:
        """What an extra pass finds: notes of the rows that repeat others, and where batches start."""
        run = Run(self.files, Judge(self.options), Report(), self.request.workers)
        run.read()
        notes = run.comparison.notes(run.places)
        return {row: note for row, note in notes if note.code in REPEATS}, run.places.starts

    def _validate_files(self, folder: Path) -> dict:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise
            text = f"the folder {folder} cannot be made: {error.strerror}"
            raise Failure(USAGE, "output-unwritable", text, file=str(folder)) from None
        judge, settings = self._judge(), self._settings()
        found: dict[Path, dict] = {}
        try:
            for file in self.files:
                path = record_path(folder, file)
                record = find_record(path, settings, file)
                if record is None:
                    record = self._write_record(path, file, judge, settings)
                else:
                    self.advance(file.stat().st_size)
                found[path] = record
        except KeyboardInterrupt:
            text = f"stopped by a signal; {len(found)} of {len(self.files)} files are finished and kept in {folder}"
            fix = "Run the same command again: it goes on with the others."
            raise Failure(STOPPED, "interrupted", text, fix=fix) from None
        write_shard(folder, self.request.shard, self.files)
        merged = Merged(found, self.report)
        return {**self._validated(merged.sums.lengths, merged.data_hash), "records": str(folder)}

    def _write_record(self, path: Path, file: Path, judge: Judge, settings: dict) -> dict:
        with Report(self.request.max_errors, path.with_suffix(".problems")) as report:
            run = Run([file], judge, report, self.request.workers, self.advance, _splits(self.files))
            run.read()
        return write_record(path, run, settings, data_hash([file], run.watches))

    def _settings(self) -> dict:
        """What a record must have been made with to stand for a file."""
        options, renderer = self.options, self.model.renderer
        return {
            "task": options.task,
            "family": options.family.name,
            "model": self.request.model,
            "template_hash": renderer.template_hash,
            "layout": options.layout,
            "mapping": dict(options.mapping),
            "delimiter": options.delimiter,
            "max_length": self.request.max_length,
            "has_margin": options.has_margin,
            "hash": algorithm(),
        }

    def _tell_refused(self, refused: int, read: int, file: Path) -> None:
        if refused:
            text = f"{refused} of {read} rows were refused: {file}"
            retry = self.retry(file)
            fix = f"Correct them there, then: {retry}" if retry else None
            self.report.add(Problem("rows-refused", text, file=str(file), fix=fix))

    def _duplicates(self, comparison: Comparison) -> dict[str, int | None]:
        return {"rows": comparison.repeated("rows"), "prompts": comparison.repeated("prompts")}

    def _validated(self, lengths: Lengths, digest: str | None) -> dict:
        return {
            **self._facts(),
            "valid": self.report.valid,
            "tokens": lengths.as_dict() if self.model.tokenizer else None,
            "repaired": dict(self.report.repaired),
            "data_hash": digest,
        }

    def _facts(self) -> dict:
        return {
            "task": self.options.task,
            "family": self.options.family.name,
            "family_from": self.model.origin,
            "rendering": self.model.renderer.origin,
            "template_hash": self.model.renderer.template_hash,
            **self.report.counts(),
            "notes": list(self.notes),
        }


def merge_records(folders: list[str], max_errors: int, file: str | None, overwrite: bool) -> tuple[dict, Report]:
    """(result of validate over all files of finished shards, report). Raises Failure for shards that are missing."""
    records = read_records(Path(folder) for folder in folders)
    if file:
        check_targets([], [Path(file)], overwrite)
    with Report(max_errors, file) as report:
        merged = Merged(records, report)
    if not merged.records:
        raise Failure(USAGE, "shards-missing", "the shards held no file")
    settings = merged.records[0]["settings"]
    return {
        "task": settings["task"],
        "family": settings["family"],
        "template_hash": settings["template_hash"],
        "files": len(merged.records),
        **report.counts(),
        "valid": report.valid,
        "tokens": merged.sums.lengths.as_dict() if settings["model"] else None,
        "repaired": dict(report.repaired),
        "data_hash": merged.data_hash,
        "notes": list(report.notes),
    }, report


def _beside(file: Path, what: str) -> Path:
    return file.with_name(f"{file.name.removesuffix('.jsonl')}.{what}.jsonl")


def _splits(files: list[Path]) -> dict[Path, str]:
    """The split that each file's name tells, or else that of its folder, where they tell several."""
    by_name = {file: _SPLIT_NAMES.search(file.name.lower()) for file in files}
    by_folder = {file: _SPLIT.fullmatch(file.parent.name.lower()) for file in files}
    for found in (by_name, by_folder):
        told = {file: _SAME_SPLIT.get(match[1], match[1]) for file, match in found.items() if match}
        if len(set(told.values())) > 1:
            return told
    return {}
