"""One question to a teacher, and what it answered."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class Sampling:
    """What shapes an answer. `seed` is the run's; every request derives its own from it and from its id."""

    temperature: float = 0.7
    top_p: float = 0.95
    max_tokens: int = 2048
    thinking: bool | None = None  # None: as the teacher does by itself
    seed: int = 0


@dataclass(frozen=True)
class Request:
    """`sample` numbers the answers to one prompt; `schema` is the JSON Schema that the answer's content has to follow."""

    model: str
    messages: list[dict]
    sampling: Sampling
    tools: list[dict] | None = None
    schema: dict | None = None
    sample: int = 0

    @cached_property
    def id(self) -> str:
        """32 hex digits over all that shapes the answer: the same question is asked once, whatever asks it."""
        text = json.dumps(self.as_dict(), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def as_dict(self) -> dict:
        """The fields as JSON. (dataclasses.asdict copies deeply, which takes ten times as long.)"""
        return {
            "model": self.model,
            "messages": self.messages,
            "sampling": dict(vars(self.sampling)),
            "tools": self.tools,
            "schema": self.schema,
            "sample": self.sample,
        }

    @property
    def seed(self) -> int:
        """Below 2^31, as servers take it."""
        return (self.sampling.seed + int(self.id[:8], 16)) % 2**31


@dataclass(frozen=True)
class Usage:
    """Tokens. `reasoning_tokens` are part of `completion_tokens`; zeros where a server does not tell."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True)
class Reply:
    """`content` and `reasoning_content` hold no marks of any family. `tool_calls` are canonical: arguments are objects.

    `finish_reason`: stop, length, tool_calls, content_filter, or what else the server says.
    """

    id: str  # of the request
    content: str
    reasoning_content: str | None = None
    tool_calls: list[dict] | None = None
    finish_reason: str | None = None
    usage: Usage = field(default_factory=Usage)
    model: str = ""  # as the server names it
    seconds: float = 0.0

    def as_dict(self) -> dict:
        """The fields as JSON."""
        return {**vars(self), "usage": dict(vars(self.usage))}

    @property
    def size(self) -> int:
        """Characters that were written, thinking included."""
        return len(self.content) + len(self.reasoning_content or "")

    @property
    def message(self) -> dict:
        """The answer as a canonical assistant message."""
        message: dict = {"role": "assistant", "content": self.content}
        if self.reasoning_content:
            message["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        return message
