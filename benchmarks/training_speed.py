#!/usr/bin/env python3
"""Trained tokens a second of supervised tuning on rows of mixed length, medians; print a markdown table.

A Gemma 3 with the real vocabulary and narrow layers learns one epoch of the same rows, with LoRA, in turns:
  reference  the usual script: transformers' Trainer, rows shuffled and padded to the longest, logits of all tokens
  bare       TRL's SFTTrainer, fed the very batches of `ours`
  ours       sft_train.py as it is without a flag, with all that watches a run
  packed     sft_train.py --packing

usage: python benchmarks/training_speed.py [--rounds 3] [--rows 16] [--max-length 1024] [--micro 4]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "assets"), str(ROOT / "tests")]

from gemma_trainer.data.encode import Encoded  # noqa: E402
from training import make_plan, make_tiny  # noqa: E402

# Gemma 3 270M at a tenth of its width: words and layers take about the same shares of the work.
SIZES = {"vocab_size": 262_144, "hidden_size": 64, "intermediate_size": 1024, "num_hidden_layers": 12}
BATCH = 16
MEDIAN, SPREAD, SHORTEST = 200, 0.9, 40  # tokens of a row: log-normal
GOALS = {"reference": 2.0, "bare": 0.98}  # that `ours` is faster by


def make_rows(count: int, longest: int) -> list[Encoded]:
    """Rows of which 30 to 70 % are trained."""
    chance = random.Random(0)
    rows = []
    for _ in range(count):
        length = min(max(int(chance.lognormvariate(0, SPREAD) * MEDIAN), SHORTEST), longest)
        prompt = int(length * chance.uniform(0.3, 0.7))
        ids = [2, *(chance.randint(10, 250) for _ in range(length - 1))]
        rows.append(Encoded(ids, [0] * prompt + [1] * (length - prompt)))
    return rows


def clock():
    """A trainer callback that notes (wall, CPU) from the first step to the end."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            self.began = time.perf_counter(), time.process_time()

        def on_train_end(self, args, state, control, **kwargs):
            self.took = time.perf_counter() - self.began[0], time.process_time() - self.began[1]

    return Clock()


def load(plan):
    from gemma_trainer.models.load import load_model

    return load_model(plan.model, dtype="float32", device="cpu")


def ours(plan, rows, tokenizer, folder: Path, watch):
    """The trainer of the script, with all that watches a run."""
    from gemma_trainer.train.guards import Checkpoints, FiniteLoss, Recorder, StopOnSignal
    from gemma_trainer.train.run_dir import RunDirectory
    from gemma_trainer.train.trainer_sft import build_trainer

    folder.mkdir(parents=True)
    run = RunDirectory(folder)
    callbacks = [Recorder(run, plan.steps), Checkpoints(run), FiniteLoss(run), StopOnSignal(), watch]
    return build_trainer(load(plan), tokenizer, plan, rows, [], run.checkpoints, "none", callbacks)


def bare(plan, rows, tokenizer, folder: Path, watch):
    from trl import SFTTrainer

    from gemma_trainer.train.batches import StepsByLength
    from gemma_trainer.train.engine_trl import prepare_model
    from gemma_trainer.train.trainer_sft import as_dataset, training_config

    order = list(StepsByLength([len(row.ids) for row in rows], BATCH, plan.seed))
    args = training_config(plan, folder, "none", False)
    args.train_sampling_strategy = "sequential"
    data = as_dataset([rows[at] for at in order])
    model = prepare_model(load(plan), plan)
    return SFTTrainer(model=model, args=args, train_dataset=data, processing_class=tokenizer, callbacks=[watch])


def reference(plan, rows, tokenizer, folder: Path, watch):
    from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

    from gemma_trainer.train.engine_trl import prepare_model, settings
    from gemma_trainer.train.trainer_sft import as_dataset

    data = as_dataset(rows).remove_columns("length")
    args = TrainingArguments(**settings(plan, folder, "none", False))
    collate = DataCollatorForSeq2Seq(tokenizer, padding="longest")
    model = prepare_model(load(plan), plan)
    return Trainer(model=model, args=args, train_dataset=data, data_collator=collate, callbacks=[watch])


def sizes_of(plan, rows, packing: bool):
    """The plan of an epoch, packed or not."""
    from dataclasses import replace

    from gemma_trainer.train.packing import packed_lengths

    lengths = [len(row.ids) for row in rows]
    units = len(packed_lengths(lengths, plan.max_length)) if packing else len(rows)
    return replace(plan, packing=packing, steps=-(-units // BATCH))


def padding_of(trainer) -> float:
    """Share of padding in the batches of the first epoch."""
    cells = real = 0
    pad = trainer.processing_class.pad_token_id if trainer.processing_class else 0
    for batch in trainer.get_train_dataloader():
        cells += batch["input_ids"].numel()
        real += int((batch["input_ids"] != pad).sum())
    return 1 - real / cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--max-length", type=int, default=1024)
    parser.add_argument("--micro", type=int, default=4, help="rows a pass; full logits of these must fit")
    args = parser.parse_args()
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as name:
        speeds, padded = measure(args, Path(name))
    print("| loop | trained tokens a CPU second | a second of wall time | padding | CPU time against ours |")
    print("|" + " --- |" * 5)
    wall, cpu = ({who: statistics.median(each[i] for each in found) for who, found in speeds.items()} for i in (0, 1))
    for who in speeds:
        print(f"| {who} | {cpu[who]:.0f} | {wall[who]:.0f} | {padded[who]:.1%} | {cpu['ours'] / cpu[who]:.2f} |")
    for who, goal in GOALS.items():
        ratio = cpu["ours"] / cpu[who]
        print(f"\nours against {who}: {ratio:.2f} x as fast (goal {goal}: {'yes' if ratio >= goal else 'NO'})")


def measure(args, folder: Path) -> tuple[dict, dict]:
    """({loop: (trained tokens a second of wall and of CPU time) of each round}, {loop: share of padding})."""
    from gemma_trainer.models.load import load_tokenizer_files, quiet_libraries

    quiet_libraries()
    tiny = make_tiny(folder / "model", "gemma3", **SIZES)
    rows = make_rows(args.rows, args.max_length)
    trained = sum(sum(row.mask) for row in rows)
    accumulation = BATCH // args.micro
    plan = make_plan(
        tiny.path,
        mode="lora",
        max_length=args.max_length,
        micro_batch_size=args.micro,
        accumulation_steps=accumulation,
        effective_batch_size=BATCH,
    )
    tokenizer = load_tokenizer_files(plan.model, None)
    tokenizer.padding_side = "right"
    speeds, padded = {}, {}
    loops = {"reference": reference, "bare": bare, "ours": ours, "packed": ours}
    for number in range(args.rounds):
        for who in list(loops)[:: -1 if number % 2 else 1]:
            watch = clock()
            made = sizes_of(plan, rows, who == "packed")
            trainer = loops[who](made, rows, tokenizer, folder / f"{who}-{number}", watch)
            padded.setdefault(who, padding_of(trainer))
            trainer.train()
            speeds.setdefault(who, []).append(tuple(trained / seconds for seconds in watch.took))
            print(who, number, [round(each, 1) for each in watch.took], f"{padded[who]:.1%}", file=sys.stderr)
    return {who: speeds[who] for who in loops}, padded


if __name__ == "__main__":
    main()
