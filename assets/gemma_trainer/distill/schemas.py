"""JSON Schemas of answers and arguments, with faults in words that a teacher can act on."""

from __future__ import annotations

import json
from pathlib import Path

from gemma_trainer.data.reading.parse import parse_text
from gemma_trainer.rows.problems import USAGE, Failure, missing

_SHOWN = 200  # characters of a fault
_PROBES = ({}, [], "", 0, True, None)  # a value of each type


class Validator:
    """A schema that values are held against."""

    def __init__(self, schema: dict, checker):
        self.schema, self._checker = schema, checker

    def fault(self, value: object) -> str | None:
        """What is wrong with the value, and where; None when it fits. Raises Failure (exit 2) for a $ref to nothing."""
        from jsonschema.exceptions import best_match
        from referencing.exceptions import Unresolvable

        try:
            error = best_match(self._checker.iter_errors(value))
        except RecursionError:
            return "nested too deep"
        except Unresolvable as broken:
            text = f"the schema has a $ref to nothing: {broken}"[:_SHOWN]
            raise Failure(USAGE, "schema-broken", text) from None
        if error is None:
            return None
        where = error.json_path.removeprefix("$").lstrip(".")
        return f"{where + ': ' if where else ''}{error.message[:_SHOWN]}"


def validator(schema: dict, what: str) -> Validator:
    """Raises Failure: exit 2 for a schema that is none or points outside of itself, exit 4 without jsonschema."""
    try:
        from jsonschema.exceptions import SchemaError
        from jsonschema.validators import Draft202012Validator, validator_for
        from referencing import Registry
    except ImportError:
        raise missing("jsonschema", "checking answers against a schema", extra="distill") from None
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise Failure(USAGE, "schema-broken", f"{what} are no JSON Schema: {error.message[:_SHOWN]}") from None
    if any(not link.startswith("#") for link in _links(schema)):
        raise Failure(USAGE, "schema-broken", f"{what} point to another file or address with $ref")
    made = Validator(schema, kind(schema, registry=Registry()))  # an empty registry: nothing is fetched
    if any(made.fault(probe) == "nested too deep" for probe in _PROBES):
        raise Failure(USAGE, "schema-broken", f"{what} lead back to themselves with $ref, without end")
    return made


def read_schema(path: Path) -> Validator:
    """The schema of --schema. Raises Failure (exit 2)."""
    try:
        text = path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise Failure(USAGE, "file-not-found", f"{path} does not exist", file=str(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(USAGE, "schema-broken", f"{path} cannot be read: {error}", file=str(path)) from None
    schema, fault = parse_text(text)
    if fault or not isinstance(schema, dict):
        raise Failure(USAGE, "schema-broken", f"{path}: {fault.message if fault else 'no object'}", file=str(path))
    return validator(schema, f"the contents of {path}")


def with_schema(messages: list[dict], schema: dict) -> list[dict]:
    """The messages with the form of the answer told in words, for servers that do not take it beside them."""
    shown = json.dumps(schema, ensure_ascii=False)
    told = f"Answer with JSON only, nothing around it, that follows this JSON Schema:\n{shown}"
    *before, last = messages
    if isinstance(last["content"], list):
        return [*before, {**last, "content": [*last["content"], {"type": "text", "text": f"\n\n{told}"}]}]
    return [*before, {**last, "content": f"{last['content']}\n\n{told}"}]


def _links(schema: object) -> list[str]:
    """All $ref of a schema."""
    if isinstance(schema, list):
        return [link for item in schema for link in _links(item)]
    if not isinstance(schema, dict):
        return []
    own = [schema[key] for key in ("$ref", "$dynamicRef") if isinstance(schema.get(key), str)]
    return own + [link for item in schema.values() for link in _links(item)]
