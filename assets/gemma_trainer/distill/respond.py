"""Answers to prompts."""

from __future__ import annotations

import hashlib
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

from gemma_trainer.data.clean import read_clean
from gemma_trainer.data.model import Model
from gemma_trainer.data.reading.sources import expand
from gemma_trainer.distill import gate
from gemma_trainer.distill.criteria import Criteria, Judged
from gemma_trainer.distill.gate import Reason
from gemma_trainer.distill.output import sft_row
from gemma_trainer.distill.request import Request, Sampling
from gemma_trainer.distill.together import together
from gemma_trainer.distill.work import Ask, Item, Reject, Result, Results
from gemma_trainer.rows.content import fold
from gemma_trainer.rows.problems import USAGE, Failure, Problem

# Columns of a prompt row that do not go into the rows of its answers: what is rendered, and our own.
_OURS = {"id", "prompt", "messages", "tools", "meta", "margin", "chosen", "rejected", "reasons", "ids", "details"}
_OURS |= {"completion", "text", "chat_template_kwargs", "label"}


class Prompts:
    """Prompts of files, each once: those that differ in case and blanks only are one. Raises Failure (exit 3)."""

    def __init__(self, names: Iterable[str], student: Model, system: str | None):
        self.files: list[Path] = expand(names)
        rows, self.warnings = read_clean(self.files, "prompts", student)
        items: dict[str, Item] = {}
        for row in rows:
            prompt = _with_system(row.data["prompt"], system)
            data = {**row.data, "prompt": prompt}
            key = prompt_key(prompt, data.get("tools"))
            items.setdefault(key, Item(key, data))
        self.items = list(items.values())
        self.repeated = len(rows) - len(self.items)
        if self.repeated:
            text = f"{self.repeated} of {len(rows)} prompts repeat others and are asked once"
            self.warnings.append(Problem("prompts-repeated", text))


def prompt_key(messages: list[dict], tools: list[dict] | None) -> str:
    """16 hex digits, the same for prompts that differ in case and blanks only."""
    text = str([[message["role"], _folded(message["content"]), message.get("tool_calls")] for message in messages])
    return hashlib.blake2b(f"{text}{tools}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _folded(content: object) -> str:
    return fold(content if isinstance(content, str) else str(content))


def _with_system(prompt: list[dict], system: str | None) -> list[dict]:
    """None leaves the prompt as it is, text goes where there is none, empty text takes the prompt's own away."""
    has_one = prompt[0]["role"] == "system"
    if system == "":
        return prompt[1:] if has_one else prompt
    return prompt if system is None or has_one else [{"role": "system", "content": system}, *prompt]


def sampling_of(args: Namespace) -> Sampling:
    thinking = {"auto": None, "on": True, "off": False}[args.thinking]
    return Sampling(args.temperature, args.top_p, args.max_new_tokens, thinking, args.seed)


class Respond:
    """Every good answer of `samples` a prompt is a row, or the best of them."""

    def __init__(self, args: Namespace, student: Model):
        if args.best_of and args.samples < 2:
            raise Failure(USAGE, "usage", "--best-of needs --samples of at least 2")
        self.prompts = Prompts(args.prompts, student, args.system)
        self.files, self.warnings = self.prompts.files, self.prompts.warnings
        self.student_args: Namespace | None = None
        self.teacher, self.sampling, self.samples = args.teacher, sampling_of(args), args.samples
        self.criteria = Criteria.of(args, student, args.best_of)
        self.near = args.near_duplicates

    def items(self) -> Iterable[Item]:
        return self.prompts.items

    def request_count(self) -> int:
        return len(self.prompts.items) * self.criteria.request_count(self.samples)

    async def work(self, item: Item, ask: Ask) -> Result:
        row = item.data
        asked = [
            Request(self.teacher, row["prompt"], self.sampling, row.get("tools"), None, number)
            for number in range(self.samples)
        ]
        result, good = Result(), []
        for judged in await together(*(self.criteria.answer(ask, request, row) for request in asked)):
            if judged.reasons:
                result.rejects.append(_reject(judged, row))
            else:
                good.append(judged)
        if self.criteria.ranker and good:
            good, others = await self._best(ask, row, good)
            result.rejects += others
        result.rows = [_row(judged, row) for judged in good]
        return result

    async def _best(self, ask: Ask, row: dict, good: list[Judged]) -> tuple[list[Judged], list[Reject]]:
        """(the best answer or none, the others)."""
        ranking = await self.criteria.ranker.rank(ask, row, [judged.reply.message for judged in good])
        reason = Reason("not-best") if ranking.best is not None else Reason(ranking.word or "tie", ranking.why)
        kept = [] if ranking.best is None else [good[ranking.best]]
        return kept, [_reject(judged._replace(reasons=[reason]), row) for judged in good if judged not in kept]

    def settle(self, results: Results) -> Results:
        seen = gate.SeenAnswers(self.near)
        for item, result in results:
            yield item, _new(result, seen)


def _row(judged: Judged, prompt: dict) -> dict:
    return with_columns(sft_row(judged.request.messages, judged.request, judged.reply, judged.request.tools), prompt)


def with_columns(row: dict, prompt: dict) -> dict:
    """The row with the prompt row's own columns beside it; what it calls `id` and `meta` goes into ours."""
    own = {key: value for key, value in prompt.items() if key not in _OURS}
    told = {f"prompt_{key}": prompt[key] for key in ("id", "meta") if key in prompt}
    return {**row, **own, "meta": {**row["meta"], **told}}


def _reject(judged: Judged, prompt: dict) -> Reject:
    return gate.rejected(_row(judged, prompt), judged.reasons, judged.ids)


def _new(result: Result, seen: gate.SeenAnswers) -> Result:
    """The result without rows that repeat earlier ones, which are rejects then."""
    kept, rejects = [], list(result.rejects)
    for row in result.rows:
        *prompt, answer = row["messages"]
        reason = seen.check(prompt, answer, row["meta"]["id"])
        if reason:
            rejects.append(gate.rejected(row, [reason], [row["meta"]["id"]]))
        else:
            kept.append(row)
    return Result(kept, rejects)
