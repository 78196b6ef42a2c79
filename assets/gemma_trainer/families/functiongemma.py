"""FunctionGemma (270M): developer turn, tool calls and results between marks of its own, free order of roles.

Its `<start_function_response>` is what `<|tool_response>` is in Gemma 4: the model writes it after its calls
and generation stops there. It is therefore trained when it follows a call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gemma_trainer.families import schema
from gemma_trainer.families.family import ASSISTANT_ROLES, STANDARD_NAMES, Family, Piece, RenderError, traps
from gemma_trainer.families.gemma1 import END, PROMPT, START, TURN_TOKENS
from gemma_trainer.families.values import dictsort, field, guarded, is_sequence, trim, upper

QUOTE = "<escape>"
DECLARE, DECLARED = "<start_function_declaration>", "<end_function_declaration>"
RESULT, RESULT_END = "<start_function_response>", "<end_function_response>"
_BOS, _PROMPT, _NEWLINE = Piece("<bos>"), Piece(PROMPT), Piece("\n")
# The template prints arguments that are text on a line of its own block, indentation included.
_TEXT_ARGUMENTS_INDENT = " " * 20


@guarded
def render(messages, tools=None, add_generation_prompt=False, **_) -> list[Piece]:
    pieces = [_BOS]
    add = pieces.append
    first = 1 if messages[0]["role"] in ("system", "developer") else 0
    if tools or first:
        add(_developer_turn(messages[0] if first else None, tools))
    state = None  # what the last message ended with: "content", "call" or "result"
    for index in range(first, len(messages)):
        message = messages[index]
        role = message["role"]
        if role == "tool":
            if message.get("content"):
                _results(message, index, state == "call" and _spoke(messages, index), add)
            state = "result"
            continue
        spoken = role in ASSISTANT_ROLES
        if state != "result":
            add(_PROMPT if spoken else Piece(START + role + "\n"))
        state = None
        if message.get("content") is not None:
            _content(message["content"], index, spoken, add)
            state = "content"
        calls = message.get("tool_calls")
        if calls:
            for call in calls:
                add(Piece(f"<start_function_call>{_call(call['function'])}<end_function_call>", index, spoken))
            if index == len(messages) - 1:
                add(Piece(RESULT, index, spoken))
            state = "call"
        else:
            add(Piece(END, index, spoken))
            add(_NEWLINE)
    if add_generation_prompt and state != "result":
        add(_PROMPT)
    return pieces


def _spoke(messages: list[dict], index: int) -> bool:
    return messages[index - 1]["role"] in ASSISTANT_ROLES


def _developer_turn(message: dict | None, tools) -> Piece:
    content = message.get("content") if message else None
    if isinstance(content, str):
        text = content.strip()
    elif is_sequence(content):
        text = "".join([trim(field(item, "text")) for item in content if field(item, "type") == "text"])
    else:
        text = ""
    declared = "".join([DECLARE + schema.declaration(tool, _parameters, QUOTE) + DECLARED for tool in tools or ()])
    return Piece(f"{START}developer\n{text}{declared}{END}\n")


def _parameters(properties: Mapping) -> str:
    entries = dictsort(properties)
    return ",".join([f"{key}:{{{_parameter(item)}}}" for key, item in entries if key not in STANDARD_NAMES])


def _parameter(item: object) -> str:
    kind = upper(field(item, "type"))
    out = [f"description:{schema.quoted(field(item, 'description'), QUOTE)}"]
    if kind == "STRING" and field(item, "enum"):
        out.append("enum:" + _value(item["enum"], quote_keys=True))
    elif kind == "OBJECT":
        properties = item.get("properties")
        out.append("properties:{" + _parameters(properties if isinstance(properties, Mapping) else item) + "}")
        if field(item, "required"):
            out.append(schema.names(item["required"], QUOTE))
    elif kind == "ARRAY" and (inner := schema.array_items(item, _parameters, QUOTE, "None")):
        out.append(inner)
    out.append(f"type:{schema.quoted(kind, QUOTE)}")
    return ",".join(out)


def _value(item: object, quote_keys: bool = False) -> str:
    return schema.value(item, quote_keys, QUOTE, "None")


def _content(content: object, index: int, spoken: bool, add) -> None:
    if isinstance(content, str):
        if text := content.strip():
            add(Piece(text, index, spoken))
        return
    if not is_sequence(content):
        where = f"messages[{index}].content"
        raise RenderError("template-refused", "the template takes text or parts only", where)
    for item in content:
        kind = field(item, "type")
        if kind == "image":
            add(Piece("<start_of_image>", index))
        elif kind == "text" and (text := trim(field(item, "text"))):
            add(Piece(text, index, spoken))


def _call(function: dict) -> str:
    arguments = function.get("arguments")
    text = ""
    if isinstance(arguments, Mapping):
        text = schema.pairs(arguments, QUOTE, "None")
    elif isinstance(arguments, str):
        text = _TEXT_ARGUMENTS_INDENT + arguments
    return "call:" + function["name"] + "{" + text + "}"


def _results(message: dict, index: int, stop: bool, add) -> None:
    """Add the results of a tool message; `stop` when the first mark is the one the model stopped on."""
    for text in _result_texts(message, index):
        add(Piece(RESULT, index - 1 if stop else index, stop))
        add(Piece(text + RESULT_END, index))
        stop = False


def _result_texts(message: dict, index: int) -> list[str]:
    content = message["content"]
    if isinstance(content, str):
        if "name" not in message:
            raise RenderError("template-refused", "a tool message needs `name`", f"messages[{index}].name")
        return [f"response:{trim(message['name'])}{{value:{_value(content)}}}"]
    if isinstance(content, Mapping):
        return [_structured(content, message, index)]
    if not (is_sequence(content) and isinstance(content, Iterable)) or not all(isinstance(i, Mapping) for i in content):
        where = f"messages[{index}].content"
        raise RenderError("template-refused", "a tool result must be text, an object or a list of objects", where)
    return [_structured(item, message, index) for item in content]


def _structured(item: Mapping, message: dict, index: int) -> str:
    if "name" in item and "response" in item:
        name, result = item["name"], item["response"]
    elif "name" in message:
        name, result = message["name"], item
    else:
        raise RenderError("template-refused", "a tool message needs `name`", f"messages[{index}].name")
    return f"response:{trim(name)}{{{schema.pairs(result, QUOTE, 'None')}}}"


FAMILY = Family(
    name="functiongemma",
    title="FunctionGemma",
    render=render,
    turn_start=START,
    turn_end=END,
    stop_tokens=(END, RESULT, "<eos>"),
    control_tokens=TURN_TOKENS
    | {DECLARE, DECLARED, "<start_function_call>", "<end_function_call>", RESULT, RESULT_END, QUOTE}
    | {"<start_of_image>", "<end_of_image>", "<image_soft_token>"},
    placeholders={"image": "<start_of_image>"},
    system="turn",
    alternates=False,
    tools=True,
    thinking=False,
    context=32_768,
    model_types=("gemma3_text",),
    templates={
        "db61fb01017bd82401d3ffca4f8e066cd56ff6d38d2a30c4058770c0bf7ab49b": "r1",
        "cc2d6545377f56eadfd1e31e4ea99a6bea33911ae38a32267ca4bcb660a705cc": "plain",
        "f9b07005659b7c97ef7afb17cca52cf12a008ef94f438434502049e2b01af73c": "plain",  # of earlier results
    },
    current_revision="r1",
    plain="functiongemma.jinja",
    call=("<start_function_call>", "<end_function_call>"),
    result=(RESULT, RESULT_END),
    traps=traps("double-bos", "any-role", "eos-is-not-the-end", "standard-names-lost", "empty-result-lost"),
)  # fmt: skip
