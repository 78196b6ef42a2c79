"""Answers to prompts."""

from __future__ import annotations

import asyncio
import hashlib
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from gemma_trainer.data.clean import read_clean
from gemma_trainer.data.model import Model
from gemma_trainer.data.reading.sources import expand
from gemma_trainer.distill import gate
from gemma_trainer.distill.output import sft_row
from gemma_trainer.distill.request import Reply, Request, Sampling
from gemma_trainer.distill.work import Ask, Item, RequestFailed, Result, Results
from gemma_trainer.rows.content import fold
from gemma_trainer.rows.problems import Problem


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
    text = fold(str([[message["role"], message["content"], message.get("tool_calls")] for message in messages]))
    return hashlib.blake2b(f"{text}{tools}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _with_system(prompt: list[dict], system: str | None) -> list[dict]:
    """None leaves the prompt as it is, text goes where there is none, empty text takes the prompt's own away."""
    has_one = prompt[0]["role"] == "system"
    if system == "":
        return prompt[1:] if has_one else prompt
    return prompt if system is None or has_one else [{"role": "system", "content": system}, *prompt]


def sampling_of(args: Namespace) -> Sampling:
    thinking = {"auto": None, "on": True, "off": False}[args.thinking]
    return Sampling(args.temperature, args.top_p, args.max_new_tokens, thinking, args.seed)


async def ask_all(ask: Ask, requests: list[Request]) -> list[tuple[Request, Reply]]:
    """Those that were answered, in order. Raises RequestFailed when none was."""
    if len(requests) == 1:
        return [(requests[0], await ask(requests[0]))]
    found = await asyncio.gather(*map(ask, requests), return_exceptions=True)
    for error in found:
        if isinstance(error, BaseException) and not isinstance(error, RequestFailed):
            raise error
    answered = [(request, reply) for request, reply in zip(requests, found, strict=True) if isinstance(reply, Reply)]
    if not answered:
        raise found[0]
    return answered


class Respond:
    """Every good answer of `samples` a prompt is a row."""

    def __init__(self, args: Namespace, student: Model):
        self.prompts = Prompts(args.prompts, student, args.system)
        self.files, self.warnings = self.prompts.files, self.prompts.warnings
        self.teacher, self.sampling, self.samples = args.teacher, sampling_of(args), args.samples
        self.options = gate.GateOptions(student.family, args.language)
        self.drop_thinking = args.drop_thinking
        self.near = args.near_duplicates

    def items(self) -> Iterable[Item]:
        return self.prompts.items

    def request_count(self) -> int:
        return len(self.prompts.items) * self.samples

    async def work(self, item: Item, ask: Ask) -> Result:
        prompt, tools = item.data["prompt"], item.data.get("tools")
        requests = [Request(self.teacher, prompt, self.sampling, tools, None, n) for n in range(self.samples)]
        result = Result()
        for request, reply in await ask_all(ask, requests):
            reply = replace(reply, reasoning_content=None) if self.drop_thinking else reply
            row = sft_row(prompt, request, reply, tools)
            reasons = gate.check(reply, prompt, tools, self.options)
            if reasons:
                result.rejects.append(gate.rejected(row, reasons, [reply.id]))
            else:
                result.rows.append(row)
        return result

    def settle(self, results: Results) -> Results:
        seen = gate.SeenAnswers(self.near)
        for item, result in results:
            yield item, _new(result, seen)


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
