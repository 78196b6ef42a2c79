#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = [
#   "accelerate>=1.12", "bitsandbytes>=0.49", "datasets>=4.7,<6", "gguf>=0.17", "jinja2>=3.1", "jsonschema>=4.20",
#   "matplotlib>=3.8", "orjson>=3.9", "peft>=0.19", "pyarrow>=15", "pyyaml>=6", "tokenizers>=0.22", "torch>=2.9",
#   "transformers>=5.17,<6", "trl>=1.14.2,<2,!=1.15.0",
# ]
# ///
"""Teach a Gemma to score answers as your preferences do (reward modelling).

The model gets a scalar head in place of its vocabulary and learns to give the chosen answer of each pair a higher
score than the rejected one. Rows are those of dpo_train.py; where all of them have a `margin`, the scores are pushed
that far apart. The result ranks answers: for best-of-N, for making preference pairs, for filtering data.

--adapter (an SFT run directory, or an adapter) starts from its layers: they are copied into the run's own adapter and
trained further there, in --mode full they are merged into the weights. Base and adapter folders stay as they are.

examples:
  python assets/rm_train.py --demo
  python assets/rm_train.py --model google/gemma-3-270m-it --data pairs.jsonl --plan
  python assets/rm_train.py --adapter runs/my-sft --data pairs.jsonl --output-dir runs/reward --json
"""

import sys

from gemma_trainer import cli
from gemma_trainer.train.arguments import add_rm_arguments
from gemma_trainer.train.voice import voice


def run(args) -> cli.Outcome:
    from gemma_trainer.train.rm import RewardModelling

    if args.demo:
        from gemma_trainer.train.demo_pairs import run_pair_demo

        return run_pair_demo(RewardModelling(), args, sys.argv[1:])
    from gemma_trainer.train.run import run_training

    return run_training(RewardModelling(), args, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(cli.main("rm_train.py", __doc__, add_rm_arguments, run, voice=voice))
