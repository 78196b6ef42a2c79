"""What validating one file gave, kept beside others, so that thousands of files can be gone through by many jobs, an
interrupted job goes on where it was, and the results add up to that of one run.

A record is `NAME.HASH.record` (JSON: counts, lengths, the first problems), `NAME.HASH.keys` (what rows are compared by)
and `NAME.HASH.problems` (JSON Lines: all of them). The first is written last and makes the record count. No name ends as
data does, so a folder of data may hold the records too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from gemma_trainer.data.output import replacing
from gemma_trainer.data.reading.hashing import joint_hash, key_function
from gemma_trainer.data.report import Report
from gemma_trainer.data.running.engine import Run, finish
from gemma_trainer.data.running.places import Places
from gemma_trainer.data.running.repeats import Comparison
from gemma_trainer.data.running.sums import Sums
from gemma_trainer.rows.problems import USAGE, Failure, Problem

_SETTINGS = "settings"


def record_path(folder: Path, file: Path) -> Path:
    """Where the record of a file is: its name, and a key of its whole path."""
    return folder / f"{file.name}.{key_function()(str(file.resolve()).encode(), 0):016x}.record"


def find_record(path: Path, settings: dict, file: Path) -> dict | None:
    """The record of a file made with the same settings; None when there is none or the file has changed since."""
    try:
        record = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    whole = all(path.with_suffix(suffix).exists() for suffix in (".keys", ".problems"))
    return record if whole and record.get(_SETTINGS) == settings and record.get("stored") == _stored(file) else None


def write_record(path: Path, run: Run, settings: dict, data_hash: str) -> dict:
    """The record of a finished pass over one file. Raises Failure."""
    (file,) = run.files
    with replacing(path.with_suffix(".keys"), "wb") as out:
        tables = run.comparison.write(out)
    report = run.report
    record = {
        "file": str(file),
        "stored": _stored(file),
        _SETTINGS: settings,
        "data_hash": data_hash,
        "rows": report.rows,
        "valid": report.valid,
        "layouts": report.layouts,
        "repaired": report.repaired,
        "counts": {**report.errors_by_code, **report.warnings_by_code},
        "problems": [asdict(problem) for problem in (*report.errors, *report.warnings)],
        "sums": run.sums.as_dict(),
        "one_row_a_line": run.places.one_row_a_line,
        "tables": tables,
        "names": [[tag, name] for tag, name in run.comparison.names.items()],
    }
    with replacing(path) as out:
        json.dump(record, out, ensure_ascii=False)
    return record


def _stored(file: Path) -> list[int]:
    about = file.stat()
    return [about.st_size, about.st_mtime_ns]


class Merged:
    """Records added up, as one run over all their files would have told it."""

    def __init__(self, records: dict[Path, dict], report: Report):
        """`records` are keyed by where they are."""
        self.report, self.sums, self.places = report, Sums(), Places()
        stored = sorted(records.items(), key=lambda entry: entry[1]["file"])
        self.records = [record for _, record in stored]
        self.comparison = Comparison(self.records[0][_SETTINGS]["task"] if stored else "sft")
        for path, record in stored:
            self._add(record, path)
        problems = chain(self.comparison.problems(self.places), self.sums.problems())
        finish(report, problems, [Path(record["file"]) for record in self.records])

    @property
    def data_hash(self) -> str | None:
        """As sources.data_hash tells it of the files in this order."""
        return joint_hash([record["data_hash"] for record in self.records]) if self.records else None

    def _add(self, record: dict, path: Path) -> None:
        report, file = self.report, Path(record["file"])
        report.rows += record["rows"]
        report.valid += record["valid"]
        report.layouts.update(record["layouts"])
        report.repaired.update(record["repaired"])
        left = dict(record["counts"])
        problems = [Problem(**problem) for problem in record["problems"]]
        with path.with_suffix(".problems").open(encoding="utf-8") as told:
            report.write(told)
        for problem in problems:
            more = left[problem.code] - sum(other.code == problem.code for other in problems)
            report.add(problem, times=1 + more, written=True)
            left[problem.code] -= more
        self.sums.merge(Sums.from_dict(record["sums"]))
        self.comparison.names.update(dict(record["names"]))
        if any(record["tables"].values()):
            with path.with_suffix(".keys").open("rb") as stored:
                self.comparison.read(stored, record["tables"], self.places.rows)
        self.places.add_file(file, record["rows"], record["one_row_a_line"])


def write_shard(folder: Path, shard: tuple[int, int], files: list[Path]) -> None:
    """Note that a shard, (number from 1, of how many), is finished, and which files it had."""
    with replacing(folder / f"shard-{shard[0]}-of-{shard[1]}.done") as out:
        json.dump({"shard": shard, "records": [record_path(folder, file).name for file in files]}, out)


def read_records(folders: Iterable[Path]) -> dict[Path, dict]:
    """{folder of the record / its name: record} of all finished shards. Raises Failure for shards that are missing."""
    found: dict[Path, dict] = {}
    for folder in folders:
        shards = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("shard-*-of-*.done"))]
        if not shards:
            raise Failure(USAGE, "shards-missing", f"{folder} holds no finished shard", file=str(folder))
        of = {shard["shard"][1] for shard in shards}
        missing = sorted(set(range(1, max(of) + 1)) - {shard["shard"][0] for shard in shards})
        if missing or len(of) > 1:
            shown = ", ".join(map(str, missing[:20]))
            text = f"{folder}: shards of {sorted(of)} parts" if len(of) > 1 else f"{folder}: shard {shown} not finished"
            raise Failure(USAGE, "shards-missing", text, file=str(folder), fix="Run the shards that are missing.")
        for name in {name for shard in shards for name in shard["records"]}:
            found[folder / name] = json.loads((folder / name).read_text("utf-8"))
    settings = [record[_SETTINGS] for record in found.values()]
    if any(one != settings[0] for one in settings):
        raise Failure(USAGE, "shards-missing", "the records were made with different flags")
    return found
