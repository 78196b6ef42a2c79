#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = [
#   "accelerate>=1.12", "bitsandbytes>=0.49", "datasets>=4.7,<6", "gguf>=0.17", "jinja2>=3.1", "jsonschema>=4.20",
#   "matplotlib>=3.8", "orjson>=3.9", "peft>=0.19", "pyarrow>=15", "pyyaml>=6", "tokenizers>=0.22", "torch>=2.9",
#   "transformers>=5.17,<6", "trl>=1.14.2,<2,!=1.15.0",
# ]
# ///
"""Teach a Gemma to answer as your examples do (supervised fine-tuning).

Reads what dataset_prep.py reads, trains LoRA, QLoRA or all weights on NVIDIA GPUs, an Apple GPU or a CPU, measures
the loss on held-out rows before and after, saves, reopens what it saved, and leaves a run directory. Killed or
stopped, the same command goes on from the last whole checkpoint.

examples:
  python assets/sft_train.py --demo
  python assets/sft_train.py --model google/gemma-3-270m-it --data train.jsonl --plan
  python assets/sft_train.py --model ./gemma-3-1b-it --data train.jsonl --output-dir runs/mine --epochs 2 --json
"""

import sys

from gemma_trainer import cli
from gemma_trainer.train.arguments import add_sft_arguments
from gemma_trainer.train.voice import voice


def run(args) -> cli.Outcome:
    if args.demo:
        from gemma_trainer.train.demo import run_demo

        return run_demo(args, sys.argv[1:])
    from gemma_trainer.train.run import run_training
    from gemma_trainer.train.sft import SupervisedTuning

    return run_training(SupervisedTuning(), args, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(cli.main("sft_train.py", __doc__, add_sft_arguments, run, voice=voice))
