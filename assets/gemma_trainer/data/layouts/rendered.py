"""Text that a chat template wrote -> messages. Only what renders to the very same text again is taken."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from gemma_trainer.data.checking.marks_in_text import foreign_tokens, owners, tokens_in
from gemma_trainer.data.layouts.gemini import with_types_of
from gemma_trainer.data.layouts.layout_base import Context, assembled, without
from gemma_trainer.data.notes import Notes, Refused
from gemma_trainer.families.catalogue import get_family
from gemma_trainer.families.family import Family, Piece, RenderError
from gemma_trainer.families.schema import QUOTE
from gemma_trainer.rows.roles import ASSISTANT, SYSTEM, USER, canonical_role

_EMPTY_THOUGHT = "<|channel>thought\n<channel|>"
_THINK = "<|think|>\n"
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_NAMED = re.compile(r"(?:call|response|declaration):([^{]*)\{")
_DEPTH, _DIGITS = 50, 1000
_CHANNEL = "thought\n"


class _Turn(NamedTuple):
    role: str
    text: str
    closed: bool


def read_rendered(fields: dict, context: Context) -> dict:
    """The column `text` as messages. Raises Refused where they cannot be told."""
    text = fields.get("text")
    if not isinstance(text, str):
        raise Refused("wrong-layout", "there is no text in the column text", "text")
    row = parse_rendered(text, context.family or get_family("gemma4"), context.notes)
    if context.task == "prompts":
        row["prompt"] = row.pop("messages")
    return _beside(row, without(fields, "text"), context.notes)


def read_segments(fields: dict, context: Context) -> dict:
    """axolotl's `segments` of {label, text}, where they are rendered text with loss on whole answers."""
    segments = fields.get("segments")
    if not isinstance(segments, list) or not all(_is_segment(segment) for segment in segments):
        raise Refused("segments-invalid", "segments are no list of {label: true or false, text}", "segments")
    family = context.family or get_family("gemma4")
    text = "".join(segment["text"] for segment in segments)
    if family.turn_start not in text:
        raise Refused("segments-raw", "segments of raw text have no turns", "segments")
    labels = [segment["label"] for segment in segments for _ in segment["text"]]
    row = parse_rendered(text, family, context.notes)
    row["messages"] = _weighed(row, text, labels, family)
    return _beside(row, without(fields, "segments"), context.notes)


def _beside(row: dict, rest: dict, notes: Notes) -> dict:
    """The row and its other columns; tools that the text does not show would change what is rendered."""
    if "tools" in rest and "tools" not in row:
        notes.repair("column-ignored", "the text wins, the column `tools` is left out", "tools")
        rest = without(rest, "tools")
    return assembled(row, rest, notes)


def parse_rendered(text: str, family: Family, notes: Notes) -> dict:
    """`{"messages", "tools"?, "chat_template_kwargs"?}` that the family renders to the text again. Raises Refused."""
    if family.turn_start not in text:
        foreign = sorted(token for token in set(tokens_in(text)) & foreign_tokens(family) if "turn" in token)
        if foreign:
            why = f"the text is rendered for {owners(foreign[0])}, not for {family.title}"
            raise Refused("text-wrong-family", why, "text")
        raise Refused("wrong-layout", f"there is no turn mark of {family.title} in the text", "text")
    body = _bare(text, family)
    if _EMPTY_THOUGHT in body:
        body = body.replace(_EMPTY_THOUGHT, "")
        notes.repair("empty-thought", "empty thoughts were left out", "text")
    row = _row(list(_turns(body, family)), family)
    try:
        same = "".join(piece.text for piece in _pieces(row, family)).removeprefix(family.bos).rstrip()
    except RenderError:
        same = None
    open_turn = f"{family.turn_start}model"
    wanted = body.rstrip().removesuffix(open_turn).rstrip()
    if same == wanted + family.turn_end:
        notes.repair("text-terminator-missing", f"the last turn lacked {family.turn_end}", "text")
    elif same != wanted:
        raise Refused("rendered-unclear", "the turns of the text cannot be told for sure", "text")
    return row


def _bare(text: str, family: Family) -> str:
    """The text without what stands around its turns: <bos> in front, <eos> behind."""
    text = text.strip().removesuffix(family.eos)
    while text.startswith(family.bos):
        text = text.removeprefix(family.bos).lstrip()
    return text


def _pieces(row: dict, family: Family) -> list[Piece]:
    return family.render(row["messages"], row.get("tools"), False, **row.get("chat_template_kwargs", {}))


def _turns(text: str, family: Family) -> Iterator[_Turn]:
    at = 0
    while at < len(text):
        if not text.startswith(family.turn_start, at):
            raise Refused("rendered-unclear", "there is text between the turns", "text")
        line = text.find("\n", at)
        start = line + 1 if line >= 0 else len(text)
        head = text[at + len(family.turn_start) : start]
        end = text.find(family.turn_end, start)
        closed = end >= 0
        end = end if closed else len(text)
        yield _Turn(head.strip(), text[start:end], closed)
        at = end + len(family.turn_end) if closed else end
        while text[at : at + 1].isspace():
            at += 1


def _row(turns: list[_Turn], family: Family) -> dict:
    row: dict = {"messages": []}
    for number, turn in enumerate(turns):
        role = ASSISTANT if turn.role == "model" else canonical_role(turn.role)
        if role not in (SYSTEM, USER, ASSISTANT):
            raise Refused("role-unknown", f"`{turn.role[:30]}` is no role", "text")
        if role == ASSISTANT:
            if turn.text or turn.closed:  # else the prompt for an answer
                row["messages"] += _spoken(turn.text, family)
        elif role == SYSTEM and number == 0:
            row.update(_opening(turn.text, family))
        else:
            row["messages"].append({"role": role, "content": turn.text})
    if not row["messages"]:
        raise Refused("messages-empty", "there is no message in the text", "text")
    return row


def _opening(text: str, family: Family) -> dict:
    """The first turn: whether to think, system text, declared tools."""
    made: dict = {}
    if text.startswith(_THINK) and family.thinking:
        made["chat_template_kwargs"] = {"enable_thinking": True}
        text = text.removeprefix(_THINK)
    start, end = (
        ("<|tool>", "<tool|>") if family.thinking else ("<start_function_declaration>", "<end_function_declaration>")
    )
    text, *declared = text.split(start)
    if declared:
        made["tools"] = [_tool(one.removesuffix(end), family) for one in declared]
    return {**made, "messages": [{"role": SYSTEM, "content": text}] if text else []}


def _tool(text: str, family: Family) -> dict:
    name, value = _named(text, family)
    if value.get("description") == "":
        del value["description"]
    return {"type": "function", "function": {"name": name, **with_types_of(value, str.lower)}}


def _spoken(text: str, family: Family) -> list[dict]:
    """The messages of a model turn: thoughts, calls, results, text, in their order."""
    if family.call is None or not any(mark in text for mark in (family.call[0], *(family.thought or ())[:1])):
        return [{"role": ASSISTANT, "content": text}]
    messages: list[dict] = []
    for kind, value in _runs(text, family):
        last = messages[-1] if messages else None
        if kind == "result":
            name, result = _named(value, family)
            if result.keys() != {"value"} or last is None:
                raise Refused("rendered-unclear", "a tool result is not of one value", "text")
            messages.append({"role": "tool", "name": name, "content": result["value"]})
            continue
        if last is None or not _continues(last, kind):
            last = {"role": ASSISTANT, "content": None}
            messages.append(last)
        if kind == "thought":
            last["reasoning_content"] = value
        elif kind == "call":
            name, arguments = _named(value, family)
            made = {"type": "function", "function": {"name": name, "arguments": arguments}}
            last.setdefault("tool_calls", []).append(made)
        else:
            last["content"] = value
    for message in messages:
        if message["content"] is None and "tool_calls" not in message:
            message["content"] = ""
    return messages


def _continues(last: dict, kind: str) -> bool:
    """Whether a run belongs to the message before it: thought, then text, then calls."""
    if last["role"] != ASSISTANT or kind == "thought":
        return False
    return kind == "call" or (last["content"] is None and "tool_calls" not in last)


def _runs(text: str, family: Family) -> Iterator[tuple[str, str]]:
    marks = {"call": family.call, "result": family.result, "thought": family.thought}
    opened = {pair[0]: (kind, pair[1]) for kind, pair in marks.items() if pair}
    pattern = re.compile("|".join(map(re.escape, opened)))
    at = 0
    while at < len(text):
        found = pattern.search(text, at)
        end = found.start() if found else len(text)
        if end > at:
            yield "text", text[at:end]
        if not found:
            return
        kind, close = opened[found.group()]
        stop = text.find(close, found.end())
        if stop < 0:
            if kind == "result" and found.end() == len(text):
                return  # the model stops here and waits for its result
            raise Refused("rendered-unclear", f"{found.group()} never closes", "text")
        body = text[found.end() : stop]
        if kind == "thought":
            if not body.startswith(_CHANNEL):
                raise Refused("rendered-unclear", "a channel that is no thought", "text")
            body = body.removeprefix(_CHANNEL).removesuffix("\n")
        yield kind, body
        at = stop + len(close)


def _named(text: str, family: Family) -> tuple[str, dict]:
    """(name, object) of `call:NAME{...}` and its like."""
    head = _NAMED.match(text)
    if not head:
        raise Refused("rendered-unclear", "a call or a result has no name", "text")
    value, end = _Values(text, QUOTE if family.thinking else "<escape>").read(head.end() - 1)
    if end != len(text):
        raise Refused("rendered-unclear", "a call or a result goes on behind its end", "text")
    return head.group(1), value


class _Values:
    """Values as the templates write them: strings between quote tokens, keys without, no escapes."""

    def __init__(self, text: str, quote: str):
        self.text, self.quote = text, quote
        self.words = {"true": True, "false": False, "null": None, "None": None}

    def read(self, at: int, depth: int = 0) -> tuple[object, int]:
        """(value, end) of the value at `at`. Raises Refused."""
        text = self.text
        if depth > _DEPTH:
            raise Refused("rendered-unclear", "a value is nested very deep", "text")
        if text.startswith(self.quote, at):
            return self._string(at)
        if text.startswith("{", at):
            return self._object(at + 1, depth)
        if text.startswith("[", at):
            return self._list(at + 1, depth)
        for word, value in self.words.items():
            if text.startswith(word, at):
                return value, at + len(word)
        number = _NUMBER.match(text, at)
        if not number:
            raise Refused("rendered-unclear", "a value of a call or a result cannot be read", "text")
        if number.end() - at > _DIGITS:
            raise Refused("rendered-unclear", "a number has very many digits", "text")
        return json.loads(number.group()), number.end()

    def _string(self, at: int) -> tuple[str, int]:
        start = at + len(self.quote)
        end = self.text.find(self.quote, start)
        if end < 0:
            raise Refused("rendered-unclear", "a string never closes", "text")
        return self.text[start:end], end + len(self.quote)

    def _object(self, at: int, depth: int) -> tuple[dict, int]:
        out: dict = {}
        while not self.text.startswith("}", at):
            if out:
                at = self._comma(at)
            if self.text.startswith(self.quote, at):
                key, at = self._string(at)
            else:
                end = self.text.find(":", at)
                key, at = self.text[at:end], end
            if at < 0 or not self.text.startswith(":", at) or key in out:
                raise Refused("rendered-unclear", "the keys of an object cannot be read", "text")
            out[key], at = self.read(at + 1, depth + 1)
        return out, at + 1

    def _list(self, at: int, depth: int) -> tuple[list, int]:
        out: list = []
        while not self.text.startswith("]", at):
            if out:
                at = self._comma(at)
            value, at = self.read(at, depth + 1)
            out.append(value)
        return out, at + 1

    def _comma(self, at: int) -> int:
        if not self.text.startswith(",", at):
            raise Refused("rendered-unclear", "a list or an object never closes", "text")
        return at + 1


def _is_segment(segment: object) -> bool:
    return isinstance(segment, dict) and isinstance(segment.get("text"), str) and isinstance(segment.get("label"), bool)


def _weighed(row: dict, text: str, labels: list[bool], family: Family) -> list[dict]:
    """The messages with weight 0 where their text carries no loss. Raises Refused for loss on a part or elsewhere."""
    at = text.find(family.turn_start)
    loss: dict[int, set[bool]] = {}
    for piece in _pieces(row, family)[1:]:  # without <bos>
        seen = set(labels[at : at + len(piece.text)])
        at += len(piece.text)
        if piece.text == family.turn_end or piece.message is None or not piece.text.strip():
            continue
        if row["messages"][piece.message]["role"] == ASSISTANT:
            loss.setdefault(piece.message, set()).update(seen)
        elif True in seen:
            raise Refused("segments-partial", "loss on a message that is not the assistant's", "segments")
    if any(len(seen) > 1 for seen in loss.values()):
        raise Refused("segments-partial", "loss on a part of an answer", "segments")
    return [
        {**message, "weight": 0} if loss.get(at) == {False} else message for at, message in enumerate(row["messages"])
    ]
