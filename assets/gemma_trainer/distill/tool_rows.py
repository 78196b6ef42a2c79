"""Tool calls of a teacher, held against the tools that were declared to it."""

from __future__ import annotations

import json
from functools import lru_cache

from gemma_trainer.data.layouts.gemini import with_types
from gemma_trainer.data.layouts.tools import canonical_calls
from gemma_trainer.data.notes import Notes, Refused
from gemma_trainer.distill.schemas import validator

CLOSED = ("additionalProperties", "patternProperties", "anyOf", "oneOf", "allOf", "$ref")


class Tools:
    """Declared tools. Raises Failure (exit 2) for one whose parameters are no JSON Schema."""

    def __init__(self, tools: list[dict] | None):
        self.validators = {}
        for tool in tools or ():
            function = tool["function"]
            schema = _closed(with_types(function.get("parameters") or {"type": "object"}, str.lower))
            self.validators[function["name"]] = validator(schema, f"the parameters of the tool {function['name'][:40]}")

    def fault(self, calls: object) -> str | None:
        """What is wrong with the calls of one answer: name, arguments, their types; None when they can be made."""
        try:
            made = canonical_calls(calls, "tool_calls", Notes())
        except Refused as refusal:
            return str(refusal)
        return next(filter(None, (self._fault(call["function"]) for call in made)), None)

    def _fault(self, function: dict) -> str | None:
        name = function["name"]
        if name not in self.validators:
            return f"no tool named `{name[:40]}` was declared"
        if fault := self.validators[name].fault(function["arguments"]):
            return f"{name}: {fault}"
        return None


def tools_of(tools: list[dict] | None) -> Tools:
    """The same as Tools(tools), made once for all answers to them."""
    return _tools_of(json.dumps(tools))


@lru_cache(maxsize=256)
def _tools_of(stored: str) -> Tools:
    return Tools(json.loads(stored))


def _closed(schema: dict) -> dict:
    """The schema of arguments without room for undeclared ones, where it declares any and leaves the rest unsaid."""
    if not schema.get("properties") or any(key in schema for key in CLOSED):
        return schema
    return {**schema, "additionalProperties": False}
