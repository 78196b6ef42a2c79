"""distill_dataset.py from its arguments to its result."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from gemma_trainer import cli
from gemma_trainer.data.model import Model, describe_model
from gemma_trainer.data.reading.sources import data_hash
from gemma_trainer.distill.advice import nothing_kept, verifier_faults
from gemma_trainer.distill.again import again
from gemma_trainer.distill.budget import Budget, BudgetSpent
from gemma_trainer.distill.command import Command
from gemma_trainer.distill.compare import Compare
from gemma_trainer.distill.estimate import make_plan
from gemma_trainer.distill.flags import check_flags
from gemma_trainer.distill.journal import Journal
from gemma_trainer.distill.local import LocalTeacher
from gemma_trainer.distill.output import Counts, Files, settings_of, write_manifest, write_settled
from gemma_trainer.distill.request import Reply
from gemma_trainer.distill.respond import Respond
from gemma_trainer.distill.run import Ended, Loop, Memo, Teacher
from gemma_trainer.distill.student import fitting
from gemma_trainer.distill.synthesize import Synthesize
from gemma_trainer.plan.packages import installed, missing_packages, versions
from gemma_trainer.rows.problems import DATA_INVALID, OK, REMOTE_FAILED, STOPPED, Failure, Problem, missing

COMMANDS: dict[str, Callable[[Namespace, Model], Command]] = {
    "respond": Respond,
    "synthesize": Synthesize,
    "compare": Compare,
}
TOLERATED = 0.05  # share of requests that may fail for good
ALIKE = 40  # characters with which reasons begin that are one; behind them a server may quote the request
PARALLEL = 2  # items worked on for each request that may be in flight


def distill(args: Namespace, script: str) -> cli.Outcome:
    """Raises Failure with the exit codes of the contract."""
    check_flags(args)
    _require_packages(args)
    student = describe_model(args.family, args.student)
    command = COMMANDS[args.action](args, student)
    files = Files.of(Path(args.out), Path(args.rejects) if args.rejects else None)
    settings = settings_of(args)
    files.check(command.files, settings, args.overwrite)
    budget = Budget(args.max_requests, args.max_tokens, args.max_cost, args.price_in, args.price_out)
    if args.plan:
        return make_plan(args, script, command, files, budget)
    try:
        return Session(args, script, student, command, files, settings, budget).run()
    except KeyboardInterrupt:
        problem = Problem("interrupted", "stopped by a signal before the files were in order; what is finished is kept")
    except Failure as failure:
        if failure.exit_code != STOPPED:
            raise
        problem = failure.problem
    return cli.Outcome(errors=[problem], next=again(script), exit_code=STOPPED)


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
        self.started, self.data_hash = _now(), data_hash(command.files)

    def run(self) -> cli.Outcome:
        args, files = self.args, self.files
        journal = Journal(files.replies, files.failed, args.retry_failed, self._paid)  # from here on files are ours
        try:
            files.check(self.command.files, self.settings, args.overwrite)  # another run may have ended meanwhile
            fresh = not files.manifest.exists() or args.overwrite
            write_manifest(files.manifest, {**self._facts(), "status": "running"})
            self.known = len(journal)
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
            self.journal = journal
        finally:
            journal.close()
        return self._outcome(ended, counts, teacher)

    def _paid(self, model: str, reply: Reply) -> None:
        if model in (self.args.teacher, self.args.judge_model):
            self.budget.add(reply)

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
            "data_hash": self.data_hash,
            "started": self.started,
            "versions": {**versions(), **({"aiohttp": installed("aiohttp")} if args.base_url else {})},
        }

    def _outcome(self, ended: Ended, counts: Counts, teacher: Teacher) -> cli.Outcome:
        usage, seconds = self.budget.usage, max(ended.seconds, 1e-6)
        status, problem, exit_code = self._ending(ended, counts)
        result = {
            "status": status,
            "items": counts.items + ended.failed_items,
            "rows": counts.rows,
            "rejected": counts.rejects,
            "rejected_by_reason": dict(counts.reasons.most_common()),
            "failed_items": ended.failed_items,
            "failed_requests": len(self.memo.failed),
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
        errors = [problem] if problem else []
        return cli.Outcome(
            result, errors, self._warnings(teacher, status), self._next(ended, counts), self._summary(result), exit_code
        )

    def _ending(self, ended: Ended, counts: Counts) -> tuple[str, Problem | None, int]:
        """(status, error, exit code)."""
        if isinstance(ended.stopped, Failure):
            return "teacher-failed", ended.stopped.problem, REMOTE_FAILED
        if isinstance(ended.stopped, BudgetSpent):
            return "budget-spent", Problem("budget-spent", str(ended.stopped)), STOPPED
        if ended.stopped:
            return "interrupted", Problem("interrupted", "stopped by a signal; what is finished is kept"), STOPPED
        if len(self.memo.failed) > TOLERATED * (len(self.memo.failed) + len(self.journal) - len(self.journal.unused)):
            return "requests-failed", self._failed("requests-failed"), REMOTE_FAILED
        if counts.rejects and not counts.rows:
            return "complete", nothing_kept(counts, self.files), DATA_INVALID
        return "complete", None, OK

    def _warnings(self, teacher: Teacher, status: str) -> list[Problem]:
        warnings = [*self.command.warnings, *self.journal.warnings]
        warnings += [Problem("teacher-limited", note) for note in teacher.notes]
        if status != "complete" and not again(self.script):
            warnings.append(Problem("stdin-once", "the input came from stdin; giving the same again goes on"))
        warnings += verifier_faults(self.command.criteria.verifier)
        if self.memo.failed and status != "requests-failed":
            warnings.append(self._failed("some-requests-failed"))
        if (unused := len(self.journal.unused)) and status == "complete":
            text = f"{unused} finished answers are no longer asked for; they stay in the journal"
            warnings.append(Problem("answers-unused", text, file=str(self.files.replies)))
        return warnings

    def _failed(self, code: str) -> Problem:
        reasons = list(self.memo.failed.values())
        ((start, count),) = Counter(reason[:ALIKE] for reason in reasons).most_common(1)
        reason = next(reason for reason in reasons if reason.startswith(start))
        which = "all" if count == len(reasons) else f"{count} of them"
        text = f"{len(reasons)} requests failed for good, {which}: {reason}"
        return Problem(code, text, file=str(self.files.failed))

    def _next(self, ended: Ended, counts: Counts) -> list[str]:
        if isinstance(ended.stopped, BudgetSpent):
            limit = 2 * ended.stopped.limit
            return again(self.script, ended.stopped.flag, f"{limit:g}" if limit % 1 else f"{limit:.0f}")
        retrying = ["--retry-failed"] if self.memo.failed else []
        if ended.stopped:
            return again(self.script, *retrying)
        commands = again(self.script, *retrying) if retrying else []
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


def _require_packages(args: Namespace) -> None:
    """Raises Failure (exit 4)."""
    in_process = args.model or args.adapter or getattr(args, "student_model", None)
    lacking = [name for work in ("distill", *(["train"] if in_process else [])) for name in missing_packages(work)]
    if lacking:
        raise missing(" ".join(lacking), "distillation", "distill and train" if in_process else "distill")


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
