"""Reward modelling: a score that is higher for the chosen answer."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from gemma_trainer.cli import command
from gemma_trainer.data.model import Model
from gemma_trainer.evaluate.metrics import LABELS
from gemma_trainer.plan.plan import Plan
from gemma_trainer.rows.problems import Problem
from gemma_trainer.train.method import ASSETS, HELD_OUT, loading, moved, tuned_flags
from gemma_trainer.train.pairs import PairMethod, PairSet
from gemma_trainer.train.start import Start


class RewardModelling(PairMethod):
    name = "rm"
    script = "rm_train.py"
    learning_rate = {"qlora": 1e-4, "lora": 1e-4, "full": 1e-5}  # noqa: RUF012
    measures = {"loss": "eval_loss", "reward_accuracy": "eval_accuracy", "reward_margin": "eval_margin"}  # noqa: RUF012
    labels = {"loss": "held-out loss per pair", **{key: LABELS[key] for key in ("reward_accuracy", "reward_margin")}}  # noqa: RUF012
    panels = {"loss": "loss per pair", "accuracy": "reward accuracy", "margin": "reward margin"}  # noqa: RUF012
    logged = ("accuracy", "margin", "mean_reward")

    def objective(self, args: Namespace, mode: str, start: Start) -> dict:
        return {"loss": "bradley-terry", "center_coefficient": args.center_coefficient}

    def advice(self, args: Namespace, start: Start, described: Model, train: PairSet) -> list[Problem]:
        return train.length_warnings()

    def load_model(self, plan: Plan, source: str, trust_remote_code: bool):
        from gemma_trainer.models.reward import load_base

        return load_base(source, **loading(plan), trust_remote_code=trust_remote_code)

    def build_trainer(self, model, tokenizer, prepared, folder: Path, report_to: str, callbacks: list):
        from gemma_trainer.train.trainer_rm import build_trainer

        rows = prepared.train.rows, prepared.held_out.rows
        return build_trainer(model, tokenizer, prepared.plan, *rows, folder, report_to, callbacks)

    def save(self, model, tokenizer, prepared, folder: Path, weights: dict | None) -> None:
        from gemma_trainer.train.save import save_result

        save_result(model, tokenizer, folder, None, weights)

    def reopen(self, folder: Path, dtype: str):
        from gemma_trainer.models.reward import load_reward_model

        return load_reward_model(folder, dtype=dtype, device="cpu").model

    def loading_code(self, plan: Plan) -> str:
        from gemma_trainer.train.card_rm import loading_code

        return loading_code(plan)

    def next_commands(self, folder: Path, plan: Plan) -> list[str]:
        """Measuring on the held-out rows comes next."""
        held_out = folder / HELD_OUT
        if not held_out.exists():
            return []
        measured = ("--data", held_out, "--metric", "reward-accuracy")
        return [command(ASSETS / "evaluate.py", *tuned_flags(folder, plan), *measured)]

    def summary(self, metrics: dict) -> str:
        before, after = metrics["before"]["reward_accuracy"], metrics["after"]["reward_accuracy"]
        held_out = "" if after is None else f"held-out reward accuracy {moved(before, after, '.1%')}, "
        return f"{held_out}final training loss {metrics['train_loss']:.4f}"
