"""Anthropic's content blocks -> messages: text, image, tool_use, tool_result, thinking.

https://docs.anthropic.com/en/api/messages
"""

from __future__ import annotations

from gemma_trainer.data.notes import Notes, Refused

_BLOCKS = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking"})


def has_blocks(content: object) -> bool:
    """Whether a content holds a block that only Anthropic writes."""
    return isinstance(content, list) and any(
        isinstance(part, dict)
        and isinstance(part.get("type"), str)
        and (part["type"] in _BLOCKS or (part["type"] == "image" and isinstance(part.get("source"), dict)))
        for part in content
    )


def from_blocks(messages: list[dict], path: str, notes: Notes) -> list[dict]:
    """Messages of text and parts, calls and results. Raises Refused."""
    return [made for at, message in enumerate(messages) for made in _message(message, f"{path}[{at}]", notes)]


def text_blocks(blocks: list) -> object:
    """The content that blocks of text stand for: the text itself where there is one."""
    parts = [
        {key: value for key, value in part.items() if key != "cache_control" and value is not None}
        if isinstance(part, dict) and part.get("type") == "text"
        else part
        for part in blocks
    ]
    if len(parts) == 1 and isinstance(parts[0], dict) and parts[0].keys() == {"type", "text"}:
        return parts[0]["text"]
    return parts


def _message(message: dict, where: str, notes: Notes) -> list[dict]:
    """One message, or the results it holds and behind them what is left of it."""
    content = message.get("content")
    if not isinstance(content, list):
        return [message]
    said, calls, thoughts, results = [], [], [], []
    for at, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else None
        path = f"{where}.content[{at}]"
        if kind == "tool_use":
            calls.append(_call(block))
        elif kind == "tool_result":
            results.append(_result(block, path))
        elif kind == "thinking":
            thoughts.append(_thought(block, path))
        elif kind == "redacted_thinking":
            notes.repair("thought-redacted", "thinking that is encrypted was left out", path)
        else:
            said.append(_image(block, path) if kind == "image" else block)
    if results and not (said or calls or thoughts):
        return results
    made = {**message, "content": text_blocks(said) if said else None if calls else ""}
    if thoughts:
        made["reasoning_content"] = "\n\n".join(thoughts)
    if calls:
        made["tool_calls"] = calls
    return [*results, made]


def _call(block: dict) -> dict:
    arguments = block.get("input")
    function = {"name": block.get("name"), "arguments": {} if arguments is None else arguments}
    return {"id": block.get("id"), "type": "function", "function": function}


def _result(block: dict, path: str) -> dict:
    content = block.get("content")
    if isinstance(content, list):
        content = [_image(part, path) for part in content]
        content = text_blocks(content) if content else ""
    made = {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": "" if content is None else content}
    return {**made, "is_error": True} if block.get("is_error") else made


def _thought(block: dict, path: str) -> str:
    if not isinstance(block.get("thinking"), str):
        raise Refused("part-invalid", "a thinking block has no text", path)
    return block["thinking"]


def _image(block: object, path: str) -> object:
    """`{"type": "image", "source": {"type": "base64" | "url", ...}}` as a part of ours."""
    source = block.get("source") if isinstance(block, dict) else None
    if not isinstance(source, dict):
        return block
    if isinstance(source.get("url"), str):
        return {"type": "image", "url": source["url"]}
    if isinstance(source.get("data"), str):
        kind = source.get("media_type")
        return {"type": "image", "base64": source["data"], **({"mime_type": kind} if kind else {})}
    raise Refused("part-invalid", "an image has neither url nor data", path)
