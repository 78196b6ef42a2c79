"""What a JSON Schema of assets/schemas says about a row that was refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

SCHEMAS = Path(__file__).parents[3] / "schemas"
# Codes of faults that a schema sees too.
EXPLAINED = frozenset({
    "messages-type", "messages-empty", "role-missing", "role-unknown", "content-missing", "content-type", "part-invalid",
    "weight-invalid", "template-kwargs-invalid", "tools-invalid", "tool-call-invalid", "arguments-invalid", "answer-role",
    "target-missing", "margin-invalid",
})  # fmt: skip
_ROWS = {"sft": "sft-row", "dpo": "preference-row", "rm": "preference-row", "prompts": "prompt-row"}
_KINDS = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
_WANTED = {"array": "a list", "object": "an object", "string": "text", "number": "a number", "integer": "a whole number",
           "boolean": "true or false", "null": "null"}  # fmt: skip
_CLIP = 40  # characters of a value that a message may show


def explain(value: object, task: str, path: str | None = None) -> str | None:
    """Where a raw row first differs from the schema of canonical rows of `task`, in plain words.

    `path` (such as `messages[1].content`) asks about that place and what lies below it. None when the row fits, when
    it is of a layout that has no schema, or without the jsonschema package.
    """
    validator = _validator(_ROWS.get(task, "sft-row"))
    if validator is None or not isinstance(value, dict):
        return None
    from jsonschema.exceptions import best_match

    errors = [error for error in validator.iter_errors(value) if path is None or _is_at(error, path)]
    # An unknown role of the only answer is the plainer fault.
    error = best_match([error for error in errors if error.validator != "contains"] or errors)
    return None if error is None else f"{_path(error.absolute_path) or 'the row'}: {_told(error)}"


@lru_cache
def _validator(name: str):
    try:
        from jsonschema import Draft202012Validator
        from referencing import Registry, Resource
    except ImportError:
        return None
    documents = [json.loads(file.read_text("utf-8")) for file in sorted(SCHEMAS.glob("*.json"))]
    named = [(schema["$id"], Resource.from_contents(schema)) for schema in documents if "$id" in schema]
    return Draft202012Validator({"$ref": f"{name}.json"}, registry=Registry().with_resources(named))


def _is_at(error, path: str) -> bool:
    where = _path(error.absolute_path)
    missing = re.match(r"'(\w+)'", error.message) if error.validator == "required" else None
    if missing:
        where = f"{where}.{missing[1]}".lstrip(".")
    return where == path or where.startswith((f"{path}.", f"{path}["))


def _path(steps: Iterable[str | int]) -> str:
    """`messages[1].content`, as the paths of problems are written."""
    words = (f"[{step}]" if isinstance(step, int) else f".{str(step)[:_CLIP]}" for step in steps)
    return "".join(words).lstrip(".")


def _told(error) -> str:
    """The error without the text of the sample."""
    value, rule = error.instance, error.validator_value
    if error.validator == "required":
        return f"`{re.sub(chr(39), '', error.message.split(' is a required')[0])}` is missing"
    if error.validator == "type":
        kinds = [rule] if isinstance(rule, str) else [kind for kind in rule if kind != "null"]
        wanted = [_WANTED[kind] for kind in kinds[:2]]  # an object as content is for tool results alone
        return f"{_kind(value)} is {f'neither {wanted[0]} nor {wanted[1]}' if wanted[1:] else f'not {wanted[0]}'}"
    if error.validator in ("enum", "const"):
        return f"{_shown(value)} is not {_choice([rule] if error.validator == 'const' else rule)}"
    if error.validator in ("minItems", "minLength"):
        return "the list is empty" if error.validator == "minItems" else "the text is empty"
    if error.validator == "contains":
        return "no message is the assistant's"
    if error.validator == "anyOf":
        return f"it has none of {', '.join(name for choice in rule for name in choice.get('required', ()))}"
    return f"{_shown(value)} is not taken here"


def _choice(values: list) -> str:
    return " or ".join(str(value) for value in values if value is not None)


def _kind(value: object) -> str:
    """The kind of a value in words, a number as itself."""
    return _KINDS.get(type(value)) or str(value)[:_CLIP]


def _shown(value: object) -> str:
    """A value that is one short word, of others the kind."""
    return f"`{value}`" if isinstance(value, str) and re.fullmatch(r"\S{1,30}", value) else _kind(value)
