"""Supervised fine-tuning: the loss of what the assistant says."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

from gemma_trainer.cli import command
from gemma_trainer.data.encode import RowTokenizer
from gemma_trainer.data.options import Row
from gemma_trainer.data.render import Renderer
from gemma_trainer.evaluate.metrics import LABELS
from gemma_trainer.plan.plan import Plan
from gemma_trainer.train.method import ASSETS, HELD_OUT, Method, moved, tuned_flags
from gemma_trainer.train.rows import EncodedSet, encode_rows
from gemma_trainer.train.start import Start


class SupervisedTuning(Method):
    name = "sft"
    script = "sft_train.py"
    learning_rate = {"qlora": 2e-4, "lora": 2e-4, "full": 2e-5}  # noqa: RUF012
    measures = {"loss": "eval_loss"}  # noqa: RUF012
    labels = LABELS | {"loss": f"held-out {LABELS['loss']}"}
    panels = {"loss": "loss per trained token"}  # noqa: RUF012
    logged = ("mean_token_accuracy",)

    def objective(self, args: Namespace, mode: str, start: Start) -> dict:
        return {"loss": "cross-entropy"}

    def encode(self, rows: Iterable[Row], renderer: Renderer, tokenizer: RowTokenizer, args: Namespace) -> EncodedSet:
        size = {"max_length": args.max_length, "overlong": args.overlong}
        return encode_rows(rows, renderer, tokenizer, loss_on=args.loss_on, **size)

    def build_trainer(self, model, tokenizer, prepared, folder: Path, report_to: str, callbacks: list):
        from gemma_trainer.train.trainer_sft import build_trainer

        rows = prepared.train.rows, prepared.held_out.rows
        return build_trainer(model, tokenizer, prepared.plan, *rows, folder, report_to, callbacks)

    def next_commands(self, folder: Path, plan: Plan) -> list[str]:
        """Measuring on the held-out rows comes next."""
        held_out = folder / HELD_OUT
        if not held_out.exists():
            return []
        as_trained = ["--quantize"] if plan.mode == "qlora" else []
        return [
            command(
                ASSETS / "evaluate.py", *tuned_flags(folder, plan), "--data", held_out, "--compare-base", *as_trained
            )
        ]

    def summary(self, metrics: dict) -> str:
        before, after = metrics["before"]["loss"], metrics["after"]["loss"]
        held_out = "" if after is None else f"held-out loss {moved(before, after)}, "
        return f"{held_out}final training loss {metrics['train_loss']:.4f}"
