"""What a run would ask and cost, without asking."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from itertools import islice

from gemma_trainer import cli
from gemma_trainer.distill.again import again
from gemma_trainer.distill.budget import CHARACTERS, Budget
from gemma_trainer.distill.command import Command
from gemma_trainer.distill.journal import read_line
from gemma_trainer.distill.output import Files
from gemma_trainer.distill.probe import Dialect
from gemma_trainer.distill.request import Reply, Request
from gemma_trainer.distill.work import RequestFailed
from gemma_trainer.rows.problems import DATA_INVALID, Failure

LOOKED_AT = 200  # items whose first requests give the mean length
SHOWN = 2_000  # characters of a request


def make_plan(args: Namespace, script: str, command: Command, files: Files, budget: Budget) -> cli.Outcome:
    """The first request, counts, tokens and cost. Reads what earlier runs left and, of a server, its list of models.

    Raises Failure (exit 3) when there is nothing to ask.
    """
    requests = asyncio.run(_first_requests(command))
    if not requests:
        raise Failure(DATA_INVALID, "no-rows", "there is nothing to ask")
    count, known = command.request_count(), _known(files)
    open_ = max(0, count - len(known))
    read = sum(map(_tokens, requests)) / len(requests)
    most = args.max_new_tokens
    written = sum(known) / len(known) if known else None
    result = {
        "plan": True,
        "teacher": args.teacher,
        "server": args.base_url,
        "first_request": _shown(args, requests[0]),
        "requests": count,
        "requests_before": len(known),
        "prompt_tokens": round(open_ * read),
        "completion_tokens": None if written is None else round(open_ * written),
        "completion_tokens_at_most": open_ * most,
        "cost": None if written is None else round(budget.price(open_ * read, open_ * written), 4),
        "cost_at_most": round(budget.price(open_ * read, open_ * most), 4),
        "notes": asyncio.run(_server_notes(args, read)) if args.base_url else [],
    }
    following = again(script, without="--plan")
    return cli.Outcome(result, warnings=list(command.warnings), next=following, summary=_summary(result))


async def _first_requests(command: Command) -> list[Request]:
    """The first request of each of some items; their work ends with it."""
    asked: list[Request] = []

    async def ask(request: Request) -> Reply:
        asked.append(request)
        raise RequestFailed(request.id, "planned")

    firsts = []
    for item in islice(command.items(), LOOKED_AT):
        asked.clear()
        try:
            await command.work(item, ask)
        except RequestFailed:
            firsts.append(asked[0])
    return firsts


def _known(files: Files) -> list[int]:
    """Tokens written in each answer that is paid for."""
    if not files.replies.exists():
        return []
    with files.replies.open("rb") as lines:
        replies = [told.reply for told in map(read_line, lines) if told]
    return [reply.usage.completion_tokens or len(reply.content) // CHARACTERS for reply in replies]


def _tokens(request: Request) -> float:
    return len(json.dumps([request.messages, request.tools], ensure_ascii=False)) / CHARACTERS


async def _server_notes(args: Namespace, read: float) -> list[str]:
    """What the list of models tells, in lines for people. A server that is down does not fail a plan."""
    from gemma_trainer.distill.client import RemoteTeacher, Settings

    async with RemoteTeacher(Settings.of(args)) as server:
        try:
            told = await server.listing(args.teacher)
        except Failure as failure:
            return [f"the server does not list its models: {failure}"]
    notes = [f"models: {', '.join(told.models[:8]) or 'none listed'}"]
    if told.models and args.teacher not in told.models:
        notes.append(f"the server lists no {args.teacher}")
    if told.context:
        notes.append(f"context: {told.context:,} tokens")
        if read + args.max_new_tokens > told.context:
            notes.append(f"about {read:.0f} tokens and --max-new-tokens {args.max_new_tokens} do not fit into it")
    notes.append("thinking, schemas and seeds: the first request finds out what the server takes")
    return notes


def _shown(args: Namespace, request: Request) -> dict:
    """What would be sent to a server, or asked of a model in this process."""
    told = Dialect().body(request) if args.base_url else request.as_dict()
    text = json.dumps({key: value for key, value in told.items() if value is not None}, ensure_ascii=False)
    return json.loads(text) if len(text) <= SHOWN else {"model": request.model, "text": f"{text[:SHOWN]}..."}


def _summary(result: dict) -> str:
    cost = "" if not result["cost_at_most"] else f", cost at most {result['cost_at_most']}"
    written = result["completion_tokens"]
    expected = "" if written is None else f", about {written:,} by the answers so far"
    return "\n".join(
        [
            f"teacher  {result['teacher']}" + (f" at {result['server']}" if result["server"] else " in this process"),
            *(f"         {note}" for note in result["notes"]),
            f"requests {result['requests']}, of which {result['requests_before']} are answered",
            f"tokens   about {result['prompt_tokens']:,} to read; to write at most "
            f"{result['completion_tokens_at_most']:,}{expected}{cost}",
            f"first    {json.dumps(result['first_request'], ensure_ascii=False, indent=2)}",
        ]
    )
