"""Memory of a GPU that really runs out: the ways down are told, and --auto-recover ends as an undisturbed run."""

import json

import pytest

from gemma_trainer.plan.hardware import detect
from scripts import run
from training import make_tiny, question_rows

pytestmark = pytest.mark.skipif(detect().kind != "cuda", reason="needs an NVIDIA GPU")

# Training may take LIMIT bytes, and has them all when the libraries have loaded.
HOOK = """
import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec

class Limit(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "gemma_trainer.train.engine_trl":
            return None
        sys.meta_path.remove(self)
        import torch
        torch.cuda.set_per_process_memory_fraction(LIMIT / torch.cuda.mem_get_info()[1])
        return find_spec(name)

sys.meta_path.insert(0, Limit())
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    make_tiny(folder / "tiny", hidden_size=256, num_hidden_layers=8, max_position_embeddings=4096)
    rows = question_rows(80)
    for i, row in enumerate(rows):
        row["messages"][0]["content"] += f" {i}" + " please" * 1500
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def train(place, name, *more, limit=None):
    environment = {}
    if limit:
        (place / "hook").mkdir(exist_ok=True)
        (place / "hook" / "sitecustomize.py").write_text(HOOK.replace("LIMIT", str(limit)))
        environment = {"PYTHONPATH": str(place / "hook")}
    fixed = ("--model", "tiny", "--data", "rows.jsonl", "--output-dir", name, "--mode", "lora", "--dtype", "float32")
    fixed += ("--max-steps", "4", "--effective-batch-size", "16", "--micro-batch-size", "16", "--eval-fraction", "0.05")
    return run("sft_train.py", *fixed, *more, "--backend", "trl", "--json", cwd=place, **environment)


def losses(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def test_a_gpu_that_is_too_small_is_told_and_gone_on_from(place):
    assert train(place, "whole").code == 0
    limit = 2**28
    failed = train(place, "failed", limit=limit)
    assert failed.code == 5 and failed.json["errors"][0]["code"] == "out-of-memory", failed.stdout
    assert "--micro-batch-size 1: " in failed.json["errors"][0]["fix"]
    done = train(place, "recovered", "--auto-recover", limit=limit)
    assert done.code == 0 and "memory-recovered" in done.codes, done.stdout
    assert losses(place / "recovered") == pytest.approx(losses(place / "whole"), abs=1e-3)
