"""The whole way, as a user walks it: messy files -> clean rows -> training -> the gain."""

import csv
import json

import pytest

from scripts import run
from training import make_tiny, question_rows

pytestmark = [pytest.mark.slow, pytest.mark.main_path]


def pairs(count, tag):
    """Questions that differ between formats, with answers that can be learned."""
    for i, row in enumerate(question_rows(count)):
        question, answer = (message["content"] for message in row["messages"])
        yield f"{question} {tag} {i}", answer


def write_sharegpt(path):
    rows = [{"conversations": [{"from": "human", "value": q}, {"from": "gpt", "value": a}]} for q, a in pairs(40, "a")]
    path.write_text(json.dumps(rows))


def write_csv_with_blank_cells(path):
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["instruction", "input", "output"])
        table.writerows([q, "", a] for q, a in pairs(40, "b"))
        table.writerow(["a question without an answer", "", ""])


def write_parquet(path):
    import pyarrow as pa
    from pyarrow import parquet

    chats = [[{"role": "user", "content": q}, {"role": "model", "content": a}] for q, a in pairs(40, "c")]
    parquet.write_table(pa.table({"messages": chats}), path)


def test_messy_files_become_a_measured_model(tmp_path):
    make_tiny(tmp_path / "tiny", hidden_size=96, initializer_range=0.1)
    write_sharegpt(tmp_path / "chats.json")
    write_csv_with_blank_cells(tmp_path / "table.csv")
    write_parquet(tmp_path / "rows.parquet")
    out = []
    for name, rows, rejected in (("chats.json", 40, 0), ("table.csv", 40, 1), ("rows.parquet", 40, 0)):
        clean = f"{name}.clean.jsonl"
        words = ("--out", clean, "--rejects", f"{name}.rejects.jsonl", "--family", "gemma3", "--json")
        converted = run("dataset_prep.py", "convert", name, *words, cwd=tmp_path)
        assert converted.code == 0, converted.stdout
        result = converted.json["result"]
        assert (result["rows_out"], result["rejected"], result["rows"]) == (rows, rejected, rows + rejected)
        assert run("dataset_prep.py", "validate", clean, "--model", "tiny", "--json", cwd=tmp_path).code == 0
        out.append(clean)

    words = ("--mode", "full", "--learning-rate", "5e-3", "--epochs", "10", "--eval-fraction", "0.1", "--json")
    trained = run("sft_train.py", "--model", "tiny", "--data", *out, "--output-dir", "tuned", *words, cwd=tmp_path)
    assert trained.code == 0, trained.stdout
    measured = run(
        "evaluate.py", "--model", "tuned", "--data", "tuned/eval.jsonl", "--compare-base", "--json", cwd=tmp_path
    )
    assert measured.code == 0, measured.stdout
    base, tuned = measured.json["result"]["base"], measured.json["result"]["tuned"]
    assert tuned["loss"] < base["loss"] / 4
    assert base["exact_match"] < 0.1 and tuned["similarity"] > 0.8 > base["similarity"]
