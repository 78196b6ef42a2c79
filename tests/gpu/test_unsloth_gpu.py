"""The Unsloth engine on one NVIDIA GPU: losses and adapters of the TRL engine, memory as planned, and no slower."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from pathlib import Path

import pytest

from engine_runs import losses, make_runs
from gemma_trainer.plan.hardware import detect
from gemma_trainer.plan.packages import unsloth_lack
from scripts import run
from training import make_tiny, pair_rows, question_rows

pytestmark = [
    pytest.mark.skipif(detect().kind != "cuda", reason="needs an NVIDIA GPU"),
    pytest.mark.skipif(unsloth_lack() is not None, reason=f"Unsloth is not ready: {unsloth_lack()}"),
]
KINDS = ["gemma3", "gemma3-vision", "gemma4", "gemma4-vision"]
RUNS = [f"{kind}_{mode}_{method}" for kind in KINDS for mode in ("qlora", "lora") for method in ("sft", "dpo")]
# A model large enough to measure: 16 layers of 1,024, the vocabulary of the tokenizer alone.
LARGE = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 16,
    "num_attention_heads": 8,
    "head_dim": 128,
}


def write(place: Path, rows: int) -> None:
    for name, lines in (("sft", question_rows(rows)), ("dpo", pair_rows(rows))):
        for i, line in enumerate(lines):
            line.get("messages", line.get("prompt"))[0]["content"] += f" {i}"
        (place / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("unsloth")
    for kind in KINDS:
        make_tiny(place / kind, kind)
    write(place, 60)
    for backend in ("trl", "unsloth"):
        make_runs(backend, place, RUNS)
    return place


@pytest.mark.parametrize("name", RUNS)
def test_losses_are_those_of_the_trl_engine(name, folder):
    """In bfloat16, whose kernels differ."""
    assert losses(folder, f"{name}-unsloth") == pytest.approx(losses(folder, f"{name}-trl"), rel=0.02, abs=0.02)
    used = f"{name}-unsloth"
    words = ["--metric", "reward-accuracy"] if name.endswith("dpo") else []
    done = run("evaluate.py", "--adapter", used, "--data", f"{used}/eval.jsonl", "--json", *words, cwd=folder)
    assert done.code == 0, done.stdout


def test_auto_takes_it(folder):
    done = run("sft_train.py", "--model", "./gemma3", "--data", "sft.jsonl", "--plan", "--json", cwd=folder)
    assert done.json["result"]["plan"]["backend"] == ("unsloth" if len(detect().gpus) == 1 else "trl")


class Peak(threading.Thread):
    """The most memory of the first GPU that is in use while it runs, in GiB, over what was in use before."""

    def __init__(self):
        super().__init__(daemon=True)
        self.done, self.most, self.before = False, 0.0, self.used()

    @staticmethod
    def used() -> float:
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        return float(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]) / 1024

    def run(self):
        while not self.done:
            self.most = max(self.most, self.used() - self.before)
            time.sleep(0.2)


def test_memory_is_as_planned_and_steps_are_no_slower(tmp_path):
    """QLoRA. Memory in use holds what the allocator keeps, so the plan may be under it by a third."""
    make_tiny(tmp_path / "large", "gemma3", **LARGE)
    write(tmp_path, 600)
    seconds = {}
    for backend in ("trl", "unsloth"):
        words = (
            "--model",
            "./large",
            "--data",
            "sft.jsonl",
            "--mode",
            "qlora",
            "--backend",
            backend,
            "--max-steps",
            60,
        )
        peak = Peak()
        peak.start()
        done = run("sft_train.py", *words, "--eval-fraction", 0, "--output-dir", backend, "--json", cwd=tmp_path)
        peak.done = True
        peak.join()
        assert done.code == 0, done.stdout
        result = done.json["result"]
        seconds[backend] = result["metrics"]["seconds"]
        planned = result["plan"]["memory"]["memory_gib"]["total"]
        print(f"{backend}: {seconds[backend]} s, {peak.most:.2f} GiB, planned {planned:.2f}")
        assert 0.67 * peak.most < planned < 1.5 * peak.most
    assert seconds["unsloth"] < 1.5 * seconds["trl"]  # its kernels are compiled during the first steps
