"""Preference rows: how often the chosen answer has the higher reward, by a reward model or by a DPO run's policy.

A policy's reward of an answer is beta x (its log-probability - that of the model its run started from), Rafailov et al. 2023.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gemma_trainer.cli import Outcome, log
from gemma_trainer.data.clean import read_clean
from gemma_trainer.data.encode import Encoded
from gemma_trainer.data.lengths import render_all
from gemma_trainer.data.model import describe_model
from gemma_trainer.data.output import check_targets, replacing
from gemma_trainer.data.reading.sources import expand
from gemma_trainer.evaluate.compare import check_adapter, load_subject, require_packages, table
from gemma_trainer.evaluate.rewards import measure_rewards, score_pairs
from gemma_trainer.families.family import RenderError
from gemma_trainer.models.load import load_adapter
from gemma_trainer.models.resolve import read_run, resolve_model
from gemma_trainer.models.reward import is_reward_model, load_reward_model
from gemma_trainer.plan.adapter import adapter_hash
from gemma_trainer.plan.hardware import detect, share_cores
from gemma_trainer.rows.problems import DATA_INVALID, USAGE, Failure, Problem

METRIC = "reward-accuracy"
REFERENCE = "reference"

Rewards = list[tuple[float, float]]  # of chosen and rejected answer, row by row


class Pair(NamedTuple):
    chosen: Encoded
    rejected: Encoded


@dataclass
class HeldOutPairs:
    """Rows of one measurement, encoded, in file order."""

    rows: list[dict]
    pairs: list[Pair]
    warnings: list[Problem]


def asks_for_rewards(args: Namespace) -> bool:
    """Whether rewards are measured: asked for, or all that the model can give. Raises Failure (exit 2) for a mixture."""
    scores = is_reward_model(args.adapter or args.model or "")
    if args.metric is None:
        return scores
    if METRIC in args.metric and len(args.metric) > 1:
        raise Failure(USAGE, "usage", f"{METRIC} reads preference rows, the other metrics read right answers")
    if scores and METRIC not in args.metric:
        raise Failure(USAGE, "usage", "a reward model gives scores and no answers", fix=f"Pass --metric {METRIC}.")
    return METRIC in args.metric


def run_reward_evaluation(args: Namespace) -> Outcome:
    """Raises Failure with the exit codes of the contract."""
    require_packages()
    output = Path(args.output) if args.output else None
    files = expand(args.data)
    if output:
        check_targets(files, [output], args.overwrite)
    check_adapter(args.adapter)
    tuned = args.adapter or args.model
    if not tuned:
        raise Failure(USAGE, "usage", "--model or --adapter is needed")
    plan = _plan(tuned)
    by_head = is_reward_model(tuned)
    if not by_head and plan.get("method") != "dpo":
        text = f"{tuned} is neither a reward model nor a run of dpo_train.py"
        raise Failure(USAGE, "reward-model-expected", text)
    share_cores()
    held_out = load_pairs(files, tuned, args.family, args.max_length, args.max_rows)
    log(f"measuring rewards on {len(held_out.pairs)} pairs")
    rewards = (rewards_of_head if by_head else rewards_of_policy)(args, plan, held_out.pairs)
    # Before its first step a reward model scores everything 0, and a policy is its own reference.
    base = [(0.0, 0.0)] * len(rewards) if args.compare_base else None
    result = {
        "rows": len(rewards),
        "metrics": [METRIC],
        "model": args.model or plan.get("model"),
        "adapter": args.adapter,
    }
    result |= {"base": summarise(base) if base else None, "tuned": summarise(rewards)}
    result["rewards"] = "scores" if by_head else "implicit"
    if output:
        _write(output, held_out.rows, base, rewards)
        result["output"] = str(output)
    return Outcome(
        result=result, warnings=held_out.warnings, summary=table(result["base"], result["tuned"], len(rewards))
    )


def load_pairs(files: Sequence[Path], model: str, family: str, max_length: int, max_rows: int | None) -> HeldOutPairs:
    """Preference rows that fit. Raises Failure (exit 3) when rows are refused or none is left."""
    described = describe_model(family, model)
    loaded, warnings = read_clean(files, "rm", described)
    held_out, overlong = HeldOutPairs([], [], warnings), 0
    for row in loaded[:max_rows]:
        try:
            pair = Pair(*described.tokenizer.encode_batch(render_all(row.data, described)))
        except RenderError as error:
            where = {"file": row.file, "line": row.line, "path": error.path}
            raise Failure(DATA_INVALID, "rows-not-renderable", str(error), **where) from None
        if max(len(side.ids) for side in pair) > max_length:
            overlong += 1
            continue
        held_out.rows.append(row.data)
        held_out.pairs.append(pair)
    if overlong:
        held_out.warnings.append(Problem("rows-overlong", f"{overlong} rows over {max_length} tokens were left out"))
    if not held_out.rows:
        raise Failure(DATA_INVALID, "no-rows", "no pair to measure is left")
    return held_out


def rewards_of_head(args: Namespace, plan: dict, pairs: Sequence[Pair]) -> Rewards:
    """What a reward model gives both answers."""
    from gemma_trainer.models.load import quiet_libraries

    quiet_libraries()
    loaded = load_reward_model(
        args.adapter or resolve_model(args.model),
        base=args.model if args.adapter else None,
        device=detect().kind,
        dtype=args.dtype,
        quantize=args.quantize or None,
        trust_remote_code=args.trust_remote_code,
    )
    return score_pairs(loaded.model, pairs, args.batch_size)


def rewards_of_policy(args: Namespace, plan: dict, pairs: Sequence[Pair]) -> Rewards:
    """The implicit rewards of a DPO run's policy against the reference that the run had."""
    from gemma_trainer.evaluate.preferences import measure_preferences

    policy, reference = _policy_and_reference(args, plan)
    measured = measure_preferences(policy, reference, _batches(pairs, args.batch_size, policy.device))
    rewards = plan["objective"]["beta"] * (measured.logps - measured.reference)
    return [tuple(pair) for pair in rewards.tolist()]


def _policy_and_reference(args: Namespace, plan: dict) -> tuple[object, Callable]:
    """The tuned model, and a function that gives the context in which the reference runs."""
    args = Namespace(**{**vars(args), "quantize": args.quantize or plan["mode"] == "qlora"})
    start = starting_adapter(plan, args.adapter or args.model)
    base = load_subject(_reference_model(args, plan), args)
    if args.adapter:
        policy = load_adapter(base, args.adapter).eval()
        if start:
            load_adapter(policy, start, name=REFERENCE)
        return policy, lambda: _switched(policy, REFERENCE if start else None)
    reference = (load_adapter(base, start) if start else base).eval()
    return load_subject(resolve_model(args.model), args).eval(), lambda: _as_it_is(reference)


def starting_adapter(plan: dict, run: str) -> str | None:
    """The adapter that the run began with, which its rewards are measured against. Raises Failure (exit 2) when another
    one stands in its place, or none."""
    if not plan["adapter"]:
        return None
    path, expected = plan["adapter"]["path"], plan["adapter"].get("hash")
    found = adapter_hash(Path(path))
    if found is None:
        raise Failure(USAGE, "reference-missing", f"the rewards of {run} are against the adapter {path}, which is gone")
    if expected and found != expected:
        text = f"the rewards of {run} are against the adapter {path}, which has changed since that run began"
        raise Failure(USAGE, "reference-changed", text)
    return path


def _reference_model(args: Namespace, plan: dict) -> str:
    """The base of an adapter, or the model that a run of all weights began with. Raises Failure (exit 2)."""
    given = args.model if args.adapter else None
    try:
        return resolve_model(given or plan["model"])
    except Failure:
        if given:
            raise
        run, fix = args.adapter or args.model, "Put it back there."
        if args.adapter:
            fix = "Put it back there, or say where it is: --model DIR --adapter DIR."
        text = f"the rewards of {run} are against the model {plan['model']}, which is gone"
        raise Failure(USAGE, "reference-missing", text, fix=fix) from None


@contextmanager
def _as_it_is(model) -> Iterator:
    yield model


@contextmanager
def _switched(model, adapter: str | None) -> Iterator:
    """The model with another of its adapters, or with none."""
    if adapter is None:
        with model.disable_adapter():
            yield model
        return
    active = model.active_adapter
    model.set_adapter(adapter)
    try:
        yield model
    finally:
        model.set_adapter(active)


def _batches(pairs: Sequence[Pair], size: int, device) -> Iterator[dict]:
    """As measure_preferences takes them."""
    import torch

    from gemma_trainer.evaluate.preferences import pad_pairs

    for start in range(0, len(pairs), size):
        rows = [side for sides in zip(*pairs[start : start + size], strict=True) for side in sides]
        ids, masks = ([torch.tensor(getattr(row, what)) for row in rows] for what in ("ids", "mask"))
        yield {name: column.to(device) for name, column in pad_pairs(ids, masks, pad_id=0).items()}


def summarise(rewards: Rewards) -> dict:
    measured = measure_rewards(rewards, [0.0] * len(rewards))
    return {"reward_accuracy": measured["accuracy"], "reward_margin": measured["margin"]}


def _plan(folder: str) -> dict:
    """The plan of a run directory, empty where there is none."""
    return (read_run(folder) or {}).get("plan", {})


def _write(path: Path, rows: list[dict], base: Rewards | None, tuned: Rewards) -> None:
    """One line a row that can be read on its own: the pair, and both rewards of each model."""
    with replacing(path) as file:
        for number, (row, rewards) in enumerate(zip(rows, tuned, strict=True)):
            told = {"row": number + 1, **{key: row[key] for key in ("prompt", "chosen", "rejected")}, **_told(rewards)}
            if base:
                told["base"] = _told(base[number])
            file.write(json.dumps(told, ensure_ascii=False) + "\n")


def _told(rewards: tuple[float, float]) -> dict:
    return dict(zip(("chosen_reward", "rejected_reward"), rewards, strict=True))
