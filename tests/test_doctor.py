"""doctor.py as a user runs it: what fits, which command, how fast, and a JSON that its schema describes."""

from __future__ import annotations

import json
import resource
import shlex
import subprocess
import sys

import jsonschema
import pytest

from scripts import ASSETS, run
from training import make_tiny

SCHEMA = json.loads((ASSETS / "schemas" / "doctor.json").read_text())


def ask(*words: object, code: int = 0) -> dict:
    done = run("doctor.py", *words, "--json")
    assert done.code == code, done.stdout + done.stderr
    jsonschema.validate(done.json["result"], SCHEMA)
    return done.json


def test_can_i_tune_gemma_4_12b_on_a_4090():
    """How, how long a context, with which command."""
    answer = ask("--model", "google/gemma-4-12B-it", "--emulate", "1xRTX4090-24G")
    result = answer["result"]
    assert [(line["mode"], line["fits"]) for line in result["table"]] == [
        ("qlora", True),
        ("lora", False),
        ("full", False),
    ]
    assert result["fit"]["fits"] and 8000 < result["fit"]["longest"] < 40000
    assert 7 < result["table"][0]["memory_gib"]["total"] < 12
    assert (result["route"]["backend"], result["route"]["mode"]) == ("trl", "qlora")
    (command,) = answer["next"]
    assert "sft_train.py --model google/gemma-4-12B-it" in command and "--mode qlora" in command


@pytest.mark.parametrize(
    ("hardware", "method"),
    [("1xRTX4090-24G", "dpo"), ("8xH100-80G", "sft"), ("2x8xA100-80G", "rm"), ("cpu-16G", "sft"), ("mps-32G", "dpo")],
)
def test_every_form_of_hardware_is_answered(hardware, method):
    answer = ask("--model", "google/gemma-3-4b-it", "--method", method, "--emulate", hardware)
    assert answer["result"]["fit"]["fits"] and f"{method}_train.py" in answer["next"][0]
    parallel = {line["parallel"] for line in answer["result"]["table"]}
    assert parallel == ({None, "ddp", "fsdp"} if "x8" in hardware or hardware.startswith("8x") else {None})


def test_preferences_are_learned_from_the_adapter_that_is_named(tmp_path):
    tiny = make_tiny(tmp_path / "model")
    adapter = tmp_path / "run"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tiny.path)}))
    for method, start in (("dpo", f"--adapter {adapter}"), ("sft", f"--model {tiny.path}")):
        (command,) = ask("--model", adapter, "--method", method, "--emulate", "cpu-16G")["next"]
        assert start in command


def test_the_table_shows_the_format_that_is_chosen():
    result = ask("--model", "google/gemma-4-12B-it", "--emulate", "cpu-13G")["result"]
    line = next(line for line in result["table"] if line["mode"] == result["fit"]["mode"])
    assert result["fit"]["fits"] and line["fits"] and line["dtype"] == result["fit"]["dtype"] == "bfloat16"
    assert "would take" in result["fit"]["why"]["dtype"]


def test_no_hardware_is_not_this_hardware():
    assert run("doctor.py", "--emulate=").code == 2


def test_for_several_nodes_the_command_is_that_of_each_node():
    (command,) = ask("--model", "google/gemma-3-4b-it", "--emulate", "2x8xA100-80G")["next"]
    assert command.startswith("accelerate launch --config_file") and "--num_machines 2 --num_processes 16" in command
    assert "--machine_rank $NODE_RANK" in command and "sft_train.py --model google/gemma-3-4b-it" in command


@pytest.mark.parametrize(("hardware", "batch"), [("3x8xH100-80G", 24), ("5x2xA100-80G", 20), ("3x1xL4", 18)])
def test_a_number_of_nodes_that_16_rows_cannot_serve(hardware, batch):
    """The batch is made to suit, and the command says so."""
    answer = ask("--model", "google/gemma-3-4b-it", "--emulate", hardware)
    assert answer["result"]["fit"]["effective_batch_size"] == batch and not answer["warnings"]
    assert f"--effective-batch-size {batch}" in answer["next"][0]


def test_what_does_not_fit_is_exit_5_with_three_ways():
    answer = ask("--model", "google/gemma-4-26B-A4B-it", "--emulate", "1xRTX4090-24G", code=5)
    (error,) = answer["errors"]
    assert error["code"] == "does-not-fit" and "--model google/gemma-4-12B-it" in error["fix"]
    assert len(answer["result"]["fit"]["ways"]) == 3 and answer["next"]
    for line in answer["next"]:
        _, script, *words = shlex.split(line)
        assert run(script.rsplit("/", 1)[1], *words, "--json").code == 0, line
    assert "experts" in answer["result"]["fit"]["why"]


def test_a_tpu_is_reckoned_but_nothing_trains_on_it():
    answer = ask("--model", "google/gemma-3-4b-it", "--emulate", "tpu-v5e-8", code=5)
    assert answer["errors"][0]["code"] == "hardware-unsupported" and answer["result"]["route"] is None
    assert answer["result"]["table"][0]["fits"]


def test_without_a_model_the_largest_ones_are_named():
    largest = ask("--emulate", "1xRTX4090-24G")["result"]["largest"]
    assert largest["qlora"]["model"] == "google/gemma-4-31B-it" and largest["full"]["model"].startswith("google/")
    sizes = [ask("--emulate", card)["result"]["largest"]["lora"] for card in ("1xT4", "1xA100-80G")]
    assert sizes[0] != sizes[1]
    here = ask()
    assert {"largest", "versions", "work"} <= here["result"].keys()


def test_a_length_over_the_context_is_told():
    answer = ask("--model", "google/gemma-2-2b-it", "--max-length", 9000, "--emulate", "1xA100-80G")
    assert [problem["code"] for problem in answer["warnings"]] == ["length-over-context"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--model", "google/gemma-5-1b"), "model-not-found"),
        (("--emulate", "1xRTX4900-24G"), "hardware-unknown"),
        (("--model", "/no/such/folder"), "model-not-found"),
        (("--max-length", "0"), "usage"),
    ],
)
def test_bad_questions(words, code):
    done = run("doctor.py", *words, "--json")
    assert done.code == 2 and done.codes == {code}


def test_it_answers_within_a_second_and_without_torch():
    probe = "import sys, runpy; sys.argv = sys.argv[1:]; sys.path.insert(0, sys.argv[0].rsplit('/', 1)[0])\n"
    probe += (
        "try: runpy.run_path(sys.argv[0], run_name='__main__')\nexcept SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    words = ["--model", "google/gemma-4-31B-it", "--emulate", "8xH100-80G", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", probe, str(ASSETS / "doctor.py"), *words], capture_output=True, text=True
    )
    assert not {"torch", "transformers", "trl", "numpy", "huggingface_hub"} & set(done.stderr.split())
    # Processor time: other work on the machine must not fail the test.
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ask(*words[:-1])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1


@pytest.mark.parametrize("method", ["sft", *(pytest.param(name, marks=pytest.mark.slow) for name in ("dpo", "rm"))])
def test_the_command_that_is_printed_runs(tmp_path, method):
    """For a local model, up to the plan: the flags exist, the example's rows are taken, and the plan is what was said."""
    tiny = make_tiny(tmp_path / "model", max_position_embeddings=2048)
    answer = ask("--model", tiny.path, "--method", method, "--max-length", 512, "--emulate", "cpu-16G")
    _, script, *words = shlex.split(answer["next"][0])
    done = run(script.rsplit("/", 1)[1], *words, "--plan", "--json")
    assert done.code == 0, done.stderr
    plan, told = done.json["result"]["plan"], answer["result"]["fit"]
    assert all(plan[key] == told[key] for key in ("mode", "dtype", "micro_batch_size", "max_length"))
