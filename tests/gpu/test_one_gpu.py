"""sft_train.py on one NVIDIA GPU: tiny models, every mode, bfloat16."""

import json

import pytest

from gemma_trainer.plan.hardware import detect
from scripts import run
from training import make_tiny, question_rows

pytestmark = pytest.mark.skipif(detect().kind != "cuda", reason="needs an NVIDIA GPU")


@pytest.mark.parametrize("kind", ["gemma3", "gemma3-vision", "gemma4", "gemma4-vision"])
@pytest.mark.parametrize("mode", ["qlora", "lora", "full"])
def test_a_run_trains_saves_and_verifies(kind, mode, tmp_path):
    make_tiny(tmp_path / "tiny", kind)
    rows = question_rows(60)
    for i, row in enumerate(rows):
        row["messages"][0]["content"] += f" {i}"
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("--mode", mode, "--max-steps", "10", "--learning-rate", "5e-3", "--eval-fraction", "0.2", "--json")
    done = run("sft_train.py", "--model", "tiny", "--data", "rows.jsonl", "--output-dir", "run", *words, cwd=tmp_path)
    assert done.code == 0, done.stdout
    metrics, plan = done.json["result"]["metrics"], done.json["result"]["plan"]
    assert plan["device"] == "cuda" and metrics["after"]["loss"] < metrics["before"]["loss"]
    tuned = ("--model", "run") if mode == "full" else ("--adapter", "run")
    measured = run("evaluate.py", *tuned, "--data", "run/eval.jsonl", "--json", cwd=tmp_path)
    assert measured.code == 0, measured.stdout
    assert measured.json["result"]["tuned"]["loss"] == pytest.approx(metrics["after"]["loss"], rel=0.05)
