"""Answers that are JSON: asked with their schema, read leniently, asked again once where they do not fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from gemma_trainer.data.reading.parse import parse_text
from gemma_trainer.distill.lenient import Found, find_values, samples_in
from gemma_trainer.distill.request import Reply, Request
from gemma_trainer.distill.schemas import Validator
from gemma_trainer.distill.work import Ask

_CUT = ("length", "max_tokens")


class Structured(NamedTuple):
    """`value` fits the schema where `fault` is None. `replies` are all that were asked for, the last one decides."""

    value: object
    fault: str | None
    replies: list[Reply]

    @property
    def reply(self) -> Reply:
        """The last reply; its content is JSON text of the value where it held more than that or had to be mended."""
        reply = self.replies[-1]
        if self.fault or parse_text(reply.content) == (self.value, None):
            return reply
        return replace(reply, content=json.dumps(self.value, ensure_ascii=False))

    @property
    def ids(self) -> list[str]:
        return [reply.id for reply in self.replies]


async def ask_value(ask: Ask, request: Request, validator: Validator) -> Structured:
    """One value that fits the validator's schema; after a fault one more request tells it and asks again.

    Raises RequestFailed.
    """
    request = replace(request, schema=validator.schema)
    first = await ask(request)
    value, fault = read_value(first.content, validator)
    if fault is None:
        return Structured(value, None, [first])
    second = await ask(repair_request(request, first, fault))
    value, fault = read_value(second.content, validator)
    return Structured(value, fault, [first, second])


def read_value(text: str, validator: Validator) -> tuple[object, str | None]:
    """(value, None) of the first value in a text that fits, else (None, what is wrong)."""
    found = find_values(text)
    values = [value for one in found.values for value in (one, *_alone_in(one))]
    faults = [validator.fault(value) for value in values]
    if None in faults:
        return values[faults.index(None)], None
    return None, found.fault or next(iter(faults), None) or "there is no JSON in the answer"


def repair_request(request: Request, reply: Reply, fault: str) -> Request:
    """A second try: an answer that was cut gets twice the room, another one is shown with its fault."""
    if (reply.finish_reason or "").lower() in _CUT:
        sampling = replace(request.sampling, max_tokens=2 * request.sampling.max_tokens)
        return replace(request, sampling=sampling)
    told = (
        f"This answer is not as asked: {fault}\nWrite the whole answer again, corrected. JSON only, nothing around it."
    )
    turns = [{"role": "assistant", "content": reply.content}, {"role": "user", "content": told}]
    if not reply.content.strip():
        turns = [{"role": "user", "content": told}]
    return replace(request, messages=[*request.messages, *turns])


class Sample(NamedTuple):
    """A value with the request and the reply that it came of."""

    value: dict
    request: Request
    reply: Reply


class Samples(NamedTuple):
    """`samples` fit the schema; `faults` tell of others, of the last reply among `replies` and those before it."""

    samples: list[Sample]
    faults: list[str]
    replies: list[Reply]


async def ask_samples(
    ask: Ask, make: Callable[[int, int], Request], count: int, names: Sequence[str], validator: Validator
) -> Samples:
    """Up to `count` objects that fit the validator. `make(count, step)` is the request for so many; what the first
    reply is short of, cut off or broken, is asked for once more. `names` are those of the field that tells a sample,
    ours first: small teachers rename it. Raises RequestFailed."""
    samples: list[Sample] = []
    faults: list[str] = []
    replies: list[Reply] = []
    for step in range(2):
        request = make(count - len(samples), step)
        replies.append(reply := await ask(request))
        found = _named_samples(reply.content, names)
        for value in found.values:
            if fault := validator.fault(value):
                faults.append(fault)
            elif all(value != sample.value for sample in samples):
                samples.append(Sample(value, request, reply))
        if found.fault or not found.values:
            faults.append(found.fault or "there is no JSON in the answer")
        if len(samples) >= count:
            break
    return Samples(samples[:count], faults, replies)


def _named_samples(text: str, names: Sequence[str]) -> Found:
    """The samples under the first name that any are found under, which becomes ours."""
    ours = samples_in(text, names[:1])
    for name in names[1:] if not ours.values else ():
        if (found := samples_in(text, [name], bare=False)).values:
            renamed = [{names[0] if key == name else key: item for key, item in one.items()} for one in found.values]
            return Found(renamed, found.fault)
    return ours


def _alone_in(value: object) -> list:
    """What a wrapper holds: a list of one, or an object with one key."""
    items = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return items if len(items) == 1 else []
