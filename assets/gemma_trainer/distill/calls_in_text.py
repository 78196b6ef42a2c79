"""Tool calls that a teacher wrote as text, because its server has no parser for them."""

from __future__ import annotations

import ast
import re

from gemma_trainer.data.layouts.rendered import parse_rendered
from gemma_trainer.data.layouts.tools import canonical_calls
from gemma_trainer.data.notes import Notes, Refused
from gemma_trainer.distill.lenient import find_values
from gemma_trainer.families.catalogue import get_family

_MARKED = re.compile(
    r"<tool_call>(.*?)(?:</tool_call>|\Z)"  # Hermes, Qwen
    r"|<function=([\w.-]+)>(.*?)(?:</function>|\Z)"  # Llama
    r"|\[TOOL_CALLS\](.*)\Z",  # Mistral
    re.DOTALL,
)
_GEMMA = re.compile(r"<\|tool_call>.*<tool_call\|>|<start_function_call>.*<end_function_call>", re.DOTALL)
_FENCED = re.compile(r"```(?:json|tool_code|tool_call|python)?\s*\n?(.*?)\n?```", re.DOTALL)
_WRAPPERS = ("tool_calls", "function_call", "tool_call", "function")


def calls_in_text(content: str, tools: list[dict] | None) -> tuple[str, list[dict] | None]:
    """(what else was said, canonical calls or None). Without marks around them calls count only when the whole text
    is nothing else and names declared tools."""
    names = {tool["function"]["name"] for tool in tools or ()}
    if not names:
        return content, None
    if found := _GEMMA.search(content):
        calls = _gemma_calls(found[0])
        return (_rest(content, _GEMMA), calls) if calls else (content, None)
    marked = [call for found in _MARKED.finditer(content) for call in _marked_calls(found)]
    if marked:
        return _rest(content, _MARKED), _canonical(marked)
    text = content.strip()
    fenced = _FENCED.fullmatch(text)
    text = fenced[1].strip() if fenced else text
    calls = _json_calls(text) if text[:1] in ("{", "[") and text[-1:] in ("}", "]") else []
    calls = calls or _python_calls(text)
    if calls and all(call["function"]["name"] in names for call in calls):
        return "", _canonical(calls)
    return content, None


def _canonical(calls: list[dict]) -> list[dict]:
    """Arguments as objects; calls whose arguments cannot be read stay as they are, for the gate to refuse."""
    try:
        return canonical_calls(calls, "tool_calls", Notes())
    except Refused:
        return calls


def _rest(content: str, marks: re.Pattern[str]) -> str:
    return marks.sub("", content).strip()


def _call(name: object, arguments: object) -> dict:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def _marked_calls(found: re.Match[str]) -> list[dict]:
    if found[2]:
        values = find_values(found[3]).values
        return [_call(found[2], values[0] if values else found[3])]
    return _json_calls(found[1] or found[4] or "")


def _json_calls(text: str) -> list[dict]:
    return [call for value in find_values(text).values for call in _calls_of(value)]


def _calls_of(value: object) -> list[dict]:
    if isinstance(value, list):
        return [call for item in value for call in _calls_of(item)]
    if not isinstance(value, dict):
        return []
    arguments = next((value[key] for key in ("arguments", "parameters", "args") if key in value), None)
    if isinstance(value.get("name"), str) and arguments is not None:
        return [_call(value["name"], arguments)]
    return [call for key in _WRAPPERS for call in _calls_of(value.get(key))]


def _python_calls(text: str) -> list[dict]:
    """`[get_tide(station="North"), ...]` or `print(get_tide(...))`, read without being run."""
    try:
        tree = ast.parse(text, mode="eval").body
        return [_python_call(node) for node in (tree.elts if isinstance(tree, ast.List) else [tree])]
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return []


def _python_call(node: ast.AST) -> dict:
    if not isinstance(node, ast.Call):
        raise ValueError("no call")
    if isinstance(node.func, ast.Name) and node.func.id == "print" and len(node.args) == 1:
        return _python_call(node.args[0])
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("arguments without names")
    return _call(ast.unparse(node.func), {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords})


def _gemma_calls(text: str) -> list[dict]:
    """Calls in the words of Gemma's own templates."""
    family = get_family("gemma4" if text.startswith("<|") else "functiongemma")
    turn = f"{family.turn_start}user\na{family.turn_end}\n{family.turn_start}model\n{text}{family.result[0]}"
    try:
        row = parse_rendered(turn, family, Notes())
    except Refused:
        return []
    return [call for message in row["messages"] for call in message.get("tool_calls", ())]
