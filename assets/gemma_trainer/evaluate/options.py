"""The flags of evaluate.py."""

from __future__ import annotations

import argparse

from gemma_trainer.cli import positive
from gemma_trainer.evaluate.metrics import METRICS
from gemma_trainer.families.catalogue import family_names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what is measured")
    what.add_argument(
        "--model", metavar="ID|DIR|FILE.gguf", help="model, or base of --adapter (default: what the adapter names)"
    )
    what.add_argument("--adapter", metavar="DIR", help="run directory or adapter folder")
    what.add_argument("--data", nargs="+", required=True, metavar="FILE", help="held-out rows")
    what.add_argument("--compare-base", action="store_true", help="measure the untuned base too")
    what.add_argument(
        "--metric",
        nargs="+",
        choices=[*METRICS, "reward-accuracy"],
        help="default: all but reward-accuracy, which is the one for reward models; sql only where rows have a `schema` column",
    )
    what.add_argument("--family", choices=["auto", *family_names()], default="auto", help="default: told by the model")
    how = parser.add_argument_group("how")
    how.add_argument("--max-rows", type=positive(int), help="measure the first N rows only")
    how.add_argument("--max-length", type=positive(int), default=4096, help="rows over it are left out (default 4096)")
    how.add_argument("--max-new-tokens", type=positive(int), help="default: 16 over the longest right answer")
    how.add_argument("--batch-size", type=positive(int), default=16, help="rows at a time (default 16)")
    how.add_argument("--quantize", action="store_true", help="load the base in 4 bits, as QLoRA trained it")
    how.add_argument("--dtype", choices=["bfloat16", "float32"], help="default: what the hardware does best")
    how.add_argument("--output", metavar="FILE.jsonl", help="write every answer with its scores")
    how.add_argument("--overwrite", action="store_true", help="replace --output")
    how.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the model")
