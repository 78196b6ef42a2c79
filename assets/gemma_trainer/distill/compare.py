"""Pairs of a better and a worse answer to one prompt."""

from __future__ import annotations

import copy
from argparse import Namespace
from collections.abc import Iterable

from gemma_trainer.data.checking.check_teacher import is_echo
from gemma_trainer.data.model import Model
from gemma_trainer.distill import gate
from gemma_trainer.distill.address import check_url, origin
from gemma_trainer.distill.criteria import Criteria, Judged
from gemma_trainer.distill.gate import Reason
from gemma_trainer.distill.local import local_name
from gemma_trainer.distill.output import meta_of
from gemma_trainer.distill.rank import Ranking
from gemma_trainer.distill.request import Request
from gemma_trainer.distill.respond import Prompts, sampling_of, with_columns
from gemma_trainer.distill.together import together
from gemma_trainer.distill.work import Ask, Item, Reject, Result, Results
from gemma_trainer.rows.content import text_of
from gemma_trainer.rows.problems import USAGE, Failure

METHODS = ("student", "reward", "judge", "verifier")  # values of --by
SAMPLES = 4  # answers to choose from
# A worse answer may refuse, loop or be in the wrong language; what has no end or no words teaches nothing.
_USELESS = frozenset({"cut", "empty", "blocked", "control-tokens", "invalid"})
_WITH_MARGIN = ("reward", "verifier")  # whose scores are of one scale


class Compare:
    """`student`: the teacher's answer against the student's. Else the best against the worst of `samples` answers of
    the teacher. Raises Failure."""

    def __init__(self, args: Namespace, student: Model):
        self.by, self.samples = args.by, 1 if args.by == "student" else args.samples or SAMPLES
        self.student_args = _student(args) if args.by == "student" else None
        if self.student_args is None and self.samples < 2:
            raise Failure(USAGE, "usage", f"--by {self.by} needs --samples of at least 2")
        self.prompts = Prompts(args.prompts, student, args.system)
        self.files, self.warnings = self.prompts.files, self.prompts.warnings
        self.criteria = Criteria.of(args, student, None if self.student_args else self.by)
        self.teacher, self.sampling, self.near = args.teacher, sampling_of(args), args.near_duplicates

    def items(self) -> Iterable[Item]:
        return self.prompts.items

    def request_count(self) -> int:
        return len(self.prompts.items) * self.criteria.request_count(2 if self.student_args else self.samples)

    async def work(self, item: Item, ask: Ask) -> Result:
        """At most one pair."""
        row = item.data
        names = [self.teacher, self.student_args.teacher] if self.student_args else [self.teacher] * self.samples
        requests = [
            Request(name, row["prompt"], self.sampling, row.get("tools"), None, 0 if self.student_args else number)
            for number, name in enumerate(names)
        ]
        judged = await together(*(self.criteria.answer(ask, request, row) for request in requests))
        if self.student_args:
            return self._against_student(row, judged)
        return await self._best_and_worst(ask, row, judged)

    def _against_student(self, row: dict, judged: list[Judged]) -> Result:
        if len(judged) < 2:
            return Result()  # one of them failed for good, which the journal tells
        return self._pair(row, judged[0], judged[1], Ranking(0, 1))

    async def _best_and_worst(self, ask: Ask, row: dict, judged: list[Judged]) -> Result:
        usable = [one for one in judged if not _USELESS & {reason.word for reason in one.reasons}]
        if len(usable) < 2:
            refused = [one for one in judged if one not in usable]
            return Result(rejects=[_refused(row, one, one.reasons) for one in refused])
        ranking = await self.criteria.ranker.rank(ask, row, [one.reply.message for one in usable])
        if ranking.best is None or ranking.worst is None:
            why = Reason(ranking.word or "tie", ranking.why or "no answer is better than the others")
            return Result(rejects=[_refused(row, usable[0], [why])])
        return self._pair(row, usable[ranking.best], usable[ranking.worst], ranking)

    def _pair(self, row: dict, better: Judged, worse: Judged, ranking: Ranking) -> Result:
        made = {"prompt": row["prompt"], "chosen": [better.reply.message], "rejected": [worse.reply.message]}
        made |= {key: row[key] for key in ("tools", "chat_template_kwargs") if row.get(key)}
        if self.by in _WITH_MARGIN:
            made["margin"] = ranking.margin
        meta = {"by": self.by, "chosen": meta_of(better.request, better.reply)}
        meta |= {"rejected": meta_of(worse.request, worse.reply)}
        made = with_columns({**made, "meta": {"id": better.reply.id, **meta}}, row)
        reasons = better.reasons + [reason for reason in worse.reasons if reason.word in _USELESS]
        if not reasons:
            reasons = _check_pair(made, self.criteria)
        if reasons:
            return Result(rejects=[gate.rejected(made, reasons, [*better.ids, *worse.ids, *ranking.ids])])
        return Result([made])

    def settle(self, results: Results) -> Results:
        """Refuse pairs whose better answer is a repeated one."""
        seen = gate.SeenAnswers(self.near)
        for item, result in results:
            kept, rejects = [], list(result.rejects)
            for row in result.rows:
                key = row["meta"]["id"]
                if reason := seen.check(row["prompt"], row["chosen"][0], key):
                    rejects.append(gate.rejected(row, [reason], [key]))
                else:
                    kept.append(row)
            yield item, Result(kept, rejects)


def _check_pair(row: dict, criteria: Criteria) -> list[Reason]:
    chosen, rejected = row["chosen"][0], row["rejected"][0]
    same = is_echo(text_of(chosen["content"]), text_of(rejected["content"]))
    if same and chosen.get("tool_calls") == rejected.get("tool_calls"):
        return [Reason("tie", "both answers say the same")]
    return gate.check_row(row, criteria.gate.family, task="dpo")


def _refused(row: dict, one: Judged, reasons: list[Reason]) -> Reject:
    said = {"prompt": row["prompt"], "response": one.reply.message, "meta": meta_of(one.request, one.reply)}
    return gate.rejected(said, reasons, one.ids)


def _student(args: Namespace) -> Namespace:
    """The flags of a second teacher. Raises Failure (exit 2)."""
    if bool(args.student_base_url) == bool(args.student_model or args.student_adapter):
        text = "--by student needs the student's answers: --student-model DIR, or --student-base-url URL and its name"
        raise Failure(USAGE, "usage", text)
    made = copy.copy(args)
    made.base_url, made.model, made.adapter = args.student_base_url, args.student_model, args.student_adapter
    if made.base_url:
        check_url("--student-base-url", made.base_url)
        if not args.student_name:
            raise Failure(USAGE, "usage", "--student-base-url needs --student-name NAME")
        is_same = bool(args.base_url) and origin(args.base_url) == origin(made.base_url)
        made.api_key_env = args.student_api_key_env or (args.api_key_env if is_same else None)
    made.teacher = args.student_name if made.base_url else local_name(made, args.student_name)
    if made.teacher == args.teacher:
        raise Failure(USAGE, "usage", f"teacher and student are the same, {made.teacher}")
    return made
