"""The flags that all training scripts share."""

from __future__ import annotations

import argparse

from gemma_trainer.cli import fraction, positive, seed
from gemma_trainer.families.catalogue import family_names
from gemma_trainer.plan.emulate import FORMS


def add_sft_arguments(parser: argparse.ArgumentParser) -> None:
    how = add_training_arguments(parser, rate="default 2e-4 for adapters, 2e-5 for full", epochs=3.0)
    how.add_argument(
        "--loss-on", choices=["assistant", "last"], default="assistant", help="trained turns (default all)"
    )
    how.add_argument(
        "--packing",
        action="store_true",
        help="put rows together in sequences of --max-length that do not see each other; batches count sequences then",
    )


def add_rm_arguments(parser: argparse.ArgumentParser) -> None:
    how = add_training_arguments(parser, rate="default 1e-4 for adapters, 1e-5 for full", epochs=1.0)
    how.add_argument("--adapter", metavar="DIR", help="SFT run directory or adapter folder to start from")
    how.add_argument(
        "--center-coefficient",
        type=fraction,
        default=0.01,
        help="weight of the penalty that keeps scores around 0 (default 0.01; 0: none)",
    )


def add_dpo_arguments(parser: argparse.ArgumentParser) -> None:
    how = add_training_arguments(parser, rate="default 1e-5 for adapters, 1e-6 for full", epochs=1.0)
    how.add_argument(
        "--adapter", metavar="DIR", help="SFT run or adapter folder to start from; its base model is found in it"
    )
    how.add_argument("--beta", type=positive(float, most=100), default=0.1, help="hold of the reference (default 0.1)")
    how.add_argument(
        "--loss-type", choices=["sigmoid", "ipo", "hinge", "robust"], default="sigmoid", help="default sigmoid (DPO)"
    )
    how.add_argument(
        "--label-smoothing", type=share, metavar="P", help="robust: share of pairs labelled wrongly (default 0.1)"
    )
    how.add_argument(
        "--sft-weight",
        type=fraction,
        default=0.0,
        metavar="W",
        help="weight of the chosen answers' SFT loss (default 0)",
    )
    how.add_argument(
        "--precompute-ref", action="store_true", help="compute the reference's log-probabilities once, before training"
    )


count = positive(int, most=2**31 - 1)  # more than any run has, and less than what no library can count


def processes(text: str) -> str | int:
    return text if text == "auto" else count(text)


def share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 0.5:
        raise argparse.ArgumentTypeError(f"{text} is not in [0, 0.5)")
    return value


def add_training_arguments(parser: argparse.ArgumentParser, rate: str, epochs: float):
    """The flags of every method; returns the group that takes those of one. `rate`: help of --learning-rate."""
    what = parser.add_argument_group("model and data")
    what.add_argument("--model", metavar="ID|DIR|FILE.gguf", help="hub id, local folder or GGUF file to start from")
    what.add_argument("--data", nargs="+", metavar="FILE", help="training rows, any format dataset_prep.py reads")
    what.add_argument("--eval-data", nargs="+", metavar="FILE", help="held-out rows (default: a part of --data)")
    what.add_argument(
        "--eval-fraction", type=fraction, default=0.05, help="share of prompts held out of --data (default 0.05)"
    )
    what.add_argument("--family", choices=["auto", *family_names()], default="auto", help="default: told by the model")
    what.add_argument("--output-dir", metavar="DIR", help="run directory (default runs/NAME)")
    what.add_argument("--overwrite", action="store_true", help="replace an earlier run in --output-dir")

    how = parser.add_argument_group("method")
    how.add_argument(
        "--backend", choices=["auto", "unsloth", "trl"], default="auto", help="training engine (default auto)"
    )
    how.add_argument("--mode", choices=["qlora", "lora", "full"], help="default: qlora on NVIDIA GPUs, else lora")
    how.add_argument("--lora-rank", type=count, help="default 16")
    how.add_argument("--lora-alpha", type=positive(float, most=1e6), help="default 2 x rank")
    how.add_argument("--lora-dropout", type=fraction, help="default 0")
    how.add_argument("--dtype", choices=["bfloat16", "float32"], help="default: what the hardware does best")

    size = parser.add_argument_group("size of the run")
    size.add_argument("--learning-rate", type=positive(float, most=1), help=rate)
    size.add_argument(
        "--epochs", type=positive(float, most=1e6), default=epochs, help=f"passes over the data (default {epochs:g})"
    )
    size.add_argument("--max-steps", type=count, help="optimizer steps, instead of --epochs")
    size.add_argument("--effective-batch-size", type=count, default=16, help="rows a step (default 16)")
    size.add_argument("--micro-batch-size", type=count, help="rows a forward pass (default: fits the hardware)")
    size.add_argument("--max-length", type=count, default=2048, help="tokens a row (default 2048)")
    size.add_argument(
        "--overlong",
        choices=["drop", "error", "truncate"],
        default="drop",
        help="rows over --max-length (default drop)",
    )
    size.add_argument("--save-steps", type=count, help="steps between checkpoints (default: ten a run)")

    run = parser.add_argument_group("run")
    run.add_argument("--seed", type=seed, default=0, help="default 0")
    run.add_argument(
        "--resume", default="auto", metavar="auto|never|DIR", help="go on from the last checkpoint (default auto)"
    )
    run.add_argument(
        "--auto-recover", action="store_true", help="where memory runs out, go on with half the rows a forward pass"
    )
    run.add_argument(
        "--processes", type=processes, metavar="auto|N", default="auto", help="default auto: one on each GPU, else 1"
    )
    run.add_argument(
        "--parallel", choices=["ddp", "fsdp"], help="copy the model to each GPU or split it (default: what fits)"
    )
    run.add_argument(
        "--report-to", choices=["none", "tensorboard", "trackio", "wandb"], default="none", help="default none"
    )
    run.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the model")
    run.add_argument("--plan", action="store_true", help="print what would be done, and whether it fits, and stop")
    run.add_argument("--emulate", metavar="HARDWARE", help=f"with --plan, for other hardware: {FORMS}")
    run.add_argument("--demo", action="store_true", help="train a tiny Gemma on a CPU in about two minutes, offline")
    return how
