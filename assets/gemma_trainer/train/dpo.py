"""Direct preference optimisation: the chosen answer gains on the rejected one, measured against the starting model."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from gemma_trainer.cli import command
from gemma_trainer.data.model import Model
from gemma_trainer.models.resolve import read_run
from gemma_trainer.plan.plan import Plan
from gemma_trainer.rows.problems import USAGE, Failure, Problem
from gemma_trainer.train.method import ASSETS, HELD_OUT, moved, tuned_flags
from gemma_trainer.train.pairs import PairMethod, PairSet
from gemma_trainer.train.start import Start

FLIPPED = 0.1  # share of wrong labels that the robust loss assumes
SMALL_BETA = 0.01
COLLAPSE = 0.5  # nats per token that chosen answers may lose: each token at 60 % of its probability


class PreferenceTuning(PairMethod):
    name = "dpo"
    script = "dpo_train.py"
    # Adapters: between Zephyr's QLoRA recipe (5e-6) and the usual tenfold of full fine-tuning; full: TRL's default.
    learning_rate = {"qlora": 1e-5, "lora": 1e-5, "full": 1e-6}  # noqa: RUF012
    measures = {  # noqa: RUF012
        "loss": "eval_loss",
        "reward_accuracy": "eval_rewards/accuracies",
        "reward_margin": "eval_rewards/margins",
        "chosen_logp": "eval_logps/chosen",
        "rejected_logp": "eval_logps/rejected",
        "kl": "eval_kl",
    }
    labels = {  # noqa: RUF012
        "loss": "held-out loss per pair",
        "reward_accuracy": "held-out reward accuracy",
        "reward_margin": "held-out reward margin",
        "chosen_logp": "log-probability of chosen answers",
        "rejected_logp": "log-probability of rejected answers",
        "kl": "KL to the reference per answer token",
    }
    panels = {  # noqa: RUF012
        "loss": "loss per pair",
        "rewards/accuracies": "reward accuracy",
        "rewards/margins": "reward margin",
        "kl": "KL per token",
    }
    logged = (
        "rewards/accuracies",
        "rewards/margins",
        "rewards/chosen",
        "rewards/rejected",
        "logps/chosen",
        "logps/rejected",
        "kl",
    )

    def objective(self, args: Namespace, mode: str, start: Start) -> dict:
        if args.label_smoothing is not None and args.loss_type != "robust":
            raise Failure(USAGE, "usage", "--label-smoothing belongs to --loss-type robust", fix="Drop it.")
        smoothing = FLIPPED if args.label_smoothing is None else args.label_smoothing
        return {
            "loss": args.loss_type,
            "beta": args.beta,
            "label_smoothing": smoothing if args.loss_type == "robust" else 0.0,
            "sft_weight": args.sft_weight,
            "reference": reference_in_words(mode, start, args.precompute_ref),
            "precompute_ref": args.precompute_ref,
        }

    def advice(self, args: Namespace, start: Start, described: Model, train: PairSet) -> list[Problem]:
        problems = []
        if not start.tuned and (not described.chats or start.model.lower().endswith(("-pt", "-base"))):
            text = f"{start.model} is a base model that was never tuned to answer, and it is also the reference"
            problems.append(Problem("start-untuned", text))
        if args.beta < SMALL_BETA and args.loss_type != "ipo":
            problems.append(Problem("beta-small", f"--beta {args.beta:g} is under {SMALL_BETA:g}"))
        return problems + train.length_warnings()

    def build_trainer(self, model, tokenizer, prepared, folder: Path, report_to: str, callbacks: list):
        from gemma_trainer.train.trainer_dpo import build_trainer

        rows = prepared.train.rows, prepared.held_out.rows
        return build_trainer(model, tokenizer, prepared.plan, *rows, folder, report_to, callbacks)

    def findings(self, plan: Plan, lines: list[dict]) -> list[Problem]:
        """A collapse of the chosen answers, on held-out rows where there are some, else on the last ten logged steps."""
        held_out = [line["eval_rewards/chosen"] for line in lines if "eval_rewards/chosen" in line][-1:]
        seen = held_out or [line["rewards/chosen"] for line in lines if "rewards/chosen" in line][-10:]
        lost = -sum(seen) / max(len(seen), 1) / plan.objective["beta"] / plan.data["answer_tokens"]["chosen"]
        if lost < COLLAPSE:
            return []
        text = f"chosen answers lost {lost:.2f} nats per token against the reference"
        return [Problem("chosen-collapsed", text)]

    def next_commands(self, folder: Path, plan: Plan) -> list[str]:
        """Measuring again on the held-out pairs, and whether what supervised tuning taught is still there."""
        as_trained = ["--quantize"] if plan.mode == "qlora" else []
        measure = [ASSETS / "evaluate.py", *tuned_flags(folder, plan), *as_trained]
        pairs, start = folder / HELD_OUT, Path(plan.adapter["path"] if plan.adapter else plan.model)
        commands = [command(*measure, "--data", pairs, "--metric", "reward-accuracy")] if pairs.is_file() else []
        answers = start / HELD_OUT
        if answers.is_file() and read_run(start)["plan"]["method"] == "sft":
            commands.append(command(*measure, "--data", answers))
        return commands

    def summary(self, metrics: dict) -> str:
        before, after = metrics["before"], metrics["after"]
        if after["loss"] is None:
            return f"final training loss {metrics['train_loss']:.4f}"
        distance = "" if after["kl"] is None else f", KL to the reference {after['kl']:.4f} per token"
        accuracy = moved(before["reward_accuracy"], after["reward_accuracy"], ".1%")
        return f"held-out reward accuracy {accuracy}, loss {moved(before['loss'], after['loss'])}{distance}"


def reference_in_words(mode: str, start: Start, precomputed: bool) -> str:
    """What answers are measured against: the policy as it is before the first step."""
    if mode == "full":
        what = "the starting adapter merged into its model" if start.adapter else "the starting model"
        return f"{what}, " + ("not kept: computed before training" if precomputed else "a frozen second copy")
    what = (
        "the starting adapter, a frozen copy of it"
        if start.adapter
        else "the starting model, new adapters switched off"
    )
    return f"{what}; computed before training" if precomputed else what
