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
