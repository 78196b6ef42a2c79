"""What an answer has to pass, and by what the best of several is told: the gate, a schema, a verifier, a judge."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from gemma_trainer.data.model import Model
from gemma_trainer.distill import gate
from gemma_trainer.distill.gate import GateOptions, Reason
from gemma_trainer.distill.judge import RUBRIC, Judge, read_rubric
from gemma_trainer.distill.language import check_language
from gemma_trainer.distill.rank import ByJudge, ByMajority, ByReward, ByVerifier, Ranker
from gemma_trainer.distill.request import Reply, Request
from gemma_trainer.distill.schemas import Validator, read_schema
from gemma_trainer.distill.structured import ask_value
from gemma_trainer.distill.verify import Verifier
from gemma_trainer.distill.work import Ask
from gemma_trainer.rows.problems import USAGE, Failure

LONGEST = 32  # characters a token of an answer can have on average


class Judged(NamedTuple):
    """An answer and why it is refused. `ids` are those of all requests that it took."""

    request: Request
    reply: Reply
    reasons: list[Reason]
    ids: list[str]


@dataclass
class Criteria:
    """Made once for a run. Verifiers and judges see only answers that have passed what is cheaper."""

    gate: GateOptions
    schema: Validator | None = None
    verifier: Verifier | None = None
    judge: Judge | None = None
    threshold: float | None = None
    ranker: Ranker | None = None
    drop_thinking: bool = False

    @classmethod
    def of(cls, args: Namespace, student: Model, method: str | None) -> Criteria:
        """From the flags; `method` tells what ranks answers, None for nothing. Raises Failure."""
        if args.language:
            check_language(args.language)
        options = GateOptions(student.family, args.language)
        schema = read_schema(Path(args.schema)) if args.schema else None
        verifier = Verifier(args.verifier) if args.verifier else None
        rubric = read_rubric(Path(args.judge_rubric)) if args.judge_rubric else RUBRIC
        judge = Judge(args.judge_model or args.teacher, rubric)
        ranker = _ranker(method, args, verifier, judge)
        return cls(options, schema, verifier, judge, args.judge_threshold, ranker, args.drop_thinking)

    def request_count(self, samples: int) -> int:
        """How many requests the answers to one prompt make, if none has to be asked again."""
        verdicts = 4 * (samples - 1) if isinstance(self.ranker, ByJudge) else 0
        return samples * (1 if self.threshold is None else 2) + verdicts

    async def answer(self, ask: Ask, request: Request, row: dict) -> Judged:
        """The answer to a request for the prompt `row`. Raises RequestFailed."""
        if self.schema is None or request.tools:
            reply = await ask(request)
            judged = Judged(request, reply, [], [reply.id])
        else:
            found = await ask_value(ask, request, self.schema)
            reasons = [Reason("schema-invalid", found.fault)] if found.fault else []
            judged = Judged(request, found.reply, reasons, found.ids)
        if self.drop_thinking:
            judged = judged._replace(reply=replace(judged.reply, reasoning_content=None))
        return await self.check(ask, judged, row)

    async def check(self, ask: Ask, judged: Judged, row: dict) -> Judged:
        """The answer with what speaks against it as one to the prompt `row`. Raises RequestFailed."""
        size, limit = judged.reply.size, judged.request.sampling.max_tokens
        if size > LONGEST * limit:  # the checks are for what can be an answer
            reason = Reason("too-long", f"{size:,} characters, and --max-new-tokens is {limit}: the server ignores it")
            return judged._replace(reasons=[*judged.reasons, reason])
        reasons = judged.reasons + gate.check(judged.reply, row["prompt"], row.get("tools"), self.gate)
        ids = judged.ids
        if not reasons and self.verifier:
            reasons = await self._verified(judged.reply, row)
        if not reasons and self.threshold is not None:
            score, more = await self.judge.score(ask, row["prompt"], judged.reply.message)
            ids, reasons = ids + more, self._scored(score)
        return judged._replace(reasons=reasons, ids=ids)

    async def _verified(self, reply: Reply, row: dict) -> list[Reason]:
        if isinstance(self.ranker, ByVerifier):
            return []  # it judges all of them together
        score, fault = await self.verifier.score(reply.content, row)
        return [] if score else [Reason("verifier-failed", fault or f"the verifier gave {score:g}")]

    def _scored(self, score: float | None) -> list[Reason]:
        if score is None:
            return [Reason("judge-low", "the judge gave no score that can be read")]
        low = f"{score:g}, at least {self.threshold:g} is asked"
        return [] if score >= self.threshold else [Reason("judge-low", low)]


def _ranker(method: str | None, args: Namespace, verifier: Verifier | None, judge: Judge) -> Ranker | None:
    if method == "reward":
        if not args.reward_model:
            raise Failure(USAGE, "usage", "ranking by reward needs --reward-model DIR, a run of rm_train.py")
        from gemma_trainer.models.load import quiet_libraries
        from gemma_trainer.models.reward import load_reward_model

        quiet_libraries()
        return ByReward(load_reward_model(args.reward_model))
    if method == "verifier" and verifier is None:
        raise Failure(USAGE, "usage", "ranking by verifier needs --verifier FILE.py:function")
    made = {"verifier": lambda: ByVerifier(verifier), "judge": lambda: ByJudge(judge), "majority": ByMajority}
    return made[method]() if method in made else None
