"""From names on a command line to checked rows, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

from gemma_trainer.data.checking.process import process
from gemma_trainer.data.checking.setting import Setting
from gemma_trainer.data.layouts.registry import detect_task
from gemma_trainer.data.notes import Notes
from gemma_trainer.data.options import DEFAULT_FAMILY, Checked, Options, Row
from gemma_trainer.data.reading.raw import RawRow
from gemma_trainer.data.reading.read import read_rows
from gemma_trainer.data.reading.sources import expand, home
from gemma_trainer.data.report import Report
from gemma_trainer.data.running.engine import Run
from gemma_trainer.data.running.judge import Judge, is_refused, unwrapped
from gemma_trainer.data.running.part import Part
from gemma_trainer.families.catalogue import get_family
from gemma_trainer.families.family import Family
from gemma_trainer.rows.problems import USAGE, Failure

__all__ = [
    "Checked",
    "Options",
    "Row",
    "check_columns",
    "check_files",
    "first_task",
    "load_rows",
    "parse_mapping",
    "process",
    "with_margin",
]

LOOKED_AT = 100  # rows, to learn which columns there are
FIRST_VALID = 1000  # rows, among which a valid one is looked for


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
    files = expand(names)
    first_task(files, task, settings.delimiter, settings.mapping)
    checked = check_files(files, with_margin(files, settings), report)
    return (Row(c.data, c.file, c.raw.line, c.raw.row) for c in checked if c.data is not None), report


def first_task(files: list[Path], task: str, delimiter: str | None = None, mapping: Mapping | None = None) -> str:
    """`task` itself, or for "auto" that of the first row that tells one. Raises Failure for a mapping without use."""
    if task != "auto" and not mapping:
        return task
    values = (item.value for _, item in islice(_readable(files, delimiter), LOOKED_AT))
    if mapping:
        values = list(values)
        _check_columns(mapping.values(), values, "--map")
    if task != "auto":
        return task
    return next(filter(None, (detect_task(_mapped(value, mapping or {})) for value in values)), "sft")


def _mapped(value: object, mapping: Mapping) -> object:
    if not isinstance(value, dict):
        return value
    return {**value, **{name: value[column] for name, column in mapping.items() if column in value}}


def with_margin(files: list[Path], options: Options) -> Options:
    """The options with `has_margin` as the first valid preference row tells it; unset when none comes early."""
    if options.task not in ("dpo", "rm"):
        return options
    for file, item in islice(_readable(files, options.delimiter), FIRST_VALID):
        notes = Notes()
        row, _ = process(item.value, options, Setting(options.family, home(file), options.shown), notes)
        if row is not None and not is_refused(notes):
            return replace(options, has_margin="margin" in row)
    return options


def check_columns(files: list[Path], delimiter: str | None, columns: Iterable[str], flag: str) -> None:
    """Raises Failure (exit 2) for a column that none of the first rows has."""
    values = [item.value for _, item in islice(_readable(files, delimiter), LOOKED_AT)]
    _check_columns(columns, values, flag)


def _check_columns(wanted: Iterable[str], values: list[object], flag: str) -> None:
    """A typing error would otherwise change what is read."""
    columns = list(dict.fromkeys(name for value in values if isinstance(value, dict) for name in value))
    lacking = [column for column in wanted if column not in columns]
    if columns and lacking:
        text = f"{flag} names columns that the data has not: {', '.join(lacking)}"
        raise Failure(USAGE, "usage", f"{text} (it has {', '.join(columns)[:200]})", fix="Name columns of the data.")


def _readable(files: list[Path], delimiter: str | None) -> Iterator[tuple[Path, RawRow]]:
    for file in files:
        for item in read_rows(file, delimiter):
            if isinstance(item, RawRow) and item.fault is None:
                yield file, item._replace(value=unwrapped(item.value))


def check_files(
    files: list[Path], options: Options, report: Report, keep_faulty: bool = False, told: bool = True
) -> Iterator[Checked]:
    """Every row of the files, each judged and told to the report. A set without any row is an error."""
    run = Run(files, Judge(options, sink=_Rows(), keep_faulty=keep_faulty, told=told), report)
    for part in run.parts():
        yield from part.taken or ()
    run.finish()


class _Rows:
    """Keeps the rows of a batch as they were judged."""

    needs_rows = True

    def take(self, checked: Checked, part: Part) -> None:
        part.taken = part.taken or []
        part.taken.append(checked)


def parse_mapping(words: Iterable[str]) -> dict[str, str]:
    """{field: column} of words such as `prompt=question`. Raises Failure (exit 2)."""
    mapping = {}
    for word in words:
        name, _, column = word.partition("=")
        if not name or not column:
            raise Failure(USAGE, "usage", f"--map {word} is not of the form field=column")
        mapping[name] = column
    return mapping
