#!/usr/bin/env python3
"""Generate the preference example: train.jsonl and eval.jsonl, pairs of right answers with and without their unit.

Standard library only. The same seed gives the same bytes. Every answer holds the right number; the chosen one says the
unit too. Wordings are drawn for each side alone, so that neither length nor wording tells the sides apart.

usage: generate.py [--seed 0] [--out DIR] [--train N] [--eval N]
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import NamedTuple


class Quantity(NamedTuple):
    """`adds` and `leaves` are questions about two numbers of `unit`; {a} > {b}, {thing} and {other} are different."""

    unit: str
    things: tuple[str, ...]
    adds: tuple[str, ...]
    leaves: tuple[str, ...]


QUANTITIES = {
    "weight": Quantity(
        "kg",
        ("rice", "sand", "flour", "coal", "salt", "corn", "clay", "wool"),
        ("A bag of {thing} weighs {a} kg, a bag of {other} {b} kg. How heavy are both?",
         "I carry {a} kg of {thing} and {b} kg of {other}. How much do I carry?"),
        ("There were {a} kg of {thing}, {b} kg were sold. How much {thing} is left?",
         "How much heavier are {a} kg of {thing} than {b} kg of {other}?"),
    ),
    "length": Quantity(
        "metres",
        ("rope", "wire", "pipe", "ribbon", "cable", "hose", "chain", "tape"),
        ("One {thing} is {a} metres long, one {other} {b} metres. How long are both in a row?",
         "We need {a} metres of {thing} and {b} metres of {other}. How much do we need?"),
        ("From {a} metres of {thing} we cut {b} metres. How long is the rest?",
         "How much longer are {a} metres of {thing} than {b} metres of {other}?"),
    ),
    "volume": Quantity(
        "litres",
        ("water", "milk", "juice", "oil", "paint", "soup", "tea", "fuel"),
        ("A tank holds {a} litres of {thing}, another {b} litres of {other}. How much do both hold?",
         "We mix {a} litres of {thing} with {b} litres of {other}. How much is it?"),
        ("Of {a} litres of {thing}, {b} litres are used. How much {thing} is left?",
         "How much more are {a} litres of {thing} than {b} litres of {other}?"),
    ),
    "time": Quantity(
        "minutes",
        ("walk", "lesson", "film", "meeting", "ride", "concert", "match", "call"),
        ("The {thing} takes {a} minutes, the {other} {b} minutes. How long do both take?",
         "After a {thing} of {a} minutes comes a {other} of {b} minutes. How long is that?"),
        ("The {thing} takes {a} minutes, {b} minutes are over. How long does it still take?",
         "How much longer is a {thing} of {a} minutes than a {other} of {b} minutes?"),
    ),
    "price": Quantity(
        "euros",
        ("book", "lamp", "chair", "coat", "clock", "drum", "kite", "vase"),
        ("A {thing} costs {a} euros, a {other} {b} euros. What do both cost?",
         "I pay {a} euros for a {thing} and {b} euros for a {other}. What do I pay?"),
        ("A {thing} was {a} euros and is now {b} euros cheaper. What does it cost?",
         "How much dearer is a {thing} of {a} euros than a {other} of {b} euros?"),
    ),
    "distance": Quantity(
        "miles",
        ("Rome", "Oslo", "Lima", "Cairo", "Delhi", "Quito", "Paris", "Tokyo"),
        ("It is {a} miles to {thing} and {b} miles on to {other}. How far is it?",
         "We drove {a} miles towards {thing} and {b} miles towards {other}. How far was that?"),
        ("It is {a} miles to {thing}, we went {b} miles. How far is it still?",
         "How much farther are {a} miles to {thing} than {b} miles to {other}?"),
    ),
}  # fmt: skip

WITH_UNIT = (
    "{n} {unit}.",
    "It is {n} {unit}.",
    "That makes {n} {unit}.",
    "The answer is {n} {unit}.",
    "{n} {unit} in all.",
)
WITHOUT = ("It is {n}.", "That makes {n}.", "The answer is {n}.", "It is {n} in all.", "That makes {n} then.")


def answer(text: str) -> dict:
    return {"role": "assistant", "content": text}


def draw(rng: random.Random, name: str) -> dict:
    """One row of the data set."""
    quantity = QUANTITIES[name]
    thing, other = rng.sample(quantity.things, 2)
    b, a = sorted(rng.sample(range(2, 50), 2))
    kind, combine = rng.choice(((quantity.adds, int.__add__), (quantity.leaves, int.__sub__)))
    number = combine(a, b)
    question = rng.choice(kind).format(thing=thing, other=other, a=a, b=b)
    return {
        "prompt": [{"role": "user", "content": question}],
        "chosen": [answer(rng.choice(WITH_UNIT).format(n=number, unit=quantity.unit))],
        "rejected": [answer(rng.choice(WITHOUT).format(n=number))],
        "quantity": name,
    }


def build(rng: random.Random, count: int, taken: set[str]) -> list[dict]:
    """`count` rows, every quantity equally often, no question of `taken`; the questions are added to it."""
    rows: list[dict] = []
    names = list(QUANTITIES)
    while len(rows) < count:
        row = draw(rng, names[len(rows) % len(names)])
        question = row["prompt"][0]["content"]
        if question not in taken:
            taken.add(question)
            rows.append(row)
    rng.shuffle(rows)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--train", type=int, default=1200)
    parser.add_argument("--eval", type=int, default=200)
    args = parser.parse_args()

    args.out.mkdir(parents=True, exist_ok=True)
    rng, taken = random.Random(args.seed), set()
    for name, count in (("eval", args.eval), ("train", args.train)):
        lines = [json.dumps(row, separators=(",", ":")) + "\n" for row in build(rng, count, taken)]
        (args.out / f"{name}.jsonl").write_text("".join(lines), "utf-8", newline="\n")


if __name__ == "__main__":
    main()
