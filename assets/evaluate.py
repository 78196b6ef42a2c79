#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = [
#   "accelerate>=1.12", "bitsandbytes>=0.49", "datasets>=4.7,<6", "gguf>=0.17", "jinja2>=3.1", "jsonschema>=4.20",
#   "matplotlib>=3.8", "orjson>=3.9", "peft>=0.19", "pyarrow>=15", "pyyaml>=6", "tokenizers>=0.22", "torch>=2.9",
#   "transformers>=5.17,<6", "trl>=1.14.2,<2,!=1.15.0",
# ]
# ///
"""Measure a tuned Gemma on held-out rows, side by side with its base.

Each row's last assistant message is the right answer. The model answers greedily from what stands before it;
the loss is that of the right answer, token by token. Reward models and runs of dpo_train.py are measured on
preference rows too.

metrics:
  exact       the answer is the right answer, white space around it aside
  similarity  difflib ratio of the two, 0 to 1
  sql         both queries run in SQLite on the row's `schema` and give the same result
  loss        negative log-likelihood per trained token, in nats
  reward-accuracy
              share of preference rows whose chosen answer has the higher reward: the score of a reward model, or
              beta x (log-probability - that of the reference) of a DPO run; untrained, all rewards are 0

examples:
  python assets/evaluate.py --adapter runs/my-run --data runs/my-run/eval.jsonl --compare-base
  python assets/evaluate.py --model ./gemma-3-270m --data held_out.jsonl --metric exact loss --json
  python assets/evaluate.py --adapter runs/reward --data pairs.jsonl --metric reward-accuracy --output scores.jsonl
"""

import sys

from gemma_trainer import cli
from gemma_trainer.evaluate.options import add_arguments


def run(args) -> cli.Outcome:
    from gemma_trainer.evaluate.compare import run_evaluation
    from gemma_trainer.evaluate.reward_accuracy import asks_for_rewards, run_reward_evaluation

    return run_reward_evaluation(args) if asks_for_rewards(args) else run_evaluation(args)


if __name__ == "__main__":
    sys.exit(cli.main("evaluate.py", __doc__, add_arguments, run))
