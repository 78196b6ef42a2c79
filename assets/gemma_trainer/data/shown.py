"""What a chat template writes of a conversation. What it leaves out would vanish from the rows without an error."""

from __future__ import annotations

from collections.abc import Callable

from gemma_trainer.families.family import RenderError

TOOLS, CALLS, RESULTS, RESPONSES = "declared tools", "tool calls", "tool results", "tool_responses"
REASONING, CALL_REASONING = "the reasoning of a plain answer", "the reasoning beside a tool call"

_NAME, _SAID, _VALUE = "probe_tool", "probe_text", "probe_value"  # what is looked for in the text
_USER = {"role": "user", "content": "2+2?"}
_ANSWER = {"role": "assistant", "content": "4"}
_PARAMETERS = {"type": "object", "properties": {"a": {"type": "string", "description": "A."}}, "required": ["a"]}
_TOOL = {"type": "function", "function": {"name": _NAME, "description": "Add.", "parameters": _PARAMETERS}}


def _calling(name: str, **more: object) -> dict:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": {"a": _VALUE}}}
    return {"role": "assistant", "content": "", "tool_calls": [call], **more}


_CALLER = _calling("other")
_PROBES: dict[str, tuple[list[dict], list[dict] | None, tuple[str, ...]]] = {
    TOOLS: ([_USER, _ANSWER], [_TOOL], (_NAME,)),
    CALLS: ([_USER, _calling(_NAME)], None, (_NAME, _VALUE)),
    RESULTS: ([_USER, _CALLER, {"role": "tool", "tool_call_id": "c1", "name": "other", "content": _SAID}, _ANSWER], None, (_SAID,)),
    RESPONSES: ([_USER, {**_CALLER, "tool_responses": [{"name": "other", "response": {"b": _SAID}}]}, _ANSWER], None, (_SAID,)),
    REASONING: ([_USER, {**_ANSWER, "reasoning_content": _SAID}], None, (_SAID,)),
    CALL_REASONING: ([_USER, _calling("other", reasoning_content=_SAID)], None, (_SAID,)),
}  # fmt: skip


def shown_by(text: Callable[[list[dict], list[dict] | None], str]) -> frozenset[str]:
    """Which of the above `text(messages, tools)` writes, told by rendering. What it refuses it does not write."""
    return frozenset(
        what for what, (messages, tools, marks) in _PROBES.items() if _writes(text, messages, tools, marks)
    )


def _writes(text: Callable, messages: list[dict], tools: list[dict] | None, marks: tuple[str, ...]) -> bool:
    try:
        written = text(messages, tools)
    except RenderError:
        return False
    return all(mark in written for mark in marks)
