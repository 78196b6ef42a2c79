#!/usr/bin/env python3
"""Generate the text-to-SQL example: train.jsonl, eval.jsonl (tables seen in training), eval_unseen.jsonl.

Standard library only. The same seed gives the same bytes. Every query was executed in SQLite against the
schema and the data of its own row and returned at least one value.

usage: generate.py [--seed 0] [--out DIR] [--train N] [--eval N] [--unseen N]
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

from questions import JOINED, SINGLE
from scene import Scene
from tables import SEEN, UNSEEN, Table, parse

# Kinds with the most to get wrong stand twice as often in the training rows.
HARD = ("join", "join_where", "between", "both", "either")


def draw(rng: random.Random, kind: str, tables: dict[str, Table]) -> dict:
    """One row of the data set. LookupError when what was drawn does not allow the question."""
    scene = Scene(rng, tables)
    shown = scene.pair() if kind in JOINED else [scene.table()]
    question, sql = (JOINED if kind in JOINED else SINGLE)[kind](rng, *shown)
    if kind not in JOINED and rng.random() < 0.15:
        shown.append(scene.bystander(shown[0]))
    rng.shuffle(shown)
    prompt = "\n".join([*(t.short() for t in shown), question])
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": sql}]
    schema = " ".join(t.ddl() for t in shown)
    return {"messages": messages, "schema": schema, "kind": kind, "tables": [t.table.term for t in shown]}


def answers(row: dict) -> bool:
    """The query of the row runs and finds something."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(row["schema"])
        found = database.execute(row["messages"][-1]["content"]).fetchall()
    return any(value is not None for record in found for value in record)


def build(rng: random.Random, count: int, tables: dict[str, Table], kinds: list[str], taken: set[str]) -> list[dict]:
    """`count` rows, every entry of `kinds` equally often; no prompt twice, no question of `taken`.

    The questions are added to `taken`.
    """
    rows: list[dict] = []
    prompts: set[str] = set()
    misses: Counter[str] = Counter()
    while len(rows) < count:
        kind = kinds[(len(rows) + misses.total() // 1000) % len(kinds)]  # a kind that has run dry is passed over
        try:
            row = draw(rng, kind, tables)
        except LookupError:
            continue
        prompt = row["messages"][0]["content"]
        if prompt in prompts or question_of(prompt) in taken or not answers(row):
            misses[kind] += 1
            continue
        prompts.add(prompt)
        rows.append(row)
    taken |= set(map(question_of, prompts))
    rng.shuffle(rows)
    return rows


def question_of(prompt: str) -> str:
    return prompt.rpartition("\n")[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--train", type=int, default=4800)
    parser.add_argument("--eval", type=int, default=200)
    parser.add_argument("--unseen", type=int, default=100)
    args = parser.parse_args()

    args.out.mkdir(parents=True, exist_ok=True)
    rng, taken = random.Random(args.seed), set()
    kinds = [*SINGLE, *JOINED]
    seen, unseen = parse(SEEN), parse(UNSEEN)
    plan = [
        ("eval", args.eval, seen, kinds),
        ("eval_unseen", args.unseen, unseen, kinds),
        ("train", args.train, seen, [*kinds, *HARD]),
    ]
    for name, count, tables, shares in plan:
        rows = build(rng, count, tables, shares, taken)
        lines = [json.dumps(row, separators=(",", ":")) + "\n" for row in rows]
        (args.out / f"{name}.jsonl").write_text("".join(lines), "utf-8", newline="\n")


if __name__ == "__main__":
    main()
