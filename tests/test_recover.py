"""Memory that runs out: what is told, and how a run goes on with fewer rows a pass."""

import errno
import json
import resource
import shlex
from ast import literal_eval
from dataclasses import replace

import jsonschema
import pytest
import torch

from gemma_trainer.plan.choices import Wishes
from gemma_trainer.plan.emulate import emulate
from gemma_trainer.plan.fit import fit, ways_down
from gemma_trainer.plan.size import size_of
from gemma_trainer.rows.problems import is_disk_full, is_out_of_memory
from gemma_trainer.train.guards import Checkpoints, Recorder
from gemma_trainer.train.recover import Recovery, halved
from gemma_trainer.train.run import run_loop
from gemma_trainer.train.run_dir import RunDirectory
from scripts import ASSETS, run
from training import build, make_place, make_plan, make_tiny, question_rows


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("tiny"))


def short_of_memory(model, rows: int, first: int, training: bool = True):
    """From pass `first` on, the model has no memory for a batch of more than `rows`."""
    passes = [0]

    def check(module, args, kwargs):
        if module.training == training:
            passes[0] += 1
            if passes[0] >= first and kwargs["input_ids"].shape[0] > rows:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    model.register_forward_pre_hook(check, with_kwargs=True)


def train(tiny, folder, micro=8, rows=None, first=1, resume=None, training=True, **changes):
    """(trainer, run) of a run over 28 rows, whose epochs end with 4; with a Recovery where memory runs out."""
    run = RunDirectory(folder)
    if resume is None:
        run.start({"command": "sft_train.py", "arguments": {}, "plan": {}})
    changes = {"mode": "lora", "steps": 7, "save_steps": 3, "learning_rate": 0.01} | changes
    plan = make_plan(tiny.path, micro_batch_size=micro, accumulation_steps=8 // micro, **changes)
    encoded = tiny.encode(question_rows(28))
    trainer, _ = build(tiny, plan, run.checkpoints, encoded, encoded[:6])
    for callback in (Recorder(run, plan.steps), Checkpoints(run)):
        trainer.add_callback(callback)
    if rows is None:
        run_loop(trainer, resume, plan.steps)
    else:
        short_of_memory(trainer.model, rows, first, training)
        Recovery(trainer, plan, run).run_loop(run_loop, resume)
    return trainer, run


def weights(trainer):
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters() if p.requires_grad}


def assert_same(trainer, kept, undisturbed, whole):
    ours, theirs = ({line["step"]: line["loss"] for line in each.metrics() if "loss" in line} for each in (kept, whole))
    assert len(kept.metrics()) == len(whole.metrics()) and ours == pytest.approx(theirs, abs=1e-5)
    theirs = weights(undisturbed)
    assert all(torch.allclose(p, theirs[name], atol=1e-3) for name, p in weights(trainer).items())


@pytest.fixture(scope="module")
def undisturbed(tiny, tmp_path_factory):
    return train(tiny, tmp_path_factory.mktemp("whole") / "run")


# Pass 1 is of the first step; passes are steps until memory runs out. A checkpoint is written after step 3.
@pytest.mark.parametrize(
    "first, rows, events", [(1, 4, [(0, 8, 4)]), (4, 2, [(3, 8, 4), (3, 4, 2)]), (6, 4, [(5, 8, 4)])]
)
def test_a_run_that_is_short_of_memory_ends_as_an_undisturbed_one(first, rows, events, tiny, tmp_path, undisturbed):
    trainer, kept = train(tiny, tmp_path / "run", rows=rows, first=first)
    assert [(event["step"], event["from"], event["to"]) for event in kept.record["events"]] == events
    assert_same(trainer, kept, *undisturbed)


def test_it_goes_on_in_the_middle_of_a_step(tiny, tmp_path, undisturbed):
    trainer, kept = train(tiny, tmp_path / "run", micro=2, rows=1, first=10)  # the second pass of step 3
    assert [(event["step"], event["to"]) for event in kept.record["events"]] == [(2, 1)]
    assert_same(trainer, kept, *undisturbed)


def test_one_row_that_is_too_large_ends_the_run(tiny, tmp_path):
    with pytest.raises(torch.OutOfMemoryError):
        train(tiny, tmp_path / "run", micro=2, rows=0, first=9)
    events = json.loads((tmp_path / "run" / "run.json").read_text())["events"]
    assert [(event["from"], event["to"]) for event in events] == [(2, 1)]


def test_a_failed_update_is_not_gone_on_from(tiny, tmp_path, monkeypatch):
    """Half of the weights may have been updated."""

    def step(self, *args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    with pytest.raises(torch.OutOfMemoryError):
        train(tiny, tmp_path / "run", rows=4, first=1000)


def test_evaluation_takes_fewer_rows_alone(tiny, tmp_path, undisturbed):
    trainer, kept = train(tiny, tmp_path / "run", rows=2, training=False)
    assert [(event["passes"], event["to"]) for event in kept.record["events"]] == [("evaluation", 4), ("evaluation", 2)]
    assert trainer.args.per_device_train_batch_size == 8
    measured = [
        [line["eval_loss"] for line in each.metrics() if "eval_loss" in line] for each in (kept, undisturbed[1])
    ]
    assert measured[0] == pytest.approx(measured[1], rel=0.2)
    again = RunDirectory(tmp_path / "run")
    resumed, _ = build(tiny, make_plan(tiny.path), tmp_path / "x", tiny.encode(question_rows(4)))
    Recovery(resumed, make_plan(tiny.path), again)
    assert resumed.args.per_device_eval_batch_size == 2


def test_halves_divide_the_step():
    assert [halved(8, 8), halved(6, 6), halved(6, 12), halved(3, 6), halved(5, 20)] == [4, 3, 3, 1, 2]


# What is told


@pytest.mark.parametrize(
    "error, memory",
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:121] data. DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 17.9 GB)"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("Error named cudaErrorMemoryAllocation at line 39 in file /csrc/ops.cu"), True),  # bitsandbytes
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (MemoryError(), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory is a phrase of this row"), False),
    ],
)  # fmt: skip
def test_what_says_that_memory_ran_out(error, memory):
    assert is_out_of_memory(error) == memory


def test_what_says_that_the_disk_is_full():
    caused = RuntimeError("PytorchStreamWriter failed writing file data/0")
    caused.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert is_disk_full(caused) and is_disk_full(OSError(errno.EDQUOT, "Disk quota exceeded"))
    assert is_disk_full(Exception("Error while serializing: I/O error: No space left on device (os error 28)"))
    assert not is_disk_full(OSError(errno.EACCES, "Permission denied"))


@pytest.mark.parametrize("most", [2000, 12_000, 20_000, 40_000])  # bytes: in the header, in the tensors
@pytest.mark.parametrize("library", ["torch", "safetensors"])
def test_what_libraries_make_of_a_full_disk_is_known(library, most, tmp_path):
    from safetensors.torch import save_file

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        with pytest.raises(Exception) as error:
            tensors = {str(at): torch.zeros(1000) for at in range(20)}
            (torch.save if library == "torch" else save_file)(tensors, tmp_path / "weights")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert is_disk_full(error.value), error.value


@pytest.mark.parametrize(
    "wishes, flags",
    [
        ({"mode": "lora", "micro": 4}, ["--micro-batch-size 1", "--mode qlora", "--max-length 1024"]),
        ({"mode": "full", "micro": 1, "length": 1024}, ["--mode lora", "--max-length 512"]),
        ({"method": "dpo", "mode": "full", "micro": 2}, ["--micro-batch-size 1", "--precompute-ref", "--mode lora"]),
    ],
)
def test_each_way_down_tells_what_it_would_take(wishes, flags):
    hardware, fields = emulate("1xA100-80G"), {"micro_batch_size": "micro", "max_length": "length"}
    found = fit(size_of("google/gemma-3-1b-it"), hardware, Wishes(**wishes))
    ways = ways_down(found)
    assert [way.change for way in ways] == flags
    for way in ways:
        flag, value = [*way.change.removeprefix("--").replace("-", "_").split(), "True"][:2]
        name = {**fields, "precompute_ref": "precomputed"}.get(flag, flag)
        asked = replace(found.wishes, **{name: value if name == "mode" else literal_eval(value)})
        assert way.gib == pytest.approx(fit(found.model, hardware, asked).estimate.total / 2**30)
        assert way.gib * 2**30 < found.estimate.total


# As a user meets it

HOOK = """
import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec

class Short(MetaPathFinder):
    \"\"\"Training has no memory for a batch of more than ROWS rows from pass FIRST on, in one of the processes.\"\"\"

    def find_spec(self, name, path, target=None):
        if name != "gemma_trainer.train.engine_trl":
            return None
        sys.meta_path.remove(self)
        import os, torch, transformers
        step, passes = transformers.Trainer.training_step, [0]
        def short(self, model, inputs, *more):
            passes[0] += 1
            if os.environ.get("RANK", "1") == "1" and passes[0] >= FIRST and len(inputs["input_ids"]) > ROWS:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return step(self, model, inputs, *more)
        transformers.Trainer.training_step = short
        return find_spec(name)

sys.meta_path.insert(0, Short())
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return make_place(tmp_path_factory.mktemp("place"), 60)


def script(place, name, *more, rows=None, first=3):
    """A run of the script; `rows` are as many as there is memory for."""
    environment = {}
    if rows is not None:
        (place / "hook").mkdir(exist_ok=True)
        (place / "hook" / "sitecustomize.py").write_text(HOOK.replace("ROWS", str(rows)).replace("FIRST", str(first)))
        environment = {"PYTHONPATH": str(place / "hook")}
    fixed = ("--model", "tiny", "--data", "rows.jsonl", "--output-dir", name, "--eval-fraction", "0.2", "--json")
    fixed += ("--max-steps", "5", "--save-steps", "3", "--learning-rate", "0.01", "--effective-batch-size", "8")
    return run("sft_train.py", *fixed, "--micro-batch-size", "4", *more, cwd=place, **environment)


def losses(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


@pytest.fixture(scope="module")
def whole(place):
    done = script(place, "whole")
    assert done.code == 0, done.stdout
    return losses(place / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_auto_recover_ends_the_run_as_if_nothing_had_been(processes, place, whole):
    """Several processes go on from a checkpoint, here from the beginning, as they left a step in its middle."""
    done = script(place, f"on-{processes}", "--processes", processes, "--auto-recover", rows=2)
    assert done.code == 0, done.stdout + done.stderr[-2000:]
    told = [problem["message"] for problem in done.json["warnings"] if problem["code"] == "memory-recovered"]
    assert len(told) == 1 and "from 4 to 2 rows a pass" in told[0]
    assert losses(place / f"on-{processes}") == pytest.approx(whole, abs=1e-5)
    record = json.loads((place / f"on-{processes}" / "run.json").read_text())
    jsonschema.validate(record, json.loads((ASSETS / "schemas" / "run.json").read_text()))


@pytest.mark.slow
def test_without_it_the_ways_are_told_and_the_first_goes_on(place, whole):
    failed = script(place, "plain", rows=2)
    assert failed.code == 5 and failed.json["errors"][0]["code"] == "out-of-memory"
    fix, following = failed.json["errors"][0]["fix"], failed.json["next"][0]
    assert "--micro-batch-size 1: " in fix and "GiB" in fix and following.endswith(" --micro-batch-size 1")
    done = run("sft_train.py", *shlex.split(following)[2:], cwd=place)
    assert done.code == 0 and losses(place / "plain") == pytest.approx(whole, abs=1e-5)


@pytest.mark.parametrize("words, micro", [((), 2), (("--overwrite",), 4), (("--micro-batch-size", "1"), 1)])
def test_a_resumed_run_keeps_the_rows_that_fit(words, micro, place, tmp_path):
    planned = script(place, tmp_path / "run", "--plan").json["result"]["plan"]
    (tmp_path / "run").mkdir()
    event = {"event": "out-of-memory", "passes": "training", "step": 3, "from": 4, "to": 2}
    record = {"command": "sft_train.py", "arguments": {}, "plan": planned, "status": "stopped", "started": ""}
    (tmp_path / "run" / "run.json").write_text(json.dumps({**record, "events": [event]}))
    plan = script(place, tmp_path / "run", "--plan", *words).json["result"]["plan"]
    assert (plan["micro_batch_size"], plan["accumulation_steps"]) == (micro, 8 // micro)
