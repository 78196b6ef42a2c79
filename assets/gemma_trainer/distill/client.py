"""A teacher behind an OpenAI-compatible server: one connection pool, retries, and what servers do to answers."""

from __future__ import annotations

import asyncio
import json
import math
import random
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from gemma_trainer.cli import log
from gemma_trainer.distill.address import read_key
from gemma_trainer.distill.journal import encoded, sound
from gemma_trainer.distill.pacing import Pacer
from gemma_trainer.distill.probe import Dialect, Listing, find_thinking
from gemma_trainer.distill.request import Reply, Request, Usage
from gemma_trainer.distill.thinking import split_thinking
from gemma_trainer.distill.work import RequestFailed
from gemma_trainer.rows.problems import REMOTE_FAILED, Failure

STOPPING = {401, 402, 403, 404}  # true of every request, not of one
RETRIED = {408, 409, 425, 429}
PUSH_BACK = {408, 429, 503, 529}
FIRST_DELAY, LONGEST_DELAY = 0.5, 60.0  # seconds, before jitter
LONGEST_PAUSE = 600.0  # seconds a Retry-After may ask for
BROKEN = 5  # requests in a row that fail for good before the server counts as broken
CONNECTING = 30.0  # seconds
SECRET = 20  # characters; a shorter key, such as "ollama", may be a word of an answer
NOTICED = 2.0  # seconds of a pause that people are told of
MOST_TOKENS = 1e9  # of one answer; a larger count is none
MAX_DEPTH = 100  # of arguments of a call


class Transient(Exception):
    """Something that may go well the next time. `pause` is what the server asks to wait, in seconds."""

    def __init__(self, reason: str, pushed_back: bool = False, pause: float = 0.0, unreachable: bool = False):
        super().__init__(reason)
        self.pushed_back, self.pause, self.unreachable = pushed_back, pause, unreachable


@dataclass(frozen=True)
class Settings:
    """`timeout` is for one whole try, in seconds; `retries` come after the first try; `variable` is that of the key."""

    base_url: str
    key: str | None = None
    variable: str = "OPENAI_API_KEY"
    concurrency: int = 64
    timeout: float = 600.0
    retries: int = 8

    @classmethod
    def of(cls, args: Namespace) -> Settings:
        key, variable = read_key(args.api_key_env), args.api_key_env or "--student-api-key-env"
        return cls(args.base_url.rstrip("/"), key, variable, args.concurrency, args.timeout, args.retries)


class RemoteTeacher:
    """`async with RemoteTeacher(settings) as teacher: await teacher.ask(request)`."""

    def __init__(self, settings: Settings, jitter: Callable[[], float] = random.random):
        self.settings = settings
        self.pacer = Pacer(settings.concurrency)
        self.places = settings.concurrency
        self.dialect = Dialect()
        self.jitter = jitter
        self._notes: list[str] = []
        self.retried = 0
        self.trouble = ""  # the last one, for people
        self._pause_told = 0.0  # until when, as the pacer's clock tells it
        self._failed_in_row = 0
        self._successes = 0
        self._thinking: dict[tuple[str, bool], asyncio.Task] = {}

    @property
    def notes(self) -> list[str]:
        return [*self._notes, *self.dialect.notes]

    async def __aenter__(self) -> RemoteTeacher:
        headers = {"Content-Type": "application/json"}
        if self.settings.key:
            headers["Authorization"] = f"Bearer {self.settings.key}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),  # the pacer holds the limit
            timeout=aiohttp.ClientTimeout(total=self.settings.timeout, sock_connect=CONNECTING),
            headers=headers,
            proxy=_proxy(self.settings.base_url),
        )
        return self

    async def __aexit__(self, *exc) -> None:
        for task in self._thinking.values():
            task.cancel()
        await self._session.close()

    async def ask(self, request: Request) -> Reply:
        """Raises RequestFailed when there will be no answer, Failure (exit 7) when the server is of no use."""
        wished = request.sampling.thinking
        if wished is not None:
            await self._thinking_found(request.model, wished)
        return await self._ask(request)

    async def listing(self, model: str) -> Listing:
        """What the server tells of its models. Raises Failure (exit 7)."""
        try:
            status, _, content = await self._send("GET", "/models", None)
        except Transient as error:
            raise self._stop(str(error)) from None
        if status != 200:
            raise self._stop(f"GET /models answers {status}", status)
        return Listing.of(_json(content), model)

    async def _thinking_found(self, model: str, wished: bool) -> None:
        """Wait until it is known how to switch thinking; the first that asks finds out for all."""
        key = (model, wished)
        if key not in self._thinking:
            self._thinking[key] = asyncio.create_task(find_thinking(self.dialect, model, wished, self._ask))
            works = await asyncio.shield(self._thinking[key])
            if not works:
                state = "on" if wished else "off"
                self._notes.append(f"thinking cannot be switched {state} for {model}: it is as the server sets it")
        else:
            await asyncio.shield(self._thinking[key])

    async def _ask(self, request: Request) -> Reply:
        successes = self._successes
        for attempt in range(self.settings.retries + 1):
            try:
                reply = await self._try(request)
            except Transient as error:
                reason, unreachable = f"{error}", error.unreachable
                self.trouble = reason
                if attempt < self.settings.retries:
                    self.retried += 1
                    self._tell(error.pause)
                    longest = min(LONGEST_DELAY, FIRST_DELAY * 2**attempt)
                    await asyncio.sleep(error.pause + self.jitter() * longest)
            else:
                self._successes += 1
                self._failed_in_row, self.trouble = 0, ""
                return reply
        self._failed_in_row += 1
        if self._successes == successes and (unreachable or self._failed_in_row >= BROKEN):
            raise self._stop(f"{reason} ({self.settings.retries + 1} tries)")
        raise RequestFailed(request.id, reason)

    async def _try(self, request: Request) -> Reply:
        """One try, and others at once where the server refuses keys that can be left out; what then works is kept."""
        dialect = self.dialect
        while True:
            body = dialect.body(request)
            entered = await self.pacer.enter()
            status, trouble = 0, None
            try:
                status, headers, content = await self._send("POST", "/chat/completions", body)
                if status == 200:
                    reply = read_reply(request, content, self.pacer.clock() - entered)
                    self.dialect.adopt(dialect)
                    return reply
                complaint = _complaint(content)
                trouble = self._trouble(status, headers, complaint)
            except Transient as error:
                trouble = error
            finally:
                pushed_back = isinstance(trouble, Transient) and trouble.pushed_back
                pause = trouble.pause if isinstance(trouble, Transient) else 0.0
                self.pacer.leave(entered, status == 200 and trouble is None, pushed_back, pause)
            if trouble is not None:
                raise trouble
            dialect = dialect.without(body, complaint)
            if dialect is None:
                raise RequestFailed(request.id, f"the server answers {status}: {complaint}")

    def _tell(self, pause: float) -> None:
        """Say once that the server wants to be left alone: a run that waits looks dead."""
        now = self.pacer.clock()
        if pause > NOTICED and now >= self._pause_told:
            self._pause_told = now + pause
            log(f"the server asks to wait {pause:.0f} s")

    async def _send(self, method: str, path: str, body: dict | None) -> tuple[int, dict, bytes]:
        """(status, headers, content). Raises Transient where none of it arrives whole."""
        data = None if body is None else encoded(body)
        try:
            async with self._session.request(method, self.settings.base_url + path, data=data) as answer:
                return answer.status, answer.headers, self._without_key(await answer.read(), answer.status)
        except aiohttp.ConnectionTimeoutError:
            raise Transient(f"no connection within {CONNECTING:g} s", unreachable=True) from None
        except (TimeoutError, asyncio.TimeoutError):
            raise Transient(f"no answer in {self.settings.timeout:g} s (--timeout)", pushed_back=True) from None
        except aiohttp.InvalidURL:
            raise self._stop("--base-url is no URL") from None
        except aiohttp.ClientConnectorError as error:
            raise Transient(f"no connection: {error.strerror or error}", unreachable=True) from None
        except (aiohttp.ClientError, OSError) as error:
            raise Transient(f"the connection broke: {type(error).__name__}") from None

    def _without_key(self, content: bytes, status: int) -> bytes:
        """No text of a server carries the key into a file or a message."""
        key = self.settings.key
        if key and (status != 200 or len(key) >= SECRET):
            for written in (key, key.replace("/", "\\/")):  # JSON may write a slash both ways
                content = content.replace(written.encode(), b"[key]")
        return content

    def _trouble(self, status: int, headers, complaint: str) -> Exception | None:
        """What an answer other than 200 means; None for one that refuses what this request says."""
        if status in STOPPING or "insufficient_quota" in complaint:
            return self._stop(f"the server answers {status}: {complaint}", status)
        if status in RETRIED or status >= 500:
            pause = retry_after(headers.get("Retry-After"))
            return Transient(f"the server answers {status}: {complaint}", status in PUSH_BACK, pause)
        return None

    def _stop(self, reason: str, status: int = 0) -> Failure:
        url, fix = self.settings.base_url, None
        if status in (401, 403) and not self.settings.key:
            fix = f"No key was sent: {self.settings.variable} is not set."
        elif status == 404 and not urlsplit(url).path:
            fix = f"Check the model's name; most servers want {url}/v1 as their base URL."
        return Failure(REMOTE_FAILED, "teacher-failed", f"{url}: {reason}", fix=fix)


def _proxy(url: str) -> str | None:
    """As HTTPS_PROXY and NO_PROXY say. (aiohttp's trust_env reads them and .netrc anew for each request.)"""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)


def retry_after(text: str | None) -> float:
    """Seconds that a Retry-After header asks to wait, in both of its forms; 0 without one."""
    if not text:
        return 0.0
    try:
        seconds = float(text)
    except ValueError:
        try:
            until = parsedate_to_datetime(text)
        except ValueError:
            return 0.0
        until = until if until.tzinfo else until.replace(tzinfo=timezone.utc)
        seconds = (until - datetime.now(timezone.utc)).total_seconds()
    return 0.0 if math.isnan(seconds) else min(max(0.0, seconds), LONGEST_PAUSE)


def read_reply(request: Request, content: bytes, seconds: float) -> Reply:
    """The first choice of a completion. Raises Transient for what is none."""
    told = _json(content)
    try:
        if told.get("error"):
            raise Transient(f"the server answers with an error: {_complaint(content)}")
        choice = told["choices"][0]
        message = choice["message"]
        text, thought = split_thinking(_text(message.get("content")))
        named = next((message[key] for key in ("reasoning_content", "reasoning", "thinking") if message.get(key)), None)
        thought = _text(named).strip() or thought
        calls = [_call(call) for call in message.get("tool_calls") or ()]
        if request.tools and not calls:
            from gemma_trainer.distill.calls_in_text import calls_in_text

            text, calls = calls_in_text(text, request.tools)
        finish, refusal = choice.get("finish_reason"), message.get("refusal")
        if refusal and not text:
            text, finish = _text(refusal), "content_filter"
        return Reply(
            request.id,
            text,
            thought or None,
            calls or None,
            "tool_calls" if calls and finish in (None, "stop") else finish,
            _usage(told.get("usage")),
            str(told.get("model") or ""),
            round(seconds, 3),
        )
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError):
        raise Transient("the server's answer is no chat completion") from None


def _usage(told: object) -> Usage:
    """What cannot be read counts as not told: the answer is paid for."""
    told = told if isinstance(told, dict) else {}
    details = told.get("completion_tokens_details")
    details = details if isinstance(details, dict) else {}
    counts = (told.get("prompt_tokens"), told.get("completion_tokens"), details.get("reasoning_tokens"))
    return Usage(*(int(n) if isinstance(n, int | float) and 0 <= n <= MOST_TOKENS else 0 for n in counts))


def _call(call: dict) -> dict:
    """Canonical: arguments are an object. What cannot be read as one stays text, for the gate to refuse."""
    function = call["function"]
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = sound(arguments)
    if _is_deep(arguments, MAX_DEPTH):
        raise ValueError("no call has such arguments")
    made = {"type": "function", "function": {"name": str(function["name"]), "arguments": arguments}}
    return {"id": call["id"], **made} if call.get("id") else made


def _is_deep(value: object, depth: int) -> bool:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth == 0 or any(_is_deep(item, depth - 1) for item in items)


def _text(content: object) -> str:
    """Text, also of a list of parts, without halves of surrogate pairs."""
    if isinstance(content, list):
        content = "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return sound(content or "")


def _json(content: bytes):
    """Raises Transient."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise Transient("the server's answer is no JSON") from None


def _complaint(content: bytes) -> str:
    """What an error says of itself, short."""
    try:
        told = json.loads(content)
        error = told.get("error", told.get("detail", told)) if isinstance(told, dict) else told
        if isinstance(error, dict):
            words = (error.get("message"), error.get("code"), error.get("param"))
            error = " ".join(str(word) for word in words if word) or error
    except (ValueError, RecursionError):
        error = content.decode("utf-8", "replace")
    return " ".join(str(error).split())[:300]
