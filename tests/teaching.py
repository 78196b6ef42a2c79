"""Teachers for the tests of distillation that need no server."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable

from gemma_trainer.data.model import describe_model
from gemma_trainer.distill.options import add_arguments
from gemma_trainer.distill.request import Reply, Request, Usage
from gemma_trainer.distill.work import Item, Reject, Result


class Scripted:
    """Gives its replies in turn: texts, or (text, finish reason); asked too often it fails the test.

    A request that was answered gets the same answer again, as the journal does it.
    """

    def __init__(self, *replies: str | tuple[str, str]):
        self.replies = list(replies)
        self.requests: list[Request] = []
        self.known: dict[str, Reply] = {}

    async def ask(self, request: Request) -> Reply:
        if request.id not in self.known:
            self.requests.append(request)
            assert self.replies, "asked more often than expected"
            self.known[request.id] = make_reply(request, self.replies.pop(0))
        return self.known[request.id]


class Answering:
    """Answers each request by a function of it, which gives a text, (text, finish reason) or a Reply."""

    def __init__(self, answer: Callable[[Request], str | tuple[str, str] | Reply]):
        self.answer = answer
        self.requests: list[Request] = []

    async def ask(self, request: Request) -> Reply:
        self.requests.append(request)
        return make_reply(request, self.answer(request))


def make_reply(request: Request, said: str | tuple[str, str] | Reply) -> Reply:
    if isinstance(said, Reply):
        return said
    text, finish = said if isinstance(said, tuple) else (said, "stop")
    return Reply(id=request.id, content=text, finish_reason=finish, usage=Usage(10, 5), model=request.model)


def made(command: type, teacher: Scripted | Answering, *words: object) -> tuple[list[dict], list[Reject], object]:
    """(rows, rejects, command) of all items of a command, asked of a teacher in this process."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args([str(word) for word in words] + ["--out", "unused.jsonl"])
    args.teacher = args.teacher or "teacher"
    student = describe_model("gemma4" if args.family == "auto" else args.family, None)
    job = command(args, student)

    async def work() -> list[tuple[Item, Result]]:
        return [(item, await job.work(item, teacher.ask)) for item in job.items()]

    settled = [result for _, result in job.settle(iter(asyncio.run(work())))]
    rows = [row for result in settled for row in result.rows]
    return rows, [reject for result in settled for reject in result.rejects], job
