"""What the rewards of a DPO run are measured against is still what the run began with, or evaluate.py says so."""

from __future__ import annotations

import json

import pytest

import evaluate
from gemma_trainer import cli
from gemma_trainer.evaluate.options import add_arguments
from gemma_trainer.models.tiny import make_tokenizer
from gemma_trainer.plan.adapter import adapter_hash
from training import pair_rows


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Pairs, the adapter `start`, and what a DPO run from it leaves beside weights: `lora`, and `full` of all weights."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pair_rows(4)))
    for name in ("start", "lora", "full"):
        folder = tmp_path / name
        make_tokenizer(["List the name"], "gemma3").save_pretrained(folder)
        if name == "full":
            (folder / "config.json").write_text('{"model_type": "gemma3_text"}')
            continue
        (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "base", "peft_type": "LORA"}')
        (folder / "adapter_model.safetensors").write_bytes(b"weights")
    return tmp_path


def run_of(place, name: str, **plan) -> None:
    adapter = {"path": str(place / "start"), "hash": adapter_hash(place / "start")}
    plan = {"method": "dpo", "model": str(place / "base"), "mode": "lora", "adapter": adapter, **plan}
    (place / name / "run.json").write_text(json.dumps({"status": "done", "plan": plan}))


def measure(capsys, *words: str) -> tuple[int, dict]:
    argv = [*words, "--data", "pairs.jsonl", "--json"]
    code = cli.main("evaluate.py", evaluate.__doc__, add_arguments, evaluate.run, argv)
    return code, json.loads(capsys.readouterr().out)["errors"][0]


def train_again(place):
    (place / "start" / "adapter_model.safetensors").write_bytes(b"others!")


def remove(place):
    (place / "start" / "adapter_model.safetensors").unlink()


@pytest.mark.parametrize(("happens", "code"), [(train_again, "reference-changed"), (remove, "reference-missing")])
@pytest.mark.parametrize("run", ["lora", "full"])
def test_a_starting_adapter_that_is_another_one_is_no_reference(happens, code, run, place, capsys):
    run_of(place, run)
    happens(place)
    flag = "--model" if run == "full" else "--adapter"
    exit_code, error = measure(capsys, flag, run, "--metric", "reward-accuracy")
    assert (exit_code, error["code"]) == (2, code)
    assert str(place / "start") in error["message"] and f"rewards of {run} " in error["message"]


@pytest.mark.parametrize("run", ["lora", "full"])
def test_a_starting_model_that_is_gone_is_named(run, place, capsys):
    run_of(place, run, adapter=None)
    flag = "--model" if run == "full" else "--adapter"
    exit_code, error = measure(capsys, flag, run, "--metric", "reward-accuracy")
    assert (exit_code, error["code"]) == (2, "reference-missing")
    assert str(place / "base") in error["message"] and f"rewards of {run} " in error["message"]


@pytest.mark.parametrize("metric", [(), ("--metric", "loss"), ("--metric", "reward-accuracy")])
def test_a_whole_model_given_as_adapter(metric, place, capsys):
    run_of(place, "full")
    exit_code, error = measure(capsys, "--adapter", "full", *metric)
    assert (exit_code, error["code"]) == (2, "usage") and "--model full" in error["fix"]
