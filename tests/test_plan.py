"""--plan of the training scripts: what it says of memory, on hardware that is here or not, and of what does not fit."""

from __future__ import annotations

import json
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import jsonschema
import numpy
import pytest
from safetensors.numpy import save_file

from gemma_trainer.plan.choices import Wishes
from gemma_trainer.plan.emulate import emulate
from gemma_trainer.plan.fit import fit
from gemma_trainer.plan.size import size_of
from gemma_trainer.rows.problems import Failure
from scripts import ASSETS, Ran, run
from training import make_tiny, pair_rows, question_rows

ROOT = Path(__file__).parents[1]
SCHEMA = json.loads((ASSETS / "schemas" / "plan.json").read_text())
OFFLINE = {"HF_HUB_OFFLINE": "1"}


def slow(*case: object):
    return pytest.param(*case, marks=pytest.mark.slow)


METHODS = ["sft", slow("dpo"), slow("rm")]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a tiny model, rows and pairs; the first row is longer than any length that is asked for."""
    folder = tmp_path_factory.mktemp("place")
    make_tiny(folder / "tiny")
    rows, pairs = question_rows(60), pair_rows(60)
    for number, row in enumerate(rows):
        row["messages"][0]["content"] += f" {number}"
    rows[0]["messages"][1]["content"] += " word" * 5000
    pairs[0]["chosen"][0]["content"] += " word" * 5000
    for name, lines in (("rows", rows), ("pairs", pairs)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def ask(place: Path, method: str, *words: object, plan: bool = True) -> Ran:
    """Of rows that are as long as --max-length."""
    data = (
        "--data",
        "rows.jsonl" if method == "sft" else "pairs.jsonl",
        "--overlong",
        "truncate",
        "--eval-fraction",
        0,
    )
    more = ("--plan",) if plan else ()
    return run(f"{method}_train.py", *data, *words, *more, "--json", cwd=place, **OFFLINE)


def planned(done: Ran, code: int = 0) -> dict:
    assert done.code == code, done.stdout
    plan = done.json["result"]["plan"]
    jsonschema.validate(plan, SCHEMA)
    return plan


# What is said


def test_a_plan_says_what_the_run_takes_and_why(place):
    plan = planned(ask(place, "sft", "--model", "tiny", "--max-length", 64))
    memory = plan["memory"]
    assert memory["fits"] and memory["ways"] == [] and 0 < memory["memory_gib"]["total"] <= memory["budget_gib"]
    assert memory["memory_gib"]["total"] == max(memory["memory_gib"]["moments"].values())
    assert {"backend", "mode", "dtype", "batch", "checkpointing", "length"} <= plan["why"].keys()
    assert all(line and "\n" not in line for line in plan["why"].values())
    # The tiny model takes the whole batch in one pass and keeps its activations: as fast as a CPU is.
    assert (plan["micro_batch_size"], plan["accumulation_steps"], plan["gradient_checkpointing"]) == (16, 1, False)
    text = run("sft_train.py", "--model", "tiny", "--data", "rows.jsonl", "--plan", cwd=place).stdout
    assert re.search(r"^memory .* GiB at the peak \(\w+\): .*; a run may take ", text, re.MULTILINE)


AGREE = [
    ("google/gemma-4-12B-it", "sft", "1xRTX4090-24G", 2048),
    slow("google/gemma-3-4b-it", "dpo", "1xT4", 1024),
    slow("google/gemma-3-1b-it", "rm", "mps-32G", 1024),
    slow("google/gemma-4-E2B-it", "sft", "cpu-32G", 512),
    ("google/gemma-4-26B-A4B-it", "dpo", "1xRTX4090-24G", 1024),
]


@pytest.mark.parametrize(("model", "method", "hardware", "length"), AGREE)
def test_doctor_and_plan_agree(model, method, hardware, length, place):
    words = ("--model", model, "--max-length", length, "--emulate", hardware)
    doctor = run("doctor.py", *words, "--method", method, "--json")
    done = ask(place, method, *words)
    told, plan = doctor.json["result"]["fit"], done.json["result"]["plan"]
    assert done.code == doctor.code == (0 if told["fits"] else 5)
    assert plan["data"]["longest"] == length
    shared = told.keys() & plan.keys() - {"why"}
    assert {"mode", "dtype", "micro_batch_size", "gradient_checkpointing"} <= shared
    assert {key: plan[key] for key in shared} == {key: told[key] for key in shared}
    assert plan["memory"] == {key: told[key] for key in plan["memory"]}
    rows = {"backend", "processes", "packing"} & plan["why"].keys()
    assert plan["why"] == {**told["why"], **{name: plan["why"][name] for name in rows}}
    assert {problem["code"] for problem in doctor.json["errors"]} == {p["code"] for p in done.json["errors"]}


def test_the_defaults_that_the_skill_names(place):
    text = " ".join((ROOT / "SKILL.md").read_text("utf-8").split())
    said = re.search(r"rank (\d+), alpha (\d+), learning rate (\S+) \((\S+) for `--mode full`\), (\d+) epochs, (\d+) rows a step, ([\d,]+) tokens", text)  # fmt: skip
    plan = planned(ask(place, "sft", "--model", "tiny"))
    assert (plan["lora"]["rank"], plan["lora"]["alpha"]) == (int(said[1]), float(said[2]))
    assert (plan["epochs"], plan["effective_batch_size"]) == (int(said[5]), int(said[6]))
    assert (plan["learning_rate"], plan["max_length"]) == (float(said[3]), int(said[7].replace(",", "")))
    assert planned(ask(place, "sft", "--model", "tiny", "--mode", "full"))["learning_rate"] == float(said[4])


# What does not fit


def test_a_plan_that_does_not_fit_is_exit_5_with_plans_that_do(place):
    words = ("--model", "google/gemma-4-12B-it", "--emulate=RTX4080", "--max-length", 4000, "--mode", "lora")
    done = ask(place, "sft", *words)
    plan = planned(done, 5)
    (error,) = done.json["errors"]
    assert error["code"] == "does-not-fit" and not plan["memory"]["fits"]
    assert 1 <= len(plan["memory"]["ways"]) <= 3 and all(
        way["change"] in error["fix"] for way in plan["memory"]["ways"]
    )
    assert done.json["next"]
    for command in done.json["next"]:
        _, script, *again = shlex.split(command)
        assert len({word for word in again if word.startswith("--")}) == sum(word.startswith("--") for word in again)
        assert planned(run(Path(script).name, *again, "--json", cwd=place, **OFFLINE))["memory"]["fits"]


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_does_not_fit_is_refused_before_anything_is_loaded(method, place, tmp_path):
    model = make_tiny(tmp_path / "large").path
    config = json.loads((model / "config.json").read_text())
    config |= {"num_hidden_layers": 400, "hidden_size": 16_384, "intermediate_size": 65_536, "layer_types": None}
    (model / "config.json").write_text(json.dumps(config))
    done = ask(place, method, "--model", model, "--max-length", 64, "--output-dir", tmp_path / "run", plan=False)
    assert (done.code, done.codes) == (5, {"does-not-fit"}), done.stdout
    assert not (tmp_path / "run").exists()
    assert "loading the training libraries" not in done.stderr


def test_an_adapter_is_offered_neither_another_model_nor_another_rank():
    model, card = size_of("google/gemma-4-12B-it"), emulate("1xRTX4080-16G")
    wishes = {"mode": "lora", "rank": 64, "length": 1024}
    free, bound = (fit(model, card, Wishes(**wishes, continues=continues)).ways for continues in (False, True))
    assert any("--model" in way.change for way in free)
    assert bound and not any("--model" in way.change or "--lora-rank" in way.change for way in bound)


def test_a_micro_batch_must_divide_the_batch(place):
    done = ask(place, "sft", "--model", "tiny", "--micro-batch-size", 5)
    assert done.code == 2 and "--micro-batch-size 5 does not divide" in done.json["errors"][0]["message"]
    with pytest.raises(Failure, match="on 4 devices"):
        fit(size_of("google/gemma-3-1b-it"), emulate("4xA100-80G"), Wishes(micro=8), 4)


# Hardware that is not here


@pytest.mark.parametrize(
    ("method", "words"), [slow("sft", ()), ("dpo", ()), slow("rm", ()), ("sft", ("--demo",)), slow("rm", ("--demo",))]
)
def test_emulated_hardware_is_for_plans_only(method, words, place):
    done = ask(place, method, "--model", "tiny", "--emulate", "1xA100-80G", *words, plan=False)
    assert (done.code, done.codes) == (2, {"usage"}) and "--plan" in done.json["errors"][0]["fix"]


def test_emulated_hardware_decides_and_the_launch_is_for_the_real_one(place):
    done = ask(place, "sft", "--model", "tiny", "--emulate", "2x8xA100-80G")
    plan = planned(done)
    assert (plan["device"], plan["mode"], plan["dtype"], plan["autocast"]) == ("cuda", "qlora", "bfloat16", True)
    assert plan["hardware"]["emulated"] and plan["processes"] == 16
    assert "--emulate" not in plan["launch"] and "--plan" not in plan["launch"] and "A100" not in plan["launch"]
    assert ask(place, "sft", "--model", "tiny", "--emulate", "tpu-v5e-8").codes >= {"hardware-unsupported"}
    assert ask(place, "sft", "--model", "tiny", "--emulate", "1xRTX4900").codes == {"hardware-unknown"}


@pytest.mark.parametrize("method", METHODS)
def test_a_plan_for_emulated_hardware_takes_a_second_and_no_torch(method, place):
    probe = "import sys, runpy; sys.argv = sys.argv[1:]; sys.path.insert(0, sys.argv[0].rsplit('/', 1)[0])\n"
    probe += "try: runpy.run_path(sys.argv[0], run_name='__main__')\nexcept SystemExit as end: code = end.code\n"
    probe += "print(code, *sys.modules, file=sys.stderr)"
    data = "rows.jsonl" if method == "sft" else "pairs.jsonl"
    words = ["--model", "google/gemma-4-31B-it", "--data", data, "--plan", "--emulate", "1xH100-80G", "--json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", probe, str(ASSETS / f"{method}_train.py"), *words],
        cwd=place, capture_output=True, text=True,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    code, *modules = done.stderr.split()
    assert code == "0" and not {"torch", "transformers", "trl", "datasets", "numpy"} & set(modules)
    # Processor time: other work on the machine must not fail the test. No network was tried, though none is forbidden.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1


# Models that are not here


def test_a_released_model_is_planned_without_its_files_and_the_plan_says_so(place):
    done = ask(place, "sft", "--model", "google/gemma-3-1b-it", "--max-length", 64)
    plan = planned(done)
    assert "tokens-guessed" in done.codes and "template-missing" not in done.codes
    assert plan["family"] == "gemma3" and plan["memory"]["memory_gib"]["weights"] > 0.5
    base = ask(place, "dpo", "--model", "google/gemma-3-1b-pt", "--max-length", 64)
    assert {"tokens-guessed", "template-missing", "start-untuned"} <= base.codes and base.code == 0
    tuned = ask(place, "dpo", "--model", "google/gemma-3-1b-it", "--max-length", 64)
    assert "start-untuned" not in tuned.codes and tuned.code == 0


def test_runs_and_unknown_models_are_not_planned_on_guesses(place):
    run_without = ask(place, "sft", "--model", "google/gemma-3-1b-it", plan=False)
    assert (run_without.code, run_without.codes) == (7, {"model-offline"})
    unknown = ask(place, "sft", "--model", "someone/gemma-thing")
    assert (unknown.code, unknown.codes) == (7, {"model-offline"})
    other = ask(place, "sft", "--model", "google/gemma-3-1b-it", "--family", "gemma4")
    assert (other.code, other.codes) == (2, {"family-unknown"})


def test_an_adapter_whose_base_is_not_here_is_planned(place, tmp_path):
    adapter = make_tiny(tmp_path / "adapter").path  # its tokenizer
    for name in ("model.safetensors", "config.json"):
        (adapter / name).unlink()
    facts = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "base_model_name_or_path": "google/gemma-3-270m-it"}
    (adapter / "adapter_config.json").write_text(json.dumps(facts))
    shapes = {"lora_A": (8, 640), "lora_B": (1024, 8)}
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    tensors = {f"{name}.{part}.weight": numpy.zeros(shape, "float32") for part, shape in shapes.items()}
    save_file(tensors, adapter / "adapter_model.safetensors")
    done = ask(place, "sft", "--model", adapter, "--max-length", 64, "--emulate", "cpu-16G")
    plan = planned(done)
    assert plan["lora"]["rank"] == 8 and "tokens-guessed" not in done.codes
    whole = ask(place, "sft", "--model", adapter, "--max-length", 64, "--emulate", "cpu-32G", "--mode", "full", "--lora-rank", 8)  # fmt: skip
    assert planned(whole)["lora"] is None


def test_the_rank_of_ways_is_the_one_that_is_given(place):
    """Full tuning has none; the adapters that it is turned into have."""
    words = ("--model", "google/gemma-3-4b-it", "--data", "rows.jsonl", "--mode", "full", "--lora-rank", "256")
    done = run("sft_train.py", *words, "--plan", "--emulate", "1xV100-32G", "--json", cwd=place, **OFFLINE)
    assert done.code == 5
    way = next(way for way in done.json["result"]["plan"]["memory"]["ways"] if way["change"] == "--mode lora")
    command = next(command for command in done.json["next"] if "--mode lora" in command)
    again = run("sft_train.py", *shlex.split(command)[2:], "--json", cwd=place, **OFFLINE)
    assert again.code == 0 and again.json["result"]["plan"]["lora"]["rank"] == 256
    assert again.json["result"]["plan"]["memory"]["memory_gib"]["total"] == pytest.approx(way["gib"], rel=0.3)
    wide = run(
        "sft_train.py",
        *words[:4],
        "--mode",
        "lora",
        "--plan",
        "--emulate",
        "1xV100-32G",
        "--json",
        cwd=place,
        **OFFLINE,
    )
    assert wide.json["result"]["plan"]["memory"]["memory_gib"]["total"] < way["gib"] - 1
