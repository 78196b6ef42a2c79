"""What a run directory refuses, a plan is told too, and nothing is touched by it."""

import json

import pytest

from gemma_trainer.rows.problems import Failure
from gemma_trainer.train.run_dir import RunDirectory

RECORD = {"command": "sft_train.py", "arguments": {"seed": 0, "plan": False}, "plan": {"steps": 4, "data": {"data_hash": "a"}}}  # fmt: skip


def begun(folder, status, **plan):
    folder.mkdir()
    record = {**RECORD, "plan": {**RECORD["plan"], **plan}, "status": status, "started": "", "metrics": {}}
    (folder / "run.json").write_text(json.dumps(record))


@pytest.fixture
def place(tmp_path):
    begun(tmp_path / "done", "done")
    begun(tmp_path / "stopped", "stopped")
    begun(tmp_path / "other", "failed", data={"data_hash": "b"})
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    return tmp_path


@pytest.mark.parametrize(
    "name, resume, overwrite, code",
    [
        ("new", "auto", False, None),
        ("stopped", "auto", False, None),
        ("done", "auto", True, None),
        ("other", "auto", True, None),
        ("done", "auto", False, "output-exists"),
        ("stopped", "never", False, "output-exists"),
        ("notes", "auto", True, "output-exists"),
        ("other", "auto", False, "resume-mismatch"),
        ("file", "auto", False, "output-unwritable"),
        ("stopped", "nowhere", False, "checkpoint-incomplete"),
    ],
)
def test_a_plan_is_refused_as_the_run_would_be(name, resume, overwrite, code, place):
    before = sorted(place.rglob("*"))
    planned = {**RECORD, "arguments": {**RECORD["arguments"], "plan": True}}
    refusal = RunDirectory(place / name).refusal(resume, overwrite, planned)
    assert (refusal and refusal.problem.code) == code and sorted(place.rglob("*")) == before
    run = RunDirectory(place / name)
    if code is None:
        run.open(resume, overwrite)
        run.start(RECORD)
        return
    with pytest.raises(Failure) as failure:
        run.open(resume, overwrite)
        run.start(RECORD)
    assert failure.value.problem == refusal.problem


@pytest.mark.parametrize(
    "before, now, told",
    [
        ({"trl": "1.16.0"}, {"trl": "1.15.0"}, "trl was 1.16.0, is 1.15.0"),
        ({"torch": "2.13.0+cpu"}, {"torch": "2.13.0+cu130"}, None),  # another machine
        ({"trl": "1.16.0", "python": "3.11.2"}, {"trl": "1.16.0", "python": "3.12.1"}, None),
        ({}, {"unsloth": "2026.10.9"}, None),  # installed since
    ],
)
def test_other_versions_are_refused_in_words(before, now, told, place):
    record = {**RECORD, "versions": before, "status": "stopped", "started": "", "metrics": {}}
    (place / "stopped" / "run.json").write_text(json.dumps(record))
    refusal = RunDirectory(place / "stopped").refusal("auto", False, {**RECORD, "versions": now})
    assert (told in refusal.problem.message and "same versions" in refusal.problem.fix) if told else refusal is None


def test_events_outlive_a_resume(place):
    run = RunDirectory(place / "stopped")
    run.start(RECORD)
    run.shrunk("training", 2, 8, 4)
    run.shrunk("evaluation", 3, 8, 2)
    run.release()
    again = RunDirectory(place / "stopped")
    again.start(RECORD)
    assert (again.fitting("training"), again.fitting("evaluation")) == (4, 2)
    assert [event["step"] for event in again.record["events"]] == [2, 3]
