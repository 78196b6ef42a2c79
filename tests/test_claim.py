"""A directory that a kill or a fault has left can be gone on with, or told what to do; what is no run stays."""

import json
import os
from pathlib import Path

import pytest

from gemma_trainer.rows.problems import Failure
from gemma_trainer.train import run as training
from gemma_trainer.train.run_dir import LOCK, RunDirectory

RECORD = {"command": "sft_train.py", "arguments": {}, "plan": {"steps": 4}}
DAMAGED = ("", "{", "null", "[]", "{}", "5", '{"status": "done"}', b"\xff\xfe", json.dumps({**RECORD, "status": 5}))


@pytest.fixture
def run(tmp_path):
    """A run that stopped after its second checkpoint."""
    run = RunDirectory(tmp_path / "run")
    run.start(RECORD)
    for step in (1, 2):
        checkpoint = run.checkpoints / f"checkpoint-{step}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "model.safetensors").write_text("weights")
        run.mark_complete(step)
        run.log({"step": step, "loss": 1.0})
    (run.path / "link").symlink_to(tmp_path)
    run.release()
    return run


def begin(path, resume="auto", overwrite=False):
    run = RunDirectory(path)
    try:
        checkpoint = run.open(resume, overwrite)
        run.start(RECORD)
    finally:
        run.release()
    return checkpoint


def refused(path, *words):
    with pytest.raises(Failure) as failure:
        begin(path, *words)
    return failure.value


def test_what_a_run_leaves_before_run_json_is_nothing(tmp_path):
    for name in (LOCK, ".run.json.part", ".eval.jsonl.12.part"):
        (tmp_path / name).write_text("")
    (tmp_path / "checkpoints").mkdir()
    assert RunDirectory(tmp_path).refusal("never", False, RECORD) is None
    (tmp_path / "checkpoints" / "mine").write_text("")
    assert refused(tmp_path, "auto", True).problem.code == "output-exists"
    (tmp_path / "checkpoints" / "mine").unlink()
    assert begin(tmp_path) is None and (tmp_path / "run.json").is_file()


def test_a_kill_at_any_moment_of_overwriting_can_be_gone_on_from(run, tmp_path, monkeypatch):
    class Kill(BaseException):
        pass

    def watched(name, function, count):
        def call(*args, **kwargs):
            count[0] -= 1
            if count[0] < 0:
                raise Kill
            return function(*args, **kwargs)

        monkeypatch.setattr(os, name, call)

    import shutil

    template, kills = tmp_path / "template", 0
    shutil.copytree(run.path, template, symlinks=True)
    for moment in range(100):
        shutil.rmtree(run.path)
        shutil.copytree(template, run.path, symlinks=True)
        count, lock = [moment], RunDirectory(run.path)
        with monkeypatch.context() as patch:
            for name in ("unlink", "rmdir", "replace"):
                watched(name, getattr(os, name), count)
            try:
                lock.open("auto", True)
            except Kill:
                kills += 1
            patch.undo()
        monkeypatch.undo()
        lock.release()
        left = RunDirectory(run.path)
        for checkpoint in left.checkpoints.glob("*/complete.json"):
            assert (checkpoint.parent / "model.safetensors").is_file()
        assert begin(run.path, "auto", True) is None
        assert {entry.name for entry in run.path.iterdir()} == {LOCK, "run.json"}
        if count[0] >= 0:
            break
    assert kills > 8 and template.is_dir()


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_record_is_told_with_what_can_be_done(text, run):
    run.run_file.write_bytes(text if isinstance(text, bytes) else text.encode())
    for words in (("auto",), ("never",), (str(run.checkpoints / "checkpoint-1"),)):
        failure = refused(run.path, *words)
        assert (failure.exit_code, failure.problem.code) == (2, "run-damaged")
        assert RunDirectory(run.path).refusal(*words, False, RECORD).problem == failure.problem
    whole = run.checkpoints / "checkpoint-2"
    assert str(run.run_file) in failure.problem.message and str(whole) in failure.problem.message
    assert "--overwrite" in failure.problem.fix and f"--resume {whole}" in failure.problem.fix
    assert begin(run.path.with_name("other"), str(whole)) == whole
    assert RunDirectory(run.path).fitting("training") is None
    assert begin(run.path, "auto", True) is None


def test_whole_checkpoints_without_a_record_are_a_run(run):
    run.run_file.unlink()
    assert refused(run.path).problem.code == "run-damaged"
    assert begin(run.path, "auto", True) is None


@pytest.mark.parametrize("text", ["[]", '{"status": "COMPLETED", "command": "main"}'])
def test_the_run_json_of_another_tool_stays(text, tmp_path):
    (tmp_path / "run.json").write_text(text)
    for words in (("auto", False), ("auto", True)):
        failure = refused(tmp_path, *words)
        assert failure.problem.code == "output-exists" and "--overwrite" not in failure.problem.fix
    assert (tmp_path / "run.json").read_text() == text and len(list(tmp_path.iterdir())) == 1


def test_a_place_that_takes_no_files_is_told_to_the_plan_too(run, monkeypatch):
    long = run.path / ("x" * 300)
    assert refused(long).problem.code == "output-unwritable"
    assert RunDirectory(long).refusal("auto", False, RECORD).exit_code == 2
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # the user of a test may be root
    for path in (run.path, run.path / "new" / "deeper"):
        assert RunDirectory(path).refusal("auto", False, RECORD).problem.code == "output-unwritable"
        assert refused(path).exit_code == 2


def test_a_system_that_refuses_to_write_is_told_in_words(run, monkeypatch):
    def read_only(self, *args, **kwargs):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "open", read_only)
    for overwrite in (False, True):
        assert refused(run.path, "auto", overwrite).problem.code == "output-unwritable"


@pytest.mark.parametrize(
    "text, kept, told",
    [
        (b'{"step": 1, "loss": 1.0}\n{"step": 2, "loss": 1.0}\n{"step": 3, "lo', [1, 2], None),  # as a kill leaves it
        (b'{"step": 1, "loss": 1.0}\n5\n{"step": 2, "loss": 1.0}\n', [1, 2], "1 damaged"),
        (b'\xff\xfe\n{"step": "2"}\n{"step": 2, "loss": 1.0}\n', [2], "2 damaged lines were dropped, and 1 lines"),
        (b"", [], "2 lines up to step 2 are missing"),
        (None, [], "2 lines up to step 2 are missing"),
    ],
)
def test_damaged_or_missing_metrics_are_told(text, kept, told, run):
    run.metrics_file.unlink()
    if text is not None:
        run.metrics_file.write_bytes(text)
    assert [line["step"] for line in run.metrics()] == kept
    run.rewind_metrics(2)
    assert [line["step"] for line in run.metrics()] == kept and run.metrics_file.is_file()
    assert [warning.code for warning in run.warnings] == (["metrics-incomplete"] if told else [])
    assert not told or told in run.warnings[0].message


def test_metrics_that_are_logged_now_and_then_lack_nothing(run):
    run.log({"step": 4, "loss": 1.0})
    run.rewind_metrics(5, every=2)
    run.rewind_metrics(-1)  # a fresh start
    assert run.warnings == [] and run.metrics() == []


def test_a_run_whose_directory_is_deleted_says_so(run, tmp_path):
    run.reread()
    run.run_file.unlink()
    failure = training._ending(FileNotFoundError(2, "No such file"), None, run)
    assert failure.exit_code == 1 and "deleted" in failure.problem.message
    training._leave(run, failure)
    assert not run.run_file.exists()


def test_a_run_that_was_not_begun_is_told_without_a_status(tmp_path):
    assert RunDirectory(tmp_path / "new").ended() == {"run": str(tmp_path / "new"), "status": None, "step": 0}
