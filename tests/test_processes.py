"""Training in several processes: the same result as in one, a checkpoint of one for the other, and no way to lose a run."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from scripts import command, run
from training import make_place, question_rows, write_rows

# 119 rows in batches of 4: the last step of an epoch is shared unevenly.
FIXED = ("--model", "tiny", "--learning-rate", "0.01", "--eval-fraction", "0.2", "--micro-batch-size", "4", "--json")
WORDS = (*FIXED, "--max-steps", "20")
DATA = {"sft": "rows.jsonl", "dpo": "pairs.jsonl", "rm": "pairs.jsonl"}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a tiny model, rows and pairs."""
    return make_place(tmp_path_factory.mktemp("processes"), 160)


def words(method: str, name: str, *more: object) -> tuple:
    return (f"{method}_train.py", *WORDS, "--data", DATA[method], "--output-dir", name, *more)


def train(place: Path, method: str, name: str, *more: object):
    done = run(*words(method, name, *more), cwd=place)
    assert done.code == 0, done.stdout + done.stderr[-2000:]
    return done


def losses(folder: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def assert_equal_runs(a: Path, b: Path) -> None:
    """The same losses, held-out measures and weights."""
    from safetensors.torch import load_file

    assert len(losses(a)) == 20 and losses(a)[20] < losses(a)[1]
    assert losses(a) == pytest.approx(losses(b), abs=1e-4)
    records = [json.loads((folder / "run.json").read_text()) for folder in (a, b)]
    assert {record["status"] for record in records} == {"done"}
    for when, near in (("before", 1e-5), ("after", 1e-3)):
        assert records[0]["metrics"][when] == pytest.approx(records[1]["metrics"][when], abs=near)
    name = "adapter_model.safetensors" if (a / "adapter_model.safetensors").exists() else "model.safetensors"
    ours, theirs = load_file(a / name), load_file(b / name)
    assert ours.keys() == theirs.keys()
    for key in ours:
        assert float((ours[key] - theirs[key]).abs().max()) < 1e-3, key


@pytest.fixture(scope="module")
def alone(place):
    """An undisturbed SFT run in one process."""
    train(place, "sft", "alone")
    return place / "alone"


@pytest.mark.parametrize("mode", ["lora", "full"])
@pytest.mark.parametrize("method", ["sft", "dpo", "rm"])
def test_two_processes_equal_one(method, mode, place):
    one, two = f"{method}-{mode}-1", f"{method}-{mode}-2"
    # A higher rate than this, and rounding grows with the loss.
    how = ("--mode", mode, "--learning-rate", {"lora": "0.01", "full": "0.002"}[mode])
    train(place, method, one, *how)
    done = train(place, method, two, *how, "--processes", "2")
    plan = done.json["result"]["plan"]
    assert (plan["processes"], plan["accumulation_steps"], plan["parallel"]) == (2, 2, "ddp")
    assert_equal_runs(place / one, place / two)


class Started:
    """A run in two processes that is still going on."""

    def __init__(self, place: Path, name: str, *more: object):
        self.folder = place / name
        line = command(*words("sft", name, "--processes", "2", "--save-steps", "2", *more))
        self.process = subprocess.Popen(
            line, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def ranks(self) -> list[psutil.Process]:
        """In the order of their ranks."""
        children = psutil.Process(self.process.pid).children()
        ranks = {}
        for each in children:
            with contextlib.suppress(psutil.Error):  # it has just begun, or ended
                ranks[each.environ().get("RANK", "")] = each
        return [ranks[rank] for rank in sorted(ranks.keys() - {""})]

    def wait_for_ranks(self) -> list[psutil.Process]:
        """Both, as soon as they are there."""
        deadline = time.monotonic() + 200
        while len(ranks := self.ranks()) < 2:
            assert self.process.poll() is None and time.monotonic() < deadline, self.process.stderr.read()[-3000:]
            time.sleep(0.005)
        return ranks

    def wait_for(self, step: int) -> list[psutil.Process]:
        metrics, deadline = self.folder / "metrics.jsonl", time.monotonic() + 200
        while not (metrics.exists() and f'"step": {step},' in metrics.read_text()):
            assert self.process.poll() is None and time.monotonic() < deadline, self.process.stderr.read()[-3000:]
            time.sleep(0.005)
        return self.ranks()

    def end(self, ranks: list[psutil.Process], starting: bool = False) -> tuple[int, dict]:
        """(exit code, JSON), within a minute and without a process left. To Ctrl-C while it is `starting` Python says more."""
        output, messages = self.process.communicate(timeout=60)
        _, left = psutil.wait_procs(ranks, timeout=60)
        assert not left and (starting or "Traceback" not in messages), messages
        return self.process.returncode, json.loads(output)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_saves_and_one_process_goes_on(number, place, alone):
    name = f"signal-{number}"
    started = Started(place, name)
    ranks = started.wait_for(5)
    started.process.send_signal(number)
    code, result = started.end(ranks)
    assert code == 6 and result["errors"][0]["code"] == "stopped", result
    record = json.loads((started.folder / "run.json").read_text())
    assert record["status"] == "stopped"
    train(place, "sft", name, "--save-steps", "2")
    assert_equal_runs(alone, started.folder)


def test_two_processes_go_on_from_the_checkpoint_of_one(place, alone):
    line = command(*words("sft", "handed", "--save-steps", "2"))
    process = subprocess.Popen(line, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    metrics = place / "handed" / "metrics.jsonl"
    while not (metrics.exists() and '"step": 9,' in metrics.read_text()):
        assert process.poll() is None
        time.sleep(0.005)
    process.kill()
    process.communicate()
    train(place, "sft", "handed", "--save-steps", "2", "--processes", "2")
    assert_equal_runs(alone, place / "handed")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_ends_the_run_resumable(rank, place, alone):
    started = Started(place, f"killed-{rank}")
    ranks = started.wait_for(7)
    ranks[rank].kill()
    code, result = started.end(ranks)
    problem = result["errors"][0]
    assert code == 6 and problem["code"] == "process-lost" and f"process {rank} of 2" in problem["message"], result
    assert json.loads((started.folder / "run.json").read_text())["status"] == "stopped"
    train(place, "sft", f"killed-{rank}", "--save-steps", "2", "--processes", "2")
    assert_equal_runs(alone, started.folder)


def test_a_killed_launcher_leaves_a_saved_run_and_no_process(place, alone):
    started = Started(place, "headless")
    ranks = started.wait_for(6)
    started.process.kill()
    started.process.communicate()
    _, left = psutil.wait_procs(ranks, timeout=60)
    assert not left
    assert json.loads((started.folder / "run.json").read_text())["status"] in ("stopped", "done")
    if json.loads((started.folder / "run.json").read_text())["status"] == "stopped":
        train(place, "sft", "headless", "--save-steps", "2", "--processes", "2")
    assert_equal_runs(alone, started.folder)


@pytest.mark.parametrize("after", [0.1, 1.0])
def test_ctrl_c_before_training_is_told_once(after, place):
    """It goes to the whole group: the command and its processes, which may still be starting."""
    started = Started(place, f"early-{after}")
    ranks = started.wait_for_ranks()
    time.sleep(after)
    os.killpg(started.process.pid, signal.SIGINT)
    code, result = started.end(ranks, starting=True)
    assert code == 6 and result["errors"][0]["code"] == "interrupted", result
    assert result["result"] == {"run": started.folder.name, "status": "stopped", "step": 0}
    assert "--processes 2" in result["next"][0]


def test_a_process_that_is_killed_as_it_starts_is_told_once(place):
    started = Started(place, "killed-early")
    ranks = started.wait_for_ranks()
    ranks[1].kill()
    code, result = started.end(ranks)
    assert code == 1 and "process 1 of 2 was killed by signal 9" in result["errors"][0]["message"], result


def test_a_launcher_that_is_killed_at_once_leaves_no_process(place):
    started = Started(place, "headless-early")
    ranks = started.wait_for_ranks()
    started.process.kill()
    started.process.communicate(timeout=60)
    _, left = psutil.wait_procs(ranks, timeout=60)
    assert not left


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


@pytest.mark.parametrize(
    "data, problem", [("no.jsonl", "file-not-found"), ("only-$RANK.jsonl", "file-not-found")], ids=["both", "one"]
)
def test_a_refusal_under_torchrun_is_told_once(data, problem, place):
    """Also one that the first process alone would not have found."""
    write_rows(place / "only-0.jsonl", question_rows(160))
    line = f"exec {shlex.join(command('sft_train.py', *WORDS, '--output-dir', 'torchrun-refused'))} --data {data}"
    done = subprocess.run(
        [*TORCHRUN, "--no-python", "bash", "-c", line], cwd=place, capture_output=True, text=True, timeout=200
    )
    assert json.loads(done.stdout)["errors"][0]["code"] == problem, done.stdout + done.stderr
    assert "exitcode  : 2" in done.stderr and not (place / "torchrun-refused").exists()


def test_torchrun_starts_the_processes_as_well(place, alone):
    line = [*TORCHRUN, *command(*words("sft", "torchrun"))[1:]]
    done = subprocess.run(line, cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"]["plan"]["processes"] == 2  # one object, from the first process
    assert_equal_runs(alone, place / "torchrun")


def launched_by_hand(place: Path, data: list[str], *more: object) -> list[subprocess.CompletedProcess]:
    """Two processes that a scheduler started, each with its own data file."""
    port = "29511"
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    started = []
    for rank, file in enumerate(data):
        line = command("sft_train.py", *WORDS, "--data", file, "--output-dir", "by-hand", *more)
        own = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
        started.append(
            subprocess.Popen(line, cwd=place, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    ended = [(each, *each.communicate(timeout=120)) for each in started]
    return [subprocess.CompletedProcess(each.args, each.returncode, *texts) for each, *texts in ended]


def test_processes_that_see_other_data_do_not_train(place):
    write_rows(place / "other.jsonl", question_rows(160)[::-1])
    first, second = launched_by_hand(place, ["rows.jsonl", "other.jsonl"])
    assert (first.returncode, second.returncode) == (2, 2), first.stderr + second.stderr
    problem = json.loads(first.stdout)["errors"][0]
    assert problem["code"] == "processes-differ" and "data" in problem["message"]
    assert second.stdout == "" and not (place / "by-hand").exists()


def test_a_number_of_processes_that_the_launcher_contradicts_is_refused(place):
    first, _ = launched_by_hand(place, ["rows.jsonl"] * 2, "--processes", "4")
    assert first.returncode == 2 and "2 were launched" in json.loads(first.stdout)["errors"][0]["message"]


@pytest.mark.parametrize(
    "more, code, problem",
    [
        (("--data", "bad.jsonl"), 3, "data-refused"),
        (("--data", "rows.jsonl", "--effective-batch-size", "15"), 2, "usage"),
        (("--data", "rows.jsonl", "--parallel", "fsdp"), 5, "parallel-unsupported"),
        (("--data", "-"), 2, "usage"),
        (("--data", "rows.jsonl", "--output-dir", "file"), 2, "output-unwritable"),
        (("--data", "rows.jsonl", "--demo"), 2, "usage"),
    ],
)
def test_what_is_wrong_is_told_once_and_before_anything_starts(more, code, problem, place):
    write_rows(
        place / "bad.jsonl", [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]}]
    )
    (place / "file").write_text("mine")
    line = command("sft_train.py", *FIXED, "--output-dir", "refused", *more, "--processes", "2")
    done = subprocess.run(
        line, cwd=place, input=(place / "rows.jsonl").read_text(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert json.loads(done.stdout)["errors"][0]["code"] == problem and "starting" not in done.stderr
