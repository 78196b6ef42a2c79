"""Shards and records: many jobs over many files add up to one run, whatever was interrupted."""

import json
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from preparing import assistant, chat, prep, user
from scripts import command


@pytest.fixture
def folder(tmp_path) -> Path:
    """Eleven files with repeats across them, faults, blank lines and another layout."""
    data, pick = tmp_path / "data", random.Random(2)
    data.mkdir()
    for number in range(11):
        out = []
        for row in range(60):
            text = f"Question {pick.randrange(400)}?"
            out.append(json.dumps(chat(user(text), assistant("Yes."))))
            out += [""] * (number == 3 and row % 9 == 0) + ["{"] * (row == 50 and number % 2)
            if number == 5:
                out.append(json.dumps({"instruction": text, "output": f"Answer {row}."}))
        (data / f"part-{number:02}.jsonl").write_text("\n".join(out) + "\n", "utf-8")
    return data


COUNTED = ("rows", "valid", "errors_by_code", "warnings_by_code", "repaired", "layouts", "data_hash", "tokens", "task")


def counts(document: dict) -> dict:
    return {name: document["result"][name] for name in COUNTED}


def test_shards_add_up_to_one_run(folder, tmp_path):
    code, whole = prep("validate", folder, "--max-errors", 1000)
    records = tmp_path / "records"
    for number in (2, 4, 1, 3):
        assert prep("validate", folder, "--shard", f"{number}/4", "--records", records)[0] in (0, 3)
    merged_code, merged = prep("merge-reports", records, "--max-errors", 1000)
    assert merged_code == code == 3 and counts(merged) == counts(whole) and merged["result"]["files"] == 11
    assert sum(merged["result"]["warnings_by_code"].values()) > 100
    repeats = [
        {(p["file"], p["line"] or p["row"], p["message"]) for p in document["warnings"] if p["code"] == "duplicate-row"}
        for document in (merged, whole)
    ]
    known = {entry for entry in repeats[1] if "part-03" not in str(entry)}  # its blank lines: rows are told, not lines
    assert {entry for entry in repeats[0] if "part-03" not in str(entry)} == known and known


def test_missing_and_foreign_shards_are_told(folder, tmp_path):
    records = tmp_path / "records"
    prep("validate", folder, "--shard", "1/3", "--records", records)
    code, document = prep("merge-reports", records)
    assert (
        code == 2 and document["errors"][0]["code"] == "shards-missing" and "2, 3" in document["errors"][0]["message"]
    )
    prep("validate", folder, "--shard", "2/3", "--records", records)
    prep("validate", folder, "--shard", "3/3", "--records", records, "--max-length", 9)
    assert "flags" in prep("merge-reports", records)[1]["errors"][0]["message"]
    assert prep("merge-reports", folder)[1]["errors"][0]["code"] == "shards-missing"


def test_what_has_a_record_is_not_read_again(folder, tmp_path, monkeypatch):
    records = tmp_path / "records"
    first = counts(prep("validate", folder, "--records", records)[1])
    read = []
    from gemma_trainer.data.running import engine

    real = engine.read_batches
    monkeypatch.setattr(
        engine, "read_batches", lambda file, *more, **how: read.append(file.name) or real(file, *more, **how)
    )
    assert counts(prep("validate", folder, "--records", records)[1]) == first and read == []
    (folder / "part-04.jsonl").write_text(json.dumps(chat(user("New?"), assistant("Yes."))) + "\n", "utf-8")
    next(records.glob("part-07*.record")).write_text('{"cut', "utf-8")
    changed = prep("validate", folder, "--records", records)[1]
    assert sorted(read) == ["part-04.jsonl", "part-07.jsonl"]
    assert counts(changed) == counts(prep("validate", folder)[1])
    read.clear()
    prep("validate", folder, "--records", records, "--family", "gemma3")
    assert len(read) == 11


def test_records_inside_the_data_folder_are_no_data(folder):
    first = prep("validate", folder, "--records", folder / "records")[1]
    assert counts(prep("validate", folder)[1]) == counts(first)


def test_every_problem_of_a_file_is_kept(folder, tmp_path):
    prep("validate", folder, "--records", tmp_path / "records", "--max-errors", 1)
    (file,) = (tmp_path / "records").glob("part-05*.problems")
    told = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert {"json-cut", "mixed-layouts"} <= {problem["code"] for problem in told}


@pytest.mark.parametrize("workers", [1, 2])
def test_the_report_takes_the_problems_of_all_records(folder, tmp_path, workers):
    """Those of the first run, of one that finds all records, and of the shards added up are those of a plain run."""

    def told(action, *words) -> list:
        file = tmp_path / "report.jsonl"
        prep(action, *words, "--max-errors", 2, "--report", file, "--overwrite")
        problems = map(json.loads, file.read_text("utf-8").splitlines())
        return sorted((p["code"], p["file"], p["row"] or 0, p["severity"]) for p in problems)

    plain, records = told("validate", folder), tmp_path / "records"
    assert len(plain) > 100
    for _ in range(2):
        assert told("validate", folder, "--records", records, "--workers", workers) == plain
    assert told("merge-reports", records) == plain


def test_a_record_counts_with_all_that_belongs_to_it(folder, tmp_path):
    records = tmp_path / "records"
    first = prep("validate", folder, "--records", records)[1]
    for suffix in ("keys", "problems", "record"):
        next(records.glob(f"part-06*.{suffix}")).unlink()
        assert counts(prep("validate", folder, "--records", records)[1]) == counts(first)


def test_merging_never_replaces_a_report_unasked(folder, tmp_path):
    records, file = tmp_path / "records", tmp_path / "report.jsonl"
    prep("validate", folder, "--records", records)
    file.write_text("mine")
    assert prep("merge-reports", records, "--report", file)[1]["errors"][0]["code"] == "output-exists"
    assert file.read_text() == "mine" and prep("merge-reports", records, "--report", file, "--overwrite")[0] == 3


@pytest.mark.slow
def test_a_killed_job_goes_on_where_it_was(folder, tmp_path):
    for file in folder.iterdir():
        file.write_bytes(file.read_bytes() * 250)
    records = tmp_path / "records"
    words = command("dataset_prep.py", "validate", folder, "--records", records, "--json")
    kills = 0
    for wait in (0.6, 1.1, 1.9, 3.0):
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(wait)
        kills += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert kills >= 2 and done.returncode == 3
    assert counts(json.loads(done.stdout)) == counts(prep("validate", folder)[1])
    assert not list(records.glob(".*"))
    shutil.rmtree(records)


def test_a_shard_without_a_file_is_finished(folder, tmp_path):
    records = tmp_path / "records"
    for number in range(1, 14):
        code, document = prep("validate", folder, "--shard", f"{number}/13", "--records", records)
        assert code in (0, 3) and "no-rows" not in document["result"]["errors_by_code"]
    assert prep("merge-reports", records)[1]["result"]["files"] == 11
