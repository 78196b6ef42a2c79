"""The preference example: reproducible, without leaks, and told apart by nothing but the unit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import pytest

from preparing import prep
from scripts import ASSETS

EXAMPLE = ASSETS / "examples" / "preferences"
UNITS = {
    "weight": "kg",
    "length": "metres",
    "volume": "litres",
    "time": "minutes",
    "price": "euros",
    "distance": "miles",
}


@pytest.fixture(scope="module")
def rows() -> dict[str, list[dict]]:
    return {
        name: [json.loads(line) for line in (EXAMPLE / f"{name}.jsonl").open(encoding="utf-8")]
        for name in ("train", "eval")
    }


def test_the_generator_gives_the_files_byte_for_byte(tmp_path):
    subprocess.run([sys.executable, EXAMPLE / "generate.py", "--out", tmp_path, "--seed", "0"], check=True, timeout=60)
    for name in ("train.jsonl", "eval.jsonl"):
        assert (tmp_path / name).read_bytes() == (EXAMPLE / name).read_bytes()


def test_only_the_chosen_answer_says_the_unit_and_both_are_right(rows):
    for row in rows["train"] + rows["eval"]:
        chosen, rejected = row["chosen"][0]["content"], row["rejected"][0]["content"]
        unit = UNITS[row["quantity"]]
        assert unit in chosen and unit not in rejected
        numbers = [
            {int(word) for word in text.replace(".", "").split() if word.isdigit()} for text in (chosen, rejected)
        ]
        assert numbers[0] == numbers[1] and len(numbers[0]) == 1


def test_length_and_opening_do_not_tell_the_sides_apart(rows):
    words = {side: [len(row[side][0]["content"].split()) for row in rows["train"]] for side in ("chosen", "rejected")}
    means = {side: sum(counts) / len(counts) for side, counts in words.items()}
    assert max(means.values()) < 1.2 * min(means.values())
    longer = sum(a > b for a, b in zip(words["chosen"], words["rejected"], strict=True)) / len(rows["train"])
    assert 0.3 < longer < 0.7


def test_no_question_stands_twice_and_the_quantities_are_even(rows):
    asked = [row["prompt"][0]["content"] for side in rows.values() for row in side]
    assert len(asked) == len(set(asked)) == 1400
    counts = Counter(row["quantity"] for row in rows["eval"])
    assert max(counts.values()) - min(counts.values()) <= 1


def test_the_rows_are_canonical():
    code, document = prep("validate", EXAMPLE / "train.jsonl", EXAMPLE / "eval.jsonl", "--strict")
    assert code == 0 and document["result"]["valid"] == 1400 and not document["result"]["warnings_by_code"]
