"""Flags of distill_dataset.py that exclude or need each other, or would do nothing."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

from gemma_trainer.distill.address import check_url
from gemma_trainer.distill.local import local_name
from gemma_trainer.models.resolve import resolve_model
from gemma_trainer.rows.problems import USAGE, Failure

MAX_LENGTH = 2048  # tokens of a row, where a student is named


def check_flags(args: Namespace) -> None:
    """Settles `teacher` and `max_length`. Raises Failure (exit 2)."""
    if not args.out:
        raise Failure(USAGE, "usage", "--out FILE.jsonl is needed")
    if not getattr(args, "prompts", True):
        raise Failure(USAGE, "usage", "no PROMPTS were given", fix="Name files, folders or globs, or - for stdin.")
    if bool(args.base_url) == bool(args.model or args.adapter):
        raise Failure(USAGE, "usage", "the teacher is either a server, --base-url and --teacher, or a --model")
    if args.base_url:
        check_url("--base-url", args.base_url)
        if not args.teacher:
            raise Failure(USAGE, "usage", "--base-url needs --teacher NAME", fix=f"See {args.base_url}/models.")
    for flag, needed in _needs(args):
        raise Failure(USAGE, "usage", f"{flag} does nothing without {needed}", fix=f"Give {needed}, or drop {flag}.")
    if (getattr(args, "samples", 1) or 1) > 1 and args.temperature == 0:
        raise Failure(USAGE, "usage", "--samples above 1 need a --temperature above 0: greedy answers are all alike")
    if getattr(args, "by", "student") != "student" and args.temperature == 0:
        raise Failure(USAGE, "usage", f"--by {args.by} needs a --temperature above 0: greedy answers are all alike")
    if args.model:
        resolve_model(args.model)
    if not args.base_url:
        args.teacher = local_name(args, args.teacher)
    if args.student:
        args.max_length = args.max_length or MAX_LENGTH


def _needs(args: Namespace) -> Iterator[tuple[str, str]]:
    """(flag, what it needs) of flags that are given and would change nothing."""
    method = getattr(args, "best_of", None) or getattr(args, "by", None)
    ranks = "--best-of" if args.action == "respond" else "--by"
    judges = args.judge_threshold is not None or method == "judge"
    judging = "--judge-threshold" if args.action == "synthesize" else f"--judge-threshold or {ranks} judge"
    is_student = method == "student"
    rules = [
        ("max_length", bool(args.student), "--student"),
        ("max_cost", args.price_in or args.price_out, "--price-in or --price-out"),
        ("judge_rubric", judges, judging),
        ("judge_model", judges, judging),
        ("judge_model", bool(args.base_url), "--base-url"),
        ("reward_model", method == "reward", f"{ranks} reward"),
        *((f"student_{name}", is_student, "--by student") for name in ("model", "adapter", "base_url", "name")),
        ("student_api_key_env", is_student and args.student_base_url, "--student-base-url"),
        ("samples", args.action != "compare" or not is_student, "--by reward, judge or verifier"),
        ("system", not getattr(args, "documents", None), "--seeds or --tools"),
    ]
    for name, is_met, needed in rules:
        if getattr(args, name, None) is not None and not is_met:
            yield f"--{name.replace('_', '-')}", needed
