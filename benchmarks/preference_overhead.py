#!/usr/bin/env python3
"""Time a step of dpo_train.py and of rm_train.py against the bare TRL trainer on the same tokens; print a markdown table.

Both train the same tiny Gemma with the same settings, in turns; seconds are medians over the steps, CPU beside wall.

usage: python benchmarks/preference_overhead.py [--rounds 5] [--steps 24] [--methods dpo rm] [--kind gemma3]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "assets"), str(ROOT / "tests")]

from training import make_plan, make_tiny, pair_rows  # noqa: E402

WARM = 3  # first steps of a round, not counted
SIZES = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 6}
OBJECTIVES = {
    "dpo": {"loss": "sigmoid", "beta": 0.1, "label_smoothing": 0.0, "sft_weight": 0.0, "precompute_ref": False},
    "rm": {"loss": "bradley-terry", "center_coefficient": 0.01},
}
GOAL = 1.05


def clock():
    """A trainer callback that notes (wall, CPU) at the beginning of each step and at the end of the last."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def __init__(self):
            self.times: list[tuple[float, float]] = []

        def on_step_begin(self, args, state, control, **kwargs):
            self.times.append((time.perf_counter(), time.process_time()))

        on_train_end = on_step_begin

        def steps(self) -> list[tuple[float, float]]:
            pairs = zip(self.times[WARM:], self.times[WARM + 1 :], strict=False)
            return [(b[0] - a[0], b[1] - a[1]) for a, b in pairs]

    return Clock()


def load(method: str, plan):
    from gemma_trainer.models.load import load_model
    from gemma_trainer.models.reward import load_base

    return (load_base if method == "rm" else load_model)(plan.model, dtype="float32", device="cpu")


def ours(method: str, plan, pairs, tokenizer, folder: Path, watch):
    """The trainer of the script, with all that watches a run."""
    from gemma_trainer.train import trainer_dpo, trainer_rm
    from gemma_trainer.train.guards import Checkpoints, FiniteLoss, Recorder, StopOnSignal
    from gemma_trainer.train.run_dir import RunDirectory

    run = RunDirectory(folder)
    folder.mkdir(parents=True)
    callbacks = [
        Recorder(run, plan.steps, ("accuracy", "margin")),
        Checkpoints(run),
        FiniteLoss(run),
        StopOnSignal(),
        watch,
    ]
    module = trainer_rm if method == "rm" else trainer_dpo
    return module.build_trainer(load(method, plan), tokenizer, plan, pairs, [], run.checkpoints, "none", callbacks)


def bare(method: str, plan, pairs, tokenizer, folder: Path, watch):
    """TRL's trainer as its documentation shows it, on token ids."""
    from datasets import Dataset
    from peft import LoraConfig
    from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer

    from gemma_trainer.models.load import lora_targets
    from gemma_trainer.train.engine_trl import settings

    class OnIds(DPOTrainer):
        def _prepare_dataset(self, dataset, *args):
            return dataset

    given = settings(plan, folder, "none", False) | {"max_length": None}
    model = load(method, plan)
    lora = LoraConfig(
        r=plan.lora["rank"],
        lora_alpha=plan.lora["alpha"],
        target_modules=lora_targets(model),
        task_type="SEQ_CLS" if method == "rm" else "CAUSAL_LM",
        modules_to_save=["score"] if method == "rm" else None,
    )
    sides = {f"{side}_ids": [list(getattr(pair, side).ids) for pair in pairs] for side in ("chosen", "rejected")}
    if method == "rm":
        args, trainer = RewardConfig(**given, center_rewards_coefficient=0.01), RewardTrainer
    else:
        args, trainer = DPOConfig(**given), OnIds
        starts = [pair.chosen.mask.index(1) for pair in pairs]
        sides = {name: [ids[at:] for ids, at in zip(rows, starts, strict=True)] for name, rows in sides.items()}
        sides["prompt_ids"] = [list(pair.chosen.ids[:at]) for pair, at in zip(pairs, starts, strict=True)]
    return trainer(
        model=model,
        args=args,
        train_dataset=Dataset.from_dict(sides),
        processing_class=tokenizer,
        peft_config=lora,
        callbacks=[watch],
    )


def measure(method: str, kind: str, rounds: int, steps: int) -> str:
    from gemma_trainer.models.load import load_tokenizer_files, quiet_libraries

    quiet_libraries()
    times: dict[str, list[tuple[float, float]]] = {"ours": [], "bare": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tiny = make_tiny(folder / "model", kind, **SIZES)
        pairs = tiny.encode_pairs(pair_rows(8 * steps))
        plan = make_plan(
            tiny.path, method=method, mode="lora", family=kind, steps=steps, adapter=None, objective=OBJECTIVES[method]
        )
        tokenizer = load_tokenizer_files(plan.model, None)
        for number in range(rounds):
            for who, make in (("ours", ours), ("bare", bare))[:: 1 if number % 2 else -1]:
                watch = clock()
                trainer = make(method, plan, pairs, tokenizer, folder / f"{who}-{number}", watch)
                trainer.train()
                times[who] += watch.steps()
    wall, cpu = ({who: statistics.median(t[i] for t in found) for who, found in times.items()} for i in (0, 1))
    ratio = cpu["ours"] / cpu["bare"]
    cells = [
        method.upper(),
        kind,
        f"{1000 * wall['bare']:.0f} / {1000 * cpu['bare']:.0f}",
        f"{1000 * wall['ours']:.0f} / {1000 * cpu['ours']:.0f}",
        f"{wall['ours'] / wall['bare']:.3f}",
        f"{ratio:.3f}",
        "yes" if ratio <= GOAL else "NO",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=24, help="steps a round, of 8 pairs")
    parser.add_argument("--methods", nargs="+", choices=OBJECTIVES, default=list(OBJECTIVES))
    parser.add_argument("--kind", default="gemma3")
    args = parser.parse_args()
    print(
        "| step of | model | bare TRL, wall / CPU ms | gemma-trainer, wall / CPU ms | wall ratio | CPU ratio | <= 1.05 |"
    )
    print("|" + " --- |" * 7)
    for method in args.methods:
        with contextlib.redirect_stdout(sys.stderr):  # TRL prints each log line
            line = measure(method, args.kind, args.rounds, args.steps)
        print(line, flush=True)


if __name__ == "__main__":
    main()
