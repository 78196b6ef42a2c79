"""An OpenAI-compatible server for tests: a fixed latency, a number of slots, faults at a rate, and a count of it all.

`with serving(latency=0.05) as teacher` runs it in a thread, where `answer` may be any function. As a process of its own
`python tests/mock_teacher.py --latency 0.05 --slots 64 --fault-rate 0.1` prints its base URL and serves until killed.
GET /stats gives the counts.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

FAULTS = ("429", "500", "drop", "garbage", "cut")
STATUS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests", 500: "Error"}


def plain_answer(body: dict) -> dict:
    """An assistant message that tells the prompt apart: the same for the same messages and seed."""
    text = json.dumps([body["messages"], body.get("seed")], sort_keys=True)
    digest = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
    asked = str(body["messages"][-1]["content"])
    return {"role": "assistant", "content": f"The answer to {len(asked)} characters is number {int(digest, 16)}."}


@dataclass
class MockTeacher:
    """`answer` gives an assistant message, or (status, object) for an error of its own choice.

    `refused` names keys of the request that get a 400, as servers do with what they do not know; `context` is what
    /v1/models tells; `retry_after` goes with 429.
    """

    latency: float = 0.0
    slots: int = 64
    fault_rate: float = 0.0
    faults: tuple[str, ...] = FAULTS
    seed: int = 0
    answer: Callable[[dict], dict | tuple[int, dict]] = plain_answer
    refused: tuple[str, ...] = ()
    context: int | None = 8192
    retry_after: float | None = 0.01
    key: str | None = None
    models: tuple[str, ...] = ("m",)
    base_url: str = ""
    counts: Counter = field(default_factory=Counter)
    bodies: list[dict] = field(default_factory=list)  # of the last 10,000 requests
    in_flight: int = 0

    async def serve(self, ready: Callable[[], object] = lambda: None) -> None:
        self.random = random.Random(self.seed)
        self.free = asyncio.Semaphore(self.slots)
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, backlog=1024)
        self.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        ready()
        async with server:
            await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                first, *lines = head.decode("latin-1").split("\r\n")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if not await self._respond(writer, first.split()[1], headers, body):
                    break
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _respond(self, writer: asyncio.StreamWriter, path: str, headers: dict, body: bytes) -> bool:
        """Whether the connection stays open."""
        if path == "/stats":
            return _send(writer, 200, dict(self.counts))
        if self.key and headers.get("authorization") != f"Bearer {self.key}":
            return _send(writer, 401, _error("the key is wrong"))
        if path == "/v1/models":
            data = [{"id": name, "object": "model", "max_model_len": self.context} for name in self.models]
            return _send(writer, 200, {"object": "list", "data": data})
        if path != "/v1/chat/completions":
            return _send(writer, 404, _error("there is nothing here"))
        self.in_flight += 1
        self.counts["most_in_flight"] = max(self.counts["most_in_flight"], self.in_flight)
        try:
            async with self.free:
                return await self._complete(writer, json.loads(body))
        finally:
            self.in_flight -= 1

    async def _complete(self, writer: asyncio.StreamWriter, body: dict) -> bool:
        self.counts["requests"] += 1
        self.bodies = [*self.bodies[-9_999:], body] if len(self.bodies) >= 10_000 else self.bodies
        self.bodies.append(body)
        if body["model"] not in self.models:
            return _send(writer, 404, _error(f"the model {body['model']} does not exist"))
        if unknown := [key for key in self.refused if key in body]:
            return _send(writer, 400, _error(f"{unknown[0]} is not supported"))
        await asyncio.sleep(self.latency)
        fault = self.random.choice(self.faults) if self.random.random() < self.fault_rate else None
        if fault:
            self.counts[fault] += 1
            return self._spoil(writer, fault)
        made = self.answer(body)
        if isinstance(made, tuple):
            return _send(writer, *made)
        self.counts["answered"] += 1
        return _send(writer, 200, _completion(body, made))

    def _spoil(self, writer: asyncio.StreamWriter, fault: str) -> bool:
        if fault == "429":
            told = {} if self.retry_after is None else {"Retry-After": f"{self.retry_after:g}"}
            return _send(writer, 429, _error("too many requests"), told)
        if fault == "500":
            return _send(writer, 500, _error("the server fell over"))
        if fault == "garbage":
            return _send(writer, 200, b'{"choices": [{"message": {"content": "bro')
        if fault == "cut":
            writer.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{"cho')
        return False  # and for "drop" the connection ends without a word


def _completion(body: dict, message: dict) -> dict:
    message = dict(message)
    finish = message.pop("finish_reason", "tool_calls" if message.get("tool_calls") else "stop")
    usage = {"prompt_tokens": len(str(body["messages"])) // 4, "completion_tokens": len(str(message)) // 4}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": message.pop("usage", usage),
    }


def _error(text: str) -> dict:
    return {"error": {"message": text}}


def _send(writer: asyncio.StreamWriter, status: int, content: dict | bytes, headers: dict | None = None) -> bool:
    content = content if isinstance(content, bytes) else json.dumps(content).encode()
    more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    head = f"HTTP/1.1 {status} {STATUS.get(status, 'Error')}\r\nContent-Type: application/json\r\n{more}"
    writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return True


@contextmanager
def serving(**settings) -> Iterator[MockTeacher]:
    """A teacher in a thread of this process."""
    teacher = MockTeacher(**settings)
    ready = threading.Event()
    loop = asyncio.new_event_loop()

    def run() -> None:
        try:
            loop.run_until_complete(teacher.serve(ready.set))
        except asyncio.CancelledError:
            loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait(10)
    try:
        yield teacher
    finally:
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
        thread.join(10)


@contextmanager
def process(*words: object) -> Iterator[str]:
    """A teacher in a process of its own; gives its base URL."""
    command = [sys.executable, str(Path(__file__)), *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()


def stats(base_url: str) -> dict:
    with urllib.request.urlopen(f"{base_url.removesuffix('/v1')}/stats", timeout=10) as answer:
        return json.load(answer)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--fault-rate", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    teacher = MockTeacher(**vars(parser.parse_args()))
    asyncio.run(teacher.serve(lambda: print(teacher.base_url, flush=True)))


if __name__ == "__main__":
    main()
