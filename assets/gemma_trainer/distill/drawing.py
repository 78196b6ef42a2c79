"""What all kinds of synthesis share: draws with their own chance, new prompts, answers that are judged."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from gemma_trainer.distill import gate
from gemma_trainer.distill.criteria import Criteria, Judged
from gemma_trainer.distill.gate import Reason
from gemma_trainer.distill.output import sft_row
from gemma_trainer.distill.request import Reply, Request, Sampling
from gemma_trainer.distill.schemas import Validator, validator
from gemma_trainer.distill.structured import Samples
from gemma_trainer.distill.work import Ask, Reject, Result

# Given to the writer by chance, so that a thousand draws do not give the same ten ideas.
ASKERS = (
    "a pupil", "a student", "a teacher", "a nurse", "an engineer", "a shop owner", "a retired person", "a journalist",
    "a parent", "a farmer", "a software developer", "an office worker", "a traveller", "a scientist", "a musician",
    "somebody who is new to the subject", "somebody who knows the subject well", "somebody in a hurry",
)  # fmt: skip
SHAPES = (
    "short and direct", "with a concrete example or data in it", "with some context first", "in everyday words",
    "with a limit on the form or length of the answer", "about an unusual case", "of several parts",
    "precise and technical",
)  # fmt: skip
_WRITING = 1.0  # temperature of new prompts: they should differ


@dataclass(frozen=True)
class Draw:
    """Number `number` of the draws of a run, counted from 0; `wanted` samples are asked for at once."""

    number: int
    wanted: int
    seed: int
    kind: str

    def chance(self, what: str) -> random.Random:
        """Of one thing that is left to it; the same in every run, whatever else is drawn."""
        return random.Random(f"{self.seed} {self.kind} {self.number} {what}")


@dataclass(frozen=True)
class Studio:
    """A teacher and what its answers have to pass."""

    teacher: str
    sampling: Sampling
    criteria: Criteria

    def writing(self, draw: Draw, text: str, schema: dict, step: int = 0) -> Request:
        """A request for something new in the form of `schema`; there is one for each draw and step."""
        thinking = None if self.sampling.thinking else self.sampling.thinking  # thinking is for the answers
        sampling = replace(self.sampling, temperature=max(_WRITING, self.sampling.temperature), thinking=thinking)
        sample = 100 * draw.number + step
        return Request(self.teacher, [{"role": "user", "content": text}], sampling, None, schema, sample)

    async def answer(self, ask: Ask, prompt: list[dict], tools: list[dict] | None = None, sample: int = 0) -> Answered:
        """The teacher's answer to a prompt, judged. Raises RequestFailed."""
        request = Request(self.teacher, prompt, self.sampling, tools, None, sample)
        return Answered(prompt, tools, await self.criteria.answer(ask, request, _row(prompt, tools)))

    async def check(self, ask: Ask, prompt: list[dict], tools: list[dict] | None, judged: Judged) -> Answered:
        """The same for an answer that came on another way. Raises RequestFailed."""
        return Answered(prompt, tools, await self.criteria.check(ask, judged._replace(reasons=[]), _row(prompt, tools)))


def _row(prompt: list[dict], tools: list[dict] | None) -> dict:
    return {"prompt": prompt, **({"tools": tools} if tools else {})}


@dataclass(frozen=True)
class Answered:
    """A judged answer to a prompt, which need not be what was sent."""

    prompt: list[dict]
    tools: list[dict] | None
    judged: Judged

    @property
    def reply(self) -> Reply:
        return self.judged.reply

    @property
    def reasons(self) -> list[Reason]:
        return self.judged.reasons

    def refused(self, *reasons: Reason) -> Answered:
        """With more that speaks against it."""
        return replace(self, judged=self.judged._replace(reasons=[*self.reasons, *reasons]))

    def row(self, **meta: Any) -> dict:
        row = sft_row(self.prompt, self.judged.request, self.reply, self.tools)
        return {**row, "meta": {**row["meta"], **meta}}


def add(result: Result, answered: Answered, ids: list[str], **meta: Any) -> None:
    """Put the row of an answer where it belongs. `ids` are those of the requests that made its prompt."""
    row = answered.row(**meta)
    if answered.reasons:
        result.rejects.append(gate.rejected(row, answered.reasons, [*ids, *answered.judged.ids]))
    else:
        result.rows.append(row)


def refuse(replies: list[Reply], faults: list[str], request: Request, word: str = "schema-invalid") -> Reject:
    """The reject of a writer's replies that were of no use."""
    said = {"messages": [*request.messages, {"role": "assistant", "content": replies[-1].content}]}
    return gate.rejected(said, [Reason(word, "; ".join(faults)[:500])], [reply.id for reply in replies])


def shortfall(found: Samples, wanted: int, request: Request) -> list[Reject]:
    """What is to be told of a writer whose samples were broken, or fewer than were asked for."""
    if found.faults:
        return [refuse(found.replies, found.faults, request)]
    if len(found.samples) < wanted:
        return [refuse(found.replies, [f"{len(found.samples)} of {wanted} samples came"], request, "too-few")]
    return []


def opening(system: str | None, text: str) -> list[dict]:
    """The first messages of a conversation."""
    first = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": text}]


def form(**fields: dict) -> Validator:
    """An object with all of these fields."""
    return validator({"type": "object", "properties": fields, "required": list(fields)}, "the form")


TEXT = {"type": "string", "pattern": r"\S"}
