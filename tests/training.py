"""Tiny models, rows and plans that the training tests share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from gemma_trainer.data.encode import Encoded, RowTokenizer
from gemma_trainer.data.options import Row
from gemma_trainer.data.render import Renderer
from gemma_trainer.families.catalogue import get_family
from gemma_trainer.plan.plan import Plan
from gemma_trainer.train.pairs import EncodedPair, encode_pairs

TABLES = ("users", "orders", "books", "cities")
COLUMNS = ("id", "name", "price", "year")


def question_rows(count: int) -> list[dict]:
    """Rows of different lengths, so that batches hold padding and micro-batches unequal numbers of trained tokens."""
    rows = []
    for i in range(count):
        table, column = TABLES[i % 4], COLUMNS[(i // 4) % 4]
        more = f" WHERE id > {i}" if i % 3 else ""
        messages = [
            {"role": "user", "content": f"List the {column} of all {table}" + " please" * (i % 5)},
            {"role": "assistant", "content": f"SELECT {column} FROM {table}{more}"},
        ]
        rows.append({"messages": messages})
    return rows


def numbered(rows: list[dict]) -> list[dict]:
    """The rows, with no prompt twice."""
    for i, row in enumerate(rows):
        row["messages"][0]["content"] += f" {i}"
    return rows


def write_rows(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def pair_rows(count: int) -> list[dict]:
    """Pairs whose chosen answer is the one of `question_rows`; the answers of a pair differ in length. No prompt twice."""
    rows = []
    for i, row in enumerate(question_rows(count)):
        (asked, said), number = row["messages"], f" {i}"
        rejected = said["content"].replace("SELECT", "please List") + " price" * (i % 4)
        rows.append(
            {
                "prompt": [{**asked, "content": asked["content"] + number}],
                "chosen": [said],
                "rejected": [{**said, "content": rejected}],
            }
        )
    return rows


@dataclass
class Tiny:
    """A tiny model on disk with what renders and encodes for it."""

    path: Path
    renderer: Renderer
    tokenizer: RowTokenizer

    def encode(self, rows: list[dict]) -> list[Encoded]:
        return [self.tokenizer.encode(self.renderer.render(row)) for row in rows]

    def encode_pairs(self, rows: list[dict]) -> list[EncodedPair]:
        loaded = [Row(row, "pairs.jsonl", at, at) for at, row in enumerate(rows, start=1)]
        return encode_pairs(loaded, self.renderer, self.tokenizer, max_length=1024, overlong="error").rows

    @property
    def stop_ids(self) -> list[int]:
        ids = (self.tokenizer.backend.token_to_id(stop) for stop in self.renderer.family.stop_tokens)
        return [i for i in ids if i is not None]


def make_tiny(folder: Path, kind: str = "gemma3", family: str | None = None, texts=None, **sizes) -> Tiny:
    """`texts` are what its tokenizer is made of, by default those of `question_rows`."""
    from gemma_trainer.models.tiny import make_model, make_tokenizer, save_tiny

    family = family or kind.removesuffix("-vision")
    texts = texts or [message["content"] for row in question_rows(64) for message in row["messages"]]
    tokenizer = make_tokenizer(texts, family)
    save_tiny(make_model(kind, tokenizer, **sizes), tokenizer, folder)
    return Tiny(folder, Renderer(get_family(family)), RowTokenizer.from_dir(folder))


def make_place(folder: Path, count: int) -> Path:
    """A folder with a tiny model in tiny, and `count` rows and pairs in rows.jsonl and pairs.jsonl, no prompt twice."""
    make_tiny(folder / "tiny")
    write_rows(folder / "rows.jsonl", numbered(question_rows(count)))
    write_rows(folder / "pairs.jsonl", pair_rows(count))
    return folder


def make_plan(model: Path, **changes) -> Plan:
    values = {
        "method": "sft",
        "model": str(model),
        "adapter": None,
        "family": "gemma3",
        "backend": "trl",
        "mode": "full",
        "device": "cpu",
        "dtype": "float32",
        "why": {},
        "lora": {"rank": 8, "alpha": 16, "dropout": 0.0},
        "learning_rate": 3e-3,
        "epochs": 1.0,
        "effective_batch_size": 8,
        "micro_batch_size": 8,
        "accumulation_steps": 1,
        "processes": 1,
        "parallel": "ddp",
        "steps": 4,
        "warmup_steps": 0,
        "save_steps": 100,
        "gradient_checkpointing": False,
        "autocast": False,
        "max_length": 512,
        "packing": False,
        "overlong": "drop",
        "loss_on": "assistant",
        "objective": {},
        "seed": 0,
        "template_hash": None,
        "template_origin": "packaged",
        "data": {},
        "hardware": {"gpus": []},
        "memory": {},
        "launch": "",
        "on_each_node": None,
    }
    return Plan(**{**values, **changes})


class Losses:
    """A trainer callback that keeps the logged losses; loss of step n is `values[n - 1]`."""

    def __new__(cls):
        from transformers import TrainerCallback

        class Recorder(TrainerCallback):
            def __init__(self):
                self.values: list[float] = []

            def on_log(self, args, state, control, logs=None, **kwargs):
                if "loss" in logs:
                    self.values.append(logs["loss"])

        return Recorder()


def build(tiny: Tiny, plan: Plan, folder: Path, rows: list[Encoded], held_out: list[Encoded] | None = None, model=None):
    """(trainer, losses) over a freshly loaded model, as sft_train.py makes it."""
    from gemma_trainer.models.load import load_model, load_tokenizer_files
    from gemma_trainer.train.trainer_sft import build_trainer

    model = model or load_model(plan.model, dtype=plan.dtype, device="cpu", quantize=plan.mode == "qlora")
    losses = Losses()
    files = load_tokenizer_files(plan.model, None)
    return build_trainer(model, files, plan, rows, held_out or [], folder, "none", [losses]), losses


def moved(trainer):
    """The trainer with other weights than it began with."""
    import torch

    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn_like(parameter)
    return trainer
