#!/usr/bin/env python3
"""Made-up chat and preference rows from the prose of Python's own docstrings: the same for a seed and a Python version.

About 1.5 kB and 320 tokens a row as JSON, 2 to 6 messages. One row in seven has a system prompt; a few per cent hold code,
lists, blank lines, quotation marks or text that is not ASCII. Two words in a hundred are invented, as names and numbers are new
in real data. `quoted` is the same with quotation marks or blank lines in most rows, which parsers read more slowly.

usage: python benchmarks/rows.py sft|dpo|quoted COUNT FILE [--seed 0]
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

_SENTENCE = re.compile(r"[A-Z][A-Za-z0-9 ,;:'\"()_/.%-]{30,240}?[.!?](?=\s)")
_SYLLABLES = [
    "ka",
    "ri",
    "mo",
    "ten",
    "sul",
    "va",
    "nor",
    "del",
    "qui",
    "pha",
    "zo",
    "bri",
    "lem",
    "ost",
    "ur",
    "gan",
    "wyl",
    "eth",
]
_FOREIGN = [
    "naïve",
    "café",
    "Zürich",
    "東京",
    "сегодня",
    "🙂",
    "日本語で",
    "año",
    "résumé",
    "ελληνικά",
    "50 €",
    "“quoted”",
]
_SYSTEM = [
    "You are a helpful assistant.",
    "Answer in one paragraph.",
    "You write short, exact technical answers.",
    "Reply politely.",
]
_ASKING = [
    "Explain this: ",
    "What does it mean? ",
    "",
    "",
    "Rewrite: ",
    "Please summarise. ",
    "Is this right? ",
    "How would you say it? ",
]


class Source:
    """Sentences and code found in the standard library."""

    def __init__(self):
        sentences: dict[str, None] = {}
        code: dict[str, None] = {}
        for file in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
            text = file.read_text("utf-8", "replace")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(text)
            for node in ast.walk(tree):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    found = _SENTENCE.findall(" ".join((ast.get_docstring(node) or "").split()) + " ")
                    sentences.update(dict.fromkeys(found))
                if isinstance(node, ast.FunctionDef) and 3 < node.end_lineno - node.lineno < 9:
                    lines = text.split("\n")[node.lineno - 1 : node.end_lineno]
                    code["\n".join(line[node.col_offset :] for line in lines)] = None
        self.quoted, self.code = list(sentences), list(code)
        self.plain = [sentence for sentence in sentences if '"' not in sentence]


class Rows:
    def __init__(self, source: Source, seed: int):
        self.source, self.random = source, random.Random(seed)
        self.sentences, self.marked = source.plain, 0.05  # share of long answers in paragraphs

    def sft(self) -> dict:
        turns = self.random.choice([1, 1, 1, 2, 2, 3])
        messages = []
        if turns < 3 and self.random.random() < 0.2:
            messages.append({"role": "system", "content": self.random.choice(_SYSTEM)})
        for _ in range(turns):
            messages += [
                {"role": "user", "content": self.question()},
                {"role": "assistant", "content": self.answer(13 / turns)},
            ]
        return {"messages": messages}

    def quoted(self) -> dict:
        self.sentences, self.marked = self.source.quoted, 0.5
        return self.sft()

    def dpo(self) -> dict:
        """Half with plain strings, half with lists of messages."""
        prompt, chosen, rejected = self.question(), self.answer(5.5), self.answer(5.5)
        if self.random.random() < 0.5:
            return {"prompt": prompt, "chosen": chosen, "rejected": rejected}
        chat = [{"role": "user", "content": prompt}]
        if self.random.random() < 0.3:
            chat += [{"role": "assistant", "content": self.answer(2)}, {"role": "user", "content": self.question()}]
        answers = ([{"role": "assistant", "content": text}] for text in (chosen, rejected))
        return dict(zip(("prompt", "chosen", "rejected"), (chat, *answers), strict=True))

    def question(self) -> str:
        return self.random.choice(_ASKING) + self.prose(self.random.choice([1, 1, 2, 2, 3]))

    def answer(self, mean: float) -> str:
        """About `mean` sentences, some of them with code or a list among them."""
        count = max(1, round(self.random.gauss(mean, mean / 2)))
        kind = self.random.random()
        if kind < 0.03:
            return f"{self.prose(count)}\n\n```python\n{self.random.choice(self.source.code)}\n```\n\n{self.prose(1)}"
        if kind < 0.07:
            items = "\n".join(f"{mark} {self.prose(1)}" for mark in self.random.choice(["-" * 4, "1234"]))
            return f"{self.prose(1)}\n\n{items}"
        if count > 4 and kind < 0.07 + self.marked:
            return self.prose(count // 2) + "\n\n" + self.prose(count - count // 2)
        return self.prose(count)

    def prose(self, count: int) -> str:
        sentences = self.source.quoted if self.random.random() < 0.02 else self.sentences
        text = " ".join(self.random.choices(sentences, k=count))
        words = text.split(" ")
        for _ in range(round(len(words) * 0.02 + self.random.random() - 0.5)):
            words[self.random.randrange(len(words))] = self.invented()
        if self.random.random() < 0.01:
            words.append(self.random.choice(_FOREIGN))
        return " ".join(words)

    def invented(self) -> str:
        if self.random.random() < 0.4:
            return str(self.random.randrange(10 ** self.random.randint(1, 7)))
        return "".join(self.random.choices(_SYLLABLES, k=self.random.randint(2, 4))).capitalize()


def lines(kind: str, count: int, seed: int = 0) -> Iterator[str]:
    """JSON Lines as `json.dumps` writes them by default, so that text beyond ASCII is escaped."""
    make = getattr(Rows(Source(), seed), kind)
    return (json.dumps(make()) + "\n" for _ in range(count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["sft", "dpo", "quoted"])
    parser.add_argument("count", type=int)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    part = args.file.with_name(args.file.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        file.writelines(lines(args.kind, args.count, args.seed))
    part.replace(args.file)


if __name__ == "__main__":
    main()
