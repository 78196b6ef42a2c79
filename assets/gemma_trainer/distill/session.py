"""distill_dataset.py from its arguments to its result."""

from __future__ import annotations

import asyncio
import re
import sys
from argparse import Namespace
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from gemma_trainer import cli
from gemma_trainer.data.model import Model, describe_model
from gemma_trainer.data.reading.sources import data_hash
from gemma_trainer.distill.budget import Budget
from gemma_trainer.distill.compare import Compare
from gemma_trainer.distill.estimate import make_plan
from gemma_trainer.distill.journal import Journal
from gemma_trainer.distill.local import LocalTeacher, local_name
from gemma_trainer.distill.output import Counts, Files, settings_of, write_manifest, write_settled
from gemma_trainer.distill.respond import Respond
from gemma_trainer.distill.run import Ended, Loop, Memo, Teacher
from gemma_trainer.distill.student import fitting
from gemma_trainer.distill.synthesize import Synthesize
from gemma_trainer.distill.work import Command
from gemma_trainer.models.resolve import resolve_model
from gemma_trainer.plan.packages import installed, missing_packages, versions
from gemma_trainer.rows.problems import DATA_INVALID, OK, REMOTE_FAILED, STOPPED, USAGE, Failure, Problem, missing

COMMANDS: dict[str, Callable[[Namespace, Model], Command]] = {
    "respond": Respond,
    "synthesize": Synthesize,
    "compare": Compare,
}
PARALLEL = 2  # items worked on for each request that may be in flight


def distill(args: Namespace, script: str) -> cli.Outcome:
    """Raises Failure with the exit codes of the contract."""
    _check(args)
    _require_packages(args)
    student = describe_model(args.family, args.student)
    command = COMMANDS[args.action](args, student)
    files = Files.of(Path(args.out), Path(args.rejects) if args.rejects else None)
    settings = settings_of(args)
    files.check(command.files, settings, args.overwrite)
    budget = Budget(args.max_requests, args.max_tokens, args.max_cost, args.price_in, args.price_out)
    if args.plan:
        return make_plan(args, command, files, budget)
    return Session(args, script, student, command, files, settings, budget).run()


class Session:
    """One run that asks, and what it leaves."""

    def __init__(
        self,
        args: Namespace,
        script: str,
        student: Model,
        command: Command,
        files: Files,
        settings: dict,
        budget: Budget,
    ):
        self.args, self.script, self.student = args, script, student
        self.command, self.files, self.settings, self.budget = command, files, settings, budget
        self.started = _now()

    def run(self) -> cli.Outcome:
        args, files = self.args, self.files
        fresh = not files.manifest.exists() or args.overwrite
        write_manifest(files.manifest, {**self._facts(), "status": "running"})  # first: it tells whose files these are
        journal = Journal(files.replies, files.failed, args.retry_failed)
        try:
            self.known = len(journal)
            for model, reply in journal.replies():
                if model in (args.teacher, args.judge_model):
                    self.budget.add(reply)
            teacher = make_teacher(args)
            teachers = {args.teacher: teacher, args.judge_model or args.teacher: teacher}
            free = set()
            if student := self.command.student_args:
                teachers[student.teacher] = make_teacher(student)
                free.add(student.teacher)
            self.memo = Memo(journal, teachers, free, self.budget)
            expected = self.command.request_count()
            loop = Loop(self.command, self.memo, files, PARALLEL * teacher.places, fresh, expected)
            ended = asyncio.run(loop.run())
            counts = write_settled(files, self.command.settle(self._fitting(ended)))
            self.failed = len(journal.failures)
        finally:
            journal.close()
        return self._outcome(ended, counts, teacher)

    def _fitting(self, ended: Ended):
        results = ended.spool.results(self.command)
        return fitting(results, self.student, self.args.max_length) if self.student.tokenizer else results

    def _facts(self) -> dict:
        args = self.args
        return {
            "settings": self.settings,
            "teacher": args.teacher,
            "server": args.base_url,
            "licence": args.licence,
            "data_hash": data_hash(self.command.files),
            "started": self.started,
            "versions": {**versions(), **({"aiohttp": installed("aiohttp")} if args.base_url else {})},
        }

    def _outcome(self, ended: Ended, counts: Counts, teacher: Teacher) -> cli.Outcome:
        usage, seconds = self.budget.usage, max(ended.seconds, 1e-6)
        failure = ended.stopped if isinstance(ended.stopped, Failure) else None
        status = "teacher-failed" if failure else ended.stopped or "complete"
        result = {
            "status": status,
            "items": counts.items + ended.failed_items,
            "rows": counts.rows,
            "rejected": counts.rejects,
            "rejected_by_reason": dict(counts.reasons.most_common()),
            "failed_items": ended.failed_items,
            "failed_requests": self.failed,
            "requests": self.memo.sent,
            "requests_before": self.known,
            "retried": teacher.retried,
            "tokens": {
                "prompt": usage.prompt_tokens,
                "completion": usage.completion_tokens,
                "reasoning": usage.reasoning_tokens,
            },
            "cost": round(self.budget.cost, 6),
            "seconds": round(seconds, 3),
            "requests_per_second": round(self.memo.sent / seconds, 2),
            "out": str(self.files.rows),
            "rejects": str(self.files.rejects) if counts.rejects else None,
            "replies": str(self.files.replies),
            "manifest": str(self.files.manifest),
        }
        write_manifest(self.files.manifest, {**self._facts(), "ended": _now(), **result})
        errors = [failure.problem] if failure else []
        if status == "interrupted":
            errors = [Problem("interrupted", "stopped by a signal; what is finished is kept")]
        elif status == "budget-spent":
            errors = [Problem("budget-spent", ended.detail)]
        exit_code = {"complete": OK, "teacher-failed": REMOTE_FAILED}.get(status, STOPPED)
        if exit_code == OK and counts.rejects and not counts.rows:
            errors, exit_code = [self._nothing_kept(counts)], DATA_INVALID
        warnings = [*self.command.warnings, *(Problem("teacher-limited", note) for note in teacher.notes)]
        if self.failed:
            warnings.append(self._failed_requests())
            if not counts.rows and not counts.rejects and exit_code == OK:
                errors, exit_code = [Problem("teacher-failed", "no request was answered")], REMOTE_FAILED
        return cli.Outcome(result, errors, warnings, self._next(status, counts), self._summary(result), exit_code)

    def _nothing_kept(self, counts: Counts) -> Problem:
        reasons = ", ".join(f"{reason} {count}" for reason, count in counts.reasons.most_common(5))
        text = f"all {counts.rejects} answers were refused ({reasons})"
        return Problem("no-answer-kept", text, file=str(self.files.rejects))

    def _failed_requests(self) -> Problem:
        text = f"{self.failed} requests failed for good: {self.files.failed}"
        return Problem("requests-failed", text, file=str(self.files.failed))

    def _next(self, status: str, counts: Counts) -> list[str]:
        again = cli.command(self.script, *sys.argv[1:])
        if status != "complete":
            return [again]
        commands = [f"{again} --retry-failed"] if self.failed and "--retry-failed" not in sys.argv else []
        if counts.rows:
            model = ["--model", self.args.student] if self.args.student else []
            task = ["--task", "dpo"] if self.args.action == "compare" else []
            prepare = Path(self.script).with_name("dataset_prep.py")
            commands.append(cli.command(prepare, "validate", self.args.out, *task, *model))
        return commands

    def _summary(self, result: dict) -> str:
        reasons = ", ".join(f"{word} {count}" for word, count in result["rejected_by_reason"].items())
        tokens = result["tokens"]
        lines = [
            f"{result['status']}: {result['items']} items, {result['rows']} rows, {result['rejected']} refused"
            + (f" ({reasons})" if reasons else "")
            + (f", {result['failed_items']} failed" if result["failed_items"] else ""),
            f"requests {result['requests']} now, {result['requests_before']} before, {result['retried']} retries, "
            f"{result['requests_per_second']}/s",
            f"tokens   {tokens['prompt']:,} read, {tokens['completion']:,} written ({tokens['reasoning']:,} thinking)"
            + (f", cost {result['cost']:.4f}" if result["cost"] else ""),
            f"rows     {result['out']}",
        ]
        return "\n".join([*lines, *([f"rejects  {result['rejects']}"] if result["rejects"] else [])])


def make_teacher(args: Namespace) -> Teacher:
    if args.base_url:
        from gemma_trainer.distill.client import RemoteTeacher, Settings

        return RemoteTeacher(Settings.of(args))
    return LocalTeacher(args)


def _check(args: Namespace) -> None:
    """Flags that exclude or need each other; settles `teacher`. Raises Failure (exit 2)."""
    if not args.out:
        raise Failure(USAGE, "usage", "--out FILE.jsonl is needed")
    if not getattr(args, "prompts", True):
        raise Failure(USAGE, "usage", "no PROMPTS were given", fix="Name files, folders or globs, or - for stdin.")
    if bool(args.base_url) == bool(args.model or args.adapter):
        raise Failure(USAGE, "usage", "the teacher is either a server, --base-url and --teacher, or a --model")
    if args.base_url and not args.teacher:
        raise Failure(USAGE, "usage", "--base-url needs --teacher NAME", fix=f"See {args.base_url}/models.")
    if args.base_url and not re.match(r"https?://[^/]", args.base_url):
        raise Failure(USAGE, "usage", f"--base-url {args.base_url} is no URL of the form http://host:port/v1")
    if args.judge_model and not args.base_url:
        raise Failure(USAGE, "usage", "--judge-model names a model of the teacher's server, and there is no --base-url")
    if args.action == "respond" and args.samples > 1 and args.temperature == 0:
        raise Failure(USAGE, "usage", "--samples above 1 need a --temperature above 0: greedy answers are all alike")
    if args.model:
        resolve_model(args.model)
    if not args.base_url:
        args.teacher = local_name(args, args.teacher)


def _require_packages(args: Namespace) -> None:
    """Raises Failure (exit 4)."""
    in_process = args.model or args.adapter or getattr(args, "student_model", None)
    lacking = [name for work in ("distill", *(["train"] if in_process else [])) for name in missing_packages(work)]
    if lacking:
        raise missing(" ".join(lacking), "distillation", "distill and train" if in_process else "distill")


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
