"""The example data set: reproducible, executable, without leaks, and not answerable without its schema."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from gemma_trainer.evaluate.metrics import sql_match

EXAMPLE = Path(__file__).parents[1] / "assets" / "examples" / "text_to_sql"
NAMES = ("train", "eval", "eval_unseen")


@pytest.fixture(scope="module")
def rows() -> dict[str, list[dict]]:
    return {name: [json.loads(line) for line in (EXAMPLE / f"{name}.jsonl").open(encoding="utf-8")] for name in NAMES}


def prompt(row: dict) -> str:
    return row["messages"][0]["content"]


def question(row: dict) -> str:
    return prompt(row).rpartition("\n")[2]


def generate(out: Path, *words: str) -> None:
    subprocess.run([sys.executable, EXAMPLE / "generate.py", "--out", out, *words], check=True, timeout=120)


def test_the_generator_gives_the_files_byte_for_byte(tmp_path):
    generate(tmp_path, "--seed", "0")
    for name in NAMES:
        assert (tmp_path / f"{name}.jsonl").read_bytes() == (EXAMPLE / f"{name}.jsonl").read_bytes()


def test_another_seed_gives_other_rows_of_the_wished_number(tmp_path, rows):
    generate(tmp_path, "--seed", "1", "--train", "60", "--eval", "30", "--unseen", "30")
    made = {name: (tmp_path / f"{name}.jsonl").read_text("utf-8").splitlines() for name in NAMES}
    assert {name: len(lines) for name, lines in made.items()} == {"train": 60, "eval": 30, "eval_unseen": 30}
    assert prompt(json.loads(made["train"][0])) != prompt(rows["train"][0])


def test_size_and_shape(rows):
    assert len(rows["train"]) >= 2000 and len(rows["eval"]) >= 200 and len(rows["eval_unseen"]) >= 100
    assert sum((EXAMPLE / f"{name}.jsonl").stat().st_size for name in NAMES) < 3_000_000
    for row in (row for name in NAMES for row in rows[name]):
        assert list(row) == ["messages", "schema", "kind", "tables"]
        assert [message["role"] for message in row["messages"]] == ["user", "assistant"]
        assert all(message["content"] == message["content"].strip() for message in row["messages"])


def test_every_query_runs_and_finds_something(rows):
    for row in (row for name in NAMES for row in rows[name]):
        sql = row["messages"][-1]["content"]
        assert sql_match(sql, sql, row["schema"]) is True


def test_kinds_are_many_and_all_stand_in_every_file(rows):
    counts = {name: Counter(row["kind"] for row in rows[name]) for name in NAMES}
    assert len(counts["train"]) >= 14
    for name in NAMES:
        assert counts[name].keys() == counts["train"].keys()
        assert max(counts[name].values()) <= 3 * min(counts[name].values())


def test_each_kind_is_asked_in_several_ways(rows):
    ways = defaultdict(set)
    for row in rows["train"]:
        ways[row["kind"]].add(question(row).split()[0])
    assert all(len(first_words) >= 2 for first_words in ways.values())


def test_held_out_questions_do_not_stand_in_train(rows):
    asked = set(map(question, rows["train"]))
    for name in ("eval", "eval_unseen"):
        assert not asked & set(map(question, rows[name]))
    assert len(set(map(prompt, rows["train"]))) == len(rows["train"])


def test_unseen_tables_stand_in_no_other_file(rows):
    tables = {name: {table for row in rows[name] for table in row["tables"]} for name in NAMES}
    assert len(tables["train"]) >= 40
    assert tables["eval"] <= tables["train"]
    assert not tables["eval_unseen"] & tables["train"]


def test_the_schema_has_to_be_read(rows):
    """The same question has different answers, told apart by the schema alone."""
    answers = defaultdict(set)
    for row in rows["train"]:
        answers[question(row)].add(row["messages"][-1]["content"])
    assert sum(len(queries) > 1 for queries in answers.values()) > 50


def test_schemas_vary_within_a_table(rows):
    shown = defaultdict(set)
    for row in rows["train"]:
        shown[row["tables"][0]].add(prompt(row).split("\n")[0])
    assert min(map(len, shown.values())) >= 10


def test_the_prompt_shows_the_tables_of_the_schema(rows):
    for row in rows["eval"]:
        lines = prompt(row).split("\n")[:-1]
        assert len(lines) == len(row["tables"])
        for line in lines:
            name, _, columns = line.rstrip(")").partition("(")
            statement = row["schema"].split(f"CREATE TABLE {name}(")[1].split(")")[0]
            assert [field.split()[0] for field in statement.split(", ")] == columns.split(", ")
