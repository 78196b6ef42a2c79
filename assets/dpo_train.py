#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = [
#   "accelerate>=1.12", "bitsandbytes>=0.49", "datasets>=4.7,<6", "gguf>=0.17", "jinja2>=3.1", "jsonschema>=4.20",
#   "matplotlib>=3.8", "orjson>=3.9", "peft>=0.19", "pyarrow>=15", "pyyaml>=6", "tokenizers>=0.22", "torch>=2.9",
#   "transformers>=5.17,<6", "trl>=1.14.2,<2,!=1.15.0",
# ]
# ///
"""Teach a Gemma which of two answers is better (direct preference optimisation).

Reads every preference layout that dataset_prep.py reads: prompt, chosen and rejected answer. Starts from an SFT run, an
adapter or a model, and measures against that start: the reference. Shows accuracy, margin and distance to the reference
on held-out pairs before and after, saves, reopens what it saved, and leaves a run directory. Killed or stopped, the same
command goes on from the last whole checkpoint.

examples:
  python assets/dpo_train.py --demo
  python assets/dpo_train.py --adapter runs/sft --data pairs.jsonl --plan
  python assets/dpo_train.py --adapter runs/sft --data pairs.jsonl --output-dir runs/dpo --json
  python assets/dpo_train.py --model google/gemma-3-270m-it --data pairs.jsonl --loss-type ipo --sft-weight 0.1
"""

import sys

from gemma_trainer import cli
from gemma_trainer.train.arguments import add_dpo_arguments
from gemma_trainer.train.voice import voice


def run(args) -> cli.Outcome:
    from gemma_trainer.train.dpo import PreferenceTuning

    if args.demo:
        from gemma_trainer.train.demo_pairs import run_pair_demo

        return run_pair_demo(PreferenceTuning(), args, sys.argv[1:])
    from gemma_trainer.train.run import run_training

    return run_training(PreferenceTuning(), args, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(cli.main("dpo_train.py", __doc__, add_dpo_arguments, run, voice=voice))
