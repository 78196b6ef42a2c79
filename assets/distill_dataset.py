#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = [
#   "aiohttp>=3.10", "jinja2>=3.1", "json-repair>=0.40", "jsonschema>=4.20", "msgspec>=0.19", "numpy>=1.26",
#   "orjson>=3.9", "py3langid>=0.3", "pyarrow>=15", "pyyaml>=6", "rensa>=0.2", "tokenizers>=0.22", "tqdm>=4.60",
#   "xxhash>=3",
# ]
# ///
"""Make training data with a teacher: answers to prompts, new prompts with answers, or pairs of a better and a worse answer.

The teacher is any OpenAI-compatible server (vLLM, Ollama, llama.cpp, LM Studio, a provider), or a Gemma in this
process. Every answer is written down when it comes: killed or stopped, the same command goes on and asks nothing twice.
Answers that teach nothing (cut, empty, refusals, loops, repeats) go to the rejects with their reasons. All files of a
run lie beside --out: the rows, .rejects.jsonl, .replies.jsonl (what was paid for), .failed.jsonl, .manifest.json.

examples:
  python assets/distill_dataset.py respond prompts.jsonl --base-url http://localhost:8000/v1 --teacher NAME \\
      --out train.jsonl --plan
  python assets/distill_dataset.py synthesize --seeds seeds.jsonl --count 1000 --base-url http://localhost:8000/v1 \\
      --teacher NAME --out new.jsonl
  python assets/distill_dataset.py compare prompts.jsonl --model ./gemma-3-4b-it --student-model ./gemma-3-270m \\
      --out pairs.jsonl
  python assets/distill_dataset.py respond prompts.jsonl --model ./gemma-3-1b-it --out train.jsonl --json
"""

import sys

from gemma_trainer import cli
from gemma_trainer.distill.options import add_arguments


def run(args) -> cli.Outcome:
    from gemma_trainer.distill.session import distill

    return distill(args, __file__)


if __name__ == "__main__":
    sys.exit(cli.main("distill_dataset.py", __doc__, add_arguments, run))
