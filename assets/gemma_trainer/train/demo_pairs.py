"""--demo of what learns from pairs: a tiny Gemma learns to prefer answers that say their unit.

It is made as for the demo of sft_train.py, and first learns to answer, with the unit and without it equally often.
"""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

from gemma_trainer.cli import Outcome, command, log
from gemma_trainer.data.output import replacing
from gemma_trainer.models.load import quiet_libraries
from gemma_trainer.plan.hardware import share_cores
from gemma_trainer.rows.problems import Failure
from gemma_trainer.train import demo
from gemma_trainer.train.claim import is_empty, read_record
from gemma_trainer.train.method import ASSETS, Method
from gemma_trainer.train.pairs import SIDES
from gemma_trainer.train.run import require_training_packages, run_training
from gemma_trainer.train.setup import machine
from gemma_trainer.train.sft import SupervisedTuning

EXAMPLE = ASSETS / "examples" / "preferences"
ANSWERS = {**demo.SETTINGS, "epochs": 2.0, "max_steps": None, "loss_on": "last", "adapter": None, "resume": "auto"}
# Tiny models with random weights take rates that would break a real one.
PAIRS = {"mode": "lora", "effective_batch_size": 16, "micro_batch_size": 16}
RATES = {"dpo": 3e-4, "rm": 1e-3}


def run_pair_demo(method: Method, args: Namespace, argv: list[str]) -> Outcome:
    """Make the model, teach it to answer, train the method on it. Raises Failure as run_training does.

    `result.before` and `result.after` hold the measures of the method on held-out pairs.
    """
    require_training_packages("lora")
    machine(args)
    share_cores()
    quiet_libraries()
    output = demo.run_directory(args, f"demo-{method.name}")
    start, speaker = (demo.beside(output, what) for what in ("start", "sft"))
    if not (is_empty(speaker) or _speaks_from(start, speaker)):
        raise demo.not_ours(speaker)
    with (EXAMPLE / "train.jsonl").open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    demo.make_base(start, args.seed, [m["content"] for row in rows for name in ("prompt", *SIDES) for m in row[name]])
    if not (args.plan or demo.is_done(speaker)):
        answers = start / "answers.jsonl"
        _write_answers(answers, rows)
        log("teaching it to answer")
        own = {"model": str(start), "data": [str(answers)], "eval_data": None, "output_dir": str(speaker)}
        try:
            run_training(SupervisedTuning(), Namespace(**{**vars(args), **ANSWERS, **own}), argv)
        except Failure as failure:
            failure.next = failure.next and [command(ASSETS / method.script, *argv)]  # the demo, not this part of it
            raise
    own = {
        "model": str(start if args.plan else speaker),
        "data": [str(EXAMPLE / "train.jsonl")],
        "eval_data": [str(EXAMPLE / "eval.jsonl")],
        "output_dir": str(output),
        "learning_rate": args.learning_rate or RATES[method.name],
    }
    outcome = run_training(method, Namespace(**{**vars(args), **PAIRS, **own}), argv)
    if not args.plan:
        outcome.result |= {side: outcome.result["metrics"][side] for side in ("before", "after")}
    return outcome


def _speaks_from(start: Path, speaker: Path) -> bool:
    """Whether a demo trained, or began to train, the model in `start` in the folder `speaker`."""
    record = read_record(speaker) or {"arguments": {}, "plan": {}}
    return record["arguments"].get("demo") is True and record["plan"].get("model") == str(start.resolve())


def _write_answers(path: Path, rows: list[dict]) -> None:
    """Chosen and rejected answers in turn, as rows of supervised tuning."""
    with replacing(path) as file:
        for number, row in enumerate(rows):
            file.write(json.dumps({"messages": row["prompt"] + row[SIDES[number % 2]]}) + "\n")
