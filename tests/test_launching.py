"""How many processes are planned, how they are started, and the presets for accelerate."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from gemma_trainer.plan.emulate import emulate
from gemma_trainer.plan.processes import PRESETS, Place, check_parallel, choose_processes, find_place, preset
from gemma_trainer.rows.problems import Failure
from gemma_trainer.train.arguments import add_sft_arguments
from gemma_trainer.train.voice import ENDINGS, LAUNCHER, first_ending
from scripts import command, run
from training import make_tiny, question_rows

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a"}


@pytest.mark.parametrize(
    "hardware, batch, count",
    [("8xH100-80G", 16, 8), ("6xA100-80G", 16, 4), ("2x8xA100-80G", 16, 16), ("2x3xA100-80G", 16, 4), ("1xA100-80G", 16, 1),
     ("3xA100-80G", 7, 1), ("cpu-16G", 16, 1), ("mps-32G", 16, 1)],
)  # fmt: skip
def test_each_gpu_that_can_share_the_batch_gets_a_process(hardware, batch, count):
    assert choose_processes(None, batch, emulate(hardware), None)[0] == count


@pytest.mark.parametrize(
    "wish, batch, hardware, code",
    [(3, 16, "8xH100-80G", 2), (4, 16, "2xA100-80G", 5), (2, 16, "mps-32G", 5), (None, 3, "2x8xA100-80G", 2)],
)
def test_processes_that_cannot_be_are_refused(wish, batch, hardware, code):
    with pytest.raises(Failure) as caught:
        choose_processes(wish, batch, emulate(hardware), None)
    assert caught.value.exit_code == code


def test_a_launcher_tells_the_place(monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    here = find_place()
    assert here == Place(3, 4, 1, 2, False)
    assert choose_processes(None, 16, emulate("2xA100-80G"), here)[0] == 4  # of two nodes
    with pytest.raises(Failure, match="4 were launched"):
        choose_processes(2, 16, emulate("2xA100-80G"), here)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert find_place().sharded
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert find_place() is None


def test_how_the_model_is_shared_is_what_was_launched():
    gpus, here = emulate("2xA100-80G"), Place(0, 2, 0, 2, True)
    assert check_parallel(None, 2, gpus, here) == "fsdp"
    assert check_parallel(None, 2, gpus, None) is None  # the plan chooses
    assert check_parallel(None, 2, emulate("cpu-16G"), None) == "ddp"
    with pytest.raises(Failure, match="launched for fsdp"):
        check_parallel("ddp", 2, gpus, here)
    with pytest.raises(Failure, match="no FSDP"):
        check_parallel("fsdp", 2, emulate("cpu-16G"), None)


# Presets


@pytest.mark.parametrize("name", ["ddp", "fsdp2", "zero3"])
def test_presets_are_configs_of_accelerate(name):
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.utils import DistributedType

    config = load_config_from_file(str(PRESETS / f"{name}.yaml"))  # raises for an unknown key
    kinds = {"ddp": DistributedType.MULTI_GPU, "fsdp2": DistributedType.FSDP, "zero3": DistributedType.DEEPSPEED}
    assert config.distributed_type == kinds[name] and config.mixed_precision == "no"


def test_every_preset_is_launched_as_its_settings_say(monkeypatch):
    """What `accelerate launch` would hand to the processes."""
    from accelerate.commands import launch

    seen = {}
    monkeypatch.setattr(launch, "multi_gpu_launcher", lambda args: seen.update(vars(args)))
    words = ["--config_file", str(preset("fsdp")), "--num_processes", "4", "--main_process_port", "0", "x.py", "--a"]
    launch.launch_command(launch.launch_command_parser().parse_args(words))
    assert seen["use_fsdp"] and seen["num_processes"] == 4 and seen["training_script_args"] == ["--a"]
    from accelerate.utils.launch import prepare_multi_gpu_env

    environment = prepare_multi_gpu_env(launch.argparse.Namespace(**seen))
    assert environment["ACCELERATE_USE_FSDP"] == "true" and environment["FSDP_VERSION"] == "2"
    assert environment["FSDP_AUTO_WRAP_POLICY"] == "TRANSFORMER_BASED_WRAP"
    assert environment["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "false"


def test_all_presets_are_named_here():
    assert {file.stem for file in PRESETS.glob("*.yaml")} == {"ddp", "fsdp2", "zero3"}


# Plans


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("launching")
    make_tiny(folder / "tiny")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in question_rows(60)))
    return folder


def plan(place: Path, *words: object) -> dict:
    done = run("sft_train.py", "--data", "rows.jsonl", "--plan", "--json", *words, cwd=place)
    assert done.code == 0, done.stdout
    return done.json


def test_a_plan_for_several_nodes_says_what_each_runs(place):
    found = plan(place, "--model", "tiny", "--emulate", "2x8xA100-80G", "--effective-batch-size", "64")
    made = found["result"]["plan"]
    assert made["processes"] == 16 and made["parallel"] == "ddp" and "one on each GPU" in made["why"]["processes"]
    assert made["micro_batch_size"] * made["accumulation_steps"] * 16 == 64
    assert found["next"] == [made["on_each_node"]]
    assert "--num_machines 2 --num_processes 16 --machine_rank $NODE_RANK" in made["on_each_node"]
    assert "ddp.yaml" in made["on_each_node"] and "--emulate" not in made["on_each_node"]


def test_weights_are_split_where_no_copy_fits(place):
    words = ("--model", "google/gemma-4-31B-it", "--emulate", "8xH200-141G", "--mode", "full")
    made = plan(place, *words)["result"]["plan"]
    assert (made["processes"], made["parallel"]) == (8, "fsdp") and "whole copy" in made["why"]["parallel"]
    small = plan(place, "--model", "google/gemma-3-1b-it", "--emulate", "8xA100-80G", "--parallel", "fsdp")
    assert small["result"]["plan"]["parallel"] == "fsdp"


def test_processes_on_a_cpu_share_its_memory(place):
    one, two = (
        plan(place, "--model", "tiny", "--emulate", "cpu-16G", "--processes", n)["result"]["plan"] for n in (1, 2)
    )
    assert one["memory"]["budget_gib"] == pytest.approx(2 * two["memory"]["budget_gib"], rel=0.01)
    assert one["steps"] == two["steps"]


@pytest.mark.parametrize(
    "text, words",
    [
        ("plan: true\n", ()),
        ("plan: true\nemulate: 1xA100-80G\njson: true\npacking: false\n", ()),
        ("emulate: 1xA100-80G\n", ("--plan",)),
        ("seed: 3\n", ("--plan", "--emulate=1xA100-80G")),
    ],
)
def test_what_a_plan_names_next_trains(text, words, place):
    """Wherever --plan and --emulate were given; the command line wins as before."""
    config = f"{text}data: [rows.jsonl]\nlora-dropout: 0\noutput-dir: with space\nmodel: other\n"
    (place / "plan.yaml").write_text(config)
    done = run("sft_train.py", "--config", "plan.yaml", *words, "--model", "tiny", "--json", cwd=place)
    assert done.code == 0, done.stdout
    (line,) = done.json["next"]
    assert line == done.json["result"]["plan"]["launch"]
    parser = argparse.ArgumentParser()
    add_sft_arguments(parser)
    parser.add_argument("--config")
    args = parser.parse_args(shlex.split(line)[2:])
    assert not args.plan and not args.emulate and args.model == "tiny"
    if args.config:
        assert not {"plan", "emulate"} & yaml.safe_load((place / args.config).read_text()).keys()
    else:
        assert (args.data, args.lora_dropout, args.output_dir) == (["rows.jsonl"], 0, "with space")


# One speaks


def started_as(place: Path, *words: str, **environment: str) -> subprocess.CompletedProcess:
    line = command("sft_train.py", "--model", "tiny", *words, "--json")
    return subprocess.run(
        line, cwd=place, env={**os.environ, **environment}, capture_output=True, text=True, timeout=100
    )


@pytest.mark.parametrize("words", [("--epochs", "x"), ("--config", "no.yaml"), ("--demo",), ("--data", "no.jsonl")])
def test_of_launched_processes_the_first_speaks_alone(words, place):
    first, second = (started_as(place, *words, **{**TORCHRUN, "RANK": rank}) for rank in "02")
    assert (first.returncode, second.returncode) == (2, 2)
    problem = json.loads(first.stdout)["errors"][0]
    assert second.stdout == "" and "process 2: " in second.stderr and problem["message"] in second.stderr


@pytest.mark.parametrize("rank", "01")
def test_what_our_launcher_started_tells_it_alone(rank, place, tmp_path):
    ours = {ENDINGS: str(tmp_path), LAUNCHER: str(os.getpid())}
    done = started_as(place, "--data", "no.jsonl", **{**TORCHRUN, **ours, "RANK": rank})
    assert done.returncode == 2 and done.stdout == ""
    ending = first_ending(tmp_path)
    assert ending.exit_code == 2 and ending.errors[0].code == "file-not-found"


def test_what_was_started_by_a_launcher_that_is_gone_stops(place, tmp_path):
    """However early that went."""
    ours = {ENDINGS: str(tmp_path), LAUNCHER: "1" if os.getpid() != 1 else "2"}
    words = ("--data", "rows.jsonl", "--output-dir", "orphan")
    assert started_as(place, *words, **{**TORCHRUN, **ours}).returncode == 6


# An epoch


@pytest.mark.parametrize(
    "rows, micro, processes", [(119, 4, 2), (117, 4, 2), (64, 4, 4), (7, 3, 4), (1, 4, 3), (10, 1, 4)]
)
def test_every_row_of_an_epoch_is_trained_once(rows, micro, processes):
    from torch.utils.data import BatchSampler, SequentialSampler

    from gemma_trainer.train.batches import EvenRounds

    batches = EvenRounds(BatchSampler(SequentialSampler(range(rows)), micro, False), processes)
    taken = list(batches)
    assert (
        len(taken) == len(batches) and len(taken) % processes == 0 and all(0 < len(batch) <= micro for batch in taken)
    )
    seen = [row for batch in taken for row in batch]
    assert sorted(set(seen)) == list(range(rows))
    left = rows % (micro * processes)
    assert len(seen) - rows == (processes - left if 0 < left < processes else 0)


# Signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_that_comes_twice_at_once_is_one(number, monkeypatch):
    from gemma_trainer.train.guards import StopOnSignal

    before = signal.signal(number, signal.default_int_handler)
    try:
        with StopOnSignal() as stop:
            for _ in range(3):  # of the scheduler, and of the launcher
                signal.raise_signal(number)
            assert stop.received == number
            monkeypatch.setattr(StopOnSignal, "AGAIN", -1.0)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
    finally:
        signal.signal(number, before)


# Files for clusters


def test_examples_for_clusters_name_what_exists():
    deploy = PRESETS.parents[1] / "deploy"
    texts = {file.name: file.read_text("utf-8") for file in deploy.iterdir()}
    assert {"slurm-multi-node.sbatch", "jobset-multi-node.yaml"} <= texts.keys()
    for name in ("slurm-multi-node.sbatch", "jobset-multi-node.yaml"):
        for path in re.findall(r"assets/[\w/.-]+", texts[name]):
            assert (PRESETS.parents[2] / path).exists(), path
    subprocess.run(["bash", "-n", deploy / "slurm-multi-node.sbatch"], check=True)
    job = yaml.safe_load(texts["jobset-multi-node.yaml"])["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = job["template"]["spec"]["containers"][0]
    assert job["completionMode"] == "Indexed" and f"--num_machines {job['completions']} " in pod["command"][2]
    assert {"MASTER_ADDR", "NODE_RANK"} <= {each["name"] for each in pod["env"]}
