#!/usr/bin/env python3
"""What dataset_prep.py is measured against: one small loop a call, its own CPU seconds on stdout as JSON.

usage: python benchmarks/baselines.py NAME FILE [--model FOLDER] [--limit ROWS]

Parsers: orjson, json, jsonschema. Tokens: template-sft and template-dpo (the usual pattern: transformers' chat template
and tokenizer once for every text), encode (tokenizers' encode_batch_fast on the bare message texts), official (totals, and
what carries loss, by the official template and tokenizer), load (Tokenizer.from_file alone). Rendering: jinja, direct
and pieces, with --family.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

HERE = Path(__file__).parent
ASSETS = HERE.parent / "assets"
ROLES = {"system", "user", "assistant"}
BATCH = 1_000  # texts a call, as the library's own examples do
TURN, TURN_END, MODEL_HEADER = 105, 106, 3  # Gemma 3 and 4: ids of the marks, tokens of `<turn>model\n`


def run_orjson(args) -> dict:
    import orjson

    with args.file.open("rb", buffering=1 << 20) as file:
        return {"rows": sum(1 for line in file if orjson.loads(line))}


def run_json(args) -> dict:
    with args.file.open("rb", buffering=1 << 20) as file:
        return {"rows": sum(1 for line in file if json.loads(line))}


def run_jsonschema(args) -> dict:
    """Parsed rows against the schema of canonical rows; parsing is not timed."""
    from jsonschema import Draft202012Validator
    from referencing import Registry, Resource

    loaded = [json.loads(path.read_text("utf-8")) for path in (ASSETS / "schemas").glob("*.json")]
    registry = Registry().with_resources(
        (schema["$id"], Resource.from_contents(schema)) for schema in loaded if "$id" in schema
    )
    validator = Draft202012Validator({"$ref": "sft-row.json"}, registry=registry)
    rows = list(parsed(args))
    started = time.process_time()
    return {"rows": sum(validator.is_valid(row) for row in rows), "cpu": time.process_time() - started}


def run_template_sft(args) -> dict:
    tokenizer = official(args.model)
    rows = list(parsed(args))
    started = time.process_time()
    total = 0
    for row in rows:
        check(row["messages"])
        total += len(tokenizer.apply_chat_template(row["messages"], tokenize=True, return_dict=False))
    return {"rows": len(rows), "tokens": total, "cpu": time.process_time() - started}


def run_template_dpo(args) -> dict:
    """Five texts a row: the prompt, the prompt with each answer, and each answer, which is what follows the prompt."""
    tokenizer = official(args.model)
    rows = list(parsed(args))
    started = time.process_time()
    total = 0

    def encoded(messages: list[dict], prompt: bool = False) -> list[int]:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    for row in rows:
        prompt, chosen, rejected = (
            chat(row[key], role)
            for key, role in (("prompt", "user"), ("chosen", "assistant"), ("rejected", "assistant"))
        )
        check([*prompt, *chosen])
        encoded(prompt, prompt=True)
        total += len(encoded([*prompt, *chosen])) + len(encoded([*prompt, *rejected]))
        encoded(chosen)
        encoded(rejected)
    return {"rows": len(rows), "tokens": total, "cpu": time.process_time() - started}


def run_encode(args) -> dict:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    rows = list(parsed(args))
    texts = [text for row in rows for value in row.values() for text in texts_of(value)]
    started = time.process_time()
    for at in range(0, len(texts), BATCH):
        tokenizer.encode_batch_fast(texts[at : at + BATCH], add_special_tokens=False)
    return {"rows": len(rows), "cpu": time.process_time() - started}


def run_load(args) -> dict:
    """The tokenizer is read, nothing else."""
    from tokenizers import Tokenizer

    return {"rows": 0, "tokens": Tokenizer.from_file(str(args.model / "tokenizer.json")).get_vocab_size()}


def run_official(args) -> dict:
    """Token count and loss tokens of every text, by the official template and tokenizer; two texts a preference."""
    tokenizer = official(args.model)
    counts = []
    for row in parsed(args):
        prompt = len(chat(row["prompt"], "user")) if "prompt" in row else 0
        for messages in conversations(row):
            ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
            counts.append([len(ids), trained(ids, messages, prompt)])
    return {"rows": len(counts), "counts": counts}


def trained(ids: list[int], messages: list[dict], prompt: int) -> int:
    """Tokens from behind the header of an assistant turn to its end mark, prompts left out."""
    starts = [at for at, token in enumerate(ids) if token == TURN]
    spoken = [m for m in messages if m["role"] != "system"] if len(starts) < len(messages) else messages
    first = len(spoken) - (len(messages) - prompt)
    answers = [
        start
        for at, (start, m) in enumerate(zip(starts, spoken, strict=True))
        if m["role"] == "assistant" and at >= first
    ]
    return sum(ids.index(TURN_END, start) + 1 - (start + MODEL_HEADER) for start in answers)


def run_jinja(args) -> dict:
    """The official template as transformers compiles it."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    template = _compile_jinja_template((args.model / "chat_template.jinja").read_text("utf-8"))
    return rendered(
        args, lambda messages: template.render(messages=messages, bos_token="<bos>", add_generation_prompt=False)
    )


def run_direct(args) -> dict:
    """Text with spans, as `inspect` and training render rows."""
    renderer = direct(args.family)
    return rendered(args, lambda messages: renderer.render({"messages": messages}).text)


def run_pieces(args) -> dict:
    """The pieces of the text, which is all that counting needs."""
    renderer = direct(args.family)
    return rendered(args, lambda messages: renderer.pieces({"messages": messages}), "".join)


def direct(family: str):
    sys.path.insert(0, str(ASSETS))
    from gemma_trainer.data.render import Renderer
    from gemma_trainer.families.catalogue import get_family

    return Renderer(get_family(family))


def rendered(args, render, join=None) -> dict:
    from hashlib import sha256

    rows = [row["messages"] for row in parsed(args)]
    started = time.process_time()
    for messages in rows:
        render(messages)
    cpu = time.process_time() - started
    texts = [join(piece.text for piece in render(messages)) if join else render(messages) for messages in rows]
    return {"rows": len(rows), "cpu": cpu, "hash": sha256("\0".join(texts).encode()).hexdigest()}


def parsed(args) -> Iterator[dict]:
    with args.file.open("rb") as file:
        yield from (json.loads(line) for line in islice(file, args.limit))


def chat(value: str | list[dict], role: str) -> list[dict]:
    return [{"role": role, "content": value}] if isinstance(value, str) else value


def conversations(row: dict) -> list[list[dict]]:
    if "messages" in row:
        return [row["messages"]]
    return [chat(row["prompt"], "user") + chat(row[side], "assistant") for side in ("chosen", "rejected")]


def texts_of(value: str | list[dict]) -> list[str]:
    return [value] if isinstance(value, str) else [message["content"] for message in value]


def check(messages: list[dict]) -> None:
    """What a tool of the usual kind asks of a row."""
    assert isinstance(messages, list) and messages
    assert all(m["role"] in ROLES and isinstance(m["content"], str) and m["content"].strip() for m in messages)
    assert messages[-1]["role"] == "assistant"


def official(model: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)


RUNS = {name[4:].replace("_", "-"): run for name, run in globals().items() if name.startswith("run_")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=RUNS)
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--family", default="gemma4")
    parser.add_argument("--limit", type=int)
    args = parser.parse_args()
    print(json.dumps(RUNS[args.name](args)))


if __name__ == "__main__":
    main()
