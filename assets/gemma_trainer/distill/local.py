"""A teacher in this process: a Gemma with transformers, many requests in one batch."""

from __future__ import annotations

import asyncio
import threading
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from gemma_trainer.cli import log
from gemma_trainer.data.model import Model, describe_model
from gemma_trainer.data.reading.sources import data_hash
from gemma_trainer.distill.calls_in_text import calls_in_text
from gemma_trainer.distill.request import Reply, Request, Usage
from gemma_trainer.distill.schemas import with_schema
from gemma_trainer.distill.thinking import split_thinking
from gemma_trainer.distill.work import RequestFailed
from gemma_trainer.families.family import RenderError
from gemma_trainer.models.resolve import resolve_model
from gemma_trainer.plan.hardware import detect, share_cores
from gemma_trainer.plan.packages import missing_packages
from gemma_trainer.plan.plan import choose_dtype
from gemma_trainer.rows.problems import missing

# Teacher and student of `compare` take turns: they share the cores or the GPU, and two loads at once leave random weights.
ONE_AT_A_TIME = threading.Lock()
WEIGHTS = ("config.json", "adapter_config.json", "*.safetensors", "*.bin")
AHEAD = 4  # batches of requests that wait, so that those of one batch are of about equal length


def local_name(args: Namespace, name: str | None) -> str:
    """What requests call a model in this process: NAME@HASH of its files, for answers of other weights are not its own.

    A hub id stands for itself.
    """
    folders = [Path(given).expanduser() for given in (args.adapter, args.model) if given]
    files = [file for folder in folders for file in _weights(folder)]
    name = name or (folders[0].resolve().name if folders[0].exists() else str(folders[0]))
    return f"{name}@{data_hash(files)[:8]}" if files else name


def _weights(model: Path) -> list[Path]:
    """The files that make a model or an adapter what it is; none of a hub id."""
    return [model] if model.is_file() else sorted(file for pattern in WEIGHTS for file in model.glob(pattern))


class Waiting(NamedTuple):
    """`answer` is set to a Reply."""

    request: Request
    prompt: list[int]
    answer: asyncio.Future


class LocalTeacher:
    """`async with LocalTeacher(...) as teacher: await teacher.ask(request)`. The model is loaded at the first request.

    The same request gives the same answer whatever else is in its batch, up to rounding.
    """

    retried, trouble = 0, ""

    def __init__(self, args: Namespace):
        self.args = args
        self.places = AHEAD * args.batch_size
        self.notes: list[str] = []
        self._described: Model | None = None
        self._generator = None
        self._waiting: list[Waiting] = []
        self._server: asyncio.Task | None = None

    async def __aenter__(self) -> LocalTeacher:
        self._arrived = asyncio.Event()
        return self

    async def __aexit__(self, *exc) -> None:
        if self._generator:
            self._generator.stopped = True  # a batch that is being written ends at its next token
        if self._server:
            self._server.cancel()

    async def ask(self, request: Request) -> Reply:
        """Raises RequestFailed for what the template refuses, Failure when the model cannot be loaded."""
        waiting = Waiting(request, self._prompt(request), asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._arrived.set()
        if self._server is None:
            self._server = asyncio.create_task(self._serve())
        return await waiting.answer

    def _prompt(self, request: Request) -> list[int]:
        if self._described is None:
            self._described = describe_model("auto", self.args.adapter or resolve_model(self.args.model))
            if self.args.thinking == "on" and not self._described.family.thinking:
                self.notes.append(f"{self._described.family.title} does not think: --thinking on changes nothing")
        described, wished = self._described, request.sampling.thinking
        messages = with_schema(request.messages, request.schema) if request.schema else request.messages
        options = {} if wished is None else {"chat_template_kwargs": {"enable_thinking": wished}}
        try:
            text = described.renderer.prompt({"messages": messages, **options}, request.tools)
        except RenderError as error:
            raise RequestFailed(request.id, f"{error.code}: {error}") from None
        ids = described.tokenizer.backend.encode(text, add_special_tokens=False).ids
        if len(ids) >= described.family.context:
            raise RequestFailed(request.id, f"the prompt has {len(ids)} tokens, over the context of the model")
        return ids

    async def _serve(self) -> None:
        while True:
            await self._arrived.wait()
            await asyncio.sleep(0)  # the others that are about to ask
            self._waiting.sort(key=lambda one: -len(one.prompt))
            batch, self._waiting = self._waiting[: self.args.batch_size], self._waiting[self.args.batch_size :]
            if not self._waiting:
                self._arrived.clear()
            try:
                replies = await asyncio.to_thread(self._answer, batch)
            except Exception as error:
                for one in [*batch, *self._waiting]:
                    if not one.answer.done():
                        one.answer.set_exception(error)
                return
            for one, reply in zip(batch, replies, strict=True):
                if not one.answer.done():
                    one.answer.set_result(reply)

    def _answer(self, batch: list[Waiting]) -> list[Reply]:
        """In a thread: the event loop goes on."""
        with ONE_AT_A_TIME:
            if self._generator is None:
                self._generator = self._load()
            started = time.monotonic()
            written = self._generator.write([one.prompt for one in batch], [one.request for one in batch])
        seconds = round((time.monotonic() - started) / len(batch), 3)
        return [self._reply(one, ids, ended, seconds) for one, (ids, ended) in zip(batch, written, strict=True)]

    def _reply(self, one: Waiting, ids: list[int], ended: bool, seconds: float) -> Reply:
        request, tokenizer = one.request, self._described.tokenizer
        content, thought = split_thinking(tokenizer.backend.decode(ids, skip_special_tokens=False))
        calls = None
        if request.tools:
            content, calls = calls_in_text(content, request.tools)
        finish = "length" if not ended else "tool_calls" if calls else "stop"
        usage = Usage(len(one.prompt), len(ids) + ended, tokenizer.count(thought) if thought else 0)
        return replace(Reply(request.id, content, thought, calls, finish, usage), model=request.model, seconds=seconds)

    def _load(self):
        from gemma_trainer.models.load import adapter_base, load_adapter, load_model, quiet_libraries

        share_cores()
        quiet_libraries()
        args, hardware = self.args, detect()
        quantize = args.quantize == "on" or (args.quantize == "auto" and hardware.kind == "cuda")
        if quantize and (lacking := missing_packages("train in 4 bits")):
            raise missing(" ".join(lacking), "--quantize", "train")
        dtype, _ = choose_dtype(None, "lora", hardware)
        base = resolve_model(args.model or adapter_base(args.adapter))
        log(f"loading {base} in {'4 bits' if quantize else dtype} on {hardware.kind}")
        model = load_model(base, dtype=dtype, device=hardware.kind, quantize=quantize)
        if args.adapter:
            model = load_adapter(model, args.adapter)
        from gemma_trainer.distill.sampling import Generator

        return Generator(model.eval(), self._described.tokenizer, self._described.family.stop_tokens)
