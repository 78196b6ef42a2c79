"""What a server understands of the OpenAI protocol, found out as far as a run needs it.

Nothing is asked that a run does not use: a key that is refused is left out from then on, and only a wish about thinking
costs a question of its own, because servers ignore what they do not know of it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from gemma_trainer.distill.request import Reply, Request, Sampling

# Keys that servers may refuse, and what a request loses without them.
OPTIONAL = {
    "response_format": "answers are held to the schema by words alone",
    "chat_template_kwargs": "thinking is as the server sets it",
    "reasoning_effort": "thinking is as the server sets it",
    "seed": "answers cannot be repeated",
    "top_p": "the server's own top_p is used",
    "temperature": "the server's own temperature is used",
}
# Ways to ask for thinking or none of it: vLLM, SGLang, llama.cpp and transformers; then OpenAI and Ollama.
THINKING: tuple[Callable[[bool], dict], ...] = (
    lambda on: {"chat_template_kwargs": {"enable_thinking": on}},
    lambda on: {"reasoning_effort": "medium" if on else "none"},
)
QUESTION = [{"role": "user", "content": "What is 17 + 25? Think first, then answer with the number alone."}]
_NOT_SENT = {"weight", "reasoning_content"}
CONTEXT_KEYS = ("max_model_len", "context_length", "max_context_length", "n_ctx", "n_ctx_train")


@dataclass
class Dialect:
    """How this server is spoken to; `refused` and `renamed` grow while it is."""

    refused: set[str] = field(default_factory=set)
    completion_limit: str = "max_tokens"
    thinking: Callable[[bool], dict] = THINKING[0]

    def body(self, request: Request) -> dict:
        """The JSON of a request for chat completions."""
        from gemma_trainer.distill.schemas import with_schema

        sampling = request.sampling
        schema = request.schema
        body: dict[str, Any] = {
            "model": request.model,
            "messages": [_sent(m) for m in (with_schema(request.messages, schema) if schema else request.messages)],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": request.seed,
            self.completion_limit: sampling.max_tokens,
        }
        if request.tools:
            body["tools"] = request.tools
        if schema:
            told = {"name": "answer", "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": told}
        if sampling.thinking is not None:
            body |= self.thinking(sampling.thinking)
        return {key: value for key, value in body.items() if key not in self.refused}

    def without(self, body: dict, complaint: str) -> Dialect | None:
        """The dialect without what a complaint names of a refused body; None where it names nothing of the kind.

        It is a guess, for a complaint may quote the whole request: `adopt` takes it over once it works.
        """
        if "max_completion_tokens" in complaint and "max_tokens" in body:
            return replace(self, completion_limit="max_completion_tokens")
        named = {key for key in OPTIONAL if key in body and re.search(rf"\b{key}\b", complaint)}
        return replace(self, refused=self.refused | named) if named else None

    def adopt(self, other: Dialect) -> None:
        if other is not self:
            self.refused |= other.refused
            self.completion_limit = other.completion_limit

    @property
    def notes(self) -> list[str]:
        """What a person should know of keys that are left out."""
        return [f"the server does not take {key}: {OPTIONAL[key]}" for key in sorted(self.refused)]


async def find_thinking(dialect: Dialect, model: str, wished: bool, ask: Callable[[Request], Awaitable[Reply]]) -> bool:
    """Settle how thinking is switched for this server; whether any way works. At most one request a way."""
    for way in THINKING:
        dialect.thinking = way
        if not way(wished).keys() & dialect.refused:
            reply = await ask(Request(model, QUESTION, Sampling(0.0, 1.0, 512, wished)))
            if bool(reply.reasoning_content) == wished and not way(wished).keys() & dialect.refused:
                return True
    dialect.thinking = THINKING[0]
    return False


@dataclass
class Listing:
    """What /v1/models tells. `context` is in tokens; None where the server does not say."""

    models: list[str]
    context: int | None = None

    @classmethod
    def of(cls, told: object, model: str) -> Listing:
        entries = told.get("data") if isinstance(told, dict) else None
        entries = [entry for entry in entries or () if isinstance(entry, dict) and isinstance(entry.get("id"), str)]
        here = next((entry for entry in entries if entry["id"] == model), {})
        places = (here, here.get("meta") or {})
        lengths = [place[key] for place in places for key in CONTEXT_KEYS if isinstance(place.get(key), int)]
        return cls([entry["id"] for entry in entries], lengths[0] if lengths else None)


def _sent(message: dict) -> dict:
    """A canonical message as servers take it: arguments of calls are text, and calls have ids."""
    calls = message.get("tool_calls")
    if not calls:
        is_plain = not message.keys() & _NOT_SENT
        return message if is_plain else {key: value for key, value in message.items() if key not in _NOT_SENT}
    from gemma_trainer.distill.journal import encoded

    sent = []
    for number, call in enumerate(calls):
        function = call["function"]
        arguments = encoded(function["arguments"]).decode().rstrip()
        made = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
        sent.append({"id": call.get("id") or f"call_{number}", **made})
    return {**{key: value for key, value in message.items() if key != "weight"}, "tool_calls": sent}
