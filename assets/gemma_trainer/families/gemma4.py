"""Gemma 4: system turn, tools and their results inside the model turn, thinking.

Small (E2B, E4B) and large models (12B, 26B-A4B, 31B) differ in the generation prompt only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from gemma_trainer.families import schema
from gemma_trainer.families.family import ASSISTANT_ROLES, Family, Piece, RenderError, new_piece, traps
from gemma_trainer.families.values import MISSING, field, guarded, is_sequence, trim

START, END = "<|turn>", "<turn|>"
PROMPT = "<|turn>model\n"
EMPTY_THOUGHT = "<|channel>thought\n<channel|>"
RESULT = "<|tool_response>"
_MEDIA = {
    "image": "<|image|>",
    "image_url": "<|image|>",
    "audio": "<|audio|>",
    "input_audio": "<|audio|>",
    "video": "<|video|>",
}
_BOS, _PROMPT, _NEWLINE = Piece("<bos>"), Piece(PROMPT), Piece("\n")


@guarded
def render(messages, tools=None, add_generation_prompt=False, empty_thought=False, **options) -> list[Piece]:
    """Options: enable_thinking, preserve_thinking. `empty_thought` is the large models' generation prompt."""
    thinking, preserve = options.get("enable_thinking"), options.get("preserve_thinking")
    pieces = [_BOS]
    add = pieces.append
    system = bool(messages) and messages[0]["role"] in ("system", "developer")
    if thinking or tools or system:
        add(_system_turn(messages[0] if system else None, tools, thinking))
    first = 1 if system else 0
    last_user = _last_user(messages)
    previous = None  # role of the last message that was no tool result
    state = None  # whether the last message ended in a "call" that waits, or in a "result"
    for index in range(first, len(messages)):
        message = messages[index]
        role = message["role"]
        if role == "tool":
            continue
        content = message.get("content")
        state = None
        if role == "user" and len(message) == 2 and content.__class__ is str:  # most messages of most rows
            add(new_piece((f"<|turn>user\n{content.strip()}<turn|>\n", index, False)))
            previous = role
            continue
        spoken = role in ASSISTANT_ROLES
        if not (spoken and previous == "assistant"):
            add(_PROMPT if spoken else Piece(START + role + "\n"))
        previous = role
        if content is None or len(message) > 2:  # more than role and content
            thought = message.get("reasoning") or message.get("reasoning_content")
            calls = message.get("tool_calls")
            if thought and (index > last_user or (preserve and calls)):
                add(Piece("<|channel>thought\n" + thought + "\n<channel|>", index, spoken))
            if calls or message.get("tool_responses"):
                state = _calls_and_results(messages, index, spoken, add)
        if content.__class__ is str:
            text = strip_thinking(content) if spoken else content.strip()
            if text:
                add(new_piece((text, index, spoken)))
        else:
            text = _parts(content, index, spoken, add)
        following = _next_role(messages, index) if index + 1 < len(messages) else None
        if state == "call":
            add(Piece(RESULT, index, spoken))
        elif spoken and following == "assistant":
            pass  # the next message continues this turn
        elif text or following is not None or state != "result":
            add(new_piece((END, index, spoken)))
            add(_NEWLINE)
    if add_generation_prompt:
        pieces.extend(_generation_prompt(state, thinking, empty_thought))
    return pieces


def strip_thinking(text: str) -> str:
    """Answer text as the template keeps it: without `<|channel>...<channel|>`, an open channel to its end."""
    if "channel" not in text:
        return text.strip()
    return "".join([part.split("<|channel>")[0] for part in text.split("<channel|>")]).strip()


def _system_turn(message: dict | None, tools, thinking) -> Piece:
    content = message.get("content") if message else None
    if isinstance(content, str):
        text = content.strip()
    elif is_sequence(content):
        text = "".join([trim(field(item, "text")) + " " for item in content])
    else:
        text = ""
    declared = "".join([f"<|tool>{schema.declaration(tool)}<tool|>" for tool in tools or ()])
    return Piece(f"<|turn>system\n{'<|think|>' + chr(10) if thinking else ''}{text}{declared}<turn|>\n")


def _last_user(messages: list[dict]) -> int:
    for index in range(len(messages) - 1, -1, -1):
        if messages[index]["role"] == "user":
            return index
    return -1


def _next_role(messages: list[dict], index: int) -> str | None:
    """Role of the next message that is no tool result."""
    for position in range(index + 1, len(messages)):
        role = messages[position]["role"]
        if role != "tool":
            return role
    return None


def _parts(content: object, index: int, spoken: bool, add) -> bool:
    """Add the parts of a list content; true when they hold anything. Media placeholders carry no loss."""
    if not is_sequence(content):
        return False
    said = False
    for item in content:
        kind = item.get("type")
        if kind == "text":
            text = item.get("text", MISSING)
            text = strip_thinking(text) if spoken else trim(text)
            if text:
                add(Piece(text, index, spoken))
        elif kind in _MEDIA:
            text = _MEDIA[kind]
            add(Piece(text, index))
        else:
            continue
        said = said or bool(text)
    return said


def _calls_and_results(messages: list[dict], index: int, spoken: bool, add) -> str:
    """Add the tool calls of a message and the results that belong to it; returns how the message ends."""
    message = messages[index]
    calls = message.get("tool_calls")
    for call in calls or ():
        add(Piece(f"<|tool_call>{_call(call['function'], index)}<tool_call|>", index, spoken))
    if responses := message.get("tool_responses"):
        results = [(index, _response(field(r, "name") or "unknown", field(r, "response"))) for r in responses]
    else:
        results = _tool_messages(messages, index, calls)
    stop = spoken and bool(calls)  # the model stops on the first mark after its calls, the caller writes the rest
    for source, text in results:
        add(Piece(RESULT, index, stop))
        add(Piece(text, source))
        stop = False
    return "result" if results else "call"


def _call(function: dict, index: int) -> str:
    arguments = function.get("arguments", MISSING)
    if isinstance(arguments, Mapping):
        text = schema.pairs(arguments)
    elif arguments is None:
        text = ""
    else:
        where = f"messages[{index}].tool_calls"
        raise RenderError("template-refused", "the arguments of a tool call must be an object, not text", where)
    return "call:" + function["name"] + "{" + text + "}"


def _response(name: str, result: object) -> str:
    """A result without its opening mark."""
    if isinstance(result, Mapping):
        return "response:" + name + "{" + schema.pairs(result) + "}<tool_response|>"
    return "response:" + name + "{value:" + schema.value(result) + "}<tool_response|>"


def _tool_messages(messages: list[dict], index: int, calls: list[dict]) -> list[tuple[int, str]]:
    """The results in the tool messages right behind message `index`, each with the index of its message."""
    results = []
    for source in range(index + 1, len(messages)):
        message = messages[source]
        if message["role"] != "tool":
            break
        name = message.get("name") or "unknown"
        for call in calls:
            if call.get("id") == message.get("tool_call_id"):
                name = call["function"]["name"]
        body, media = message.get("content"), ""
        if not isinstance(body, str) and is_sequence(body):
            media = "".join([_MEDIA.get(part.get("type"), "") for part in body])
            body = "".join([part.get("text") for part in body if part.get("type") == "text"])
        results.append((source, _response(name, body) + media))
    return results


def _generation_prompt(state: str | None, thinking, empty_thought: bool) -> list[Piece]:
    """Nothing after a call, which waits for its result, and after a result only an open thought."""
    if state is None:
        return [Piece(PROMPT + EMPTY_THOUGHT) if empty_thought and not thinking else _PROMPT]
    return [Piece("<|channel>thought\n")] if state == "result" and thinking else []


FAMILY = Family(
    name="gemma4",
    title="Gemma 4 (E2B, E4B)",
    render=render,
    turn_start=START,
    turn_end=END,
    stop_tokens=(END, RESULT, "<eos>"),
    control_tokens=frozenset({
        "<pad>", "<eos>", "<bos>", "<unk>", "<mask>", START, END, "<|think|>", "<|channel>", "<channel|>",
        "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", RESULT, "<tool_response|>", schema.QUOTE,
        "<|image>", "<|image|>", "<image|>", "<|audio>", "<|audio|>", "<audio|>", "<|video|>",
    }),
    placeholders={"image": "<|image|>", "audio": "<|audio|>", "video": "<|video|>"},
    system="turn",
    alternates=False,
    tools=True,
    thinking=True,
    context=131_072,
    model_types=("gemma4", "gemma4_text"),
    templates={
        "0a2c8073c878ab1da004bee933a998606537bbb62016310352c7285c3f01c5b5": "r5",
        "2f1b4d75d067bae3fe44e676721c7f077d243bc007156cb9c2f8b5836613d082": "r4",
        "33204f1acb5bd0002713e16a593847f24ceeafe711ed88bda2a352dc996a3373": "r3b",
        "781d10940fbc44be40064b5d43a056fc486c84ceaa55538226368b57314132bf": "r3",
        "55572b8d3c8342044e25874c73fe5234b661fa0a57a57f6ef75b58e03d7d959a": "r1",
        "8ccddef8d03d293778f6bc7f1a1df3d746e8cdb1c984b998f3917d0e2893a034": "plain",
        "a7d04445b288ea4373f8de070ffa7ca037e01ae76b5c524e4a0056c808fc2b77": "plain",  # of earlier results, without tools
    },
    current_revision="r5",
    plain="gemma4.jinja",
    call=("<|tool_call>", "<tool_call|>"),
    result=(RESULT, "<tool_response|>"),
    thought=("<|channel>", "<channel|>"),
    traps=traps(
        "no-bos", "any-role", "glued-answers", "thought-stripped", "thought-last-turn", "text-after-result",
        "eos-is-not-the-end",
    ),
)  # fmt: skip

LARGE = replace(
    FAMILY,
    name="gemma4-large",
    title="Gemma 4 (12B, 26B-A4B, 31B)",
    render=partial(render, empty_thought=True),
    context=262_144,
    model_types=("gemma4", "gemma4_text", "gemma4_unified"),
    templates={
        "ae53464bf3be25802b3a5b37def7fd89667067d7577049b3b2d74c4d8de4c6d4": "r5",
        "85a08664d16d8f3be4416c92427b3ac10df1024ac566cc0b4bc3bab409393f98": "r3",
        "98fbc317b82fb8ef99fe87331384463ad451a1498f34250135f60fd62be00a36": "plain",
        "d11579aa3b3628dd4ba83aea3e221de6bec91e909d110c92e0bb8289d96a93c5": "plain",  # as above
    },
    plain="gemma4_large.jinja",
    traps={**FAMILY.traps, **traps("empty-thought")},
)
