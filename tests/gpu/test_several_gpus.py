"""The training scripts on several NVIDIA GPUs: accelerate's presets, one process on each GPU, the same result as on one."""

import json

import pytest

from gemma_trainer.plan.hardware import detect
from scripts import run
from training import make_place

pytestmark = pytest.mark.skipif(len(detect().gpus) < 2, reason="needs two NVIDIA GPUs")
DATA = {"sft": "rows.jsonl", "dpo": "pairs.jsonl", "rm": "pairs.jsonl"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return make_place(tmp_path_factory.mktemp("gpus"), 60)


def losses(folder) -> dict[int, float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


@pytest.mark.parametrize("mode", ["qlora", "lora", "full"])
@pytest.mark.parametrize("method", ["sft", "dpo", "rm"])
def test_two_gpus_equal_one(method, mode, place):
    words = ("--mode", mode, "--max-steps", "10", "--learning-rate", "5e-3", "--eval-fraction", "0.2", "--json")
    words += ("--model", "tiny", "--data", DATA[method], "--micro-batch-size", "4")
    for count, parallel in ((1, "ddp"), (2, "ddp"), (2, "fsdp")):
        name = f"{method}-{mode}-{count}-{parallel}"
        more = ("--processes", count, "--parallel", parallel, "--output-dir", name)
        done = run(f"{method}_train.py", *words, *more, cwd=place)
        assert done.code == 0, done.stdout + done.stderr[-2000:]
        assert losses(place / name) == pytest.approx(losses(place / f"{method}-{mode}-1-ddp"), rel=0.02)
