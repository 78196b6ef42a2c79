"""What a run directory refuses, a plan is told too, and nothing is touched by it."""

import json
import shutil

import pytest

from gemma_trainer.models.fingerprint import fingerprint
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


FILES = ("adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")


@pytest.mark.parametrize(
    "changed, flag",
    [({"dtype": "bfloat16"}, "--dtype float32"), ({"backend": "trl"}, "--backend unsloth"), ({"autocast": True}, None), ({"mode": "full"}, "--mode lora")],
)  # fmt: skip
def test_what_the_machine_chose_stays_and_the_flag_that_keeps_it_is_told(changed, flag, tmp_path):
    plan = {**RECORD["plan"], "dtype": "float32", "backend": "unsloth", "autocast": False, "mode": "lora"}
    RunDirectory(tmp_path / "run").start({**RECORD, "plan": plan})
    again = RunDirectory(tmp_path / "run")
    refusal = again.refusal("auto", False, {**RECORD, "plan": {**plan, **changed}})
    (name,) = changed
    assert refusal.problem.code == "resume-mismatch" and f"plan.{name} was" in refusal.problem.message
    assert (f"Pass {flag}," if flag else "Give the same") in refusal.problem.fix
    words = {"dtype": "float32", "backend": "unsloth", "mode": "lora"}  # the same run, asked for in words
    assert again.refusal("auto", False, {**RECORD, "plan": plan, "arguments": {**RECORD["arguments"], **words}}) is None


def test_the_same_files_under_other_names_are_the_same_run(tmp_path):
    def named(**names):
        plan = {**RECORD["plan"], "model": f"/home/{names['model']}"}
        return {**RECORD, "plan": plan, "arguments": {**RECORD["arguments"], **names}, "base": {"config.json": "h"}}

    run = with_checkpoints(tmp_path / "run", named(model="tiny", data=["rows.jsonl"], eval_data=None, adapter=None))
    other = named(model="moved/tiny", data=["/mnt/./rows.jsonl"], eval_data=[], adapter="x/../y")
    assert run.refusal("auto", False, other) is None
    assert run.open("auto", False) == run.checkpoints / "checkpoint-9"
    assert "model was /home/tiny, is" in run.refusal("auto", False, {**other, "base": {}}).problem.message
    data = {**other["plan"]["data"], "eval_rows": 3}  # a file went from --data to --eval-data
    assert "eval_rows" in run.refusal("auto", False, {**other, "plan": {**other["plan"], "data": data}}).problem.message


def with_checkpoints(folder, record=RECORD, steps=(6, 9)):
    run = RunDirectory(folder)
    run.start(record)
    for step in steps:
        checkpoint = run.checkpoints / f"checkpoint-{step}"
        checkpoint.mkdir(parents=True)
        for name in FILES:
            (checkpoint / name).write_text(f"{name} of {step}")
        run.mark_complete(step)
    run.release()
    return run


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["gone", "empty", "cut"])
def test_a_checkpoint_that_lost_something_is_not_resumed_from(name, damage, tmp_path):
    run = with_checkpoints(tmp_path / "run")
    file = run.checkpoints / "checkpoint-9" / name
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(b"" if damage == "empty" else file.read_bytes()[:-1])
    assert run.newest_checkpoint() == run.checkpoints / "checkpoint-6"
    run.drop_incomplete_checkpoints()
    assert [warning.code for warning in run.warnings] == ["checkpoint-damaged"]
    assert [each.name for each in run.checkpoints.iterdir()] == ["checkpoint-6"]


def test_a_checkpoint_that_is_being_removed_is_not_called_whole(tmp_path, monkeypatch):
    run = with_checkpoints(tmp_path / "run")
    monkeypatch.setattr("shutil.rmtree", lambda path: None)  # killed before the first file went
    run.drop_checkpoints(after=6)
    assert run.newest_checkpoint() == run.checkpoints / "checkpoint-6"


def test_checkpoints_of_other_steps_names_and_runs_are_refused(tmp_path):
    run = with_checkpoints(tmp_path / "run")
    shutil.copytree(run.checkpoints / "checkpoint-9", run.checkpoints / "checkpoint-99")
    shutil.copytree(run.checkpoints / "checkpoint-9", run.checkpoints / "checkpoint-abc")
    assert run.newest_checkpoint() == run.checkpoints / "checkpoint-9"
    for name in ("checkpoint-99", "checkpoint-abc"):
        assert run.refusal(str(run.checkpoints / name), False, RECORD).problem.code == "checkpoint-incomplete"
    seeded = {**RECORD, "arguments": {"seed": 1, "plan": False}}
    other = with_checkpoints(tmp_path / "other", seeded, (12,)).checkpoints / "checkpoint-12"
    assert run.refusal(str(other), False, RECORD).problem.code == "resume-mismatch"
    assert RunDirectory(tmp_path / "new").refusal(str(other), False, RECORD).problem.code == "resume-mismatch"
    assert RunDirectory(tmp_path / "new").refusal(str(other), False, seeded) is None
    shutil.copytree(other, run.checkpoints / "checkpoint-12")
    assert run.refusal("auto", False, RECORD).problem.code == "resume-mismatch"


def begin(folder, resume, overwrite=False):
    """The name of the checkpoint that a run begins at, as the command with --resume would."""
    run = RunDirectory(folder)
    checkpoint = run.open(str(resume), overwrite)
    run.start({**RECORD, "arguments": {**RECORD["arguments"], "resume": str(resume)}}, checkpoint)
    return run, checkpoint and checkpoint.name


def reach(run, step):
    """The run writes a checkpoint, and is killed."""
    shutil.copytree(
        run.checkpoints.parent.parent / "old" / "checkpoints" / "checkpoint-6", run.checkpoints / f"checkpoint-{step}"
    )
    run.mark_complete(step)
    run.release()


def test_the_command_that_began_at_a_checkpoint_goes_on_from_the_newest(tmp_path, monkeypatch):
    old = with_checkpoints(tmp_path / "old").checkpoints / "checkpoint-6"
    new = tmp_path / "new"
    run, name = begin(new, old)
    assert name == "checkpoint-6" and run.record["begun_from"] == str(old)
    run.release()
    run, name = begin(new, old)  # killed before its first checkpoint
    assert name == "checkpoint-6"
    reach(run, 7)
    monkeypatch.chdir(tmp_path)
    run, name = begin(new, "old/checkpoints/../checkpoints/checkpoint-6")
    assert name == "checkpoint-7"
    reach(run, 8)
    run, name = begin(new, "auto")
    assert name == "checkpoint-8"
    run.release()
    shutil.move(old, tmp_path / "gone")
    run, name = begin(new, old, overwrite=True)
    assert name == "checkpoint-8"
    run.update(status="done")
    run.release()
    refusal = RunDirectory(new).refusal(str(old), False, RECORD)
    assert refusal.problem.code == "output-exists"


def test_a_run_that_is_told_to_go_back_loses_what_came_after(tmp_path):
    old = with_checkpoints(tmp_path / "old", steps=(3, 6, 9))
    run, name = begin(old.path, old.checkpoints / "checkpoint-6")
    run.release()
    assert name == "checkpoint-6" and old.newest_checkpoint().name == "checkpoint-6"
    run, name = begin(old.path, old.checkpoints / "checkpoint-3")
    assert name == "checkpoint-3" and old.newest_checkpoint().name == "checkpoint-3"
    run.release()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_other_files_in_the_model_s_folder_are_told(name, tmp_path, monkeypatch):
    monkeypatch.setattr("gemma_trainer.models.fingerprint.WHOLE", 1000)
    model = tmp_path / "model"
    model.mkdir()
    for file, size in (("config.json", 10), ("tokenizer.json", 900), ("model.safetensors", 900_000)):
        (model / file).write_bytes(bytes(range(256)) * (size // 256) + b"x" * (size % 256))
    record = {**RECORD, "base": fingerprint(str(model))}
    run = with_checkpoints(tmp_path / "run", record)
    assert run.refusal("auto", False, {**record, "base": fingerprint(str(model))}) is None
    (model / "README.md").write_text("of no matter")
    content = bytearray((model / name).read_bytes())
    (model / name).write_bytes(bytes((byte + 1) % 256 for byte in content))
    refusal = run.refusal("auto", False, {**record, "base": fingerprint(str(model))})
    assert refusal.problem.code == "resume-mismatch" and f"{name} of the model has changed" in refusal.problem.message
    assert fingerprint("google/gemma-3-270m-it") == {}
